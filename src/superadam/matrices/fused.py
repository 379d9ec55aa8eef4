r"""torch's fused kernels, for the matrices whose steps they take.

Line 11 with τ = 0 is the average of Adam's and SGD's kernels for $\beta_1 = 1 - \alpha_t$; Adam divides that average by
$1 - \beta_1^t$, which is 1 at an infinite step count. Adam's update is then that of case 1,

$$x \leftarrow (1 - \eta w)\,x - \eta\, g_t / (\sqrt{v_t / s^2} + \lambda)
    = \Bigl(1 - \eta s \frac{w}{s}\Bigr) x - \eta s\, g_t / (\sqrt{v_t} + \lambda s),
  \qquad \eta = \gamma\mu_t,\quad s^2 = 1 - \beta^t \text{ or } 1$$
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version  # the kernels do not tell autograd what they write into

from superadam.bucket import Bucket

__all__ = ["adagrad", "adam", "sgd"]

# Typed by their first overloads, which take a tensor as lr.
_adam: Any = torch._fused_adam_
_adamw: Any = torch._fused_adamw_
_sgd: Any = torch._fused_sgd_
_adagrad: Any = torch._fused_adagrad_


def _fit(s: Bucket, *names: str, devices: tuple[str, ...] = ("cpu",)) -> bool:
    """Return whether parameters, gradients and state lie alike in memory, in the dtype of the state: kernels do not
    look."""
    first = s.x.tensors[0]
    grads: Any = s.grads
    if s.wide or s.sharding is not None or first.device.type not in devices:
        return False
    lists = [s.x.tensors, grads, *(getattr(s, name).tensors for name in names)]
    if not all([g.dtype is first.dtype for g in grads]):
        return False
    if all([all(map(Tensor.is_contiguous, tensors)) for tensors in lists]):
        return True
    return all(
        row[0].is_contiguous(memory_format=torch.channels_last) and len({t.stride() for t in row}) == 1
        if row[0].dim() == 4 and not row[0].is_contiguous()
        else all(t.is_contiguous() for t in row)
        for row in zip(*lists, strict=True)
    )


def _steps(s: Bucket, value: float) -> list[Tensor]:
    """Return the step counts that a kernel asks for."""
    return [s.x.tensors[0].new_full((), value, dtype=torch.float32)] * len(s.params)


def _decayed(s: Bucket) -> Any:
    """Take the decoupled weight decay, which these kernels do not have, and return η."""
    eta = s.gamma * s.mu
    if s.decay != 0:
        s.x.mul_(1 - eta * s.decay)
    return eta


def adam(s: Bucket, beta: float, lam: float, bias_correction: bool, v_max: str | None = None) -> bool:
    """Bring g_t and v_t up to date, and take x to (1 - ηw) x - η H_t⁻¹ g_t; on a set of intervals clip it."""
    names = ("g", "v") if v_max is None else ("g", "v", v_max)
    on_set = not s.free
    if (
        not 0 <= 1 - s.alpha < 1
        or (on_set and (s.mu != 1 or lam == 0 or not hasattr(s.constraint, "clip_")))
        or not _fit(s, *names, devices=("cpu", "cuda"))
    ):
        return False  # the kernel's 1 - β₁^∞ is 1 for these β₁ only; x̃ is x_{t+1} for μ = 1, and y finite for λ > 0
    scale = math.sqrt(1 - beta**s.t) if bias_correction else 1.0
    kernel = _adamw if s.group["decoupled_weight_decay"] else _adam
    kernel(
        s.x.tensors,
        s.grads,
        s.g.tensors,
        s.v.tensors,
        [] if v_max is None else getattr(s, v_max).tensors,
        _steps(s, math.inf),
        lr=s.gamma * s.mu * scale,
        beta1=1 - s.alpha,
        beta2=beta,
        weight_decay=s.decay / scale + s.decay_in_gradient,
        eps=lam * scale,
        amsgrad=v_max is not None,
        maximize=s.group["maximize"],
    )
    if on_set:
        for x in s.x:
            s.constraint.clip_(x)
    increment_version(s.params)
    return True


def adagrad(s: Bucket, lam: float, scale: float) -> bool:
    """Take a step of AdaGrad without momentum."""
    if not s.free or not _fit(s, "g", "v"):
        return False
    grads: Any = s.grads
    g = s.g.tensors  # becomes the gradient
    torch._foreach_copy_(g, grads)
    if s.group["maximize"]:
        torch._foreach_neg_(g)
    if s.decay_in_gradient != 0:
        torch._foreach_add_(g, s.x.tensors, alpha=s.decay_in_gradient)
    eta = _decayed(s)
    _adagrad(
        s.x.tensors,
        s.grads,
        s.v.tensors,
        _steps(s, 1.0),
        lr=eta * scale,
        lr_decay=0.0,
        weight_decay=s.decay_in_gradient,
        eps=lam * scale,
        maximize=s.group["maximize"],
    )
    increment_version(s.params)
    return True


def sgd(s: Bucket, b: float) -> bool:
    """Take a step with H_t = b I."""
    if not s.free or not _fit(s, "g"):
        return False
    eta = _decayed(s)
    _sgd(
        s.x.tensors,
        s.grads,
        s.g.tensors,
        weight_decay=s.decay_in_gradient,
        momentum=1 - s.alpha or 0.5,  # without effect in a first step, but 0 would leave no buffer
        lr=float(eta / b),
        dampening=1 - s.alpha,
        nesterov=False,
        maximize=s.group["maximize"],
        is_first_step=s.alpha == 1,
    )
    increment_version(s.params)
    return True

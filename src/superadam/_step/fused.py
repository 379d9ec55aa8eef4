r"""torch's own fused kernels, for the compositions that coincide with one of them.

Line 11 with τ = 0 is the average of Adam's and SGD's kernels for $\beta_1 = 1 - \alpha_t$; Adam's correction of that
average is no correction at an infinite step count. What is left of Adam's update is that of case 1,

$$x \leftarrow (1 - \eta w)\,x - \eta\, g_t / (\sqrt{v_t / s^2} + \lambda)
    = \Bigl(1 - \eta s \frac{w}{s}\Bigr) x - \eta s\, g_t / (\sqrt{v_t} + \lambda s),
  \qquad \eta = \gamma\mu_t,\quad s^2 = 1 - \beta^t \text{ or } 1$$
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.graph import increment_version  # the kernels do not tell autograd what they write into

from superadam._step.tensors import Scalar
from superadam._step.tiles import aligned, elementwise
from superadam._step.view import Chunk, decoupled_decay
from superadam.estimators import Recursive
from superadam.matrices import AccumulatedNorm, AdaGrad, AMSGrad, BeliefNorm, GradientNorm, Identity, SecondMoment
from superadam.schedules import Constant, Schedule

__all__ = ["adagrad", "adam", "kernel_for", "kernel_of", "sgd"]

# Typed by their first overloads, which take a tensor as lr.
_adam: Any = torch._fused_adam_
_adamw: Any = torch._fused_adamw_
_sgd: Any = torch._fused_sgd_
_adagrad: Any = torch._fused_adagrad_

# Where a kernel is used. On a GPU, lists of tensors do almost as well for the others, and SGD's cannot be checked here.
DEVICES = {"adam": {"cpu", "cuda"}, "adagrad": {"cpu"}, "sgd": {"cpu"}}


def kernel_for(parts: Any, options: dict[str, Any]) -> str | None:
    """The kernel that a composition coincides with, if there is one: "adam", "adagrad" or "sgd"."""
    estimator, matrix, schedule = parts.estimator, parts.matrix, parts.schedule
    if type(estimator) is not Recursive or estimator.tau > 0 or type(schedule).weight_of is not Schedule.weight_of:
        return None
    if options["clip"] is not None or options["capturable"] or options["differentiable"] or options["foreach"]:
        return None
    free = parts.constraint is None and parts.penalty is None
    if type(matrix) is SecondMoment or (type(matrix) is AMSGrad and matrix.power == 0.5):
        return "adam"
    if type(matrix) is AdaGrad and free and type(schedule) is Constant and schedule.alpha == schedule.first == 1:
        return "adagrad"
    if type(matrix) in (Identity, GradientNorm, BeliefNorm, AccumulatedNorm) and free:
        return "sgd"
    return None


def kernel_of(c: Chunk) -> str | None:
    """The kernel that runs a chunk, if one takes its tensors."""
    kernel = kernel_for(c, c.group) if c.group["fused"] is not False else None
    if c.group["compile"] and (c.constraint is not None or c.penalty is not None) and elementwise(c):
        return None  # a kernel that takes line 9 in is faster
    if kernel is None or not aligned(c):
        return None
    if kernel == "adam" and not 0 <= 1 - cast(float, c.alpha) < 1:
        return None  # its correction at an infinite step count, 1 - β₁^∞, is 1 for these β₁ only
    devices = {t.device.type for t in (c.params[0], *c.scalars.values())}
    return kernel if devices <= DEVICES[kernel] else None


def _steps(c: Chunk, value: float) -> list[Tensor]:
    """A step count for every tensor."""
    return [c.params[0].new_full((), value, dtype=torch.float32)] * len(c.params)


def _there(c: Chunk, eta: Scalar) -> Scalar:
    """η, where the parameters are."""
    return eta.to(c.params[0].device) if isinstance(eta, Tensor) else eta


def _in_gradient(c: Chunk) -> float:
    return float(c.group["weight_decay"]) - decoupled_decay(c)


def adam(c: Chunk, x: list[Tensor], eta: Scalar) -> None:
    """Case 1 and AMSGrad: bring g_t and H_t up to date, and take x to (1 - ηw) x - η H_t⁻¹ g_t."""
    H: Any = c.matrix
    s = math.sqrt(1 - H.beta**c.t) if H.bias_correction else 1.0
    amsgrad = isinstance(H, AMSGrad)
    kernel = _adamw if c.group["decoupled_weight_decay"] else _adam
    kernel(
        x,
        c.grads,
        c.all("g"),
        c.all("v"),
        c.all("v_max") if amsgrad else [],
        _steps(c, math.inf),
        lr=_there(c, eta) * s,
        beta1=1 - c.alpha,
        beta2=H.beta,
        weight_decay=decoupled_decay(c) / s + _in_gradient(c),
        eps=H.lam * s,
        amsgrad=amsgrad,
        maximize=c.group["maximize"],
    )
    increment_version(x)


def adagrad(c: Chunk, eta: Scalar) -> None:
    """AdaGrad without momentum: lines 11, 4, 9 and 10."""
    H: Any = c.matrix
    s, eta = math.sqrt(c.t) if H.mean else 1.0, _there(c, eta)
    g = c.all("g")  # becomes `c.grad`, which would be as large as all parameters together
    torch._foreach_copy_(g, cast(list[Tensor], c.grads))
    if c.group["maximize"]:
        torch._foreach_neg_(g)
    if _in_gradient(c) != 0:
        torch._foreach_add_(g, c.params, alpha=_in_gradient(c))
    _decay(c, eta)
    _adagrad(
        c.params,
        c.grads,
        c.all("v"),
        _steps(c, 1.0),
        lr=eta * s,
        lr_decay=0.0,
        weight_decay=_in_gradient(c),
        eps=H.lam * s,
        maximize=c.group["maximize"],
    )
    increment_version(c.params)


def sgd(c: Chunk, alpha: float, eta: Scalar) -> None:
    """H_t = b I, of which `reduce` has made b: lines 11, 9 and 10."""
    eta = _there(c, eta)
    rate = eta / c.matrix.H(c)
    _decay(c, eta)
    _sgd(
        c.params,
        c.grads,
        c.all("g"),
        weight_decay=_in_gradient(c),
        momentum=1 - alpha or 0.5,  # not used in a first step, but no buffer is kept without it
        lr=float(rate),
        dampening=1 - alpha,
        nesterov=False,
        maximize=c.group["maximize"],
        is_first_step=alpha == 1,
    )
    increment_version(c.params)


def _decay(c: Chunk, eta: Scalar) -> None:
    if decoupled_decay(c) != 0:
        torch._foreach_mul_(c.params, 1 - eta * decoupled_decay(c))

"""Refuse gradients, parameters and matrices that a step cannot work with, before it changes anything."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from superadam.bucket import Bucket
from superadam.distributed import local, over_ranks, sharding
from superadam.lists import TensorList, dot, real, state_dtype

__all__ = [
    "NotFiniteError", "check_finite", "check_left_out", "check_matrix", "finite",
]  # fmt: skip

# How many steps of a user's matrix are checked: a wrong one is wrong from the start.
WATCHED_STEPS = 3
LOOK_EVERY = 10  # steps after which the host asks a device whether gradients were left out


class NotFiniteError(ValueError):
    """A gradient that was refused, with its batch: nothing has changed, and the next batch can follow.

    >>> from superadam import SuperAdam, NotFiniteError
    >>> x = torch.ones(2, requires_grad=True)
    >>> opt = SuperAdam([x], constraint="Simplex")
    >>> x.grad = torch.tensor([float("nan"), 0.0])
    >>> try:
    ...     opt.step()
    ... except NotFiniteError:
    ...     print("dropped")
    dropped
    """


def waits(x: Tensor) -> bool:
    """Return whether the host would have to wait for the value of a tensor."""
    return x.device.type != "cpu"


def check_finite(plans: Iterable[Any], name: Callable[[Tensor], str]) -> None:
    """Refuse gradients that are not finite, or whose squares are not, with a set, a penalty or factors of H_t.

    Line 9 would have no answer on a set, and a factor would never forget. All other numbers that are not finite spread,
    as in torch.optim: a check would wait for the device. For factors it does not wait either, see `finite`.
    """
    squares: dict[Any, list[tuple[Any, Tensor, Tensor]]] = {}
    for plan in plans:
        looks = [part for part in (plan.parts.constraint, plan.parts.penalty) if part is not None]
        if not (looks or plan.any_factors) or _all_small(plan):
            continue
        for p in plan.group["params"]:
            if p.grad is None:
                continue
            grad, dtype = real(local(p.grad).resolve_conj()), state_dtype(p)
            if looks and (not waits(p) or any(part.waits for part in looks)):
                limit = 0.1 * math.sqrt(torch.finfo(dtype).max)
                # A norm takes half the time of the largest element, and is larger.
                if not float(over_ranks(torch.linalg.vector_norm(grad), sharding(p), "max")) <= limit:
                    largest = torch.stack(torch.aminmax(grad)).abs().amax() if grad.numel() else grad.new_zeros(())
                    size = float(over_ranks(largest, sharding(p), "max"))
                    if not size <= limit:
                        raise NotFiniteError(
                            f"The gradient of parameter {name(p)} is not finite, or too large: its largest element is "
                            f"{size:g}, and {looks[0]} allows {limit:.0g}. This batch is dropped, and training can go "
                            "on with the next one."
                        )
            if plan.matrix(p).per_tensor and plan.matrix(p).has_factors and not waits(p):
                square = torch.linalg.vector_norm(grad.to(dtype)).square()
                squares.setdefault(sharding(p), []).append((plan.matrix(p), p, square.double()))
    for how, of in squares.items():  # one message for all
        totals = over_ranks(torch.stack([square for _, _, square in of]), how).tolist()
        for (matrix, p, _), total in zip(of, totals, strict=True):
            if not total <= 1e-8 * torch.finfo(state_dtype(p)).max:
                raise NotFiniteError(
                    f"The gradient of parameter {name(p)} is not finite, or its square is not: it would stay in the "
                    f"factors of {matrix} for ever. This batch is dropped, and training can go on with the next one. "
                    "If this happens in every batch, check the loss, or lower lr."
                )


def _all_small(plan: Any) -> bool:
    """Return whether the norms of all gradients together are small enough: a look for the whole group at once."""
    grads = [p.grad for p in plan.group["params"] if p.grad is not None]
    if not grads or plan.sharded or any([g.dtype is not torch.float32 or g.device.type != "cpu" for g in grads]):
        return not grads
    return float(torch.stack(torch._foreach_norm(grads)).square().sum()) < 1e30


def finite(s: Bucket, batch: Tensor) -> Tensor:
    """Return the batch with zeros in place of matrices that are not finite, for a matrix with factors.

    Where the host would wait, nothing is refused: the device leaves them out, and `check_left_out` tells of it later.
    """
    if not waits(batch) or not s.has_factors:
        return batch
    usable = torch.linalg.vector_norm(batch, dim=(-2, -1), keepdim=True).isfinite()
    s.plan.left_out = s.plan.left_out + usable.logical_not().sum()
    return torch.where(usable, batch, 0.0)


def check_left_out(s: Bucket) -> None:
    """Raise an error if gradients were left out on the device: every tenth step, because it waits for the device."""
    if s.step % LOOK_EVERY == 0 and isinstance(s.plan.left_out, Tensor) and bool(s.plan.left_out > 0):
        s.plan.left_out = 0
        shapes = ", ".join(sorted({str(tuple(p.shape)) for p in s.params}))
        raise RuntimeError(
            f"{type(s.matrix).__name__}: in the last {LOOK_EVERY} steps a gradient of shape {shapes}, or its square, "
            "was not finite. The step left it out: the factors of H_t are finite, and these parameters did not move. "
            "opt.restart() resets g_t so that training can go on. To avoid such batches, use a GradScaler, or skip "
            "batches with a non-finite loss."
        )


def check_matrix(s: Bucket, solve: Callable[[Bucket, Any], Any]) -> None:
    """Refuse an H of a user's matrix that is not positive definite, in the first steps: it waits for the device."""
    if s.step > WATCHED_STEPS or type(s.matrix).__module__.startswith("superadam."):
        return
    if s.matrix.per_tensor or s.matrix.joint:
        g = s.estimate
        product = float(over_ranks(dot(solve(s, g), g), s.sharding))
        wrong = None if product >= 0 else f"gᵀH⁻¹g is {product:g}"
    else:
        H = s.matrix.H(s)
        parts = list(H) if isinstance(H, TensorList) else [H]
        smallest = [part.amin().to("cpu", torch.float64) for part in parts if part.numel()]
        least = float(torch.stack(smallest).min()) if smallest else 1.0  # NaN where there is a NaN
        wrong = None if least > 0 else f"its least element is {least:g}"
    if wrong is not None:
        raise RuntimeError(
            f"{s.matrix} returned an H that is not positive definite: {wrong}, in step {s.step}. Line 9 needs H > 0: "
            "use absolute values or square roots of squares, and add λ > 0."
        )

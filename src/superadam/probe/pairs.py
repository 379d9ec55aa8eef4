"""`check_pairs`: check once, before a long run, that a closure gives the two gradients of a batch that τ > 0 needs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from superadam.probe.gradients import untouched

__all__ = ["check_pairs"]

TOLERANCE = 0.01  # kernels that add in another order differ by less


def check_pairs(model: nn.Module, closure: Callable[[], Any]) -> None:
    """Check that a closure, evaluated twice at the same point, gives the same gradient. If not, raise a ValueError.

    With τ > 0, line 11 takes the difference of two gradients of a batch, in which noise only cancels if both are of the
    same samples, masks and buffers. The error says what to mend. `check_pairs` restores the model, its gradients and
    buffers, and the random generators; it cannot restore an iterator that the closure draws from.

    Args:
        model: the model.
        closure: the closure of `step`, or a function with the body of a `twice` loop for one batch, without `step()`.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    >>> def closure():
    ...     model.zero_grad()
    ...     model(torch.ones(4, 2)).square().sum().backward()
    >>> check_pairs(model, closure)
    >>> fetched = iter(torch.randn(9, 4, 2))
    >>> def wrong():
    ...     model.zero_grad()
    ...     model(next(fetched)).square().sum().backward()
    >>> check_pairs(model, wrong)
    Traceback (most recent call last):
    ValueError: Two evaluations of the closure at the same point gave gradients that differ by ...
    """
    params, raw = [p for p in model.parameters() if p.requires_grad], dict[Tensor, Tensor]()

    def keep(p: Tensor) -> None:
        raw[p] = torch.zeros_like(p) if p.grad is None else p.grad.detach().clone()

    with untouched(model) as start:

        def evaluate(clear: bool) -> dict[Tensor, Tensor]:
            start.restore()
            if clear:
                model.zero_grad()
            with torch.enable_grad():
                closure()
            return {p: p.grad.detach().clone() for p in params if p.grad is not None}

        hooks = [cast(Any, p).register_post_accumulate_grad_hook(keep) for p in params]
        try:
            first = evaluate(clear=True)
            clipped = _apart(raw, first) if not _distributed() else 0.0  # DDP averages after `backward`
        finally:
            for hook in hooks:
                hook.remove()
        if not first:
            raise ValueError("The closure left no gradient: it must compute the loss and call loss.backward()")
        again, cleared = _apart(first, evaluate(clear=False)), _apart(first, evaluate(clear=True))
    if cleared > TOLERANCE:
        raise ValueError(
            f"Two evaluations of the closure at the same point gave gradients that differ by {cleared:.0%}. With tau > "
            "0 both must use the same batch. Does the closure fetch a batch, or draw from a torch.Generator of its "
            "own? Fetch the batch before step(closure), or loop over superadam.twice(loader), and set such a generator "
            "to the same state in both evaluations."
        )
    if again > TOLERANCE:
        raise ValueError(
            "The closure adds to the gradients that it finds. Clear them at its beginning, with opt.zero_grad(): the "
            "second gradient of a batch would be the sum of both."
        )
    if clipped > TOLERANCE:
        raise ValueError(
            f"The closure changes the gradients after backward(), by {clipped:.0%}: clip_grad_norm_? With tau > 0, "
            "line 11 uses the difference of two gradients, so both must be unclipped. Turn this clipping off and use "
            "the optimizer's clip=, which bounds g_t."
        )


def _distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _apart(a: dict[Tensor, Tensor], b: dict[Tensor, Tensor]) -> float:
    """Return ‖a - b‖/‖a‖. A parameter without a gradient has the gradient zero."""
    zero = torch.zeros(())
    off = math.hypot(*(float((a.get(p, zero) - b.get(p, zero)).abs().double().norm()) for p in a.keys() | b.keys()))
    size = math.hypot(*(float(grad.abs().double().norm()) for grad in a.values()))
    return off / size if size > 0 else float(off > 0)

"""`torch.amp.GradScaler`: gradients that come multiplied by a scale, and steps that are void if one of them overflowed.

The scaler hands both over to `step()`, as the attributes `grad_scale` and `found_inf` of the optimizer, for the time of
the call. `grad_scale` is None if the user has called `scaler.unscale_`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from superadam._state.sharding import local

if TYPE_CHECKING:
    from superadam._state.composed import ComposedOptimizer

__all__ = ["under_scaler", "undone", "unscale"]


def under_scaler(opt: ComposedOptimizer) -> bool:
    """Whether it is a scaler that calls `step`."""
    return getattr(opt, "found_inf", None) is not None


@torch.no_grad()
def unscale(opt: ComposedOptimizer) -> Tensor | None:
    """Divide the gradients by the scale, in place as `GradScaler.unscale_` does. A number > 0 if they are not finite.

    None if no scaler is in use.
    """
    if not under_scaler(opt):
        return None
    scale: Tensor | None = getattr(opt, "grad_scale", None)
    if scale is not None:
        inverse = scale.float().reciprocal()
        by_device: dict[torch.device, list[Tensor]] = {}
        for group in opt.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    by_device.setdefault(p.device, []).append(local(p.grad))
        for device, grads in by_device.items():
            torch._foreach_mul_(grads, inverse.to(device))
    found: Tensor = opt.found_inf
    return found


@contextmanager
def undone(opt: ComposedOptimizer, where: Tensor) -> Iterator[None]:
    """Undo what is done inside if `where` > 0, without the host's having to know. Needs a copy of x and the state."""
    opt.init_state()
    params = [p for group in opt.param_groups for p in group["params"]]
    tensors = [local(p) for p in params if p in opt.state]
    tensors += [local(value) for p in params for value in opt.state.get(p, {}).values() if isinstance(value, Tensor)]
    once = {id(x): x for x in tensors}.values()
    kept = [(x, x.clone()) for x in once]
    yield
    for x, before in kept:
        x.copy_(torch.where(where.to(x.device) > 0, before, x))

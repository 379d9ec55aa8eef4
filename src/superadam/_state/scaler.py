"""`torch.amp.GradScaler`: gradients that are multiplied by a scale, and steps that are skipped after an overflow.

While it calls `step()`, the scaler sets two attributes of the optimizer. `grad_scale` is the scale, or None if the user
has called `scaler.unscale_`. `found_inf` is larger than 0 if a gradient has overflowed.
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

__all__ = ["undone", "unscale"]


@torch.no_grad()
def unscale(opt: ComposedOptimizer) -> Tensor | None:
    """Divide the gradients by the scale, in place as `GradScaler.unscale_` does.

    Return `found_inf`, which is larger than 0 if they are not finite; None if no scaler is in use.
    """
    scale: Tensor | None = getattr(opt, "grad_scale", None)  # which the scaler multiplies if it is there
    if opt.found_inf is not None and scale is not None:
        inverse = scale.float().reciprocal()
        by_device: dict[torch.device, list[Tensor]] = {}
        for p in opt._parameters():
            if p.grad is not None:
                by_device.setdefault(p.device, []).append(local(p.grad))
        for device, grads in by_device.items():
            torch._foreach_mul_(grads, inverse.to(device))
    return opt.found_inf


@contextmanager
def undone(opt: ComposedOptimizer, where: Tensor) -> Iterator[None]:
    """Undo what is done in the `with` if `where` > 0, without waiting for the device. Copies x and the state."""
    opt.init_state()
    params = [p for p in opt._parameters() if p in opt.state]
    tensors = [local(p) for p in params]
    tensors += [local(value) for p in params for value in opt.state[p].values() if isinstance(value, Tensor)]
    once = {id(x): x for x in tensors}.values()
    kept = [(x, x.clone()) for x in once]
    yield
    for x, before in kept:
        x.copy_(torch.where(where.to(x.device) > 0, before, x))

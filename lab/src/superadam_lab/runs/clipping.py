"""Clipping that two gradients of one batch can share."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer

from superadam_lab.tasks.workloads import norm

__all__ = ["OneFactor"]


class OneFactor:
    """Scales all gradients of a batch by one factor, which clips the first of them to the bound.

    If each were clipped separately, the two gradients of a batch would be scaled by different factors, and their noise
    would not cancel. The optimizer's `clip` is different: it bounds g_t, after H_t has used the whole gradient. Not all
    methods have it.
    """

    def __init__(self, opt: Optimizer, bound: float | None) -> None:
        self.opt, self.bound = opt, bound
        self.factor: Tensor | None = None

    def __call__(self) -> None:
        if self.bound is None:
            return
        grads = [p.grad for group in self.opt.param_groups for p in group["params"] if p.grad is not None]
        if self.factor is None:
            self.factor = (self.bound / norm(grads)).clamp(max=1.0)
        torch._foreach_mul_([_local(grad) for grad in grads], self.factor)


def _local(x: Tensor) -> Tensor:
    """Return what this process holds of a tensor."""
    part: Tensor = x.to_local() if hasattr(x, "to_local") else x
    return part

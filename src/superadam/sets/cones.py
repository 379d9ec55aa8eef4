"""The second-order cone."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from superadam.sets.balls import norm_of
from superadam.sets.base import ConvexSet, Dim, by_slices, largest, slice_shape, slices_in_rows, solving
from superadam.sets.roots import norm_root, tolerance

__all__ = ["SecondOrderCone"]


class SecondOrderCone(ConvexSet):
    r"""$\|x\|_2 \le t$, where t is the last coordinate of each slice along `dim`, and x the others.

    For y = (u, s), with t such that $\|x\|_2 = t$, or t = 0,

    $$x_i = \frac{d_i\, t}{d_i\, t + d_t (t - s)}\, u_i$$

    Args:
        dim: the dimension, or dimensions, of a slice; None for the whole tensor.

    >>> SecondOrderCone().argmin(torch.tensor([3.0, 4.0, 1.0]), 1.0)
    tensor([1.8000, 2.4000, 3.0000])
    """

    dim: Dim = -1

    waits: ClassVar[bool] = False

    @solving
    def argmin(self, y: Tensor, d: Tensor, root: Tensor | None) -> Tensor:
        flat_root = None if root is None else root.view(-1)

        def solve(y: Tensor, d: Tensor) -> Tensor:
            start = None if flat_root is None else flat_root.view(*y.shape[:-1], 1)
            x, beyond = _onto_cone(y, d, start)
            if start is not None:
                start.copy_(beyond)
            return x

        return by_slices(solve, self.dim, y, d.expand_as(y))

    def root_shape(self, x: Tensor) -> torch.Size:
        return slice_shape(x, self.dim)

    def in_rows(self, x: Tensor) -> bool:
        return slices_in_rows(x, self.dim)

    def violation(self, x: Tensor) -> Tensor:
        if x.numel() == 0:
            return x.new_zeros(())

        def excess(x: Tensor) -> Tensor:
            norm: Tensor = torch.linalg.vector_norm(x[..., :-1], dim=-1, keepdim=True)
            return (norm - x[..., -1:]).expand_as(x).contiguous()

        return largest(by_slices(excess, self.dim, x.double()))


def _onto_cone(y: Tensor, d: Tensor, start: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the step for slices along the last dimension. Also returns t - max(0, s)."""
    s = y.narrow(-1, -1, 1)
    ratio = d.narrow(-1, -1, 1) / d
    share = 1 / (1 + ratio)  # d / (d + d_t)
    # ‖x‖ = t is ‖p / (α + c)‖ = 1 for t = max(0, s) + c, p = share u, and this α, which has no negative element.
    alpha = torch.where(s > 0, share, -ratio * share).mul_(s)
    alpha.select(-1, -1).fill_(1.0)
    u = y.clone()
    u.select(-1, -1).fill_(0.0)
    p = share * u
    size = u.abs().amax(-1, keepdim=True)
    inside = norm_of(u / torch.where(size > 0, size, 1.0), (-1,)) * size <= s * (1 + tolerance(y))
    c = norm_root(p.masked_fill_(inside, 0.0), alpha.masked_fill_(inside, 1.0), (-1,), start)
    t = s.clamp(min=0) + c
    x = p.mul_(t)
    x.narrow(-1, -1, 1).copy_(t)
    return torch.where(inside, y, x), c

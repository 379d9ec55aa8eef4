"""The sphere, which is not convex."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from superadam.parts import check
from superadam.sets.balls import norm_of, or_one
from superadam.sets.base import (
    ConvexSet,
    Dim,
    by_slices,
    dims,
    largest,
    slice_shape,
    slices_in_rows,
    solving,
    vertex,
)
from superadam.sets.roots import everywhere, norm_root, nowhere, tolerance

__all__ = ["Sphere"]


class Sphere(ConvexSet):
    r"""$\|x\|_2 = r$, for the whole tensor or for each slice along `dim`. It is not convex, so the
    paper's theorems do not cover it.

    Line 9 still has a solution. With the largest $\nu$ at which $\|x\|_2 = r$,

    $$x = \frac{d}{d + \nu}\, y$$

    which is $r\, y / \|y\|_2$ for a scalar d. A mixture of two points is not on the sphere, so line 10 ends with this
    normalisation in every step. For the same reason it works with `iterates.Plain` only. With `matrices.Zero` a step is
    $(1 - \eta) x_t - \eta\, r\, g_t / \|g_t\|_2$, normalised, for $\eta = \gamma \mu_t$.

    Args:
        r: the radius.
        dim: the dimension, or dimensions, of a slice; None for the whole tensor.

    >>> Sphere(dim=1).argmin(torch.tensor([[3.0, 4.0], [0.0, 0.5]]), 1.0)
    tensor([[0.6000, 0.8000],
            [0.0000, 1.0000]])
    """

    r: float = 1.0
    dim: Dim = None

    needs: ClassVar[str] = "eigen"
    convex: ClassVar[bool] = False
    waits: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check(0 < self.r < torch.inf, "r", self.r, "0 < r < inf")

    def objection(self, others: Any, options: dict[str, Any]) -> str | None:
        if type(others.iterate).__name__ != "Plain":
            return f"{type(others.iterate).__name__} takes gradients between points of the sphere: use iterates.Plain()"
        return super().objection(others, options)

    @solving
    def argmin(self, y: Tensor, d: Tensor, root: Tensor | None) -> Tensor:
        dim = dims(y, self.dim)
        there = (norm_of(y, dim) - self.r).abs() <= self.r * tolerance(y)
        if everywhere(there):
            return y
        kept = None if nowhere(there) else y.clone()
        most = d.amax()
        d = d.div_(most).expand_as(y)  # the size changes nothing, but may overflow
        p, alpha = y.div_(self.r).mul_(d), d - d.amin(dim, keepdim=True)
        lightest = alpha == 0
        c = norm_root(p, alpha.masked_fill_(p == 0, 1.0), dim, None if root is None else root / most)
        if root is not None:
            root.copy_(c * most)
        if not nowhere(many := c == 0):  # y is 0 where d is least: there are many solutions, and this is one
            missing = (1 - norm_of(p, dim).square()).relu_().sqrt_() * many
            p.add_(by_slices(_first, self.dim, lightest.to(p)) * missing)
        x = p.mul_(self.r)
        return x if kept is None else torch.where(there, kept, x)

    @vertex
    def lmo(self, g: Tensor) -> Tensor:
        """Return the point opposite to g; where g is 0, that of the first coordinate."""
        dim = dims(g, self.dim)
        unit = g / or_one(g.abs().amax(dim, keepdim=True))  # whose square neither overflows nor vanishes
        nothing = (unit == 0).all(dim, keepdim=True) if g.dim() else unit == 0
        unit = torch.where(nothing, -by_slices(_first, self.dim, torch.ones_like(g)), unit)
        return -self.r * unit / norm_of(unit, dim)

    def root_shape(self, x: Tensor) -> torch.Size:
        return slice_shape(x, self.dim)

    def in_rows(self, x: Tensor) -> bool:
        return slices_in_rows(x, self.dim)

    def violation(self, x: Tensor) -> Tensor:
        if x.numel() == 0:
            return x.new_zeros(())
        x = x.double()
        return largest((torch.linalg.vector_norm(x, dim=dims(x, self.dim)) - self.r).abs())


def _first(there: Tensor) -> Tensor:
    """Return 1 at the first coordinate of a slice that is 1, 0 elsewhere."""
    return torch.zeros_like(there).scatter_(-1, there.argmax(-1, keepdim=True), 1.0)

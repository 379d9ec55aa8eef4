"""Balls of the l2 and the l1 norm."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from superadam.sets.base import (
    ConvexSet,
    Dim,
    Sizes,
    by_slices,
    check_finite,
    check_radius,
    dims,
    largest,
    like,
    slice_shape,
    slices_in_rows,
    solving,
    unit_of,
    vertex,
)
from superadam.sets.roots import Blocks, everywhere, norm_root, nowhere, tolerance, warm, water_level

__all__ = ["L1Ball", "L2Ball"]


def norm_of(x: Tensor, dim: tuple[int, ...]) -> Tensor:
    """Return ‖x‖ of every slice. vector_norm has only five correct digits on a million float32 coordinates."""
    blocks = Blocks.of(dim, x)
    squares = [part.square().sum(blocks.dim, keepdim=True) for (part,) in blocks.parts]
    return blocks.unsliced(torch.stack(squares).sum(0).sqrt())


def or_one(size: Tensor) -> Tensor:
    """Return a divisor: `size`, or 1 where size is 0, so that 0/0 becomes 0."""
    return torch.where(size > 0, size, 1.0)


class L2Ball(ConvexSet):
    r"""$\|x - \mathrm{center}\|_2 \le r$, for the whole tensor or for each slice along `dim`.

    For center 0, and $\nu$ such that $\|x\| = r$,

    $$x = \frac{d}{d + \nu}\, y$$

    Args:
        r: the radius.
        center: the centre: a number, or a tensor that broadcasts to x.
        dim: the dimension, or dimensions, of a slice; None for the whole tensor.

    >>> L2Ball(1.0, dim=1).argmin(torch.tensor([[3.0, 4.0], [0.0, 0.5]]), 1.0)
    tensor([[0.6000, 0.8000],
            [0.0000, 0.5000]])
    """

    r: float
    center: float | Tensor = 0.0
    dim: Dim = None

    needs: ClassVar[str] = "eigen"
    waits: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_radius(self.r)
        check_finite("center", self.center)

    @solving
    def argmin(self, y: Tensor, d: Tensor, root: Tensor | None, sizes: Sizes | None) -> Tensor:
        center, dim = like(self.center, y), dims(y, self.dim)
        if self.r == 0:
            return y.copy_(center)
        centered = isinstance(self.center, Tensor) or self.center != 0
        inside = None
        if not warm(root):  # otherwise a y inside has the root 0, and x is y up to rounding errors
            inside = norm_of(y - center if centered else y, dim) <= self.r * (1 + tolerance(y))
            if everywhere(inside):
                return y
        feasible = None if inside is None or nowhere(inside) else y.clone()
        if centered:
            y.sub_(center)
        unit = unit_of(d, sizes)
        if unit is not None:
            d.div_(unit)
        c = norm_root(y.mul_(d), d, dim, root if root is None or unit is None else root / unit, self.r)
        if root is not None:
            root.copy_(c if unit is None else c * unit)
        if centered:
            y.add_(center)
        return y if inside is None or feasible is None else torch.where(inside, feasible, y)

    @vertex
    def lmo(self, g: Tensor) -> Tensor:
        """Return the boundary point in the direction -g; the center if g is 0."""
        dim = dims(g, self.dim)
        unit = g / or_one(g.abs().amax(dim, keepdim=True))  # whose square neither overflows nor vanishes
        return like(self.center, g) - self.r * unit / or_one(norm_of(unit, dim))

    def centered(self) -> tuple[float | Tensor, ConvexSet]:
        return self.center, L2Ball(self.r, dim=self.dim)

    def root_shape(self, x: Tensor) -> torch.Size:
        return slice_shape(x, self.dim)

    def in_rows(self, x: Tensor) -> bool:
        return slices_in_rows(x, self.dim, self.center)

    def violation(self, x: Tensor) -> Tensor:
        x = x.double()
        distance = torch.linalg.vector_norm(x - like(self.center, x), dim=dims(x, self.dim))
        return largest(distance - self.r)


class L1Ball(ConvexSet):
    r"""$\|x\|_1 = \sum_i |x_i| \le r$, for the whole tensor or for each slice along `dim`.

    With $\theta$ such that $\|x\|_1 = r$,

    $$x = \mathrm{sign}(y) \max(0, |y| - \theta / d)$$

    Args:
        r: the radius.
        dim: the dimension, or dimensions, of a slice; None for the whole tensor.

    >>> L1Ball(1.0).argmin(torch.tensor([3.0, -2.5, 0.1]), 1.0)
    tensor([ 0.7500, -0.2500,  0.0000])
    """

    r: float
    dim: Dim = None

    waits: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_radius(self.r)

    @solving
    def argmin(self, y: Tensor, d: Tensor, root: Tensor | None, sizes: Sizes | None) -> Tensor:
        size = y.abs()
        theta = water_level(size, d, self.r, dims(y, self.dim), root, unit_of(d, sizes), True)
        if root is not None:
            root.copy_(theta)
        return y.sign_().mul_(size)

    def root_shape(self, x: Tensor) -> torch.Size:
        return slice_shape(x, self.dim)

    @vertex
    def lmo(self, g: Tensor) -> Tensor:
        """Return ±r at the largest |g|, with the sign opposite to g, and 0 elsewhere. Ties: the first. 0 if g is 0."""

        def corner(g: Tensor) -> Tensor:
            i = g.abs().argmax(-1, keepdim=True)
            return torch.zeros_like(g).scatter_(-1, i, -self.r * g.gather(-1, i).sign())

        return by_slices(corner, self.dim, g)

    def in_rows(self, x: Tensor) -> bool:
        return slices_in_rows(x, self.dim)

    def _size(self, x: Tensor) -> Tensor:
        return largest(x.abs().sum(dims(x, self.dim)))

    def violation(self, x: Tensor) -> Tensor:
        return largest(x.double().abs().sum(dims(x, self.dim)) - self.r)

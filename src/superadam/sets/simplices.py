"""Simplices: bounded coordinates with a given sum."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from superadam.parts import check
from superadam.sets.base import (
    ConvexSet,
    Dim,
    Sizes,
    by_slices,
    check_finite,
    dims,
    largest,
    like,
    slice_shape,
    slices_in_rows,
    solving,
    unit_of,
    vertex,
)
from superadam.sets.linear import Hyperplane
from superadam.sets.roots import may_look, section_level, tolerance, water_level
from superadam.sets.separable import Box, NonNegative

__all__ = ["CappedSimplex", "Simplex"]


class Simplex(ConvexSet):
    r"""$x \ge 0$, $\sum_i x_i = \mathrm{total}$, for each slice along `dim`.

    With $\theta$ such that $\sum_i x_i = \mathrm{total}$,

    $$x = \max(0, y - \theta / d)$$

    Args:
        total: what the coordinates of a slice sum to.
        dim: the dimension, or dimensions, of a slice; None for the whole tensor.

    >>> Simplex().argmin(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 1.0]))
    tensor([0.0000, 0.6667, 0.3333])
    """

    total: float = 1.0
    dim: Dim = -1

    waits: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check(0 <= self.total < math.inf, "total", self.total, "0 <= total < inf")

    @solving
    def argmin(self, y: Tensor, d: Tensor, root: Tensor | None, sizes: Sizes | None) -> Tensor:
        theta = water_level(y, d, self.total, dims(y, self.dim), root, unit_of(d, sizes))
        if root is not None:
            root.copy_(theta)
        return y

    def pieces(self, x: Tensor) -> tuple[ConvexSet, ...]:
        whole = slice_shape(x, self.dim).numel() == 1
        return (Hyperplane(1.0, self.total), NonNegative()) if whole else (self,)

    def root_shape(self, x: Tensor) -> torch.Size:
        return slice_shape(x, self.dim)

    @vertex
    def lmo(self, g: Tensor) -> Tensor:
        """Return the total at the least g, 0 elsewhere. Ties: the first."""

        def corner(g: Tensor) -> Tensor:
            return torch.zeros_like(g).scatter_(-1, g.argmin(-1, keepdim=True), self.total)

        return by_slices(corner, self.dim, g)

    def in_rows(self, x: Tensor) -> bool:
        return slices_in_rows(x, self.dim)

    def _size(self, x: Tensor) -> Tensor:
        return largest(x.abs().sum(dims(x, self.dim)))

    def violation(self, x: Tensor) -> Tensor:
        x = x.double()
        return torch.maximum(largest((x.sum(dims(x, self.dim)) - self.total).abs()), largest(-x))


class CappedSimplex(ConvexSet):
    r"""$\mathrm{low} \le x_i \le \mathrm{cap}$, $\sum_i x_i = \mathrm{total}$, for each slice along `dim`.

    With $\theta$ such that $\sum_i x_i = \mathrm{total}$,

    $$x = \mathrm{clip}(y - \theta / d,\ \mathrm{low},\ \mathrm{cap})$$

    `BoxSection` also allows weights in the sum.

    Args:
        total: what the coordinates of a slice sum to.
        cap: the upper bound: a number, or a tensor that broadcasts to x.
        dim: the dimension, or dimensions, of a slice; None for the whole tensor.
        low: the lower bound: a number, or a tensor that broadcasts to x.

    >>> CappedSimplex(total=1.0, cap=0.5).argmin(torch.tensor([1.0, 0.25, 0.0]), 1.0)
    tensor([0.5000, 0.3750, 0.1250])
    >>> CappedSimplex(total=1.0, cap=0.5, low=0.2).argmin(torch.tensor([1.0, 0.25, 0.0]), 1.0)
    tensor([0.5000, 0.3000, 0.2000])
    """

    total: float
    cap: float | Tensor
    dim: Dim = -1
    low: float | Tensor = 0.0

    waits: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_finite("cap", self.cap)
        check_finite("low", self.low)
        low, cap = torch.as_tensor(self.low), torch.as_tensor(self.cap)
        if not isinstance(self.low, Tensor) and self.low == 0:
            check(0 <= self.total < math.inf, "total", self.total, "0 <= total < inf")
            check((cap >= 0).all(), "cap", self.cap, "cap >= 0")
        check(math.isfinite(self.total), "total", self.total, "a finite number")
        check((low <= cap).all(), "low, cap", (self.low, self.cap), "low <= cap")

    def _bounds(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the bounds, as 0-d tensors if they are numbers. Raises an error if the set is empty."""
        low, cap = number_or_like(self.low, y), number_or_like(self.cap, y)
        (_, least), (most, _) = self._sums(self.low, y), self._sums(self.cap, y)
        small = tolerance(y) * max(abs(self.total), abs(least), abs(most))
        if most < self.total - small:
            raise ValueError(f"CappedSimplex is empty: the caps sum to {most:g}, less than the total {self.total:g}")
        if least > self.total + small:
            raise ValueError(
                f"CappedSimplex is empty: the lower bounds sum to {least:g}, more than the total {self.total:g}"
            )
        return low, cap

    def _sums(self, bound: float | Tensor, y: Tensor) -> tuple[float, float]:
        """Return the least and the largest sum of a bound over a slice of y; the total, if the host may not look."""
        if not isinstance(bound, Tensor):
            same = bound * (y.numel() // slice_shape(y, self.dim).numel())
            return same, same
        if not may_look(bound):
            return self.total, self.total
        least, most = torch.aminmax(slice_sums(y, self.dim, bound.to(y.dtype).expand(y.shape)))
        return least.item(), most.item()

    @solving
    def argmin(self, y: Tensor, d: Tensor, root: Tensor | None, sizes: Sizes | None) -> Tensor:
        low, cap = self._bounds(y)
        most = d.amax() if sizes is None else sizes.d_max
        w = d.reciprocal_().mul_(most)  # a multiple of 1/d that does not overflow
        start = None if root is None else root / most
        theta = section_level(y, w, self.total, dims(y, self.dim), low, cap, start)
        if root is not None:
            root.copy_(theta * most)
        return y

    def pieces(self, x: Tensor) -> tuple[ConvexSet, ...]:
        whole = slice_shape(x, self.dim).numel() == 1
        return (Hyperplane(1.0, self.total), Box(self.low, self.cap)) if whole else (self,)

    def root_shape(self, x: Tensor) -> torch.Size:
        return slice_shape(x, self.dim)

    @vertex
    def lmo(self, g: Tensor) -> Tensor:
        """Start at the lower bounds and fill coordinates up to their caps, least g first. Ties: in order."""
        low, cap = (bound.expand_as(g) for bound in self._bounds(g))
        return by_slices(lambda *of: filled(self.total, *of), self.dim, g, low, cap)

    def in_rows(self, x: Tensor) -> bool:
        return slices_in_rows(x, self.dim, self.cap, self.low)

    def _size(self, x: Tensor) -> Tensor:
        return largest(x.abs().sum(dims(x, self.dim)))

    def violation(self, x: Tensor) -> Tensor:
        x = x.double()
        sums = largest((x.sum(dims(x, self.dim)) - self.total).abs())
        return torch.stack([sums, largest(like(self.low, x) - x), largest(x - like(self.cap, x))]).amax()


def number_or_like(value: float | Tensor, y: Tensor) -> Tensor:
    """Return an option of a set, where y is: 0-d if it is a number."""
    return like(value, y) if isinstance(value, Tensor) else y.new_full((), value)


def slice_sums(y: Tensor, dim: Dim, of: Tensor) -> Tensor:
    """Sums over the slices of y, for a tensor like y or for one number for all coordinates."""
    if of.dim() == y.dim() and y.dim() > 0:
        return of.sum(dims(y, dim))
    return of * (y.numel() // slice_shape(y, dim).numel())


def filled(total: float, cost: Tensor, lo: Tensor, hi: Tensor) -> Tensor:
    """Return the vertex of lo ≤ x ≤ hi with the given sum and the least cost, for slices along the last dimension."""
    order = cost.argsort(dim=-1, stable=True)
    lo, room = lo.gather(-1, order), (hi - lo).gather(-1, order)
    left = (total - lo.sum(-1, keepdim=True) - room.cumsum(-1) + room).clamp(min=0)
    return torch.zeros_like(cost).scatter_(-1, order, lo + left.minimum(room))

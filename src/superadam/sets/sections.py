"""The intersection of a box and a hyperplane."""

from __future__ import annotations

import math
from typing import ClassVar, cast

import torch
from torch import Tensor

from superadam.parts import check
from superadam.sets.base import (
    ConvexSet,
    Dim,
    by_slices,
    check_finite,
    dims,
    largest,
    like,
    slice_shape,
    slices_in_rows,
    solving,
    vertex,
)
from superadam.sets.linear import Hyperplane
from superadam.sets.roots import clip_, may_look, section_level, tolerance
from superadam.sets.separable import Bound, Box
from superadam.sets.simplices import filled, number_or_like, slice_sums

__all__ = ["BoxSection"]


class BoxSection(ConvexSet):
    r"""$a^\top x = b$, $\mathrm{low} \le x_i \le \mathrm{high}$, for the whole tensor or for each slice along `dim`.

    With $\theta$ such that $a^\top x = b$,

    $$x = \mathrm{clip}(y - \theta\, a / d,\ \mathrm{low},\ \mathrm{high})$$

    Args:
        a: the weights: a number, or a tensor that broadcasts to x.
        b: the value of aᵀx.
        low: the lower bound: a number, a tensor that broadcasts to x, or None for no bound.
        high: the upper bound: a number, a tensor that broadcasts to x, or None for no bound.
        dim: the dimension, or dimensions, of a slice; None for the whole tensor.

    >>> BoxSection(torch.tensor([1.0, -1.0, 2.0]), 1.0, low=-1.0).argmin(torch.tensor([3.0, 0.0, 0.0]), 1.0)
    tensor([ 2.6667,  0.3333, -0.6667])
    """

    a: float | Tensor
    b: float
    low: Bound = None
    high: Bound = None
    dim: Dim = None

    waits: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_finite("a", self.a)
        check_finite("b", self.b)
        check(torch.as_tensor(self.a).count_nonzero() > 0, "a", self.a, "a != 0")
        object.__setattr__(self, "_largest", float(torch.as_tensor(self.a).abs().amax()))  # no look at it in a step
        low, high = (torch.as_tensor(bound) for bound in self._bounds())
        fits = (low <= high) & (low < math.inf) & (high > -math.inf)
        check(fits.all(), "low, high", (self.low, self.high), "low <= high")

    def _bounds(self) -> tuple[float | Tensor, float | Tensor]:
        return -math.inf if self.low is None else self.low, math.inf if self.high is None else self.high

    @property
    def bounded(self) -> bool:
        return all(bool(torch.as_tensor(bound).isfinite().all()) for bound in self._bounds())

    def _scaled(self, y: Tensor) -> tuple[Tensor, float, Tensor, Tensor]:
        """Return a and b over the largest |a|, and a x at the bounds. Raise an error if the set is empty."""
        largest_a = cast(float, self.__dict__["_largest"])
        a, b = number_or_like(self.a, y) / largest_a, self.b / largest_a
        low, high = (number_or_like(bound, y) for bound in self._bounds())
        at_low, at_high = ((a * bound).masked_fill_(a == 0, 0.0) for bound in (low, high))
        lo, hi = at_low.minimum(at_high).double(), at_low.maximum(at_high).double()
        if not may_look(y):
            return a, b, at_low, at_high
        least, most = slice_sums(y, self.dim, lo).amax().item(), slice_sums(y, self.dim, hi).amin().item()
        small = tolerance(y) * (slice_sums(y, self.dim, lo.abs().minimum(hi.abs())).amax().item() + abs(b))
        if not least - small <= b <= most + small:
            raise ValueError(
                f"BoxSection is empty: between the bounds aᵀx is {least * largest_a:g} to {most * largest_a:g}, never "
                f"b = {self.b:g}"
            )
        return a, b, at_low, at_high

    @solving
    def argmin(self, y: Tensor, d: Tensor, root: Tensor | None) -> Tensor:
        a, b, at_low, at_high = self._scaled(y)
        # z = a x has the sum b, bounds of its own, and the metric d / a².
        scale, least = d.amax(), torch.finfo(y.dtype).tiny ** 0.5
        w = (d.reciprocal_().mul_(scale) * a.square()).clamp_(min=least)
        lo, hi, start = at_low.minimum(at_high), at_low.maximum(at_high), None if root is None else root / scale
        z = a * y
        theta = section_level(z, w, b, dims(y, self.dim), lo, hi, start)
        if root is not None:
            root.copy_(theta * scale)
        low, high = (number_or_like(bound, y) for bound in self._bounds())
        if isinstance(self.a, Tensor):  # with a number, a is 1 or -1, and nothing is rounded
            x = torch.where(z == at_low, low, torch.where(z == at_high, high, z / a))
            return clip_(torch.where((a == 0) | (theta == 0), y, x), low, high)
        return clip_(z.mul_(a), low, high)

    def pieces(self, x: Tensor) -> tuple[ConvexSet, ...]:
        whole = slice_shape(x, self.dim).numel() == 1
        return (Hyperplane(self.a, self.b), Box(self.low, self.high)) if whole else (self,)

    def root_shape(self, x: Tensor) -> torch.Size:
        return slice_shape(x, self.dim)

    @vertex
    def lmo(self, g: Tensor) -> Tensor:
        """Fill a x up one coordinate at a time, least g/a first. Where a is 0, as in a box."""
        if not self.bounded:
            raise ValueError(f"{self} is not bounded, and has no lmo: give it low and high")
        a, b, at_low, at_high = self._scaled(g.double())
        a, lo, hi = (v.expand_as(g) for v in (a, at_low.minimum(at_high), at_low.maximum(at_high)))
        low, high = (like(bound, a) for bound in self._bounds())
        none = a == 0
        cost = g.double() / a.masked_fill(none, 1.0)
        z = by_slices(lambda *of: filled(b, *of), self.dim, cost, lo, hi)
        free = torch.where(g > 0, low, torch.where(g < 0, high, low / 2 + high / 2))
        return torch.where(none, free, z / a.masked_fill(none, 1.0)).clamp_(low, high).to(g.dtype)

    def in_rows(self, x: Tensor) -> bool:
        return slices_in_rows(x, self.dim, self.a, *self._bounds())

    def violation(self, x: Tensor) -> Tensor:
        """Return the distance to the hyperplane or to the box, whichever is larger."""
        if x.numel() == 0:
            return x.new_zeros(())
        x = x.double()
        a, axes, (low, high) = like(self.a, x), dims(x, self.dim), self._bounds()
        norm = torch.linalg.vector_norm(a, dim=axes)
        off = ((a * x).sum(axes) - self.b).abs() / norm.where(norm > 0, 1.0)
        return torch.stack([largest(off), largest(like(low, x) - x), largest(x - like(high, x))]).amax()

"""Products of intervals. The step clips every coordinate separately, so it does not depend on the metric."""

from __future__ import annotations

import math
from typing import ClassVar, cast

import torch
from torch import Tensor

from superadam.parts import check
from superadam.sets.base import ConvexSet, check_radius, in_metric, like, vertex

__all__ = ["Box", "LInfBall", "NonNegative"]

Bound = float | Tensor | None


class Intervals(ConvexSet, abstract=True):
    """Shared code of the sets in this file."""

    separable: ClassVar[bool] = True

    def bounds(self) -> tuple[Bound, Bound]:
        """Return the least and the largest value of each coordinate; None for no bound."""
        raise NotImplementedError(f"{type(self).__name__} has no bounds")

    @in_metric
    def argmin(self, y: Tensor, d: Tensor) -> Tensor:
        return self.clip_(y)

    def clip_(self, y: Tensor) -> Tensor:
        """Return `argmin` in place, for a y that needs no check."""
        lo, hi = self.bounds()
        lo, hi = -math.inf if lo is None else lo, math.inf if hi is None else hi
        if isinstance(lo, Tensor) or isinstance(hi, Tensor):
            return y.clamp_(like(lo, y), like(hi, y))
        return y.clamp_(lo, hi)

    @property
    def bounded(self) -> bool:
        return all(b is not None and bool(torch.as_tensor(b).isfinite().all()) for b in self.bounds())

    @vertex
    def lmo(self, g: Tensor) -> Tensor:
        """Return the lower bound where g > 0, the upper bound where g < 0, the middle where g = 0."""
        if not self.bounded:
            raise ValueError(f"{self} is not bounded, and has no lmo")
        lo, hi = (like(cast(float, b), g) for b in self.bounds())
        return torch.where(g > 0, lo, torch.where(g < 0, hi, lo / 2 + hi / 2))


class Box(Intervals):
    r"""$\mathrm{lo} \le x_i \le \mathrm{hi}$.

    Args:
        lo: the lower bound: a number, a tensor that broadcasts to x, or None for no bound.
        hi: the upper bound: a number, a tensor that broadcasts to x, or None for no bound.

    >>> Box(-1, torch.tensor([1.0, 2.0])).argmin(torch.tensor([-3.0, 3.0]), 1.0)
    tensor([-1.,  2.])
    """

    lo: Bound = None
    hi: Bound = None

    @property
    def elementwise(self) -> bool:  # type: ignore[override]
        return not isinstance(self.lo, Tensor) and not isinstance(self.hi, Tensor)

    def __post_init__(self) -> None:
        lo = torch.as_tensor(-math.inf if self.lo is None else self.lo)
        hi = torch.as_tensor(math.inf if self.hi is None else self.hi, device=lo.device)
        check(((lo <= hi) & (lo < math.inf) & (hi > -math.inf)).all(), "lo, hi", (self.lo, self.hi), "lo <= hi")

    def bounds(self) -> tuple[Bound, Bound]:
        return self.lo, self.hi


class NonNegative(Intervals):
    r"""$x_i \ge 0$.

    >>> NonNegative().argmin(torch.tensor([-3.0, 3.0]), 1.0)
    tensor([0., 3.])
    """

    elementwise = True

    def bounds(self) -> tuple[Bound, Bound]:
        return 0.0, None


class LInfBall(Intervals):
    r"""$\|x\|_\infty = \max_i |x_i| \le r$.

    Args:
        r: the radius.

    >>> LInfBall(2.0).argmin(torch.tensor([-3.0, 1.0]), 1.0)
    tensor([-2.,  1.])
    """

    r: float

    elementwise = True

    def __post_init__(self) -> None:
        check_radius(self.r)

    def bounds(self) -> tuple[Bound, Bound]:
        return -self.r, self.r

"""Products of intervals. The metric does not matter: every coordinate is clipped by itself."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from superadam._state.parts import check
from superadam.sets.base import ConvexSet, check_radius, in_metric, like

__all__ = ["Box", "LInfBall", "NonNegative"]

Bound = float | Tensor | None


class Intervals(ConvexSet, abstract=True):
    """What the sets of this file share."""

    separable: ClassVar[bool] = True

    def bounds(self) -> tuple[Bound, Bound]:
        """The least and the largest value of each coordinate; None for no bound."""
        raise NotImplementedError(f"{type(self).__name__} has no bounds")

    @in_metric
    def argmin(self, y: Tensor, d: Tensor) -> Tensor:
        lo, hi = self.bounds()
        lo, hi = -math.inf if lo is None else lo, math.inf if hi is None else hi
        if isinstance(lo, Tensor) or isinstance(hi, Tensor):
            return y.clamp_(like(lo, y), like(hi, y))
        return y.clamp_(lo, hi)


class Box(Intervals):
    r"""$\mathrm{lo} \le x_i \le \mathrm{hi}$, with numbers or tensors as bounds; None is no bound.

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

    >>> LInfBall(2.0).argmin(torch.tensor([-3.0, 1.0]), 1.0)
    tensor([-2.,  1.])
    """

    r: float

    elementwise = True

    def __post_init__(self) -> None:
        check_radius(self.r)

    def bounds(self) -> tuple[Bound, Bound]:
        return -self.r, self.r

"""Non-negative numbers with a given sum."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from superadam._state.parts import check
from superadam.sets.base import (
    ConvexSet,
    Dim,
    check_finite,
    dims,
    largest,
    like,
    slice_shape,
    slices_in_rows,
    solving,
)
from superadam.sets.roots import tolerance, water_level

__all__ = ["CappedSimplex", "Simplex"]


class Simplex(ConvexSet):
    r"""$x \ge 0$, $\sum_i x_i = \mathrm{total}$, for each slice along `dim` (None: the whole tensor).

    With $\theta$ such that the sum is right,

    $$x = \max(0, y - \theta / d)$$

    >>> Simplex().argmin(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 1.0]))
    tensor([0.0000, 0.6667, 0.3333])
    """

    total: float = 1.0
    dim: Dim = -1

    def __post_init__(self) -> None:
        check(0 <= self.total < math.inf, "total", self.total, "0 <= total < inf")

    @solving
    def argmin(self, y: Tensor, d: Tensor, root: Tensor | None) -> Tensor:
        theta = water_level(y, d, self.total, dims(y, self.dim), start=root)
        if root is not None:
            root.copy_(theta)
        return y

    def root_shape(self, x: Tensor) -> torch.Size:
        return slice_shape(x, self.dim)

    def in_rows(self, x: Tensor) -> bool:
        return slices_in_rows(x, self.dim)

    def violation(self, x: Tensor) -> Tensor:
        x = x.double()
        return torch.maximum(largest((x.sum(dims(x, self.dim)) - self.total).abs()), largest(-x))


class CappedSimplex(ConvexSet):
    r"""$0 \le x_i \le \mathrm{cap}$, $\sum_i x_i = \mathrm{total}$, for each slice along `dim`.

    With $\theta$ such that the sum is right,

    $$x = \mathrm{clip}(y - \theta / d,\ 0,\ \mathrm{cap})$$

    `cap` is a number, or a tensor that fits x; `dim=None` is the whole tensor.

    >>> CappedSimplex(total=1.0, cap=0.5).argmin(torch.tensor([1.0, 0.25, 0.0]), 1.0)
    tensor([0.5000, 0.3750, 0.1250])
    """

    total: float
    cap: float | Tensor
    dim: Dim = -1

    def __post_init__(self) -> None:
        check(0 <= self.total < math.inf, "total", self.total, "0 <= total < inf")
        check_finite("cap", self.cap)
        check((torch.as_tensor(self.cap) >= 0).all(), "cap", self.cap, "cap >= 0")

    @solving
    def argmin(self, y: Tensor, d: Tensor) -> Tensor:
        cap, dim = like(self.cap, y), dims(y, self.dim)
        room = cap.sum(dim).amin().item()
        if room < self.total * (1 - tolerance(y)):
            raise ValueError(f"CappedSimplex is empty: the caps sum to {room:g}, less than the total {self.total:g}")
        water_level(y, d, self.total, dim, cap)
        return y

    def in_rows(self, x: Tensor) -> bool:
        return slices_in_rows(x, self.dim, self.cap)

    def violation(self, x: Tensor) -> Tensor:
        x = x.double()
        sums = largest((x.sum(dims(x, self.dim)) - self.total).abs())
        return torch.stack([sums, largest(-x), largest(x - like(self.cap, x))]).amax()

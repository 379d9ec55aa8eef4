"""Balls of the Euclidean norm and of the sum of absolute values."""

from __future__ import annotations

import torch
from torch import Tensor

from superadam.roots import norm_root, tolerance, water_level
from superadam.sets.base import ConvexSet, Dim, check_finite, check_radius, dims, in_metric, largest, like

__all__ = ["L1Ball", "L2Ball"]


class L2Ball(ConvexSet):
    r"""$\|x - \mathrm{center}\|_2 \le r$, for the whole tensor or for each slice along `dim`.

    For center 0, and $\nu$ such that $\|x\| = r$,

    $$x = \frac{d}{d + \nu}\, y$$

    >>> L2Ball(1.0, dim=1).argmin(torch.tensor([[3.0, 4.0], [0.0, 0.5]]), 1.0)
    tensor([[0.6000, 0.8000],
            [0.0000, 0.5000]])
    """

    r: float
    center: float | Tensor = 0.0
    dim: Dim = None

    def __post_init__(self) -> None:
        check_radius(self.r)
        check_finite("center", self.center)

    @in_metric
    def argmin(self, y: Tensor, d: Tensor) -> Tensor:
        center, dim = like(self.center, y), dims(y, self.dim)
        if self.r == 0:
            return center.clone()
        u = (y - center).div_(self.r)
        # Not vector_norm: on a million float32 coordinates it is right to five digits only.
        inside = u.square().sum(dim, keepdim=True).sqrt() <= 1 + tolerance(y)
        if bool(inside.all()):
            return y.clone()
        d = d / d.amax()  # changes nothing, but avoids overflow
        x, _ = norm_root(u.mul_(d), d, dim)
        return torch.where(inside, y, x.mul_(self.r).add_(center))

    def violation(self, x: Tensor) -> Tensor:
        x = x.double()
        distance = torch.linalg.vector_norm(x - like(self.center, x), dim=dims(x, self.dim))
        return largest(distance - self.r)


class L1Ball(ConvexSet):
    r"""$\|x\|_1 = \sum_i |x_i| \le r$, for the whole tensor or for each slice along `dim`.

    With $\theta$ such that $\|x\|_1 = r$,

    $$x = \mathrm{sign}(y) \max(0, |y| - \theta / d)$$

    >>> L1Ball(1.0).argmin(torch.tensor([3.0, -2.5, 0.1]), 1.0)
    tensor([ 0.7500, -0.2500,  0.0000])
    """

    r: float
    dim: Dim = None

    def __post_init__(self) -> None:
        check_radius(self.r)

    @in_metric
    def argmin(self, y: Tensor, d: Tensor) -> Tensor:
        dim, size = dims(y, self.dim), y.abs()
        inside = size.sum(dim, keepdim=True) <= self.r * (1 + tolerance(y))
        if bool(inside.all()):
            return y.clone()
        return torch.where(inside, y, water_level(size, d, self.r, dim).copysign(y))

    def violation(self, x: Tensor) -> Tensor:
        return largest(x.double().abs().sum(dims(x, self.dim)) - self.r)

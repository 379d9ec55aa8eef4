r"""Balls of mixed norms: the sum of one norm per group of coordinates.

For a given multiplier $\lambda$ of the sum, line 9 splits into the groups: each minimises its distance to y plus
$\lambda$ times its norm. That norm is decreasing and convex in $\lambda$, with a known slope, and so is the sum.
"""

from __future__ import annotations

from typing import ClassVar, cast

import torch
from torch import Tensor

from superadam.parts import check
from superadam.sets.balls import norm_of, or_one
from superadam.sets.base import (
    ConvexSet,
    Dim,
    by_slices,
    check_radius,
    dims,
    largest,
    slice_shape,
    slices_in_rows,
    solving,
    vertex,
)
from superadam.sets.roots import AGAIN, FAR, MAX_ITERATIONS, NEWTON, everywhere, may_look, norm_root, nowhere, tolerance

__all__ = ["GroupL1Ball", "L1InfBall"]


class GroupBall(ConvexSet, abstract=True):
    """Shared code of the sets in this file."""

    r: float
    group: Dim = -1
    dim: Dim = None

    reach: ClassVar[float] = 10.0
    """The largest |y| / r for float32. Beyond it, norms near r are differences of larger numbers and lose digits."""

    def __post_init__(self) -> None:
        check_radius(self.r)
        check(self.group is not None, "group", self.group, "the dimensions of a group; for all of them use one norm")

    def norms(self, x: Tensor) -> Tensor:
        """Return the norm of each group, with its dimensions kept."""
        raise NotImplementedError(f"{type(self).__name__} has no norms")

    def alone(self, y: Tensor, d: Tensor) -> Tensor:
        """Return the λ at which the norm of each group alone is 1, or 0."""
        raise NotImplementedError(f"{type(self).__name__} has no alone")

    def at(self, lam: Tensor, y: Tensor, d: Tensor, norms: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the norms for this λ, and their negative slopes in λ. The start is `norms`, of another λ."""
        raise NotImplementedError(f"{type(self).__name__} has no at")

    def point(self, lam: Tensor, y: Tensor, d: Tensor, norms: Tensor) -> Tensor:
        """x for this λ, given its norms."""
        raise NotImplementedError(f"{type(self).__name__} has no point")

    def opposite(self, g: Tensor) -> Tensor:
        """Return the point of norm r with the least inner product with g, for each group."""
        raise NotImplementedError(f"{type(self).__name__} has no opposite")

    def dual(self, g: Tensor) -> Tensor:
        """Return the dual norm of g: that inner product as a multiple of -r."""
        raise NotImplementedError(f"{type(self).__name__} has no dual")

    def _over(self, y: Tensor) -> tuple[int, ...]:
        """Return the dimensions over which the norms are summed."""
        over, n = dims(y, self.dim), max(y.dim(), 1)
        if y.dim() > 0 and not {i % n for i in dims(y, self.group)} <= {i % n for i in over}:
            raise ValueError(f"{self}: dim={self.dim} must include the dimensions of a group, {self.group}, and others")
        return over

    @solving
    def argmin(self, y: Tensor, d: Tensor, root: Tensor | None) -> Tensor:
        over = self._over(y)
        inside = self.norms(y).sum(over, keepdim=True) <= self.r * (1 + tolerance(y))
        if everywhere(inside):
            return y
        if self.r == 0:
            return y.zero_()
        feasible = None if nowhere(inside) else y.clone()
        scale = d.amax()
        y, d = y.div_(self.r), d.div_(scale)  # changes nothing, but avoids overflow
        start = None if root is None or nowhere(root != 0) else root / (scale * self.r)
        lam, norms = self._root(y, d, over, start)
        if root is not None:
            root.copy_(lam * (scale * self.r))
        # Of a y beyond 1e9 r, float64 may leave no digit for λ. The sum is r all the same.
        x = self.point(lam, y, d, norms).mul_(self.r / norms.sum(over, keepdim=True))
        return x if feasible is None else torch.where(inside, feasible, x)

    def _root(self, y: Tensor, d: Tensor, over: tuple[int, ...], start: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the λ at which the norms sum to 1, and the norms, by Newton's method.

        From a λ that is too small it never overshoots. From a λ that is too large, a step leads to a smaller λ than the
        solution."""
        small, least = tolerance(y), torch.finfo(y.dtype).tiny ** 0.5
        lam = self.alone(y, d).amax(over, keepdim=True) if start is None else start.nan_to_num(0.0, 0.0, 0.0)
        norms, below, stays = None, torch.full_like(lam, least), torch.zeros_like(lam, dtype=torch.bool)
        for k in range(MAX_ITERATIONS if may_look(y) else NEWTON):
            lam = lam.clamp(min=least)
            norms, slopes = self.at(lam, y, d, norms)
            error, slope = norms.sum(over, keepdim=True) - 1, slopes.sum(over, keepdim=True)
            if k == 0 and start is not None and not everywhere(near := (slope > 0) & (error < FAR)):
                lam, norms = torch.where(near, lam, self.alone(y, d).amax(over, keepdim=True)), None
                continue
            step = torch.where(slope > 0, error / slope, 0.0)
            done = (
                (error.abs() <= small)
                | (step.abs() <= small * lam) & (slope > 0)
                | (lam <= least) & (error < 0)
                | stays
            )
            if everywhere(done):
                break
            # All norms are 0: beyond the solution, by rounding errors. Stay before it.
            stays = (slope == 0) & (below > least)
            below = torch.where(error > 0, lam, below)
            lam = torch.where(done, lam, torch.where(slope > 0, lam + step, below))
        return lam, cast(Tensor, norms)

    @vertex
    def lmo(self, g: Tensor) -> Tensor:
        """Return a point of norm r in the group with the largest dual norm of g, the first of them; 0 if g is 0."""

        def first(dual: Tensor) -> Tensor:
            best = dual.argmax(-1, keepdim=True)
            return torch.zeros_like(dual).scatter_(-1, best, 1.0)

        self._over(g)
        dual = self.dual(g)
        return self.opposite(g).mul_(by_slices(first, self.dim, dual))

    def root_shape(self, x: Tensor) -> torch.Size:
        return slice_shape(x, self.dim)

    def in_rows(self, x: Tensor) -> bool:
        return slices_in_rows(x, self.dim)

    def _size(self, x: Tensor) -> Tensor:
        return largest(x.abs().sum(dims(x, self.dim)))

    def violation(self, x: Tensor) -> Tensor:
        if x.numel() == 0:
            return x.new_zeros(())
        x = x.double()
        return largest(self.norms(x).sum(self._over(x)) - self.r)


class GroupL1Ball(GroupBall):
    r"""$\sum_G \|x_G\|_2 \le r$ over the groups G, the slices along `group`. It sets whole groups to zero.

    With $\lambda$ such that the sum is r, and with $\rho = \|x_G\|_2$,

    $$x_G = \frac{d_G\, \rho}{d_G\, \rho + \lambda}\, y_G, \qquad x_G = 0
        \text{ where } \|d_G\, y_G\|_2 \le \lambda$$

    Args:
        r: the largest sum of the norms.
        group: the dimension, or dimensions, of a group.
        dim: dimensions over which groups share one radius; must include `group`. None: all dimensions.

    >>> GroupL1Ball(3.0, group=1).argmin(torch.tensor([[3.0, 4.0], [0.6, 0.8]]), 1.0)
    tensor([[1.8000, 2.4000],
            [0.0000, 0.0000]])
    """

    needs: ClassVar[str] = "eigen"

    def norms(self, x: Tensor) -> Tensor:
        size = or_one(x.abs().amax(dims(x, self.group), keepdim=True))  # its square neither overflows nor vanishes
        return norm_of(x / size, dims(x, self.group)) * size

    def alone(self, y: Tensor, d: Tensor) -> Tensor:
        return norm_root(d * y, d.clone(), dims(y, self.group))

    def at(self, lam: Tensor, y: Tensor, d: Tensor, norms: Tensor | None) -> tuple[Tensor, Tensor]:
        group, x, weight = dims(y, self.group), y.clone(), lam / d
        norms = norm_root(x, weight.expand_as(y), group, norms)
        share = x.square_().div_(weight + norms)
        total = share.sum(group, keepdim=True)
        slope = share.div_(d).sum(group, keepdim=True) / or_one(total)  # the mean of 1/d
        return norms, slope * norms.sign()

    def point(self, lam: Tensor, y: Tensor, d: Tensor, norms: Tensor) -> Tensor:
        return y.mul_(norms / (norms + lam / d))

    def dual(self, g: Tensor) -> Tensor:
        return self.norms(g)

    def opposite(self, g: Tensor) -> Tensor:
        return -self.r * (g / or_one(self.norms(g)))


class L1InfBall(GroupBall):
    r"""$\sum_G \max_{i \in G} |x_i| \le r$ over the groups G, the slices along `group`. It sets whole groups to zero.

    With $\lambda$ such that the sum is r, and for each group $m$ such that $\sum_{i \in G} d_i \max(0, |y_i| - m)
    = \lambda$, or m = 0,

    $$x_G = \mathrm{clip}(y_G, -m, m)$$

    Args:
        r: the largest sum of the norms.
        group: the dimension, or dimensions, of a group.
        dim: dimensions over which groups share one radius; must include `group`. None: all dimensions.

    >>> L1InfBall(3.2, group=1).argmin(torch.tensor([[3.0, 4.0], [0.5, 0.5]]), 1.0)
    tensor([[3.0000, 3.1333],
            [0.0667, 0.0667]])
    """

    def norms(self, x: Tensor) -> Tensor:
        return x.abs().amax(dims(x, self.group), keepdim=True)

    def alone(self, y: Tensor, d: Tensor) -> Tensor:
        return (y.abs().sub_(1).relu_() * d).sum(dims(y, self.group), keepdim=True)

    def at(self, lam: Tensor, y: Tensor, d: Tensor, norms: Tensor | None) -> tuple[Tensor, Tensor]:
        """By Newton's method: the sum is also decreasing and convex in m."""
        group, size, small = dims(y, self.group), y.abs(), tolerance(y)
        least = (size - lam / d).amax(group, keepdim=True).clamp_(min=0)  # m of one coordinate alone
        m = least if norms is None else norms.maximum(least)
        for _ in range(MAX_ITERATIONS if may_look(y) else AGAIN):
            total = (size - m).relu_().mul_(d).sum(group, keepdim=True)
            slope = (size >= m).to(d.dtype).mul_(d).sum(group, keepdim=True)
            step = torch.where(slope > 0, (total - lam) / slope, least - m)
            done = ((total - lam).abs() <= small * lam) | (step.abs() <= small * m) | ((m == 0) & (step <= 0))
            if everywhere(done):
                break
            m = torch.where(done, m, (m + step).maximum(least))
        return m, torch.where((m > 0) & (slope > 0), slope.reciprocal(), 0.0)

    def point(self, lam: Tensor, y: Tensor, d: Tensor, norms: Tensor) -> Tensor:
        return y.minimum(norms).maximum(-norms)

    def dual(self, g: Tensor) -> Tensor:
        return g.abs().sum(dims(g, self.group), keepdim=True)

    def opposite(self, g: Tensor) -> Tensor:
        return -self.r * g.sign()

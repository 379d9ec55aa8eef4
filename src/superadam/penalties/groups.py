"""Group norms, which set whole groups of coordinates exactly to zero."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from superadam.parts import check
from superadam.penalties.base import Penalty, check_weight
from superadam.sets.base import Dim, dims, slices_in_rows, solving
from superadam.sets.roots import norm_root

__all__ = ["GroupLasso", "OverlappingGroupLasso"]

MAX_NEWTON = 1000  # far more than needed
LAST = 1e-24  # ε at the end. Where a group is about to leave zero, its norm is off by √ε


class GroupLasso(Penalty):
    r"""$h(x) = \lambda \sum_G \|x_G\|_2$ over the slices G along `dim`. It sets whole slices exactly to zero.

    $x_G = 0$ where $\|d_G\, y_G\|_2 \le \lambda$. Elsewhere, with $\rho = \|x_G\|_2$,

    $$x_G = \frac{d_G\, \rho}{d_G\, \rho + \lambda}\, y_G$$

    Args:
        lam: λ, the weight of the penalty.
        dim: the dimension, or dimensions, of a slice; None for the whole tensor.

    >>> GroupLasso(1.0, dim=1).argmin(torch.tensor([[3.0, 4.0], [0.1, 0.1]]), 1.0)
    tensor([[2.4000, 3.2000],
            [0.0000, 0.0000]])
    """

    lam: float
    dim: Dim

    needs: ClassVar[str] = "eigen"
    waits: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_weight("lam", self.lam)

    @solving
    def argmin(self, y: Tensor, d: Tensor) -> Tensor:
        if self.lam == 0:
            return y
        rho = norm_root(y, d.reciprocal_().mul_(self.lam), dims(y, self.dim))
        return y.mul_(rho)

    def in_rows(self, x: Tensor) -> bool:
        return slices_in_rows(x, self.dim)

    def value(self, x: Tensor) -> Tensor:
        norms: Tensor = torch.linalg.vector_norm(x, dim=dims(x, self.dim))
        return self.lam * norms.sum()


class OverlappingGroupLasso(Penalty):
    r"""$h(x) = \lambda \sum_G \|x_G\|_2$ over groups of coordinates that may overlap.

    A group is a list of indices into the flattened parameter. Coordinates in no group are free. The step sets a union
    of groups exactly to zero, and elsewhere

    $$x_i = \frac{d_i}{d_i + \lambda \sum_{G \ni i} 1 / \|x_G\|_2}\, y_i$$

    Groups that do not overlap are solved as in `GroupLasso`. Otherwise Newton's method is used, with
    $\epsilon + \sqrt{\epsilon^2 + \|x_G\|^2}$ in place of $\|x_G\|$ (the barrier of a second-order cone), where
    $\epsilon$ falls to 1e-24 of the largest |y|. It takes twenty to a hundred steps for any d. Each step solves a
    linear system with one equation per group.

    Args:
        lam: λ, the weight of the penalty.
        groups: lists of indices into the flattened parameter.

    >>> OverlappingGroupLasso(1.0, [[0, 1], [1, 2]]).argmin(torch.tensor([0.3, 0.4, 5.0]), 1.0)
    tensor([0., 0., 4.])
    """

    lam: float
    groups: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        check_weight("lam", self.lam)
        groups = tuple(tuple(int(i) for i in group) for group in self.groups)
        sound = all(group and min(group) >= 0 and len(set(group)) == len(group) for group in groups)
        check(groups and sound, "groups", self.groups, "lists of different indices from 0, none of them empty")
        object.__setattr__(self, "groups", groups)

    def misfit(self, x: Tensor) -> str | None:
        last = max(map(max, self.groups))
        if last < x.numel():
            return None
        return (
            f"a group has the index {last}, and a parameter of shape {tuple(x.shape)} has {x.numel()} coordinates; "
            "param groups give each parameter a penalty with groups of its own"
        )

    @solving
    def argmin(self, y: Tensor, d: Tensor) -> Tensor:
        size = y.abs().amax().double()
        if self.lam == 0 or not bool(size):
            return y
        size = size.log2().ceil().exp2()  # by which free coordinates are divided without an error
        index, absent = self._members(y)
        flat, metric = y.flatten().double() / size, d.expand_as(y).flatten().double()
        apart = sum(map(len, self.groups)) == len(set().union(*self.groups))
        x = (_apart if apart else _overlapping)(flat, metric, self.lam / size, index, absent)
        return x.mul_(size).view(y.shape).to(y.dtype)

    def value(self, x: Tensor) -> Tensor:
        if x.numel() == 0:
            return x.new_zeros(())
        index, absent = self._members(x)
        norms: Tensor = torch.linalg.vector_norm(x.flatten()[index].masked_fill(absent, 0.0), dim=1)
        return self.lam * norms.sum()

    def _members(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the indices as a matrix with one row per group, and which entries only pad shorter rows."""
        if reason := self.misfit(x):
            raise ValueError(reason)
        most = max(map(len, self.groups))
        index = torch.tensor([[*group, *group[:1] * (most - len(group))] for group in self.groups], device=x.device)
        sizes = torch.tensor([[len(group)] for group in self.groups], device=x.device)
        return index, torch.arange(most, device=x.device) >= sizes


def _apart(y: Tensor, d: Tensor, lam: Tensor, index: Tensor, absent: Tensor) -> Tensor:
    p = y[index].masked_fill_(absent, 0.0)
    rho = norm_root(p, lam / d[index], (1,))
    p.mul_(rho)
    return y.scatter(0, index[~absent], p[~absent])


def _overlapping(y: Tensor, d: Tensor, lam: Tensor, index: Tensor, absent: Tensor) -> Tensor:
    groups = torch.zeros(len(y), len(index), dtype=y.dtype, device=y.device)
    groups[index, torch.arange(len(index), device=y.device)[:, None].expand_as(index)] = 1.0
    one = torch.eye(len(index), dtype=y.dtype, device=y.device)

    def terms(x: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        root = (groups.T @ x.square()).add_(eps**2).sqrt_()
        curvature = d + lam * (groups @ (1 / (eps + root)))
        return root, curvature, curvature * x - d * y

    # The first ε is so large that y is nearly the solution.
    x, eps = y.clone(), max(1.0, float(lam * len(index) / d.min()) ** (1 / 3))
    for _ in range(MAX_NEWTON):
        root, curvature, slope = terms(x, eps)
        # The Hessian is the diagonal of the curvature minus the squares of these columns.
        columns = x[:, None] * groups * ((lam / root).sqrt() / (eps + root))
        step, scaled = slope / curvature, columns / curvature[:, None]
        step += scaled @ torch.linalg.solve(one - columns.T @ scaled, columns.T @ step)
        down = slope @ step
        t = 1.0
        while t > 1e-6 and bool(terms(x - t * step, eps)[2] @ step < -0.3 * down):  # too far
            t /= 2
        x = x - t * step
        at_rest = bool((step.abs() <= 1e-14).all())
        if at_rest and eps <= LAST:
            break
        if at_rest or bool(down <= 0.25 * eps * lam):
            eps = max(eps * 0.03, LAST)
    zero = (groups.T @ x.square()).sqrt() <= LAST**0.5
    return x.masked_fill_(groups @ zero.to(x.dtype) > 0, 0.0)

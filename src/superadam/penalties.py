"""Line 9 with a penalty: minimise f(x) + h(x), for an h that need not have a gradient."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from superadam._state.parts import Part, check
from superadam.sets.base import ConvexSet, Dim, dims, in_metric, slices_in_rows, solving
from superadam.sets.roots import norm_root

__all__ = ["L1", "L2", "ElasticNet", "GroupLasso", "Penalty", "combined_argmin", "pair_objection"]


class Penalty(Part, kind="penalty"):
    r"""Base class of the penalties h.

    `argmin(y, d)` is the exact step of line 9, for $d = H_t / \gamma$ and $y = x_t - g_t / d$:

    $$\arg\min_x \tfrac12 \sum_i d_i (x_i - y_i)^2 + h(x)$$

    d is a positive tensor of y's shape, or a scalar. A penalty of one's own is a subclass with two methods; its fields
    are its options:

    >>> class Squared(Penalty):
    ...     separable = True
    ...     def argmin(self, y, d):
    ...         return y * d / (d + 2)
    ...     def value(self, x):
    ...         return x.square().sum()
    >>> Squared().argmin(torch.tensor([3.0, -1.0]), 1.0)
    tensor([ 1.0000, -0.3333])
    """

    separable: ClassVar[bool] = False
    """Whether h is a sum over the coordinates, so that it goes with any box."""

    def objection(self, others: Any, options: dict[str, Any]) -> str | None:
        if others.matrix.scope != "coordinate":
            return (
                f"line 9 with a penalty is known for a diagonal H, which that of {type(others.matrix).__name__} is not"
            )
        return pair_objection(others.constraint, self)

    def in_rows(self, x: Tensor) -> bool:
        """Whether h is a sum over the x[i], so that x can be cut along its first dimension."""
        return False

    def argmin(self, y: Tensor, d: Tensor | float) -> Tensor:
        """The minimiser of the distance to y, where d weighs the coordinates, plus the penalty."""
        raise NotImplementedError(f"{type(self).__name__} has no argmin")

    def value(self, x: Tensor) -> Tensor:
        """h(x), as a 0-d tensor."""
        raise NotImplementedError(f"{type(self).__name__} has no value")


def pair_objection(constraint: ConvexSet | None, penalty: Penalty | None) -> str | None:
    """Why line 9 cannot be solved for this set and this penalty together, if it cannot.

    >>> from superadam.sets import Box, Simplex
    >>> pair_objection(Box(0, 1), L1(0.1)) is None, pair_objection(Simplex(), L1(0.1)) is None
    (True, False)
    """
    if constraint is None or penalty is None or (constraint.separable and penalty.separable):
        return None
    part = constraint if not constraint.separable else penalty
    return (
        "a penalty goes with a set only if both work on each coordinate by itself, and "
        f"{type(part).__name__} does not; L1, L2 and ElasticNet go with Box, NonNegative and LInfBall"
    )


def combined_argmin(
    constraint: ConvexSet | None, penalty: Penalty | None, y: Tensor, d: Tensor | float, **memory: Any
) -> Tensor:
    """The exact step of line 9 for a set, a penalty, or both: in one dimension, the penalty's minimiser is clipped.

    `scratch` says that y and d may be written into, `root` is that of the last step (see `in_metric`).

    >>> from superadam.sets import NonNegative
    >>> combined_argmin(NonNegative(), L1(1.0), torch.tensor([3.0, -3.0]), 1.0)
    tensor([2., 0.])
    """
    if objection := pair_objection(constraint, penalty):
        raise ValueError(objection)
    for part in (penalty, constraint):
        if part is not None:
            more = memory if hasattr(part.argmin, "takes_more") else {}  # a user's own has y and d alone
            y = part.argmin(y, d, **more)
    return y


def _check_weight(name: str, value: float) -> None:
    check(0 <= value < math.inf, name, value, f"0 <= {name} < inf")


def _soft(y: Tensor, threshold: Tensor) -> Tensor:
    """sign(y) max(0, |y| - threshold), in place of y."""
    return y.sub_(y.minimum(threshold).clamp_min_(threshold.neg_()))


class L1(Penalty):
    r"""$h(x) = \lambda \|x\|_1$, which makes coordinates exactly zero.

    $$x = \mathrm{sign}(y) \max(0, |y| - \lambda / d)$$

    >>> L1(1.0).argmin(torch.tensor([3.0, -0.4]), torch.tensor([1.0, 2.0]))
    tensor([2., 0.])
    """

    lam: float
    separable: ClassVar[bool] = True
    elementwise = True

    def __post_init__(self) -> None:
        _check_weight("lam", self.lam)

    @in_metric
    def argmin(self, y: Tensor, d: Tensor) -> Tensor:
        return _soft(y, self.lam / d)

    def value(self, x: Tensor) -> Tensor:
        return self.lam * x.abs().sum()


class L2(Penalty):
    r"""$h(x) = \frac{\lambda}{2} \|x\|_2^2$.

    $$x = \frac{d}{d + \lambda}\, y$$

    >>> L2(1.0).argmin(torch.tensor([3.0, -3.0]), torch.tensor([1.0, 2.0]))
    tensor([ 1.5000, -2.0000])
    """

    lam: float
    separable: ClassVar[bool] = True
    elementwise = True

    def __post_init__(self) -> None:
        _check_weight("lam", self.lam)

    @in_metric
    def argmin(self, y: Tensor, d: Tensor) -> Tensor:
        return y.div_(1 + self.lam / d)  # d may be infinite, for γ = 0

    def value(self, x: Tensor) -> Tensor:
        return self.lam / 2 * x.square().sum()


class ElasticNet(Penalty):
    r"""$h(x) = \lambda_1 \|x\|_1 + \frac{\lambda_2}{2} \|x\|_2^2$.

    $$x = \frac{d}{d + \lambda_2}\, \mathrm{sign}(y) \max(0, |y| - \lambda_1 / d)$$

    >>> ElasticNet(l1=1.0, l2=1.0).argmin(torch.tensor([3.0, -0.4]), torch.tensor([1.0, 2.0]))
    tensor([1., 0.])
    """

    l1: float
    l2: float
    separable: ClassVar[bool] = True
    elementwise = True

    def __post_init__(self) -> None:
        _check_weight("l1", self.l1)
        _check_weight("l2", self.l2)

    @in_metric
    def argmin(self, y: Tensor, d: Tensor) -> Tensor:
        return _soft(y, self.l1 / d).div_(1 + self.l2 / d)

    def value(self, x: Tensor) -> Tensor:
        return self.l1 * x.abs().sum() + self.l2 / 2 * x.square().sum()


class GroupLasso(Penalty):
    r"""$h(x) = \lambda \sum_G \|x_G\|_2$ over the slices G along `dim`, which makes whole slices exactly zero.

    $x_G = 0$ where $\|d_G\, y_G\|_2 \le \lambda$. Elsewhere, with $\rho = \|x_G\|_2$,

    $$x_G = \frac{d_G\, \rho}{d_G\, \rho + \lambda}\, y_G$$

    >>> GroupLasso(1.0, dim=1).argmin(torch.tensor([[3.0, 4.0], [0.1, 0.1]]), 1.0)
    tensor([[2.4000, 3.2000],
            [0.0000, 0.0000]])
    """

    lam: float
    dim: Dim

    def __post_init__(self) -> None:
        _check_weight("lam", self.lam)

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

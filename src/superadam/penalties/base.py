"""Line 9 with a penalty: minimise f(x) + h(x), where h need not be differentiable."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from torch import Tensor

from superadam.parts import Part, check
from superadam.sets.base import ConvexSet, metric_objection, outside, scalar_objection

__all__ = ["Penalty", "check_weight", "combined_argmin", "pair_objection"]


class Penalty(Part, kind="penalty"):
    r"""Base class of all penalties h.

    `argmin(y, d)` is the exact step of line 9, for $d = H_t / \gamma$ and $y = x_t - g_t / d$:

    $$\arg\min_x \tfrac12 \sum_i d_i (x_i - y_i)^2 + h(x)$$

    d is a positive tensor of y's shape, or a scalar. To write your own penalty, subclass this and define `argmin` and
    `value`. Its fields are its options:

    >>> import torch
    >>> class Squared(Penalty):
    ...     separable = True
    ...     def argmin(self, y, d):
    ...         return y * d / (d + 2)
    ...     def value(self, x):
    ...         return x.square().sum()
    >>> Squared().argmin(torch.tensor([3.0, -1.0]), 1.0)
    tensor([ 1.0000, -0.3333])
    """

    scalar_metric: ClassVar[bool] = False
    """Whether the step is only known for H_t = b I, so that d must be a scalar."""
    separable: ClassVar[bool] = False
    """Whether h is a sum over the coordinates, so that it works with any box."""
    needs: ClassVar[str] = "diagonal"
    """What the step needs from H_t. "eigen" if rotations of each slice do not change h (see `ConvexSet`)."""

    def objection(self, others: Any, options: dict[str, Any]) -> str | None:
        matrix = others.matrix
        reason = scalar_objection(self, matrix) if matrix.is_diagonal else metric_objection(self, others)
        return reason or pair_objection(others.constraint, self)

    def misfit(self, x: Tensor) -> str | None:
        """Return why the penalty is not one for tensors like x, or None."""
        return outside(self, x)

    def in_rows(self, x: Tensor) -> bool:
        """Return whether h is a sum over the x[i], so that x can be split along its first dimension."""
        return False

    def argmin(self, y: Tensor, d: Tensor | float) -> Tensor:
        """Return the minimiser of half the squared distance to y in the metric of d, plus the penalty."""
        raise NotImplementedError(f"{type(self).__name__} has no argmin")

    def value(self, x: Tensor) -> Tensor:
        """h(x), as a 0-d tensor."""
        raise NotImplementedError(f"{type(self).__name__} has no value")


def pair_objection(constraint: ConvexSet | None, penalty: Penalty | None) -> str | None:
    """Return the reason why line 9 has no known solution for this set and penalty together, or None.

    Args:
        constraint: X, or None.
        penalty: h, or None.

    >>> from superadam.penalties import L1
    >>> from superadam.sets import Box, Simplex
    >>> pair_objection(Box(0, 1), L1(0.1)) is None, pair_objection(Simplex(), L1(0.1)) is None
    (True, False)
    """
    if constraint is None or penalty is None or (constraint.separable and penalty.separable):
        return None
    part = constraint if not constraint.separable else penalty
    return (
        "a penalty goes with a set only if both work on each coordinate by itself, and "
        f"{type(part).__name__} does not; L1, L2, ElasticNet and Huber go with Box, NonNegative and LInfBall"
    )


def combined_argmin(
    constraint: ConvexSet | None, penalty: Penalty | None, y: Tensor, d: Tensor | float, **memory: Any
) -> Tensor:
    """Return the exact step of line 9 for a set, a penalty, or both. For both, it clips the penalty's minimiser.

    Args:
        constraint: X, or None.
        penalty: h, or None.
        y: x_t - g_t/d.
        d: H_t/γ.
        **memory: `scratch` allows writing into y and d; `root` is the root of the last step (see `in_metric`).

    >>> import torch
    >>> from superadam.penalties import L1
    >>> from superadam.sets import NonNegative
    >>> combined_argmin(NonNegative(), L1(1.0), torch.tensor([3.0, -3.0]), 1.0)
    tensor([2., 0.])
    """
    if constraint is not None and penalty is not None and (objection := pair_objection(constraint, penalty)):
        raise ValueError(objection)
    for part in (penalty, constraint):
        if part is not None:
            more = memory if hasattr(part.argmin, "takes_more") else {}  # a user's own has y and d alone
            y = part.argmin(y, d, **more)
    return y


def check_weight(name: str, value: float) -> None:
    check(0 <= value < math.inf, name, value, f"0 <= {name} < inf")

"""Gradients taken ahead of x_t."""

from __future__ import annotations

from typing import Any

from superadam.bucket import Bucket
from superadam.iterates.base import Iterate
from superadam.schedules import Schedule

__all__ = ["Nigt"]


class Nigt(Iterate):
    r"""Gradients are taken ahead of x_t, so that old gradients leave no bias in the average (Cutkosky and Mehta 2020).

    $$g_t = (1-\alpha_t) g_{t-1}
          + \alpha_t \nabla f\Bigl(x_t + \frac{1-\alpha_t}{\alpha_t}(x_t - x_{t-1});\, \xi_t\Bigr)$$

    While gradients are taken, the parameters hold the point in the brackets. `flush()` brings them to x_t; `at_x()`
    does so inside of its `with`.

    >>> Nigt()
    Nigt()
    """

    buffers = ("lead",)
    elementwise = True

    def rebase(self, s: Bucket) -> None:
        s.x.sub_(s.lead)
        s.lead = s.x

    def moved(self, s: Bucket) -> None:
        alpha = s.schedule.weight(s.step + 1, s.estimator.tau)
        s.lead.sub_(s.x).mul_((alpha - 1) / alpha)
        s.x.add_(s.lead)

    def settle(self, s: Bucket) -> None:
        s.x.sub_(s.lead)
        s.lead.zero_()

    def objection(self, others: Any, options: dict[str, Any]) -> str | None:
        matrix, schedule = others.matrix, others.schedule
        if others.estimator.two_point:
            return f"{others.estimator} compares gradients at x_t and x_(t-1), which are never taken: use tau=0"
        if matrix.two_point:
            return f"{type(matrix).__name__} compares gradients at x_t and x_(t-1), which are never taken"
        if others.constraint is not None:
            return "the point ahead, where gradients are taken, may lie outside of the set"
        if type(schedule).weight_of is not Schedule.weight_of:
            return (
                f"the point ahead must be known before the next gradient, and {type(schedule).__name__} looks at that"
            )
        return None

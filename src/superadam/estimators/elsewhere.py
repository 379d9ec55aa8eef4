"""Estimators whose gradients, or whose moves, do not belong to x_t alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from torch import Tensor

from superadam._state.parts import check
from superadam.estimators.base import Estimator
from superadam.schedules import Constant, Schedule

if TYPE_CHECKING:
    from superadam._step.view import Chunk

__all__ = ["Staged", "Transport"]


class Transport(Estimator):
    r"""Momentum of gradients taken ahead of x_t, which takes out the bias of old gradients (Cutkosky and Mehta 2020).

    $$g_t = (1-\alpha_t) g_{t-1}
          + \alpha_t \nabla f\Bigl(x_t + \frac{1-\alpha_t}{\alpha_t}(x_t - x_{t-1});\, \xi_t\Bigr)$$

    While gradients are taken the parameters hold the point in the brackets; `flush()` brings them to x_t.

    >>> Transport()
    Transport()
    """

    buffers = ("g", "lead")
    elementwise = True

    def after(self, s: Chunk, grad: Tensor) -> Tensor:
        s.g.lerp_(grad, s.alpha)
        return grad

    def rebase(self, s: Chunk) -> None:
        s.x.sub_(s.lead)
        s.lead = s.x

    def moved(self, s: Chunk) -> None:
        alpha = s.at_step(s.schedule.weight, ahead=1)
        s.lead.sub_(s.x).mul_((alpha - 1) / alpha)
        s.x.add_(s.lead)

    def settle(self, s: Chunk) -> None:
        s.x.sub_(s.lead)
        s.lead.zero_()

    def objection(self, others: Any, options: dict[str, Any]) -> str | None:
        matrix, schedule = others.matrix, others.schedule
        if matrix.two_point:
            return f"{type(matrix).__name__} compares gradients at x_t and x_(t-1), which are never taken"
        if others.constraint is not None:
            return "the point ahead, where gradients are taken, may lie outside of the set"
        if type(schedule).weight_of is not Schedule.weight_of:
            return (
                f"the point ahead must be known before the next gradient, and {type(schedule).__name__} looks at that"
            )
        return None


class Staged(Estimator):
    r"""All gradients of a stage, summed, with every move starting where the stage did (SAdaGrad: Chen et al. 2018).

    $$g_t = \sum_{i \text{ in this stage}} \nabla f(x_i; \xi_i), \qquad
      \tilde x_{t+1} = x_{\text{stage}} - \gamma_k H_t^{-1} g_t$$

    Stage k has `length` × `growth`ᵏ steps and $\gamma_k$ = γ × `shrink`ᵏ. The next one starts, with $H$ anew, from the
    average of the points of this one. Keeps two tensors more for each parameter.

    >>> Staged(length=50)
    Staged(length=50, growth=2.0, shrink=0.5)
    """

    length: int = 100
    growth: float = 2.0
    shrink: float = 0.5

    buffers = ("g", "start", "mean")
    on_host = True
    elementwise = True

    def __post_init__(self) -> None:
        check(self.length >= 1, "length", self.length, "length >= 1")
        check(self.growth >= 1, "growth", self.growth, "growth >= 1")
        check(0 < self.shrink <= 1, "shrink", self.shrink, "0 < shrink <= 1")

    def stage(self, t: int) -> tuple[int, int, bool]:
        """The stage that step t ≥ 1 is in, its place in there (from 1), and if it is the last one there."""
        k, begin = 0, 0
        while t > begin + (size := math.floor(self.length * self.growth**k)):
            k, begin = k + 1, begin + size
        return k, t - begin, t == begin + size

    def after(self, s: Chunk, grad: Tensor) -> Tensor:
        _, place, _ = self.stage(s.states[0]["step"])
        if place == 1:
            s.start = s.x
            s.g.zero_(), s.mean.zero_()
            for name in s.matrix.buffers:
                getattr(s, name).fill_(s.matrix.initial(name))
        s.g.add_(grad)
        s.mean.lerp_(s.x.to(s.one.dtype), 1 / place)
        return grad

    def rebase(self, s: Chunk) -> None:
        s.x.copy_(s.start)

    def rate(self, s: Chunk) -> float:
        k, _, _ = self.stage(s.states[0]["step"])
        return self.shrink**k

    def age(self, t: int) -> int:
        return self.stage(t)[1]

    def moved(self, s: Chunk) -> None:
        _, _, last = self.stage(s.states[0]["step"])
        if last:
            s.x.copy_(s.mean)

    def objection(self, others: Any, options: dict[str, Any]) -> str | None:
        matrix, schedule = others.matrix, others.schedule
        if options["clip"] is not None:
            return "a clipped sum of gradients is no sum: use clip=None"
        if options["weight_decay"] != 0 and options["decoupled_weight_decay"]:
            return "it would decay the stage's first point, not x: use decoupled_weight_decay=False"
        if matrix.scalars or matrix.two_point:
            return f"stages begin anew for each parameter, but {type(matrix).__name__} is shared by all"
        if not isinstance(schedule, Constant) or schedule != Constant(alpha=schedule.alpha, first=schedule.first):
            return "a move starts at the stage's first point, which leaves nothing to mix: use schedules.Constant(mu=1)"
        return None

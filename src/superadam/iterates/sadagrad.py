"""Training in stages."""

from __future__ import annotations

import math
from typing import Any

from superadam.bucket import Bucket
from superadam.iterates.base import Iterate
from superadam.parts import check
from superadam.schedules import Constant

__all__ = ["SAdaGrad"]


class SAdaGrad(Iterate):
    r"""Every move starts from the first point of its stage (SAdaGrad: Chen et al. 2018, with `estimators.Summed`).

    $$\tilde x_{t+1} = x_{\text{stage}} - \gamma_k H_t^{-1} g_t$$

    Stage k has `length` × `growth`ᵏ steps and $\gamma_k$ = γ × `shrink`ᵏ. The next stage starts from the average of the
    points of this one, with a new $H$ and $g$. It keeps two tensors for each parameter.

    Args:
        length: number of steps of the first stage.
        growth: number of steps of a stage, divided by that of the stage before.
        shrink: learning rate of a stage, divided by that of the stage before.

    >>> SAdaGrad(length=50)
    SAdaGrad(length=50, growth=2.0, shrink=0.5)
    """

    length: int = 100
    growth: float = 2.0
    shrink: float = 0.5

    buffers = ("start", "mean")
    no_auto = "every move starts from the stage's first point, and d_t is estimated from x_1: give lr a number"
    on_host = True
    elementwise = True

    def __post_init__(self) -> None:
        check(self.length >= 1, "length", self.length, "length >= 1")
        check(self.growth >= 1, "growth", self.growth, "growth >= 1")
        check(0 < self.shrink <= 1, "shrink", self.shrink, "0 < shrink <= 1")

    def stage(self, t: int) -> tuple[int, int, bool]:
        """Return the stage of step t ≥ 1, the step's number within it (from 1), and whether the step is its last."""
        k, begin = 0, 0
        while t > begin + (size := math.floor(self.length * self.growth**k)):
            k, begin = k + 1, begin + size
        return k, t - begin, t == begin + size

    def begin(self, s: Bucket) -> None:
        _, place, _ = self.stage(s.step)
        if place == 1:
            s.start = s.x
            s.mean.zero_()
            for name in s.matrix.buffers:
                getattr(s, name).fill_(s.matrix.initial(name))
        s.mean.lerp_(s.x.to(s.one.dtype), 1 / place)

    def rebase(self, s: Bucket) -> None:
        s.x.copy_(s.start)

    def rate(self, s: Bucket) -> float:
        k, _, _ = self.stage(s.step)
        return self.shrink**k

    def age(self, t: int) -> int:
        return self.stage(t)[1]

    def moved(self, s: Bucket) -> None:
        _, _, last = self.stage(s.step)
        if last:
            s.x.copy_(s.mean)

    def objection(self, others: Any, options: dict[str, Any]) -> str | None:
        matrix, schedule = others.matrix, others.schedule
        if others.estimator.two_point:
            return f"a stage's moves start at one point, and {others.estimator} needs the last one: use tau=0"
        if options["clip"] is not None:
            return "clip= would change the sum of gradients: use clip=None"
        if options["weight_decay"] != 0 and options["decoupled_weight_decay"]:
            return "it would decay the stage's first point, not x: use decoupled_weight_decay=False"
        if matrix.per_tensor or matrix.joint or matrix.scalars or matrix.two_point:
            return f"stages begin anew for each parameter, but {type(matrix).__name__} is shared by all"
        if not isinstance(schedule, Constant) or schedule != Constant(alpha=schedule.alpha, first=schedule.first):
            own = "SAdaGrad restarts every move from the stage's first point, so μ must be 1"
            return f"{own}: use schedules.Constant(mu=1)"
        return None

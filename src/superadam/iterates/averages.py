"""Averages of the points that a method visits: as the result, and as the point where gradients are taken."""

from __future__ import annotations

import torch
from torch import Tensor

from superadam.bucket import Bucket
from superadam.iterates.base import Iterate
from superadam.lists import Scalar, add_scaled, mix
from superadam.parts import check
from superadam.schedules import BiasCorrected

__all__ = ["Averaged", "Lookahead", "ScheduleFree"]


class ScheduleFree(Iterate):
    r"""The result is an average of the points, so the learning rate needs no schedule (Defazio et al. 2024).

    $$y_t = (1-\beta) z_t + \beta x_t, \qquad z_{t+1} = \text{lines 9, 10 from } z_t \text{ with the gradient at } y_t,
      \qquad x_{t+1} = (1 - c_t) x_t + c_t z_{t+1}$$

    $$c_t = \frac{w_t}{\sum_{i \le t} w_i}, \qquad
      w_t = t^r \bigl(\max_{i \le t} \gamma_i\bigr)^{\mathrm{weight\_power}}, \qquad
      \gamma_t = \gamma \min(1, t/\mathrm{warmup})$$

    While gradients are taken, the parameters hold $y_t$. `opt.at_x()`, `opt.eval()` and `flush()` bring them to $x_t$,
    the result. $x_t$ and $y_t$ are averages of the $z$, so they stay in a set. Any matrix and τ can be used. $\beta$
    replaces momentum, so schedule-free AdamW has the schedule `Constant(alpha=1.0)`. Decoupled weight decay acts at
    $y_t$, as published; with a set or a penalty it acts at $z_t$. If a scheduler changes γ, $w_t$ follows. It keeps one
    tensor for each parameter.

    Args:
        beta: weight of x_t in y_t. It replaces momentum.
        r: the weight of a point grows like t^r.
        weight_power: power of the largest γ so far in the weight of a point; points of a warm-up count less.
        warmup: number of steps in which γ rises to its value.
        weight: a constant c_t, as in generalised primal averaging (GPA, 2025: `beta=0.7, weight=0.0033`). None means
            the formula above.

    >>> ScheduleFree(warmup=100)
    ScheduleFree(beta=0.9, r=0.0, weight_power=2.0, warmup=100, weight=None)
    """

    beta: float = 0.9
    r: float = 0.0
    weight_power: float = 2.0
    warmup: int = 0
    weight: float | None = None

    buffers = ("lead",)  # y_t - z_t
    numbers = ("lr_max", "weight_sum", "c")
    elementwise = True

    def __post_init__(self) -> None:
        check(0 < self.beta <= 1, "beta", self.beta, "0 < beta <= 1")
        check(self.r >= 0, "r", self.r, "r >= 0")
        check(self.weight_power >= 0, "weight_power", self.weight_power, "weight_power >= 0")
        check(self.warmup >= 0, "warmup", self.warmup, "warmup >= 0")
        check(self.weight is None or 0 < self.weight <= 1, "weight", self.weight, "0 < weight <= 1, or None")

    def count(self, s: Bucket) -> None:
        gamma = s.gamma * self.rate(s)
        largest = gamma if isinstance(gamma, Tensor) else max(s.number("lr_max"), gamma)
        if isinstance(gamma, Tensor):  # on a device: nobody waits for it
            largest = torch.maximum(gamma, torch.as_tensor(s.number("lr_max")).to(gamma))
        weight = s.step**self.r * largest**self.weight_power
        total = s.number("weight_sum") + weight
        c = weight / (total + 1e-30) if self.weight is None else self.weight
        for state in s.states:
            state.update(lr_max=largest, weight_sum=total, c=c)

    def rate(self, s: Bucket) -> Scalar:
        return min(s.step, self.warmup) / self.warmup if self.warmup > 1 else 1.0

    def rebase(self, s: Bucket) -> None:
        s.x.sub_(s.lead)
        s.lead.div_(self.beta).add_(s.x)  # x_t

    def take_decay(self, s: Bucket, share: Scalar) -> None:
        ahead = s.lead - s.x  # x_t - z_t, and y_t = z_t + β (x_t - z_t)
        s.x.mul_(1 - share)
        add_scaled(s.x, ahead, -self.beta * share)

    def moved(self, s: Bucket) -> None:
        mix(s.lead, s.x.to(s.one.dtype), s.number("c"))
        s.lead.sub_(s.x).mul_(self.beta)
        s.x.add_(s.lead)

    def settle(self, s: Bucket) -> None:
        s.x.add_(s.lead, alpha=1 / self.beta - 1)
        s.lead.zero_()


class Averaged(Iterate):
    r"""Gradients are taken at x_t; the result is an exponential average of the points (EMA, Polyak averaging).

    $$\bar x_t = \frac{d (1-d^{t-1})\, \bar x_{t-1} + (1-d)\, x_{t+1}}{1-d^t}$$

    The correction for the start makes $\bar x_1 = x_2$. `decay=1.0` gives all points the same weight (stochastic weight
    averaging). The average begins after `start` steps; before that, it is $x_{t+1}$. `opt.at_x()`, `opt.eval()` and
    `flush()` bring the parameters to $\bar x_t$. It keeps one tensor for each parameter.

    Args:
        decay: weight of the old average, once t is large.
        start: number of steps before the average begins.

    >>> Averaged(decay=0.99)
    Averaged(decay=0.99, start=0)
    >>> [round(Averaged(1.0, start=2).share(t), 4) for t in (1, 2, 3, 4, 5)]
    [1.0, 1.0, 1.0, 0.5, 0.3333]
    """

    decay: float = 0.999
    start: int = 0

    buffers = ("lag",)  # the average, less x
    elementwise = True

    def __post_init__(self) -> None:
        check(0 <= self.decay <= 1, "decay", self.decay, "0 <= decay <= 1")
        check(self.start >= 0, "start", self.start, "start >= 0")

    def share(self, t: int) -> float:
        """Return the weight of the newest point."""
        n = max(t - self.start, 1)
        return 1 / n if self.decay == 1 else BiasCorrected(self.decay).weight(n, 0.0)

    def rebase(self, s: Bucket) -> None:
        s.lag.add_(s.x)

    def moved(self, s: Bucket) -> None:
        s.lag.sub_(s.x).mul_(1 - self.share(s.step))

    def settle(self, s: Bucket) -> None:
        s.x.add_(s.lag)
        s.lag.zero_()


class Lookahead(Iterate):
    r"""A slow point moves towards the fast point every `every` steps, which continues from there (Zhang et al. 2019).

    $$\phi \leftarrow \phi + \mathrm{share}\,(x_t - \phi), \qquad x_t \leftarrow \phi$$

    The result is the slow point $\phi$. `opt.at_x()`, `opt.eval()` and `flush()` bring the parameters to it. It keeps
    one tensor for each parameter.

    Args:
        every: number of steps of the fast point between two steps of the slow one.
        share: share of the distance to the fast point that the slow one moves.

    >>> Lookahead()
    Lookahead(every=5, share=0.5)
    """

    every: int = 5
    share: float = 0.5

    buffers = ("lag",)  # the slow point, less x
    elementwise = True

    def __post_init__(self) -> None:
        check(self.every >= 1, "every", self.every, "every >= 1")
        check(0 < self.share <= 1, "share", self.share, "0 < share <= 1")

    def rebase(self, s: Bucket) -> None:
        s.lag.add_(s.x)

    def moved(self, s: Bucket) -> None:
        s.lag.sub_(s.x)
        if s.step % self.every == 0:
            s.lag.mul_(1 - self.share)
            s.x.add_(s.lag)
            s.lag.zero_()

    def settle(self, s: Bucket) -> None:
        s.x.add_(s.lag)
        s.lag.zero_()

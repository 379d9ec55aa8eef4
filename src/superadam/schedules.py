"""Lines 10 and 11: the weights μ_t and α_t."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from superadam.bucket import Bucket
from superadam.lists import Scalar
from superadam.parts import Part, check

__all__ = ["BiasCorrected", "Constant", "Paper", "Schedule", "Storm"]


class Schedule(Part, kind="schedule"):
    """Base class: `mu_t(t, tau)` for line 10, and `alpha_t(t, tau)` for line 11 from the second gradient on.

    To write your own schedule, define a subclass with these two methods. Its fields are its options:

    >>> class Harmonic(Schedule):
    ...     half: float
    ...     def mu_t(self, t, tau):
    ...         return self.half / (self.half + t)
    ...     def alpha_t(self, t, tau):
    ...         return 0.1
    >>> Harmonic(half=100).mu_t(100, tau=0.0)
    0.5
    """

    first = 1.0  # no ClassVar: a subclass may make it an option, in its own place
    """α_1. With 1, g_1 = ∇f(x_1; ξ_1), as in line 2 of the paper."""

    def mu_t(self, t: int, tau: float) -> float:
        r"""Return $\mu_t$, for $t \ge 1$."""
        raise NotImplementedError(f"{type(self).__name__} has no mu_t")

    def alpha_t(self, t: int, tau: float) -> float:
        r"""Return $\alpha_t$, for $t \ge 2$."""
        raise NotImplementedError(f"{type(self).__name__} has no alpha_t")

    def largest_mu(self, tau: float) -> float:
        """Return the largest μ_t: `lr=None` divides `matrix.lr` by it. Override it if your μ_t stays below 1."""
        return 1.0

    def weight(self, t: int, tau: float) -> float:
        """Return α_t for every t ≥ 1."""
        return self.first if t == 1 else self.alpha_t(t, tau)

    def weight_of(self, s: Bucket) -> Scalar:
        """Return α_t for the bucket s. Override it if α_t depends on more than t and τ."""
        return self.weight(s.step, s.estimator.tau)


class Paper(Schedule):
    r"""The schedules of theorems 1 and 2.

    $$\tau = 0:\quad \mu_t = \frac{k}{(m+t)^{1/2}},\quad \alpha_{t+1} = \min(c\,\mu_t, \mathrm{cap})$$

    $$\tau > 0:\quad \mu_t = \frac{k}{(m+t)^{1/3}},\quad \alpha_{t+1} = \min(c\,\mu_t^2, \mathrm{cap})$$

    Args:
        k: k, the size of μ_t.
        m: m, the number of steps after which μ_t starts to fall noticeably.
        c: sets the weight of the newest gradient: α_{t+1} = c μ_t, or c μ_t² with τ > 0. None means the values of the
            paper's experiments on CIFAR: 20 for τ = 0, 40 for τ > 0.
        cap: the largest α_t; 0.9 in section 6 of the paper. With m = 100 and no cap, α_t would exceed 1 at first.

    >>> round(Paper().mu_t(1, tau=0.0), 6)
    0.099504
    >>> Paper().alpha_t(2, tau=0.0), round(Paper().alpha_t(10_000, tau=1.0), 6)
    (0.9, 0.085613)
    """

    k: float = 1.0
    m: float = 100.0
    c: float | None = None
    cap: float = 0.9

    def __post_init__(self) -> None:
        check(self.k > 0 and math.isfinite(self.k), "k", self.k, "k > 0")
        check(self.m >= 0 and math.isfinite(self.m), "m", self.m, "m >= 0")
        check(self.c is None or self.c > 0, "c", self.c, "c > 0, or None for the paper's")
        check(0 < self.cap <= 1, "cap", self.cap, "0 < cap <= 1")

    def constant(self, tau: float) -> float:
        """c, or the paper's if it is None."""
        return self.c if self.c is not None else (40.0 if tau > 0 else 20.0)

    def mu_t(self, t: int, tau: float) -> float:
        mu: float = self.k / (self.m + t) ** (1 / 3 if tau > 0 else 1 / 2)
        return mu

    def largest_mu(self, tau: float) -> float:
        return self.mu_t(1, tau)

    def alpha_t(self, t: int, tau: float) -> float:
        mu = self.mu_t(t - 1, tau)
        alpha = self.constant(tau) * (mu * mu if tau > 0 else mu)
        return min(alpha, self.cap)


class Constant(Schedule):
    r"""$\mu_t = \mu\, t^{-\mathrm{power}} / (1 + (t-1)\,\mathrm{decay})$, $\alpha_1$ = `first` and $\alpha_t = \alpha$.

    Args:
        mu: μ_1.
        alpha: α_t for t ≥ 2, the weight of the newest gradient: 1 - momentum.
        first: α_1, so that g_1 = α_1 ∇f(x_1; ξ_1). Methods that start their average at zero have α_1 < 1.
        decay: μ_t falls like 1/(1 + (t - 1) decay).
        power: μ_t falls like t^(-power).

    >>> schedule = Constant(alpha=0.1)
    >>> schedule.weight(1, tau=0.0), schedule.weight(2, tau=0.0)
    (1.0, 0.1)
    """

    mu: float = 1.0
    alpha: float = 0.1
    first: float = 1.0
    decay: float = 0.0
    power: float = 0.0

    def __post_init__(self) -> None:
        check(self.mu > 0 and math.isfinite(self.mu), "mu", self.mu, "mu > 0")
        check(0 < self.alpha <= 1, "alpha", self.alpha, "0 < alpha <= 1")
        check(self.first > 0, "first", self.first, "first > 0")
        check(self.decay >= 0, "decay", self.decay, "decay >= 0")
        check(0 <= self.power <= 1, "power", self.power, "0 <= power <= 1")

    def mu_t(self, t: int, tau: float) -> float:
        mu: float = self.mu * t**-self.power / (1 + (t - 1) * self.decay)
        return mu

    def largest_mu(self, tau: float) -> float:
        return self.mu

    def alpha_t(self, t: int, tau: float) -> float:
        return self.alpha


class BiasCorrected(Schedule):
    r"""Adam's average with bias correction, as line 11 with a varying weight.

    $\mu_t = t^{-\mathrm{power}}$ and

    $$\alpha_t = \frac{1-\beta}{1-\beta^t}, \qquad \text{so that}\qquad
      g_t = \frac{m_t}{1-\beta^t} \text{ where } m_t = \beta m_{t-1} + (1-\beta) \nabla f(x_t; \xi_t)$$

    Args:
        beta: Adam's β₁: weight of the old average, once t is large.
        power: μ_t = t^(-power). Equation (3) of the paper has 1/2, torch has 0.

    >>> [round(BiasCorrected(0.9).weight(t, tau=0.0), 4) for t in (1, 2, 1000)]
    [1.0, 0.5263, 0.1]
    """

    beta: float = 0.9
    power: float = 0.0

    def __post_init__(self) -> None:
        check(0 <= self.beta < 1, "beta", self.beta, "0 <= beta < 1")
        check(0 <= self.power <= 1, "power", self.power, "0 <= power <= 1")

    def mu_t(self, t: int, tau: float) -> float:
        mu: float = t**-self.power
        return mu

    def alpha_t(self, t: int, tau: float) -> float:
        alpha: float = (1 - self.beta) / (1 - self.beta**t)
        return alpha


class Storm(Schedule):
    r"""STORM's weight, from the learning rate that $H_t = \eta_t^{-1} I$ gives: $\mu_t = 1$ and

    $$\alpha_{t+1} = \min(c\,\eta_t^2, \mathrm{cap})$$

    Args:
        c: factor of η_t² in α_{t+1}.
        cap: the largest α_t.

    >>> Storm(c=100.0)
    Storm(c=100.0, cap=1.0)
    """

    c: float = 100.0
    cap: float = 1.0

    def __post_init__(self) -> None:
        check(self.c > 0, "c", self.c, "c > 0")
        check(0 < self.cap <= 1, "cap", self.cap, "0 < cap <= 1")

    def mu_t(self, t: int, tau: float) -> float:
        return 1.0

    def weight_of(self, s: Bucket) -> Scalar:
        # Line 11 comes before line 4, so H is still that of the last step.
        alpha: Tensor = (self.c / s.matrix.H(s) ** 2).clamp(max=self.cap).to(s.one)
        return self.first if s.step == 1 else alpha

    def objection(self, others: Any, options: dict[str, Any]) -> str | None:
        matrix = others.matrix
        if not matrix.multiple_of_identity:
            return f"c η² needs one learning rate for all coordinates, and {type(matrix).__name__} has many"
        return None

r"""Theorems 1 and 2 of the paper and their corollaries: conditions and bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from superadam.parts import check

__all__ = ["Bound", "Condition", "Conditions", "Problem", "bound", "conditions"]

ROUNDING = 1e-12  # a condition that holds with equality holds, whichever way its two sides were rounded


@dataclass(frozen=True)
class Problem:
    r"""The assumptions on f.

    Args:
        L: smoothness. For τ = 1 of every $f(\cdot; \xi)$ (assumption 4), for τ = 0 of f (assumption 5).
        sigma: $\mathbb{E}\|\nabla f(x; \xi) - \nabla f(x)\|^2 \le \sigma^2$ (assumption 1), where ξ is a whole batch:
            the variance of a batch's gradient, not of a sample's.
        rho: $H_t \succeq \rho I$ (assumption 3). Each of the paper's matrices has ρ = λ. None: `check_theory` takes it
            from the optimizer's matrix.
        gap: $f(x_1) - f^*$, or an upper bound (assumption 2). With a penalty h, the gap of f + h.

    >>> Problem(L=1.0, sigma=0.5, rho=0.1, gap=2.0)
    Problem(L=1.0, sigma=0.5, rho=0.1, gap=2.0)
    """

    L: float
    sigma: float
    rho: float | None
    gap: float

    def __post_init__(self) -> None:
        check(0 < self.L < math.inf, "L", self.L, "L > 0")
        check(0 <= self.sigma < math.inf, "sigma", self.sigma, "sigma >= 0")
        check(self.rho is None or 0 < self.rho < math.inf, "rho", self.rho, "rho > 0, or None: the matrix's")
        check(0 <= self.gap < math.inf, "gap", self.gap, "gap >= 0")

    @property
    def known_rho(self) -> float:
        """Return rho, or raise an error if it is None."""
        if self.rho is None:
            raise ValueError("Problem.rho is None: set it to a lower bound of H_t (for H_t = A_t + λI, to λ)")
        return self.rho


@dataclass(frozen=True)
class Condition:
    """A condition left ≤ right, with its formula and both values.

    >>> print(Condition("k³ ≤ m", 1.0, 100.0))
    holds  k³ ≤ m                                   1 ≤ 100
    """

    text: str
    left: float
    right: float

    @property
    def holds(self) -> bool:
        return self.left <= self.right * (1 + ROUNDING)

    def __str__(self) -> str:
        relation = "≤" if self.holds else ">"
        return f"{'holds' if self.holds else 'FAILS'}  {self.text:<40} {self.left:.4g} {relation} {self.right:.4g}"


@dataclass(frozen=True)
class Conditions:
    """The conditions of a theorem. True if all hold and the theorem covers every option.

    >>> print(Conditions("Theorem 1", (Condition("k³ ≤ m", 1.0, 100.0),), outside=("clip = 1",)))
    Theorem 1 does not apply
      holds  k³ ≤ m                                   1 ≤ 100
      OUTSIDE clip = 1
    """

    theorem: str
    conditions: tuple[Condition, ...]
    outside: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return all(condition.holds for condition in self.conditions) and not self.outside

    def __str__(self) -> str:
        verdict = "applies" if self or not self.conditions else "does not apply"
        lines = [f"{self.theorem} {verdict}", *map(str, self.conditions)]
        lines += [f"OUTSIDE {text}" for text in self.outside] + [f"note   {text}" for text in self.notes]
        return "\n  ".join(lines)


def is_one(tau: float) -> bool:
    """Return True for theorem 1 (τ = 1), False for theorem 2 (τ = 0)."""
    if tau not in (0, 1):
        raise ValueError(f"The theorems are for tau = 0 and tau = 1, not {tau}")
    return tau == 1


def power(tau: float) -> float:
    """Return q of μ_t = k/(m+t)^q."""
    return 1 / 3 if is_one(tau) else 1 / 2


def least_c(problem: Problem, tau: float, lr: float, k: float) -> float:
    """Return the smallest c that the proofs allow."""
    ratio = problem.L * lr / problem.known_rho
    return 1 / k**3 + 10 * ratio**2 if is_one(tau) else 8 * ratio


def conditions(
    problem: Problem, *, tau: float, lr: float, k: float, m: float, c: float, cap: float | None = None
) -> Conditions:
    r"""Return the conditions of theorem 1 (τ = 1) or 2 (τ = 0), each with its two sides.

    The theorems have no cap on α. They need $c \le m^{2/3}/k^2$ or $c \le m^{1/2}/k$ so that α ≤ 1. With `cap`,
    $\alpha_{t+1} = \min(c\mu_t^2, \mathrm{cap})$ or $\min(c\mu_t, \mathrm{cap})$ as in section 6. Then c needs no upper
    bound, but the cap must leave α as large as the proof needs it (docs/theory.md, "The cap").

    Args:
        problem: the assumptions on f.
        tau: 1 for theorem 1, 0 for theorem 2.
        lr: γ.
        k: k of μ_t.
        m: m of μ_t.
        c: c of α_t.
        cap: the largest α_t. None, as in the theorems, has no cap.

    >>> problem = Problem(L=0.5, sigma=1.0, rho=5e-4, gap=1.0)
    >>> print(conditions(problem, tau=1, lr=1e-3, k=1.0, m=100.0, c=40.0))  # section 6 of the paper
    Theorem 1 does not apply
      holds  k³ ≤ m                                   1 ≤ 100
      holds  3/2 ≤ m                                  1.5 ≤ 100
      holds  (8/(3k))^(3/2) ≤ m                       4.355 ≤ 100
      holds  γ ≤ ρ m^(1/3)/(4kL)                      0.001 ≤ 0.00116
      holds  1/k³ + 10L²γ²/ρ² ≤ c                     11 ≤ 40
      FAILS  c ≤ m^(2/3)/k²                           40 > 21.54
    >>> bool(conditions(problem, tau=1, lr=1e-3, k=1.0, m=100.0, c=40.0, cap=0.9))
    True
    """
    for name, value in (("lr", lr), ("k", k), ("c", c)):
        check(0 < value < math.inf, name, value, f"{name} > 0")
    check(0 <= m < math.inf, "m", m, "m >= 0")
    check(cap is None or 0 < cap <= 1, "cap", cap, "0 < cap <= 1, or None")
    L, rho, least = problem.L, problem.known_rho, least_c(problem, tau, lr, k)
    if is_one(tau):
        wanted = [("k³ ≤ m", k**3, m), ("3/2 ≤ m", 1.5, m)]
        if cap is None:
            wanted.append(("(8/(3k))^(3/2) ≤ m", (8 / (3 * k)) ** 1.5, m))
        wanted.append(("γ ≤ ρ m^(1/3)/(4kL)", lr, rho * m ** (1 / 3) / (4 * k * L)))
        wanted.append(("1/k³ + 10L²γ²/ρ² ≤ c", least, c))
        if cap is None:
            wanted.append(("c ≤ m^(2/3)/k²", c, m ** (2 / 3) / k**2))
        else:
            wanted.append(("1/k³ + 10L²γ²/ρ² ≤ cap (m+1)^(2/3)/k²", least, cap * (m + 1) ** (2 / 3) / k**2))
    else:
        wanted = [("k² ≤ m", k**2, m), ("γ ≤ ρ m^(1/2)/(8kL)", lr, rho * m**0.5 / (8 * k * L)), ("8Lγ/ρ ≤ c", least, c)]
        if cap is None:
            wanted.append(("c ≤ m^(1/2)/k", c, m**0.5 / k))
        else:
            wanted.append(("8Lγ/ρ ≤ cap (m+1)^(1/2)/k", least, cap * (m + 1) ** 0.5 / k))
    theorem = f"Theorem {1 if is_one(tau) else 2}" + ("" if cap is None else f" with the cap {cap:g}")
    return Conditions(theorem, tuple(Condition(*sides) for sides in wanted))


@dataclass(frozen=True)
class Bound:
    r"""The right-hand sides of a theorem and its corollary.

    Attributes:
        value: bound on the mean of $\mathbb{E}\,\mathcal{M}_t$, from the repaired proof.
        paper: the same bound as the paper states it. None if its own conditions do not hold.
        gradient: bound on the mean of $\mathbb{E}\|\nabla f(x_t)\|$ (corollaries; no set and no penalty), if the mean
            of $\|H_t\|^2$ was given.
        gradient_paper: the same bound as the paper states it.

    >>> print(Bound(T=1000, tau=1, value=0.5, paper=0.7))
    tau = 1, T = 1000: mean M_t ≤ 0.5 (the paper's: 0.7)
    """

    T: int
    tau: float
    value: float
    paper: float | None
    gradient: float | None = None
    gradient_paper: float | None = None

    def __str__(self) -> str:
        sides = [("mean M_t", self.value, self.paper), ("mean ‖∇f‖", self.gradient, self.gradient_paper)]
        texts = [
            f"{name} ≤ {ours:.4g}" + ("" if paper is None else f" (the paper's: {paper:.4g})")
            for name, ours, paper in sides
            if ours is not None
        ]
        return f"tau = {self.tau:g}, T = {self.T}: " + ", ".join(texts)


def bound(
    problem: Problem,
    T: int,
    *,
    tau: float,
    lr: float,
    k: float,
    m: float,
    c: float,
    cap: float | None = None,
    mean_H2: float | Callable[[int], float] | None = None,
) -> Bound:
    r"""Return the right-hand side of theorem 1 or 2 after T steps, and with `mean_H2` that of the corollary.

    $$\frac1T \sum_{t=1}^T \mathbb{E}\,\mathcal{M}_t \le \frac{2\sqrt{2G}\,(m+T)^{q/2}}{T^{1/2}}, \qquad
      \frac1T \sum_{t=1}^T \mathbb{E}\|\nabla f(x_t)\| \le \sqrt{\frac1T \sum_{t=1}^T \mathbb{E}\|H_t\|^2}
      \cdot \frac{2\sqrt{2G}\,(m+T)^{q/2}}{T^{1/2}}$$

    with, for τ = 1 and τ = 0,

    $$q = \tfrac13:\quad G = \frac{f(x_1) - f^*}{k\rho\gamma} + \frac{m^{1/3}\sigma^2}{8k^2L^2\gamma^2}
      + \frac{k^2c^2\sigma^2}{4L^2\gamma^2} \ln\Bigl(1 + \frac Tm\Bigr), \qquad
      q = \tfrac12:\quad G = \frac{f(x_1) - f^*}{k\rho\gamma} + \frac{2\sigma^2}{k\rho\gamma L}
      + \frac{2kc^2\sigma^2}{\rho\gamma L} \ln\Bigl(1 + \frac Tm\Bigr)$$

    It raises an error if a condition does not hold, because the theorem then gives no bound. `conditions` explains
    problem, tau, lr, k, m, c and cap.

    Args:
        T: number of steps.
        mean_H2: the mean of $\|H_t\|^2$ (largest eigenvalue, squared) over t = 1 … T: a number or a function of T.

    >>> problem = Problem(L=1.0, sigma=0.5, rho=1.0, gap=1.0)
    >>> print(bound(problem, 10**6, tau=1, lr=0.2, k=2.0, m=10.0, c=1.0, mean_H2=4.0))
    tau = 1, T = 1000000: mean M_t ≤ 0.2447 (the paper's: 0.3065), mean ‖∇f‖ ≤ 0.4895 (the paper's: 0.6129)
    """
    check(T >= 1, "T", T, "T >= 1")
    stated = conditions(problem, tau=tau, lr=lr, k=k, m=m, c=c, cap=cap)
    if not stated:
        raise ValueError(f"No bound: {stated}")
    q = power(tau)
    value = 2 * math.sqrt(2 * G(problem, T, tau, lr, k, m, c) / T) * (m + T) ** (q / 2)
    paper = None
    if conditions(problem, tau=tau, lr=lr, k=k, m=m, c=c):
        paper_G = G(problem, T, tau, lr, k, m, c, as_in_paper=True)
        paper = 2 * math.sqrt(2 * paper_G) * (m ** (q / 2) / T**0.5 + T ** ((q - 1) / 2))
    if mean_H2 is None:
        return Bound(T, tau, value, paper)
    mean_H2 = mean_H2(T) if callable(mean_H2) else mean_H2
    check(0 <= mean_H2 < math.inf, "mean_H2", mean_H2, "mean_H2 >= 0")
    root = math.sqrt(mean_H2)
    return Bound(T, tau, value, paper, value * root, None if paper is None else paper * root)


def G(
    problem: Problem, T: int, tau: float, lr: float, k: float, m: float, c: float, *, as_in_paper: bool = False
) -> float:
    """Return G of theorem 1, or M of theorem 2."""
    L, rho, sigma2 = problem.L, problem.known_rho, problem.sigma**2
    log = math.log(m + T) if as_in_paper else math.log1p(T / m)  # ≥ Σ_{t=1}^T 1/(m+t)
    from_gap = problem.gap / (k * rho * lr)
    if is_one(tau):
        noise: float = m ** (1 / 3) / (8 * k**2) + k**2 * c**2 / 4 * log
        return from_gap + noise * sigma2 / (L * lr) ** 2
    c2k2 = m if as_in_paper else c**2 * k**2  # the paper has replaced c by the largest that it allows
    return from_gap + (2 + 2 * c2k2 * log) * sigma2 / (rho * lr * k * L)

"""Advice from the theorems: parameters for T steps, and the gradient evaluations needed for an accuracy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, overload

from superadam.parts import check
from superadam.schedules import Paper
from superadam.theory.finite_sums import AnchoredAdvice, evaluations, steps, suggest_anchored
from superadam.theory.theorems import Bound, G, Problem, bound, is_one, least_c, power

__all__ = ["Advice", "Complexity", "complexity", "suggest"]


@dataclass(frozen=True)
class Advice:
    """Parameters that a theorem allows, and its bound after T steps.

    >>> advice = suggest(Problem(L=1.0, sigma=0.5, rho=1.0, gap=1.0), T=10_000, tau=0, m=10)
    >>> sorted(advice.parameters), sorted(advice.options)
    (['c', 'k', 'lr', 'm', 'tau'], ['lr', 'schedule', 'tau'])
    """

    tau: float
    lr: float
    k: float
    m: float
    c: float
    bound: Bound

    @property
    def parameters(self) -> dict[str, float]:
        """Return the parameters as arguments of the functions in this module."""
        return {"tau": self.tau, "lr": self.lr, "k": self.k, "m": self.m, "c": self.c}

    @property
    def options(self) -> dict[str, Any]:
        """Return the parameters as arguments of `SuperAdam`, without a cap on α, as in the theorems."""
        return {"tau": float(self.tau), "lr": self.lr, "schedule": Paper(self.k, self.m, self.c, cap=1.0)}

    def __str__(self) -> str:
        values = ", ".join(f"{name}={value:.4g}" for name, value in self.parameters.items())
        return f"{values}\n  {self.bound}"


@overload
def suggest(problem: Problem, T: int, *, tau: float, m: float | None = None) -> Advice: ...


@overload
def suggest(problem: Problem, T: int, *, n: int, batch: int | None = None) -> AnchoredAdvice: ...


def suggest(
    problem: Problem,
    T: int,
    *,
    tau: float | None = None,
    m: float | None = None,
    n: int | None = None,
    batch: int | None = None,
) -> Advice | AnchoredAdvice:
    r"""Find parameters that satisfy all conditions and nearly minimise the bound after T steps.

    For given $\nu = \rho/(L\gamma)$ and m, the best k is $m^q$, so that $\mu_t = (m/(m+t))^q$ starts at 1, and the best
    c is the smallest allowed. The function searches ν and m, m up to 100 T. An m far above T makes the schedule nearly
    constant, which is good for exactly T steps. Pass m, for example 10, for a schedule whose bound keeps decreasing.

    With `n` the advice is for a sum of n functions and `estimators.Page`. Then L bounds the change of the functions'
    gradients in mean square, sigma is not used, and $\gamma = \rho/(L(1+3\sqrt n/b))$.

    Args:
        problem: the assumptions on f.
        T: number of steps.
        tau: 1 for theorem 1, 0 for theorem 2. With `n`, leave it out.
        m: m of μ_t. None: search for the best one.
        n: number of functions in the sum.
        batch: b, their number in a batch, drawn independently. None: about √n.

    >>> problem = Problem(L=1.0, sigma=0.5, rho=1.0, gap=1.0)
    >>> print(suggest(problem, T=10**6, tau=1, m=10))
    tau=1, lr=0.123, k=2.154, m=10, c=0.2513
      tau = 1, T = 1000000: mean M_t ≤ 0.1222 (the paper's: 0.1503)
    >>> suggest(problem, T=10**6, tau=1).bound.value < 0.1
    True
    >>> print(suggest(problem, T=10**6, n=10**4))
    lr=0.25, batch=100, p=0.009901
      tau = 1, T = 1000000: mean M_t ≤ 0.003162
    """
    check(T >= 1, "T", T, "T >= 1")
    if n is not None:
        _one_theorem(tau=tau, m=m)
        return suggest_anchored(problem, T, n, batch)
    check(batch is None, "batch", batch, "None without n: Problem.sigma is that of a batch")
    if tau is None:
        raise ValueError("suggest() does not know the theorem: give tau=1, tau=0, or n for a finite sum with anchors")
    q, rho = power(tau), problem.known_rho
    # γ ≤ ρ/(4L) and m ≥ 8/3 are what is left of theorem 1's conditions with k = m^q, γ ≤ ρ/(8L) of theorem 2's.
    least_nu, least_m = (4.0, 8 / 3) if is_one(tau) else (8.0, 1e-3)

    def parameters(m: float, nu: float) -> tuple[float, float, float, float]:
        lr, k = rho / (nu * problem.L), m**q
        return lr, k, m, least_c(problem, tau, lr, k)

    def objective(m: float, nu: float) -> float:
        return float(G(problem, T, tau, *parameters(m, nu)) * (m + T) ** q)

    def best_nu(m: float) -> float:  # G is convex in ν
        return _minimiser(lambda nu: objective(m, nu), least_nu, 1e9 * least_nu)

    if m is None:
        grid = [least_m * (100 * T / least_m) ** (i / 30) for i in range(31)]  # in m there can be two valleys
        at = min(range(31), key=lambda i: objective(grid[i], best_nu(grid[i])))
        m = _minimiser(lambda m: objective(m, best_nu(m)), grid[max(at - 1, 0)], grid[min(at + 1, 30)])
    check(least_m <= m < math.inf, "m", m, f"m >= {least_m:.4g}, or None")
    lr, k, m, c = parameters(m, best_nu(m))
    return Advice(tau, lr, k, m, c, bound(problem, T, tau=tau, lr=lr, k=k, m=m, c=c))


def _one_theorem(**others: float | None) -> None:
    for name, value in others.items():
        check(value is None, name, value, f"no {name} with n: anchors have tau = 1 and a constant schedule")


def _minimiser(f: Callable[[float], float], low: float, high: float, rounds: int = 32) -> float:
    """Search by golden sections on a logarithmic scale. Return an end of the interval if it is better."""
    ratio = (math.sqrt(5) - 1) / 2
    a, b = math.log(low), math.log(high)
    x, y = b - ratio * (b - a), a + ratio * (b - a)
    at_x, at_y = f(math.exp(x)), f(math.exp(y))
    for _ in range(rounds):
        if at_x <= at_y:
            b, y, at_y, x = y, x, at_x, y - ratio * (y - a)
            at_x = f(math.exp(x))
        else:
            a, x, at_x, y = x, y, at_y, x + ratio * (b - x)
            at_y = f(math.exp(y))
    return min((low, math.exp((a + b) / 2), high), key=f)


@dataclass(frozen=True)
class Complexity:
    """Gradient evaluations after which the mean of M_t is at most epsilon, by the theorem.

    Attributes:
        evaluations: T for τ = 0; 2T - 1 for τ = 1, which evaluates every batch but the first at two points. For a
            finite sum: the expected number of gradients of samples.
        steps: T.
        other: the result for the other τ, if both were compared.

    >>> found = complexity(Problem(L=1.0, sigma=0.5, rho=1.0, gap=1.0), epsilon=0.5, tau=1)
    >>> found.evaluations == 2 * found.steps - 1
    True
    """

    epsilon: float
    tau: float
    evaluations: int
    steps: int
    advice: Advice | AnchoredAdvice
    other: Complexity | None = None

    def __str__(self) -> str:
        unit = "gradients of samples" if isinstance(self.advice, AnchoredAdvice) else "gradient evaluations"
        text = f"mean M_t ≤ {self.epsilon:g} with tau = {self.tau:g}: {self.evaluations:.3g} {unit}"
        text += f" in {self.steps:.3g} steps"
        return text if self.other is None else f"{text} (tau = {self.other.tau:g}: {self.other.evaluations:.3g})"


def complexity(
    problem: Problem, epsilon: float, tau: float | None = None, *, n: int | None = None, batch: int | None = None
) -> Complexity:
    """Count the gradient evaluations after which the theorem, with its best parameters, bounds the mean M_t by epsilon.

    To bound the mean ‖∇f‖ by ε, pass ε divided by the square root of the mean of ‖H_t‖² (corollaries 1 and 2). T is
    exact to within 0.1 %.

    Args:
        problem: the assumptions on f.
        epsilon: bound on the mean of M_t.
        tau: 1 for theorem 1, 0 for theorem 2. None compares both and returns the one that needs fewer.
        n: number of functions in a finite sum, for anchors on all of them: O(n + √n ε⁻²) gradients of samples.
        batch: their number in a batch. None: about √n.

    >>> print(complexity(Problem(L=1.0, sigma=0.5, rho=1.0, gap=1.0), epsilon=0.1))
    mean M_t ≤ 0.1 with tau = 1: 1.32e+06 gradient evaluations in 6.59e+05 steps (tau = 0: 1.24e+08)
    >>> print(complexity(Problem(L=1.0, sigma=0.5, rho=1.0, gap=1.0), epsilon=0.1, n=10_000))
    mean M_t ≤ 0.1 with tau = 1: 3.07e+05 gradients of samples in 1e+03 steps
    """
    check(0 < epsilon < math.inf, "epsilon", epsilon, "epsilon > 0")
    if n is not None:
        _one_theorem(tau=tau)
        T = steps(problem, epsilon, n, batch)
        return Complexity(epsilon, 1, evaluations(T, n, batch), T, suggest_anchored(problem, T, n, batch))
    check(batch is None, "batch", batch, "None without n: Problem.sigma is that of a batch")
    if tau is None:
        first, second = sorted((complexity(problem, epsilon, tau) for tau in (0, 1)), key=lambda c: c.evaluations)
        return replace(first, other=second)

    def reached(T: int) -> Advice | None:
        advice = suggest(problem, T, tau=tau)
        return advice if advice.bound.value <= epsilon else None

    low, high = 0, 1
    while (advice := reached(high)) is None:
        low, high = high, 8 * high
    while high - low > max(1, high // 1000):
        middle = (low + high) // 2
        if (better := reached(middle)) is None:
            low = middle
        else:
            high, advice = middle, better
    return Complexity(epsilon, tau, 2 * high - 1 if is_one(tau) else high, high, advice)

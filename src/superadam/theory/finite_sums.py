r"""Variance reduction with anchors on a finite sum: PAGE's theorem (Li et al. 2021), for any H_t ⪰ ρI and any convex X.

With an anchor on all n samples in step 1, and with probability p in each later one, and μ_t = 1, the proof has three
lines. Let $e_t = g_t - \nabla f(x_t)$, $d_t = x_{t+1} - x_t$, and $s^2 = (1-p)/(pb)$ for batches of b samples.

1. $\mathbb{E}\|e_{t+1}\|^2 \le (1-p)\,(\mathbb{E}\|e_t\|^2 + L^2\,\mathbb{E}\|d_t\|^2/b)$ and $e_1 = 0$, so that
   $\sum_t \mathbb{E}\|e_t\|^2 \le s^2 L^2 \sum_t \mathbb{E}\|d_t\|^2$.
2. $f(x_{t+1}) \le f(x_t) - \langle e_t, d_t\rangle - (\rho/\gamma - L/2)\,\|d_t\|^2$: smoothness, and line 9. With
   1. and Cauchy-Schwarz, $(\rho/\gamma - L/2 - sL) \sum_t \mathbb{E}\|d_t\|^2 \le f(x_1) - f^*$.
3. $\mathcal{M}_t = \|e_t\|/\rho + \|d_t\|/\gamma$. With 1. and 2. its mean is at most
   $(1 + sr)\,\sqrt{L\,(f(x_1) - f^*) / (\rho^2\,T\,r\,(1 - r/2 - sr))}$, where $r = L\gamma/\rho$. The best r is
   $1/(1+3s)$.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from superadam.estimators import Page
from superadam.parts import check
from superadam.schedules import Constant
from superadam.theory.theorems import Bound, Problem

__all__ = ["AnchoredAdvice", "anchored_bound", "evaluations", "steps", "suggest_anchored"]


@dataclass(frozen=True)
class AnchoredAdvice:
    """A learning rate, a size of batches and a probability of anchors for a finite sum, and the bound after T steps.

    >>> from superadam import theory
    >>> advice = theory.suggest(theory.Problem(L=1.0, sigma=0.5, rho=1.0, gap=1.0), T=10_000, n=10_000)
    >>> print(advice)
    lr=0.25, batch=100, p=0.009901
      tau = 1, T = 10000: mean M_t ≤ 0.03162
    >>> sorted(advice.options)
    ['estimator', 'lr', 'schedule']
    """

    n: int
    batch: int
    p: float
    lr: float
    bound: Bound

    @property
    def options(self) -> dict[str, Any]:
        """Return the parameters as arguments of `SuperAdam`. Batches have `batch` samples, an anchor has all n."""
        return {"lr": self.lr, "estimator": Page(p=self.p), "schedule": Constant()}

    def __str__(self) -> str:
        return f"lr={self.lr:.4g}, batch={self.batch}, p={self.p:.4g}\n  {self.bound}"


def suggest_anchored(problem: Problem, T: int, n: int, batch: int | None) -> AnchoredAdvice:
    """Return the learning rate with the least bound after T steps on a sum of n functions."""
    batch = _batch(n, batch)
    p = batch / (batch + n)
    lr = problem.known_rho / (problem.L * (1 + 3 * _spread(n, batch)))
    return AnchoredAdvice(n, batch, p, lr, Bound(T, 1, anchored_bound(problem, T, n, batch, lr), None))


def anchored_bound(problem: Problem, T: int, n: int, batch: int, lr: float) -> float:
    """Bound the mean of M_t over T steps, or return infinity if the learning rate is too large for a bound."""
    r, s = problem.L * lr / problem.known_rho, _spread(n, batch)
    rest = r * (1 - (0.5 + s) * r)
    if rest <= 0:
        return math.inf
    return (1 + s * r) / problem.known_rho * math.sqrt(problem.L * problem.gap / (T * rest))


def steps(problem: Problem, epsilon: float, n: int, batch: int | None) -> int:
    """Return the steps after which the bound is epsilon, with the best learning rate."""
    s = _spread(n, _batch(n, batch))
    exact = 2 * problem.L * problem.gap * (1 + 4 * s) / (problem.known_rho * epsilon) ** 2
    return max(1, math.ceil(exact * (1 - 1e-12)))


def evaluations(T: int, n: int, batch: int | None) -> int:
    """Return the expected gradients of samples in T steps: n for an anchor, two for each sample of a batch."""
    batch = _batch(n, batch)
    return n + math.ceil((T - 1) * 3 * n * batch / (n + batch))


def _spread(n: int, batch: int) -> float:
    """Return s = √((1-p)/(pb)) with PAGE's p = b/(b+n)."""
    return math.sqrt(n) / batch


def _batch(n: int, batch: int | None) -> int:
    check(isinstance(n, int) and n >= 1, "n", n, "the number of functions in the sum, n >= 1")
    check(batch is None or 1 <= batch <= n, "batch", batch, "1 <= batch <= n, or None: about the root of n")
    return max(1, round(math.sqrt(n))) if batch is None else batch

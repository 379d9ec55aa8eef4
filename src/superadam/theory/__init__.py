r"""Theorems 1 and 2 of the paper, and their corollaries, as functions.

Theorem 1 is for τ = 1, theorem 2 for τ = 0. Both bound the mean over t = 1 … T of

$$\mathcal{M}_t = \frac{1}{\rho}\|\nabla f(x_t) - g_t\| + \frac{1}{\gamma}\|\tilde x_{t+1} - x_t\|,$$

an upper bound of the norm of the gradient mapping at $x_t$. Where a step of the paper's proof does not hold or is
loose, the numbers here come from the repaired proof, with the paper's numbers beside them; docs/theory.md lists the
differences. `SuperAdam.check_theory` checks an optimizer.

>>> problem = Problem(L=1.0, sigma=0.5, rho=0.1, gap=1.0)
>>> advice = suggest(problem, T=10_000, tau=1)
>>> bool(conditions(problem, **advice.parameters))
True
>>> bound(problem, 10_000, **advice.parameters).value < bound(problem, 100, **advice.parameters).value
True
"""

from superadam.theory.advice import Advice, Complexity, complexity, suggest
from superadam.theory.finite_sums import AnchoredAdvice
from superadam.theory.theorems import Bound, Condition, Conditions, Problem, bound, conditions

__all__ = [
    "Advice",
    "AnchoredAdvice",
    "Bound",
    "Complexity",
    "Condition",
    "Conditions",
    "Problem",
    "bound",
    "complexity",
    "conditions",
    "suggest",
]

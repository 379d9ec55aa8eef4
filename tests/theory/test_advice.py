"""What is suggested is allowed, and nearly the best; the complexity is where the bound is reached."""

import math
import random

import pytest
import torch

from superadam import SuperAdam, matrices, theory
from superadam.theory import Problem

TAUS = pytest.mark.parametrize("tau", [0, 1])


@TAUS
@pytest.mark.parametrize("T", [1, 1000, 10**8])
@pytest.mark.parametrize(("sigma", "gap"), [(0.0, 1.0), (0.01, 5.0), (0.5, 1.0), (5.0, 0.1), (1.0, 0.0)])
def test_suggestions_are_allowed_and_nearly_the_best(tau, T, sigma, gap):
    """Against parameters from the whole region that the conditions allow, not only from the form that is searched."""
    problem = Problem(L=2.0, sigma=sigma, rho=0.1, gap=gap)
    advice = theory.suggest(problem, T, tau=tau)
    assert theory.conditions(problem, **advice.parameters)
    opt = SuperAdam([torch.zeros(2, requires_grad=True)], matrix=matrices.Identity(0.1), **advice.options)
    assert opt.check_theory(problem)
    rng = random.Random(0)
    q = 1 / 3 if tau == 1 else 1 / 2
    for _ in range(1000):
        m = 10 ** rng.uniform(-3 if tau == 0 else 0, math.log10(100 * T) if T > 1 else 2)
        k = m**q * rng.choice([1.0, 10 ** rng.uniform(-2, 0)])
        lr = problem.rho * m**q / ((4 if tau == 1 else 8) * k * problem.L) * rng.choice([1.0, 10 ** rng.uniform(-4, 0)])
        ratio = problem.L * lr / problem.rho
        c = (1 / k**3 + 10 * ratio**2 if tau == 1 else 8 * ratio) * rng.choice([1.0, 10 ** rng.uniform(0, 1)])
        p = {"tau": tau, "lr": lr, "k": k, "m": m, "c": c}
        if theory.conditions(problem, **p):
            assert advice.bound.value <= 1.001 * theory.bound(problem, T, **p).value


@TAUS
def test_complexity_is_where_the_bound_reaches_epsilon(tau):
    problem = Problem(L=1.0, sigma=0.5, rho=1.0, gap=1.0)
    found = [theory.complexity(problem, epsilon, tau) for epsilon in (1e-2, 5e-3)]
    for result in found:
        assert result.advice.bound.value <= result.epsilon
        assert theory.suggest(problem, int(0.997 * result.steps), tau=tau).bound.value > result.epsilon
        assert result.evaluations == (2 * result.steps - 1 if tau == 1 else result.steps)
    order = math.log2(found[1].evaluations / found[0].evaluations)
    assert order == pytest.approx(3.1 if tau == 1 else 4.0, abs=0.15)  # ε⁻³ times logarithms; ε⁻⁴


def test_complexity_compares_both():
    problem = Problem(L=1.0, sigma=0.5, rho=1.0, gap=1.0)
    best = theory.complexity(problem, 0.05)
    assert best.tau == 1
    assert best.other.tau == 0
    assert best.evaluations < best.other.evaluations
    assert theory.complexity(problem, 100.0).steps == 1
    for sigma, gap, T in ((0.0, 1.0, 10**5), (1e-3, 5.0, 10), (0.1, 1.0, 1000), (3.0, 1.0, 10**7), (50.0, 1e-3, 30)):
        problem = Problem(L=1.0, sigma=sigma, rho=1.0, gap=gap)
        assert theory.suggest(problem, T, tau=1).bound.value < theory.suggest(problem, 2 * T - 1, tau=0).bound.value

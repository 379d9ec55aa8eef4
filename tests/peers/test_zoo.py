"""The zoo against a published package, pytorch_optimizer (tried with 4.1.0). It is no dependency: without it, skipped.

Known deviations of the package from the papers, and how each is met here:

| method    | the package                            | the paper, and the zoo      | here                              |
|-----------|----------------------------------------|-----------------------------|-----------------------------------|
| all       | weight decay is decoupled by default   | AdaBelief only              | said explicitly                   |
| Yogi      | m_0 = v_0 = initial_accumulator        | m_0 = 0                     | their m_0 is set to 0             |
| Yogi      | Adam's corrections                     | none                        | bias_correction=True              |
| AdaBelief | none                                   |                             | equal as it is                    |
| AdaBound  | clip(γ √(1-β₂ᵗ)/(1-β₁ᵗ) / (√v + ε)) m  | clip(γ / (√v + ε)) m        | equal if β₁ = 0 and ε = 0, or     |
|           |                                        |                             | where the bounds bind             |
| AdaBound  | v + 1e-15 under the root               | v                           | tolerance 1e-8                    |
| Padam     | v itself, no maximum                   | max v (AMSGrad)             | equal while v grows               |
| Padam     | γ √(1-β₂ᵗ)/(1-β₁ᵗ), outside of the     | none; with bias_correction  | γ_t given by hand; equal as it is |
|           | power 2p                               | (v/(1-β₂ᵗ))^p, inside       | if p = 1/2 and ε = 0              |
| Padam     | (√v + ε)^2p                            | v^p + ε                     | eps_inside=True                   |
"""

import math

import pytest
import torch

from problems import Stochastic
from superadam import create

pytestmark = pytest.mark.slow

STEPS = 50
BETAS = (0.9, 0.99)


@pytest.fixture(scope="module")
def package():
    return pytest.importorskip("pytorch_optimizer")


class Growing(Stochastic):
    """Gradients that keep away from zero and grow, so that v_t does."""

    def loss(self, x, i):
        return ((1 + 0.1 * i) * x + 0.1 * torch.sin(x * self.w[i])).sum()


def run(problem, build, before=None):
    """x after each of 50 steps. `before(opt, t)` may change an option first."""
    params = problem.params()
    opt = build(params)
    points = []
    for t in range(1, STEPS + 1):
        problem.closure(opt, params, t - 1)()
        if before is not None:
            before(opt, t)
        opt.step()
        points.append(problem.join(params).detach().clone())
    return torch.stack(points)


def check(actual, expected, problem, tol=1e-10):
    torch.testing.assert_close(actual, expected, rtol=tol, atol=tol)
    assert (expected[-1] - problem.x_1).abs().max() > 0.02


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("decoupled", [False, True], ids=["in-gradient", "decoupled"])
@pytest.mark.parametrize("v_0", [0.0, 1e-6, 0.3])
def test_yogi(package, v_0, decoupled, decay):
    problem = Stochastic()

    def average_from_zero(opt, t):
        if t == 1:
            opt.init_group(opt.param_groups[0])
            for state in opt.state.values():
                state["exp_avg"].zero_()

    options = {"lr": 0.01, "betas": BETAS, "eps": 1e-3, "initial_accumulator": v_0, "weight_decay": decay}
    expected = run(problem, lambda p: package.Yogi(p, weight_decouple=decoupled, **options), average_from_zero)
    actual = run(
        problem, lambda p: create("yogi", p, bias_correction=True, decoupled_weight_decay=decoupled, **options)
    )
    check(actual, expected, problem)


def test_yogi_differs_by_the_start_of_its_average_only(package):
    """With the package's own m_0 = 1e-6 the difference is there, and of that order."""
    problem = Stochastic()
    options = {"lr": 0.01, "betas": BETAS, "eps": 1e-3}
    expected = run(problem, lambda p: package.Yogi(p, **options))
    actual = run(problem, lambda p: create("yogi", p, bias_correction=True, **options))
    assert 1e-10 < (actual - expected).abs().max() < 1e-4


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("decoupled", [False, True], ids=["in-gradient", "decoupled"])
@pytest.mark.parametrize("eps", [1e-16, 1e-4])
def test_adabelief(package, eps, decoupled, decay):
    problem = Stochastic()
    options = {"lr": 0.01, "betas": BETAS, "eps": eps, "weight_decay": decay}
    expected = run(problem, lambda p: package.AdaBelief(p, weight_decouple=decoupled, **options))
    actual = run(problem, lambda p: create("adabelief", p, decoupled_weight_decay=decoupled, **options))
    check(actual, expected, problem)


def test_adabelief_with_the_defaults(package):
    problem = Stochastic()
    check(run(problem, lambda p: create("adabelief", p)), run(problem, package.AdaBelief), problem)


@pytest.mark.parametrize("gamma", [1e-3, 0.1, 0.9])
def test_adabound_without_momentum(package, gamma):
    """β₁ = 0 leaves nothing to correct in m, and ε = 0 nothing that a correction of v could scale. They still add 1e-15
    under the root."""
    problem = Stochastic()
    options = {"lr": 0.01, "betas": (0.0, 0.99), "eps": 0.0, "final_lr": 0.03, "gamma": gamma}
    expected = run(problem, lambda p: package.AdaBound(p, **options))
    actual = run(problem, lambda p: create("adabound", p, bias_correction=True, **options))
    check(actual, expected, problem, tol=1e-8)


@pytest.mark.parametrize("bound", ["low", "high"])
def test_adabound_where_the_bounds_bind(package, bound):
    """What is clipped does not depend on the corrections: m_t times the bound, with the package's uncorrected m_t."""
    problem = Stochastic()
    lr = 1e-9 if bound == "low" else 1e6
    options = {"lr": lr, "betas": BETAS, "final_lr": 0.02, "gamma": 0.5}
    expected = run(problem, lambda p: package.AdaBound(p, **options))
    actual = run(problem, lambda p: create("adabound", p, **options))
    check(actual, expected, problem)


@pytest.mark.parametrize("p", [0.5, 0.25, 0.125])
def test_padam(package, p):
    """With γ_t = γ √(1-β₂ᵗ)/(1-β₁ᵗ) given by hand, the zoo's uncorrected Padam is theirs, while v grows."""
    problem = Growing()
    options = {"lr": 0.02, "betas": BETAS, "eps": 1e-4, "partial": p}

    def their_rate(opt, t):
        opt.param_groups[0]["lr"] = 0.02 * math.sqrt(1 - BETAS[1] ** t) / (1 - BETAS[0] ** t)

    expected = run(problem, lambda params: package.PAdam(params, **options))
    actual = run(problem, lambda params: create("padam", params, eps_inside=True, **options), their_rate)
    check(actual, expected, problem)


def test_padam_with_corrections(package):
    """At p = 1/2 inside and outside of the power are one."""
    problem = Growing()
    options = {"lr": 0.02, "betas": BETAS, "eps": 0.0, "partial": 0.5}
    expected = run(problem, lambda params: package.PAdam(params, **options))
    actual = run(problem, lambda params: create("padam", params, bias_correction=True, **options))
    check(actual, expected, problem)


def test_padam_differs_where_v_shrinks(package):
    """There the maximum of the paper's algorithm is not the package's v."""
    problem = Stochastic()
    options = {"lr": 0.02, "betas": (0.9, 0.5), "eps": 0.0, "partial": 0.5}
    expected = run(problem, lambda params: package.PAdam(params, **options))
    actual = run(problem, lambda params: create("padam", params, bias_correction=True, **options))
    assert (actual - expected).abs().max() > 1e-3

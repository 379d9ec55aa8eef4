"""Anchors on a finite sum: the bound holds in runs, its learning rate is the best, the complexity is n + O(√n ε⁻²)."""

import math

import pytest
import torch

from superadam import SuperAdam, matrices, sets, theory
from superadam.theory import Problem
from superadam.theory.finite_sums import anchored_bound

PROBLEM = Problem(L=2.0, sigma=0.5, rho=0.1, gap=3.0)


@pytest.mark.parametrize(("n", "batch"), [(1, 1), (100, None), (10_000, 1), (10_000, 64), (10_000, 10_000)])
def test_no_other_learning_rate_has_a_smaller_bound(n, batch):
    advice = theory.suggest(PROBLEM, 1000, n=n, batch=batch)
    for factor in (0.5, 0.9, 0.999, 1.001, 1.1, 2.0, 4.0):
        lr = factor * advice.lr
        assert anchored_bound(PROBLEM, 1000, n, advice.batch, lr) >= advice.bound.value


@pytest.mark.parametrize(("n", "batch"), [(1, 1), (100, None), (10_000, 64)])
def test_complexity_is_where_the_bound_reaches_epsilon(n, batch):
    found = theory.complexity(PROBLEM, 0.5, n=n, batch=batch)
    assert found.advice.bound.value <= 0.5 * (1 + 1e-9)
    assert theory.suggest(PROBLEM, found.steps - 1, n=n, batch=batch).bound.value > 0.5
    p = found.advice.p
    in_a_step = p * n + 2 * (1 - p) * found.advice.batch
    assert found.evaluations == pytest.approx(n + (found.steps - 1) * in_a_step, abs=1)


def test_the_order_is_n_plus_root_n_over_epsilon_squared():
    def beyond_n(epsilon, n):
        return theory.complexity(PROBLEM, epsilon, n=n).evaluations - n

    assert beyond_n(1e-3, 10**4) / beyond_n(2e-3, 10**4) == pytest.approx(4, rel=1e-3)
    assert beyond_n(1e-3, 10**8) / beyond_n(1e-3, 10**4) == pytest.approx(100, rel=0.02)
    assert theory.complexity(PROBLEM, 1e3, n=10**6).evaluations == 10**6


@pytest.mark.parametrize("constraint", [None, sets.L2Ball(0.5)])
def test_the_bound_holds_in_runs(constraint):
    """f_i(x) = 1 - cos(a_iᵀx - b_i), not convex: L² = mean ‖a_i‖⁴, independent batches."""
    torch.manual_seed(0)
    n, T, rho = 100, 200, 0.5
    A, shift = torch.randn(n, 5, dtype=torch.float64) / 2, 0.5 * torch.randn(n, dtype=torch.float64)

    def gradient(x, rows):
        return (A[rows] * (A[rows] @ x - shift[rows]).sin()[:, None]).mean(0)

    start = torch.full((5,), 0.2, dtype=torch.float64)
    problem = Problem(
        L=float(A.norm(dim=1).pow(4).mean().sqrt()),
        sigma=0.0,
        rho=rho,
        gap=float((1 - (A @ start - shift).cos()).mean()),
    )  # f* >= 0
    advice = theory.suggest(problem, T, n=n)
    all_rows, means = torch.arange(n), []
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        x = start.clone().requires_grad_()
        opt = SuperAdam([x], matrix=matrices.Identity(rho), constraint=constraint, **advice.options)
        M = []
        for _ in range(T):
            before = x.detach().clone()
            rows = torch.randint(n, (advice.batch,), generator=generator)

            def evaluate(rows, x=x):
                x.grad = gradient(x.detach(), rows)
                return 0.0

            opt.step(lambda rows=rows: evaluate(rows), anchor=lambda: evaluate(all_rows))
            error = (opt.state[x]["g"] - gradient(before, all_rows)).norm()
            assert M or error < 1e-12  # the first step is an anchor
            M.append(float(error / rho + (x.detach() - before).norm() / advice.lr))
        means.append(math.fsum(M) / T)
    assert 0 < math.fsum(means) / 4 <= advice.bound.value


def test_bad_input():
    with pytest.raises(ValueError, match="Invalid n parameter: 0"):
        theory.suggest(PROBLEM, 10, n=0)
    with pytest.raises(ValueError, match="Invalid batch parameter: 11"):
        theory.complexity(PROBLEM, 0.1, n=10, batch=11)
    with pytest.raises(ValueError, match=r"Invalid tau parameter: 0 .*anchors have tau = 1"):
        theory.suggest(PROBLEM, 10, tau=0, n=10)
    with pytest.raises(ValueError, match="None without n"):
        theory.complexity(PROBLEM, 0.1, batch=4)
    with pytest.raises(ValueError, match="give tau=1, tau=0, or n"):
        theory.suggest(PROBLEM, 10)

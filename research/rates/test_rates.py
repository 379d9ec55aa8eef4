"""The tables are those of the stored means; the problem is what the page says, and means are under the bounds."""

import json
import math

import pytest
import torch

from research.rates import rates
from superadam import SuperAdam, matrices, theory

TAUS = pytest.mark.parametrize("tau", [0, 1])


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def test_the_tables_are_those_of_the_data():
    page = (rates.HERE / "README.md").read_text(encoding="utf-8")
    zero, one = json.loads(rates.DATA.read_text()).values()
    powers = [i for i, T in enumerate(zero["T"]) if math.log10(T) % 1 == 0]
    for i in powers:
        cells = (f"{of['M'][i]:.3g}, {of['bound'][i]:.3g}, {of['gradient'][i]:.3g}" for of in (zero, one))
        assert f"\n| {int(zero['T'][i]):,} | {' | '.join(cells)} |\n" in page
    for i in powers[2:]:
        reached = (
            next(n for n, gradient in zip(of["evaluations"], of["gradient"], strict=True) if gradient <= epsilon)
            for of in (zero, one)
            for epsilon in [zero["gradient"][i]]
        )
        assert f"\n| {zero['gradient'][i]:.3g} | {' | '.join(f'{int(n):,}' for n in reached)} |\n" in page


@TAUS
def test_gradient_evaluations_are_counted_as_the_optimizer_does(tau):
    x = torch.nn.Parameter(torch.ones(2))
    opt = SuperAdam([x], tau=float(tau))

    def closure():
        x.grad = x.detach().clone()
        return 0.0

    for _ in range(10):
        opt.step(closure)
    assert opt.gradient_evaluations == rates.evaluations(tau, 10)


@TAUS
def test_the_problem_of_the_rates_is_what_it_says(tau):
    """L, σ, the gradient and f(x_1) - f*, by quadrature over ξ."""
    waves = rates.Waves([1.0, 0.5, 0.125])
    problem = waves.problem(tau)
    n = 2000
    xi = (waves.width * (2 * (torch.arange(n, dtype=torch.float64) + 0.5) / n - 1))[:, None].expand(n, 3)

    def f(x):
        return rates.AMPLITUDE**2 * (1 - (waves.s * x / rates.AMPLITUDE - xi).cos()).sum(1).mean()

    for x in (waves.x_1(1)[0], *(3 * randn(50, 3))):
        each = waves.stochastic_gradient(x, xi)
        torch.testing.assert_close(each.mean(0), waves.gradient(x), atol=1e-6, rtol=0)
        assert (each - each.mean(0)).square().mean(0).sum() <= problem.sigma**2 * (1 + 1e-6)
        y = x + 1e-4 * randn(3)
        change = waves.gradient(x) - waves.gradient(y) if tau == 0 else each - waves.stochastic_gradient(y, xi)
        assert (change.norm(dim=-1) <= problem.L * (x - y).norm() * (1 + 1e-6)).all()
        assert f(x) >= f(torch.zeros(3))
    at_0 = waves.stochastic_gradient(torch.zeros(3), xi)
    assert at_0.square().sum(1).mean() == pytest.approx(problem.sigma**2, rel=1e-6)
    assert f(waves.x_1(1)[0]) - f(torch.zeros(3)) == pytest.approx(problem.gap, rel=1e-5)


@TAUS
def test_rows_of_one_tensor_are_independent_runs(tau):
    waves = rates.Waves([1.0, 0.25])
    options = theory.suggest(waves.problem(tau), 100, tau=tau, m=10).options
    tensors = [waves.x_1(3), *waves.x_1(3)]
    params = [torch.nn.Parameter(x) for x in tensors]
    opts = [SuperAdam([x], matrix=matrices.SecondMoment(lam=rates.LAM), **options) for x in params]
    for _ in range(50):
        xi = waves.draw(3, None)
        for x, opt, sample in zip(params, opts, [xi, *xi], strict=True):

            def closure(x=x, sample=sample):
                x.grad = waves.stochastic_gradient(x.detach(), sample)
                return 0.0

            opt.step(closure)
    torch.testing.assert_close(params[0].detach(), torch.stack(params[1:]).detach(), atol=1e-14, rtol=0)


def under_the_bound(results):
    for problem, advice, curve, bounds in results.values():
        assert theory.conditions(problem, **advice.parameters)
        for bound, M, gradient in zip(bounds, curve.M, curve.gradient, strict=True):
            assert bound.value >= M
            assert gradient <= bound.gradient
            assert gradient <= M * math.sqrt(max(curve.H2))


def test_measured_means_are_under_the_bounds():
    results = rates.measure([1.0, 0.5, 0.25, 0.125], steps=300, runs=4)
    under_the_bound(results)
    for _, _, curve, _ in results.values():
        assert curve.M[-1] < 0.7 * curve.M[0]


@pytest.mark.slow
def test_the_rates_of_the_theorems():
    """Slopes over T from 10² to 10⁵; what τ = 1 saves at small ε; all under the bounds."""
    results = rates.measure([2.0**-j for j in range(rates.OCTAVES + 1)], rates.STEPS)
    under_the_bound(results)
    zero, one = results[0][2], results[1][2]
    assert zero.slope("gradient") <= -0.20
    assert one.slope("gradient") <= -0.28
    assert rates.evaluations(1, one.reaches(zero.gradient[-1])) < rates.evaluations(0, rates.STEPS) / 4

"""`estimators.Averaged` is its formula, and does what it is for: steps that stay bounded where τ = 1 diverges."""

import io
import itertools

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from problems import SHAPES, Stochastic, SuperAdam, train
from superadam import matrices, schedules
from superadam.estimators import Averaged
from superadam.probe.noise_model import curvature_limit

SAMPLES = list(range(50))
SIZES = [torch.Size(shape).numel() for shape in SHAPES]
MATRIX = matrices.SecondMoment(0.9, 1e-3)
REMEDIES = {
    "average": {"beta": 0.9, "own": False},
    "guard": {"beta": 0.0, "guard": 0.9, "own": False},
    "own": {"beta": 0.0},
    "all": {"beta": 0.8, "guard": 0.8},
    "all, tau=0.3": {"tau": 0.3, "beta": 0.8, "guard": 0.9},
    "all, tau=0": {"tau": 0.0, "beta": 0.8, "guard": 0.9},
}


def equal(actual, expected, tol=1e-10):
    torch.testing.assert_close(actual, expected, rtol=tol, atol=tol)


def plain(grad, x, samples, *, lr, alpha, tau=1.0, beta=0.9, guard=None, own=True):
    """x_1, x_2, … and how often a tensor was guarded, in plain words."""
    xs, guarded = [x], 0
    r, g, v = (torch.zeros_like(x) for _ in range(3))
    for t, i in enumerate(samples, start=1):
        newest = grad(x, i)
        r = newest if t == 1 else alpha * newest + (1 - alpha) * (r + tau * (newest - grad(xs[-2], i)))
        if guard is not None:
            parts = []
            for ours, theirs in zip(r.split(SIZES), newest.split(SIZES), strict=True):
                out = ours.norm() > guard * theirs.norm()
                guarded += bool(out)
                parts.append(theirs if out else ours)
            r = torch.cat(parts)
        g = beta * g + (1 - beta) * r
        seen = r if own else newest
        v = 0.9 * v + 0.1 * seen**2
        x = x - lr * g / (1 - beta**t) / (v.sqrt() + 1e-3)
        xs.append(x)
    return xs, guarded


@pytest.mark.parametrize(
    ("how", "half_steps"),
    [
        ({}, False),
        ({"foreach": True}, True),
        ({"foreach": False}, True),
    ],
    ids=["closure", "half-steps, foreach", "half-steps, tensor by tensor"],
)
@pytest.mark.parametrize("name", REMEDIES)
def test_equals_its_formula(name, half_steps, how):
    options, problem = REMEDIES[name], Stochastic()
    expected, guarded = plain(problem.grad, problem.x_1, SAMPLES, lr=0.01, alpha=0.2, **options)
    params = problem.params()
    schedule = schedules.Constant(alpha=0.2)
    opt = SuperAdam(params, 0.01, estimator=Averaged(**options), matrix=MATRIX, schedule=schedule, **how)
    points, last = train(problem, opt, params, SAMPLES, half_steps=half_steps)
    for n, x in enumerate(points):
        equal(x, expected[n if opt.two_point else n + 1])
    equal(last, expected[50])
    assert opt.two_point == (options.get("tau", 1.0) > 0)
    assert "guard" not in options or 10 < guarded < 290  # of 6 tensors in 50 steps: neither never nor always


@pytest.mark.parametrize("tau", [0.0, 0.4, 1.0])
def test_without_its_remedies_it_is_line_11(tau):
    problem = Stochastic()
    ends = []
    for options in ({"tau": tau}, {"estimator": Averaged(tau, beta=0.0, own=False)}):
        params = problem.params()
        ends.append(train(problem, SuperAdam(params, 0.01, **options), params, SAMPLES)[1])
    equal(*ends)


@pytest.mark.parametrize("stop", [1, 7])
def test_goes_on_from_a_checkpoint_bit_for_bit(stop):
    problem = Stochastic()
    through, stopped = problem.params(), problem.params()

    def make(params):
        return SuperAdam(params, 0.01, estimator=Averaged(guard=1.0), schedule=schedules.Constant(alpha=0.2))

    opt = make(through)
    for i in SAMPLES[:12]:
        opt.step(problem.closure(opt, through, i))
    opt = make(stopped)
    for i in SAMPLES[:stop]:
        opt.step(problem.closure(opt, stopped, i))
    file = io.BytesIO()
    torch.save(opt.state_dict(), file)
    file.seek(0)
    opt = make(stopped)
    opt.load_state_dict(torch.load(file, weights_only=True))
    for i in SAMPLES[stop:12]:
        opt.step(problem.closure(opt, stopped, i))
    assert all(torch.equal(a, b) for a, b in zip(through, stopped, strict=True))


def test_restart_begins_both_estimates_anew():
    problem = Stochastic()
    params = problem.params()
    opt = SuperAdam(params, 0.01, estimator=Averaged(beta=0.9), schedule=schedules.Constant(alpha=0.2))
    for i in SAMPLES[:5]:
        opt.step(problem.closure(opt, params, i))
    opt.restart()
    opt.step(problem.closure(opt, params, 7))
    for p in params:
        assert torch.equal(opt.state[p]["g"], p.grad)
        assert torch.equal(opt.state[p]["r"], p.grad)


def test_the_guard_brings_an_estimate_that_is_not_finite_back():
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    opt = SuperAdam([x], 0.0, estimator=Averaged(beta=0.0, guard=1.0), schedule=schedules.Constant(alpha=0.1))
    for n in range(3):

        def closure(n=n):
            x.grad = torch.tensor([1.0, float("nan") if n == 1 else 2.0])
            return 0.0

        opt.step(closure)
        # the newest gradient, whatever it is
        torch.testing.assert_close(opt.state[x]["r"], x.grad, equal_nan=True)


class NoHostSync(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func.overloadpacket.__name__ not in ("_local_scalar_dense", "is_nonzero", "equal", "nonzero")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("foreach", [False, True], ids=["per-tensor", "foreach"])
def test_a_step_never_waits_for_the_device(foreach):
    problem = Stochastic()
    params = problem.params()
    estimator = Averaged(guard=0.8)
    opt = SuperAdam(params, 0.01, estimator=estimator, foreach=foreach)
    closures = [problem.closure(opt, params, i) for i in SAMPLES[:4]]
    with NoHostSync():
        for closure in closures:
            opt.step(closure)
        opt.flush()


@pytest.mark.parametrize("option", [{"tau": 1.5}, {"beta": 1.0}, {"guard": 0.0}])
def test_options_out_of_range_are_refused(option):
    with pytest.raises(ValueError, match=f"Invalid {next(iter(option))} parameter"):
        Averaged(**option)


# ------------------------------------------------------------------------------------------------ why it is there


def assert_largest_stable(lr, *, curvature=3.0, steps, **options):
    """On a quadratic without noise, with H = I: |x| falls where the curvature is 5 % smaller, and grows where it is
    5 % larger. Long enough: an average of few gradients is unstable at first, which sets x back."""
    x = torch.ones(2, dtype=torch.float64, requires_grad=True)
    opt = SuperAdam([x], lr, matrix="Identity", **options)
    curvatures = curvature * torch.tensor([0.95, 1.05], dtype=torch.float64)

    def closure():
        x.grad = curvatures * x.detach()
        return 0.0

    for _ in range(steps):
        opt.step(closure)
    smaller, larger = x.abs().tolist()
    assert smaller < 1e-3
    assert larger > 1e3


@pytest.mark.parametrize(("tau", "alpha"), list(itertools.product([0.0, 0.025, 0.3, 1.0], [0.05, 0.3, 1.0])))
def test_stable_learning_rates_of_line_11(tau, alpha):
    """γλ < 2(1+b)/(1-b+2bτ) with b = 1-α: Adam's with τ = 0, gradient descent's with τ = 1."""
    limit = curvature_limit(3.0, alpha=alpha, tau=tau)
    assert_largest_stable(limit, steps=600, tau=tau, schedule=schedules.Constant(alpha=alpha))


@pytest.mark.parametrize(("alpha", "beta"), [(0.1, 0.9), (0.3, 0.9), (0.1, 0.5)])
def test_an_average_over_the_path_has_adams_stable_learning_rates(alpha, beta):
    """Those of momentum β, whatever α is: (1+β)/(1-β) times those of τ = 1."""
    limit = curvature_limit(3.0, alpha=1 - beta, tau=0.0)
    schedule = schedules.Constant(alpha=alpha)
    assert_largest_stable(limit, steps=900, estimator=Averaged(beta=beta), schedule=schedule)
    assert limit == pytest.approx((1 + beta) / (1 - beta) * curvature_limit(3.0, alpha=alpha, tau=1.0))


@pytest.mark.parametrize(("own", "bounded"), [(True, True), (False, False)])
def test_steps_are_bounded_only_if_line_4_sees_what_the_step_goes_along(own, bounded):
    """A unit that is alive at x_{t-1} and dead at x_t: q is large, the new gradient is zero, and so is what H_t is made
    of. Adam's steps are at most γ/√(1-β₂) at any time."""
    x = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    matrix = matrices.SecondMoment(0.99, 1e-8, bias_correction=True)
    estimator = Averaged(beta=0.0, own=own)
    opt = SuperAdam([x], 1.0, estimator=estimator, matrix=matrix, schedule=schedules.Constant(alpha=0.1))
    values = iter([1e-6] + [1.0, 0.0] * 20)  # ∇f(x_1; ξ_1), then ∇f(x_{t-1}; ξ_t) and ∇f(x_t; ξ_t) in turn
    largest = 0.0

    def closure():
        x.grad = torch.full_like(x, next(values))
        return 0.0

    for _ in range(21):
        before = x.item()
        opt.step(closure)
        largest = max(largest, abs(x.item() - before))
    assert (largest <= 10.0 + 1e-9) == bounded
    assert bounded or largest > 1e4


@pytest.mark.parametrize(("options", "learns"), [({"tau": 1.0}, False), ({"estimator": "Averaged"}, True)])
def test_trains_where_variance_reduction_alone_diverges(options, learns):
    """Digits have pixels that are almost always zero. With Adam's small λ nothing but line 4 can bound their steps.
    (The evidence for the other remedies is research/stability.)"""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10))
    matrix = matrices.SecondMoment(lam=1e-8, bias_correction=True)
    opt = SuperAdam(model, 4e-3, matrix=matrix, schedule=schedules.Constant(alpha=0.3), **options)
    for rows in torch.randint(len(y), (250, 16)):

        def closure(rows=rows):
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
            loss.backward()
            return loss

        opt.step(closure)
    opt.flush()
    model.eval()
    loss = nn.functional.cross_entropy(model(x), y).item()
    assert loss < 0.3 if learns else not loss < 2

"""Learning rates that are estimated, or that differ between tensors: equal to their formulas, shared by all."""

import io
import math

import pytest
import torch

from problems import SHAPES, Stochastic, train
from superadam import Monitor, SuperAdam, create, estimators, iterates, matrices, penalties, schedules, sets, stepsizes

STEPS = 40
SAMPLES = list(range(STEPS))
SIZES = [torch.Size(shape).numel() for shape in SHAPES]
HOW = [{}, {"foreach": True}, {"foreach": False}]


def equal(actual, expected, tol=1e-12):
    torch.testing.assert_close(actual, expected, rtol=tol, atol=tol)


# Each function gives x_{T+1}: `grad(x, i)` on one vector, a loop, the paper's formula.


def plain_prodigy(grad, x, lr=1.0, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, d0=1e-6, d_coef=1.0):
    start, d, r = x, d0, 0.0
    m, v, s = (torch.zeros_like(x) for _ in range(3))
    beta3 = math.sqrt(betas[1])
    for i in SAMPLES:
        g = grad(x, i)
        r = beta3 * r + d / d0 * d * lr * g.dot(start - x)
        s = beta3 * s + d / d0 * d * lr * g
        m, v = betas[0] * m + (1 - betas[0]) * d * g, betas[1] * v + (1 - betas[1]) * (d * g) ** 2
        x = x * (1 - lr * d * weight_decay) - lr * d * m / (v.sqrt() + d0 * eps)
        d = max(d, float(d_coef * r / s.abs().sum()))
    plain_prodigy.d = d
    return x


def plain_dog(grad, x, lr=1.0, reps_rel=1e-6):
    start, total, far = x, 0.0, reps_rel * (1 + x.norm())
    for i in SAMPLES:
        g = grad(x, i)
        total, far = total + g.dot(g), torch.maximum(far, (x - start).norm())
        x = x - lr * far / (total + 1e-8).sqrt() * g
    return x


def of_each_tensor(function, *vectors):
    return torch.cat([function(*parts) for parts in zip(*(v.split(SIZES) for v in vectors), strict=True)])


def plain_lamb(grad, x, lr=1e-2, betas=(0.9, 0.999), eps=1e-6, weight_decay=1e-2):
    m, v = torch.zeros_like(x), torch.zeros_like(x)
    for t, i in enumerate(SAMPLES, start=1):
        g = grad(x, i)
        m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g**2
        u = m / (1 - betas[0] ** t) / ((v / (1 - betas[1] ** t)).sqrt() + eps) + weight_decay * x
        x = x - lr * of_each_tensor(lambda a, b: a.norm() / b.norm() * b if len(b) else b, x, u)
    return x


def plain_lars(grad, x, lr=0.1, momentum=0.9, trust_coefficient=0.1, weight_decay=0.0):
    b = torch.zeros_like(x)
    dims = iter(len(shape) for shape in SHAPES * STEPS)

    def scaled(a, g):
        return g if next(dims) < 2 or len(g) == 0 else trust_coefficient * a.norm() / g.norm() * g

    for i in SAMPLES:
        b = momentum * b + of_each_tensor(scaled, x, grad(x, i) + weight_decay * x)
        x = x - lr * b
    return x


def plain_adan(grad, x, lr=1e-3, betas=(0.98, 0.92, 0.99), eps=1e-8, weight_decay=0.0):
    m, d, n, last = torch.zeros_like(x), torch.zeros_like(x), torch.zeros_like(x), None
    for t, i in enumerate(SAMPLES, start=1):
        g = grad(x, i)
        change = torch.zeros_like(g) if last is None else g - last
        m, d = betas[0] * m + (1 - betas[0]) * g, betas[1] * d + (1 - betas[1]) * change
        n = betas[2] * n + (1 - betas[2]) * (g + betas[1] * change) ** 2
        step = m / (1 - betas[0] ** t) + betas[1] * d / (1 - betas[1] ** t)
        x = x * (1 - lr * weight_decay) - lr * step / ((n / (1 - betas[2] ** t)).sqrt() + eps)
        last = g
    return x


PLAIN = {
    "prodigy": (plain_prodigy, {}),
    "prodigy-other": (plain_prodigy, {"lr": 0.5, "betas": (0.8, 0.9), "d0": 1e-3, "d_coef": 0.5, "weight_decay": 0.3}),
    "dog": (plain_dog, {}),
    "dog-other": (plain_dog, {"lr": 0.7, "reps_rel": 0.01}),
    "lamb": (plain_lamb, {}),
    "lamb-other": (plain_lamb, {"lr": 0.03, "betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.3}),
    "lars": (plain_lars, {}),
    "lars-other": (plain_lars, {"momentum": 0.5, "trust_coefficient": 0.03, "weight_decay": 0.3}),
    "adan": (plain_adan, {"lr": 0.01}),
    "adan-other": (plain_adan, {"lr": 0.01, "betas": (0.8, 0.9, 0.95), "eps": 1e-3, "weight_decay": 0.3}),
}


@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("name", PLAIN)
def test_equals_the_published_formula(name, how):
    plain, options = PLAIN[name]
    problem = Stochastic()
    expected = plain(problem.grad, problem.x_1, **options)
    params = problem.params()
    _, last = train(problem, create(name.partition("-")[0], params, **options, **how), params, SAMPLES)
    equal(last, expected, 1e-11)
    assert (last - problem.x_1).abs().max() > (1e-3 if name == "dog" else 0.01)  # forty steps from a reach of 1e-6


# ------------------------------------------------------------------------------------------------ over all parameters


@pytest.mark.parametrize("tau", [0.0, 1.0])
@pytest.mark.parametrize("name", ["Prodigy", "DoG"])
def test_the_estimate_is_that_of_all_groups_together(name, tau):
    """The same steps whether the parameters are in one group, in several, or in another order."""
    ends, problem = [], Stochastic()
    for order in ([[0, 1, 2, 3, 4, 5]], [[0], [1, 2], [3, 4, 5]], [[5, 3, 1], [4, 2, 0]]):
        params = problem.params()
        groups = [{"params": [params[i] for i in part]} for part in order]
        opt = SuperAdam(groups, lr=1.0, stepsize=name, tau=tau, matrix="Identity" if name == "DoG" else None)
        ends.append(train(problem, opt, params, SAMPLES if tau == 0 else SAMPLES[:12])[1])  # τ = 1 amplifies rounding
    for end in ends[1:]:
        equal(end, ends[0], 1e-11)


def test_auto_is_prodigy():
    x = torch.zeros(2, requires_grad=True)
    opt = SuperAdam([{"params": [x]}], lr="auto")
    group = opt.param_groups[0]
    assert (group["lr"], group["stepsize"]) == (1.0, stepsizes.Prodigy().spec())
    assert "gamma: Prodigy" in repr(opt)
    other = SuperAdam([{"params": [x], "lr": "auto"}], lr=0.1).param_groups[0]
    assert (other["lr"], other["stepsize"]["type"]) == (1.0, "Prodigy")
    assert SuperAdam([x], lr="auto", stepsize=stepsizes.DoG()).param_groups[0]["stepsize"]["type"] == "DoG"
    with pytest.raises(ValueError, match=r"expected a number, None or 'auto'"):
        SuperAdam([x], lr="automatic")


def quadratic(opt, x, target, steps):
    for _ in range(steps):
        opt.zero_grad()
        (x - target).square().sum().backward()
        opt.step()
    opt.flush()


@pytest.mark.parametrize(
    "options",
    [
        {"lr": "auto"},
        {"lr": "auto", "matrix": matrices.Sign(), "estimator": estimators.Nesterov(0.1)},
        {"lr": "auto", "iterate": iterates.ScheduleFree(r=1.0), "schedule": schedules.Constant(alpha=1.0)},
        {"lr": "auto", "constraint": sets.L2Ball(100.0)},
        {"stepsize": "DoG", "matrix": "Identity", "schedule": schedules.Constant(alpha=1.0)},
    ],
    ids=str,
)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_finds_the_scale_of_the_problem(options, scale):
    """The same composition gets near solutions that are a thousandth and a thousand away, whatever γ that needs."""
    if "constraint" in options and scale > 1:
        options = {**options, "constraint": sets.L2Ball(1e5)}
    x = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    target = scale * torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    quadratic(SuperAdam([x], **options), x, target, 600)
    assert (x.detach() - target).norm() < 0.3 * target.norm()


HOMOGENEOUS = [
    matrices.SecondMoment(lam=0.0),
    matrices.SecondMoment(lam=0.0, bias_correction=True),
    matrices.AMSGrad(lam=0.0),
    matrices.Belief(lam=0.0),
    matrices.Yogi(lam=0.0, v_0=0.0),
    matrices.Cautious(lam=0.0),
    matrices.AdaGrad(lam=0.0),
    matrices.Adamax(lam=0.0),
    matrices.Centered(lam=0.0),
    matrices.Adopt(lam=0.0),
    matrices.Sign(),
    matrices.Adafactor(eps1=1e-30),
    matrices.AdamMini(lam=0.0),
]


def test_matrices_that_say_so_are_homogeneous():
    """Gradients that are a thousand times as large lead to the same points."""
    named = {type(matrix) for matrix in HOMOGENEOUS}
    known = {kind for kind in vars(matrices).values() if isinstance(kind, type) and issubclass(kind, matrices.Matrix)}
    assert {kind for kind in known if kind.homogeneous} == named
    for matrix in HOMOGENEOUS:
        ends = []
        for scale in (1.0, 1000.0):
            x = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(2, 3).requires_grad_()
            opt = SuperAdam([x], lr=0.01, matrix=matrix)
            for i in range(5):
                x.grad = scale * (torch.arange(6.0, dtype=torch.float64).reshape(2, 3) + i + 1 - 3 * x.detach()).cos()
                opt.step()
            ends.append(x.detach())
        equal(ends[0], ends[1], 1e-9)
    assert not matrices.AMSGrad(power=0.25).homogeneous


def test_auto_forgets_the_gradients_of_the_steps_that_hardly_moved():
    """As published: v at the end is that of gradients weighed by d_t, and so is a composition that weighs by itself."""
    problem, ends = Stochastic(), []
    for stepsize in (stepsizes.Prodigy(), stepsizes.Prodigy(weigh=True), stepsizes.Prodigy(weigh=False)):
        params = problem.params()
        ends.append(train(problem, SuperAdam(params, lr="auto", stepsize=stepsize), params, SAMPLES)[1])
    assert torch.equal(ends[0], ends[1])
    assert not torch.allclose(ends[0], ends[2])
    for options in ({"clip": 1.0}, {"penalty": penalties.L1(1e-3)}, {"estimator": "Nesterov"}, {"matrix": "RAdam"}):
        ends = []
        for stepsize in (stepsizes.Prodigy(), stepsizes.Prodigy(weigh=False)):
            params = problem.params()
            ends.append(train(problem, SuperAdam(params, lr="auto", stepsize=stepsize, **options), params, SAMPLES)[1])
        assert torch.equal(*ends)


def test_on_a_set_all_points_are_feasible():
    problem = Stochastic()
    params = problem.params()
    opt = SuperAdam(params, lr="auto", constraint=sets.L2Ball(0.7), stepsize=stepsizes.Prodigy(d0=0.01))
    for i in SAMPLES:
        opt.step(problem.closure(opt, params, i))
        assert opt.feasibility() < 1e-12


# ------------------------------------------------------------------------------------------------------ promises


@pytest.mark.parametrize("name", ["prodigy", "dog", "lamb", "lars", "adan"])
def test_resumed_is_uninterrupted(name):
    problem = Stochastic()
    through, before, after = (problem.params() for _ in range(3))

    def steps(opt, params, samples):
        for i in samples:
            opt.step(problem.closure(opt, params, i))

    steps(create(name, through), through, range(20))
    first = create(name, before)
    steps(first, before, range(10))
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    with torch.no_grad():
        for p, q in zip(after, before, strict=True):
            p.copy_(q)
    second = create(name, after)
    second.load_state_dict(torch.load(file, weights_only=True))
    steps(second, after, range(10, 20))
    assert all(map(torch.equal, through, after))


def test_the_monitor_reports_what_was_chosen():
    problem = Stochastic()
    params = problem.params()
    opt = SuperAdam(params, lr="auto")
    with Monitor(opt, 10) as monitor:
        train(problem, opt, params, SAMPLES)
    d = float(opt.state[params[0]]["d"])
    assert d > 1e-5
    assert monitor.history[-1]["lr"] == pytest.approx(d, rel=1e-6)


def test_checkpoints_from_before_step_sizes_load():
    problem = Stochastic()
    params = problem.params()
    opt = SuperAdam(params)
    opt.step(problem.closure(opt, params, 0))
    saved = opt.state_dict()
    for group in saved["param_groups"]:
        del group["stepsize"]
    opt.load_state_dict(saved)
    assert opt.param_groups[0]["stepsize"] is None
    opt.step(problem.closure(opt, params, 1))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (stepsizes.Prodigy, {"d0": 0.0}),
        (stepsizes.Prodigy, {"beta": 1.0}),
        (stepsizes.Prodigy, {"coefficient": 0.0}),
        (stepsizes.DoG, {"reach": 0.0}),
        (stepsizes.TrustRatio, {"coefficient": 0.0}),
        (stepsizes.UpdateClipping, {"d": 0.0}),
        (stepsizes.Decaying, {"speed": -1.0}),
        (stepsizes.Decaying, {"power": -1.0}),
        (estimators.Adan, {"beta": 1.0}),
    ],
)
def test_options_out_of_range_are_refused(kind, options):
    with pytest.raises(ValueError, match=f"Invalid {next(iter(options))} parameter"):
        kind(**options)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"stepsize": stepsizes.Prodigy(weigh=True), "estimator": "Nesterov"}, "use weigh=False"),
        ({"stepsize": stepsizes.Prodigy(weigh=True), "penalty": penalties.L1(0.1)}, "use weigh=False"),
        ({"stepsize": stepsizes.Prodigy(weigh=True), "clip": 1.0}, "clip_grad_norm_"),
        ({"lr": "auto", "matrix": "Identity"}, r"use stepsize=stepsizes.DoG\(\)"),
        ({"lr": "auto", "stepsize": "TrustRatio"}, "Set lr to a number"),
        ({"lr": "auto", "matrix": "AdaDelta"}, r"with AdaDelta lr='auto'.* give lr a number, such as 1\.0"),
        ({"lr": "auto", "matrix": "Adafactor"}, r"or Adafactor\(relative=False\)"),
        ({"lr": "auto", "matrix": "DampedLBFGS"}, r"such as 0\.3"),
        ({"lr": "auto", "matrix": "SCAdaGrad"}, r"such as 0\.1"),
        ({"lr": "auto", "matrix": matrices.ByShape(matrices.Shampoo(beta=1.0))}, "beta < 1, or grafting"),
        ({"stepsize": stepsizes.TrustRatio(of_gradient=True), "penalty": penalties.L1(0.1)}, "as it was"),
        ({"stepsize": stepsizes.TrustRatio(of_gradient=True), "estimator": "Nesterov"}, "as it was"),
        ({"stepsize": "TrustRatio", "matrix": "AdamMini"}, "no diagonal"),
        ({"stepsize": "UpdateClipping", "matrix": "AdamMini"}, "no diagonal"),
        ({"stepsize": "UpdateClipping", "tau": 1.0}, "use tau=0"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(options, reason):
    with pytest.raises(ValueError, match=reason):
        SuperAdam([torch.zeros(2, 2, requires_grad=True)], **options)


@pytest.mark.parametrize("name", ["prodigy", "dog"])
def test_an_overflow_leaves_the_estimate_as_it_was(name):
    problem = Stochastic()
    params = problem.params()
    opt = create(name, params)
    for i in range(3):
        opt.step(problem.closure(opt, params, i))
    before = [{k: v.clone() for k, v in opt.state[p].items() if torch.is_tensor(v)} for p in params]
    problem.closure(opt, params, 3)()
    opt.grad_scale, opt.found_inf = torch.tensor(2.0), torch.tensor(1.0)  # as a GradScaler does
    opt.step()
    del opt.grad_scale, opt.found_inf
    for p, kept in zip(params, before, strict=True):
        for key, value in kept.items():
            assert torch.equal(opt.state[p][key], value), key
    assert (
        opt.state[params[0]]["d" if name == "prodigy" else "total"]
        is opt.state[params[1]]["d" if name == "prodigy" else "total"]
    )

"""Compositions of the zoo's parts: refused with the reason, or they train, resume and take half-steps."""

import io
import math

import pytest
import torch

from pairs import pairs
from problems import Stochastic, SuperAdam, equal, train
from superadam import create, estimators, iterates, matrices, schedules, sets, zoo

STEPS = 60

SAMPLES = [i % 50 for i in range(STEPS)]


class NamedG(matrices.Diagonal):
    buffers = ("g",)


class NamedX(matrices.Diagonal):
    buffers = ("x",)


class NamedParams(matrices.Diagonal):
    buffers = ("params",)


class NamedMatrix(matrices.Diagonal):
    scalars = ("matrix",)


class NamedLast(matrices.Diagonal):
    buffers = ("last",)


STAGES = {"estimator": "Summed", "iterate": "SAdaGrad"}
REFUSED = {
    "storm-diagonal": ({"matrix": "SecondMoment", "schedule": "Storm"}, "one learning rate for all coordinates"),
    "storm-lbfgs": ({"matrix": "DampedLBFGS", "schedule": "Storm"}, "one learning rate for all coordinates"),
    "transport-barzilai-borwein": (
        {"iterate": "Nigt", "matrix": "BarzilaiBorwein", "schedule": "Constant"},
        "compares gradients at x_t and",
    ),
    "transport-lbfgs": (
        {"iterate": "Nigt", "matrix": "DampedLBFGS", "schedule": "Constant"},
        "compares gradients at x_t and",
    ),
    "transport-storm": (
        {"iterate": "Nigt", "matrix": "AccumulatedNorm", "schedule": "Storm"},
        "must be known before the next gradient",
    ),
    "staged-scalar": (
        {
            "estimator": "Summed",
            "iterate": "SAdaGrad",
            "matrix": "GradientNorm",
            "schedule": schedules.Constant(alpha=1.0),
        },
        "GradientNorm is shared by all",
    ),
    "staged-lbfgs": (
        {
            "estimator": "Summed",
            "iterate": "SAdaGrad",
            "matrix": "DampedLBFGS",
            "schedule": schedules.Constant(alpha=1.0),
        },
        "DampedLBFGS is shared by all",
    ),
    "staged-paper": (
        {**STAGES, "matrix": "AdaGrad", "schedule": "Paper"},
        "so μ must be 1",
    ),
    "staged-mu": (
        {**STAGES, "matrix": "AdaGrad", "schedule": schedules.Constant(mu=0.5)},
        "so μ must be 1",
    ),
    "tau-and-estimator": ({"tau": 1.0, "estimator": "Mars"}, "not both"),
    "clip-estimate-norm": ({"clip": 1.0, "matrix": "EstimateNorm"}, "divides g by its own norm"),
    "buffer-g": ({"matrix": NamedG()}, "the state name g is already used"),
    "buffer-x": ({"matrix": NamedX()}, "the state name x is already used"),
    "buffer-params": ({"matrix": NamedParams()}, "the state name params is already used"),
    "scalar-matrix": ({"matrix": NamedMatrix()}, "the state name matrix is already used"),
    # Mars keeps ∇f(x_{t-1}) under this name: one tensor would serve both
    "buffer-of-the-estimator": (
        {"matrix": NamedLast(), "estimator": "Mars"},
        "the state name last is already used",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused_with_the_reason(name):
    options, reason = REFUSED[name]
    x = torch.zeros(2, requires_grad=True)
    with pytest.raises(ValueError, match=reason):
        SuperAdam([x], **options)
    with pytest.raises(ValueError, match=reason):  # in a param group, too
        SuperAdam([{"params": [x], **options}])


def test_a_part_assigned_later_is_refused_too():
    x = torch.ones(2, requires_grad=True)
    opt = SuperAdam([x])
    opt.param_groups[0]["schedule"] = schedules.Storm()
    x.sum().backward()
    with pytest.raises(ValueError, match="one learning rate for all coordinates"):
        opt.step()


SENSIBLE = {
    "variance-reduced AMSGrad": {"tau": 1.0, "matrix": "AMSGrad", "schedule": "Paper", "lr": 0.1},
    "variance-reduced Yogi": {"tau": 1.0, "matrix": "Yogi", "schedule": "Paper", "lr": 0.1},
    "variance-reduced AdaGrad": {"tau": 1.0, "matrix": "AdaGrad", "schedule": "Paper", "lr": 3.0},
    "half variance-reduced AdaBound": {"tau": 0.5, "matrix": "AdaBound", "schedule": "Paper", "lr": 0.05},
    "variance-reduced AdaDelta": {"tau": 1.0, "matrix": matrices.AdaDelta(eps=1e-2), "schedule": "Paper", "lr": 5.0},
    "variance-reduced L-BFGS": {"tau": 1.0, "matrix": matrices.DampedLBFGS(delta=0.01), "schedule": "Paper", "lr": 0.5},
    "MARS with belief": {
        "estimator": estimators.Mars(bound=None),
        "matrix": "Belief",
        "schedule": schedules.BiasCorrected(0.95),
        "lr": 0.02,
    },
    "MARS with L-BFGS": {
        "estimator": estimators.Mars(0.1, 0.5, bound=None),
        "matrix": "DampedLBFGS",
        "schedule": schedules.Constant(alpha=0.5),
        "lr": 0.1,
    },
    "transported Adam": {
        "iterate": "Nigt",
        "matrix": matrices.SecondMoment(bias_correction=True),
        "schedule": schedules.BiasCorrected(0.9),
        "lr": 0.05,
    },
    "transported AdaGrad-Norm": {
        "iterate": "Nigt",
        "matrix": "AccumulatedNorm",
        "schedule": schedules.Constant(alpha=0.2),
        "lr": 1.0,
    },
    "STORM on the gradient norm": {
        "tau": 1.0,
        "matrix": matrices.GradientNorm(0.9, lam=2.0),
        "schedule": schedules.Storm(c=1.0),
        "lr": 0.3,
    },
    "STORM's momentum, normalised": {"matrix": "EstimateNorm", "schedule": schedules.Storm(c=5.0), "lr": 0.03},
    "stages of SC-AdaGrad": {
        "estimator": estimators.Summed(),
        "iterate": iterates.SAdaGrad(length=20),
        "matrix": matrices.SCAdaGrad(xi1=1.0),
        "schedule": schedules.Constant(alpha=1.0),
        "lr": 30.0,
    },
    "normalised Barzilai-Borwein": {
        "matrix": "BarzilaiBorwein",
        "schedule": schedules.Constant(alpha=0.5),
        "lr": 0.2,
        "clip": 1.0,
    },
}


@pytest.mark.parametrize(("name", "foreach"), pairs(SENSIBLE, [False, True]))
def test_sensible_compositions_decrease_a_quadratic(name, foreach):
    """To a hundredth of the loss, within 300 batches, with a little noise in the gradients."""
    generator = torch.Generator().manual_seed(3)
    curvature = torch.tensor([1.0, 2.0, 5.0, 1.5], dtype=torch.float64)
    params = [torch.tensor([3.0, -2.0], dtype=torch.float64, requires_grad=True) for _ in range(2)]
    opt = SuperAdam(params, foreach=foreach, **SENSIBLE[name])

    def loss(noise=0.0):
        x = torch.cat(params)
        return (0.5 * curvature * x**2 + noise * x).sum()

    first = loss().item()
    for _ in range(300):
        noise = 0.1 * torch.randn(4, generator=generator, dtype=torch.float64)

        def closure(noise=noise):
            opt.zero_grad()
            value = loss(noise)
            value.backward()
            return value

        opt.step(closure)
    opt.flush()
    assert loss().item() < 0.01 * first


@pytest.mark.parametrize("tau", [0.0, 0.5])
def test_curvature_does_not_depend_on_the_estimator(tau):
    """Barzilai-Borwein's b is the curvature of f along the move, as its formula says, whatever g is: on L/2 ‖x‖² it is
    L."""
    x = torch.tensor([3.0, -2.0], dtype=torch.float64, requires_grad=True)
    opt = SuperAdam(
        [x],
        lr=0.1,
        estimator=estimators.Mars(tau, 0.1, bound=1.0),
        matrix="BarzilaiBorwein",
        schedule=schedules.Constant(alpha=0.1),
    )
    for n in range(5):

        def closure():
            opt.zero_grad()
            loss = 3.5 * x.square().sum()
            loss.backward()
            return loss

        opt.step(closure)
        if n > 0:
            equal(opt.state[x]["b"], torch.tensor(7.0, dtype=torch.float64), 1e-10)


# Schedule-free decays y_t, not x_t; the others have a learning rate of their own.
OWN_DECAY = ("asgd", "dog", "lamb", "limuon", "prodigy", "schedule_free_adamw")


@pytest.mark.parametrize("name", sorted(zoo.METHODS.keys() - set(OWN_DECAY)))
def test_decoupled_weight_decay_is_what_the_option_says(name):
    """x_{t+1} is moved by -γ μ_t w x_t in addition: where f is flat, by that alone. A method that cannot, refuses."""
    x = torch.tensor([5.0, -1.0], dtype=torch.float64, requires_grad=True)
    try:
        opt = create(name, [x], lr=0.1, weight_decay=0.5, decoupled_weight_decay=True)
    except ValueError:
        assert name == "sadagrad"  # whose moves do not start at x_t
        return
    group = opt.param_groups[0]
    schedule = schedules.Schedule.find(group["schedule"])
    expected = x.detach().clone()

    def closure():
        opt.zero_grad()
        loss = 0.0 * x.sum()
        loss.backward()
        return loss

    for t in range(1, 31):
        opt.step(closure)
        expected = expected * (1 - 0.1 * schedule.mu_t(t, group["tau"]) * 0.5)
    opt.flush()
    equal(x.detach(), expected, 1e-10)


# Where the defaults would leave something out: stages that end, a history that is full, steps that are not tiny.
OPTIONS = {
    "sadagrad": {"length": 4},
    "sdlbfgs": {"history": 3, "lr": 0.02, "delta": 0.01},
    "super_adam": {"tau": 1.0, "lr": 0.01},
    "sgd": {"momentum": 0.9, "lr": 0.01},
    "storm": {"lr": 0.1},
}


def through_a_file(opt):
    file = io.BytesIO()
    torch.save(opt.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize(("name", "foreach"), pairs(sorted(zoo.METHODS), [False, True]))
def test_saving_and_loading_halfway_changes_no_bit(name, foreach):
    problem = Stochastic()
    params = problem.params()
    opt = create(name, params, foreach=foreach, **OPTIONS.get(name, {}))
    for i in range(10):
        opt.step(problem.closure(opt, params, i))
    copies = [p.detach().clone().requires_grad_() for p in params]
    resumed = create(name, copies, foreach=foreach, **OPTIONS.get(name, {}))
    resumed.load_state_dict(through_a_file(opt))
    for i in range(10, 25):
        losses = [o.step(problem.closure(o, p, i)) for o, p in ((opt, params), (resumed, copies))]
        assert torch.equal(*losses)
    opt.flush()
    resumed.flush()
    assert torch.equal(problem.join(params), problem.join(copies))
    assert resumed.gradient_evaluations == opt.gradient_evaluations


@pytest.mark.parametrize("name", ["adagrad_norm", "storm", "sdlbfgs"])
def test_saving_parameters_of_two_dtypes_changes_no_bit(name):
    """What all parameters share is kept in the widest dtype, also through a checkpoint."""
    params = [torch.tensor([3.0, -2.0], dtype=d, requires_grad=True) for d in (torch.float32, torch.float64)]

    def closure(opt, params):
        def closure():
            opt.zero_grad()
            loss = sum((p**2).sum().double() * 1.1 for p in params)
            loss.backward()
            return loss

        return closure

    opt = create(name, params, lr=0.1)
    for _ in range(5):
        opt.step(closure(opt, params))
    copies = [p.detach().clone().requires_grad_() for p in params]
    resumed = create(name, copies, lr=0.1)
    resumed.load_state_dict(through_a_file(opt))
    for _ in range(5):
        opt.step(closure(opt, params))
        resumed.step(closure(resumed, copies))
    for p, q in zip(params, copies, strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("foreach", [False, True], ids=["per-tensor", "foreach"])
def test_half_steps_equal_the_closure_loop(foreach):
    problem, samples = Stochastic(), SAMPLES[:20]
    two_point = [name for name in zoo.METHODS if create(name, problem.params(), **OPTIONS.get(name, {})).two_point]
    assert set(two_point) == {"storm", "mars", "sdlbfgs", "super_adam", "limuon"}
    for name in two_point:
        ends = []
        for half_steps in (False, True):
            params = problem.params()
            opt = create(name, params, foreach=foreach, **OPTIONS.get(name, {}))
            points, last = train(problem, opt, params, samples, half_steps=half_steps)
            ends.append(torch.stack([*points, last]))
        assert torch.equal(*ends), name


def test_lion_is_variance_reduced_when_asked():
    """τ = 1 gives g_t of line 11, and Sign its sign: nothing in either knows of the other."""
    problem = Stochastic()
    params = problem.params()
    opt = SuperAdam(params, lr=0.01, tau=1.0, matrix=matrices.Sign(), schedule=schedules.Constant(alpha=0.1))
    x, g, last = problem.x_1, None, None
    for i in range(10):
        opt.step(problem.closure(opt, params, i))
        grad = problem.grad(x, i)
        g = grad if g is None else grad + 0.9 * (g - problem.grad(last, i))
        last, x = x, x - 0.01 * g.sign()
    opt.flush()
    equal(problem.join(params).detach(), x)


@pytest.mark.parametrize("constraint", [sets.Simplex(), sets.L2Ball(0.5), sets.L1Ball(0.5)], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {"matrix": matrices.Sign(lam=1e-6), "estimator": estimators.Nesterov(0.05)},
        {"matrix": matrices.Sophia(lam=1e-6)},
        {"matrix": matrices.Adamax()},
        {"matrix": matrices.RAdam()},
        {"matrix": matrices.Cautious(kappa=math.inf, rescale=True)},
        {"matrix": matrices.Adopt()},
        {"estimator": estimators.AdEMAMix()},
        {"matrix": matrices.SecondMoment(), "iterate": iterates.ScheduleFree()},
    ],
    ids=str,
)
def test_line_9_is_exact_in_the_metric(options, constraint):
    """The step is the set's own argmin, from the point that H_t and g_t lead to."""
    x = torch.full((5,), 0.2, dtype=torch.float64, requires_grad=True)
    opt = SuperAdam([x], lr=0.03, constraint=constraint, schedule=schedules.Constant(alpha=0.5), **options)
    for t in range(1, 6):
        start = x.detach().clone()
        x.grad = torch.tensor([1.0, -0.3, 0.5, 0.02, -2.0], dtype=torch.float64) * (1 + t % 3) - start
        opt.step()
        if "iterate" not in options:
            (s,) = opt.buckets()
            (H,), (g,) = s.matrix.H(s), s.estimate
            equal(x.detach(), constraint.argmin(start - 0.03 * g / H, H / 0.03), 1e-10)
        assert opt.feasibility() < 1e-9


def test_a_cautious_step_on_a_set_leaves_coordinates_where_they_are():
    """Where g_t and the newest gradient disagree: the others share what the ball allows."""
    x = torch.full((4,), 0.5, dtype=torch.float64, requires_grad=True)
    opt = create("cautious_adamw", [x], lr=0.2, weight_decay=0.0, constraint=sets.L2Ball(1.0))
    for grad in ([-1.0, -1.0, 1.0, 1.0], [-1.0, 0.1, 1.0, -0.1]):
        start = x.detach().clone()
        x.grad = torch.tensor(grad, dtype=torch.float64)
        opt.step()
        assert opt.feasibility() < 1e-9
    moved = (x.detach() - start).abs()
    assert moved[[1, 3]].max() < 1e-12 < 0.01 < moved[[0, 2]].min()


def test_lion_by_its_name_takes_tau_too():
    problem = Stochastic()
    ends = []
    for build in (
        lambda p: create("lion", p, lr=0.01, tau=1.0, weight_decay=0.1),
        lambda p: SuperAdam(p, 0.01, tau=1.0, matrix="Sign", schedule="BiasCorrected", weight_decay=0.1),
    ):
        params = problem.params()
        ends.append(train(problem, build(params), params, SAMPLES[:10])[1])
    assert torch.equal(*ends)


@pytest.mark.parametrize("name", ["ademamix", "adan", "adopt", "nadam"])
def test_an_estimator_of_its_own_has_no_tau_and_says_what_to_write(name):
    with pytest.raises(ValueError, match=r"write SuperAdam\(params, lr, tau=1.0, matrix="):
        create(name, torch.nn.Linear(2, 2), tau=1.0)


@pytest.mark.parametrize("name", ["ademamix", "adan"])
def test_a_method_of_three_averages_says_so(name):
    with pytest.raises(ValueError, match=r"Invalid betas: \(0.9, 0.999\) \(expected three numbers\)"):
        create(name, torch.nn.Linear(2, 2), betas=(0.9, 0.999))
    with pytest.raises(ValueError, match=r"Invalid beta parameter at index 1: 1\.5"):
        create(name, torch.nn.Linear(2, 2), betas=(0.9, 1.5, 0.99))
    with pytest.raises(ValueError, match=r"\(expected two numbers\)"):
        create("adamw", torch.nn.Linear(2, 2), betas=(0.9, 0.99, 0.999))


def test_gradients_that_nobody_asks_for_are_refused():
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="found no gradient"):
        create("sophia_g", [x]).observe()
    x.grad = torch.ones(2)
    with pytest.raises(RuntimeError, match="SecondMoment does not: leave the call out"):
        SuperAdam([x]).observe()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (matrices.Sign, {"lam": 0.0}),
        (matrices.Sophia, {"rho": 0.0}),
        (matrices.Sophia, {"batch": 0}),
        (matrices.Adamax, {"beta": 1.0}),
        (matrices.RAdam, {"lam": -1.0}),
        (matrices.Adafactor, {"decay": 0.0}),
        (matrices.Adafactor, {"eps1": 0.0}),
        (matrices.Adafactor, {"eps2": 0.0}),
        (matrices.Adafactor, {"d": 0.0}),
        (matrices.AdamMini, {"rows": 0}),
        (matrices.Cautious, {"kappa": 0.5}),
        (matrices.Centered, {"beta": 1.0}),
        (matrices.Adopt, {"power": -1.0}),
        (matrices.Rprop, {"grow": 1.0}),
        (matrices.Rprop, {"shrink": 1.0}),
        (matrices.Rprop, {"least": 0.0}),
        (estimators.HeavyBall, {"momentum": 1.0}),
        (estimators.HeavyBall, {"dampening": 1.0}),
        (estimators.AdEMAMix, {"beta": 1.0}),
        (estimators.AdEMAMix, {"a": -1.0}),
        (estimators.AdEMAMix, {"warmup": -1}),
        (estimators.NAdam, {"beta": 1.0}),
        (estimators.NAdam, {"decay": -1.0}),
    ],
)
def test_options_of_parts_out_of_range_are_refused(kind, options):
    with pytest.raises(ValueError, match=f"Invalid {next(iter(options))} parameter"):
        kind(**options)

"""Methods that torch has take torch's steps, with its defaults, in all ways, and stay in sets."""

import inspect

import pytest
import torch

from pairs import pairs
from problems import Stochastic, equal
from superadam import SuperAdam, create, estimators, iterates, matrices, schedules, sets, stepsizes, zoo
from ways import result, tiny

assert tiny  # a fixture is used by its name


def sgd_pair(**options):
    return zoo.sgd, torch.optim.SGD, options


OF_TORCH = {
    "adam": (zoo.adam, torch.optim.Adam, {"lr": 0.03, "betas": (0.8, 0.99), "eps": 1e-6}),
    "adam-defaults": (zoo.adam, torch.optim.Adam, {}),
    "adamw": (zoo.adamw, torch.optim.AdamW, {"lr": 0.03, "betas": (0.8, 0.99), "eps": 1e-6}),
    "adamw-defaults": (zoo.adamw, torch.optim.AdamW, {}),
    "amsgrad": (
        zoo.amsgrad,
        lambda params, **options: torch.optim.Adam(params, amsgrad=True, **options),
        {"lr": 0.03, "betas": (0.8, 0.95), "eps": 1e-6},
    ),
    "adagrad": (zoo.adagrad, torch.optim.Adagrad, {"lr": 0.3}),
    "adagrad-defaults": (zoo.adagrad, torch.optim.Adagrad, {}),
    "adagrad-decay": (
        zoo.adagrad,
        torch.optim.Adagrad,
        {"lr": 0.3, "lr_decay": 0.05, "initial_accumulator_value": 0.5, "eps": 1e-6},
    ),
    "adadelta": (zoo.adadelta, torch.optim.Adadelta, {"lr": 1.5, "rho": 0.95, "eps": 1e-3}),
    "adadelta-defaults": (zoo.adadelta, torch.optim.Adadelta, {}),
    "adamax": (zoo.adamax, torch.optim.Adamax, {"lr": 0.03, "betas": (0.8, 0.99), "eps": 1e-3}),
    "adamax-defaults": (zoo.adamax, torch.optim.Adamax, {}),
    "nadam": (zoo.nadam, torch.optim.NAdam, {"lr": 0.03, "betas": (0.8, 0.99), "momentum_decay": 0.1}),
    "nadam-defaults": (zoo.nadam, torch.optim.NAdam, {}),
    "nadamw": (
        zoo.nadamw,
        lambda params, **options: torch.optim.NAdam(params, **{"decoupled_weight_decay": True, **options}),
        {"lr": 0.03, "weight_decay": 0.2},
    ),
    "radam": (zoo.radam, torch.optim.RAdam, {"lr": 0.03, "betas": (0.8, 0.95), "eps": 1e-4}),
    "radam-defaults": (zoo.radam, torch.optim.RAdam, {}),
    "rmsprop": (zoo.rmsprop, torch.optim.RMSprop, {"lr": 0.03, "alpha": 0.9, "eps": 1e-4}),
    "rmsprop-defaults": (zoo.rmsprop, torch.optim.RMSprop, {}),
    "rmsprop-momentum": (zoo.rmsprop, torch.optim.RMSprop, {"lr": 0.01, "alpha": 0.9, "eps": 1e-4, "momentum": 0.8}),
    "rmsprop-centered": (zoo.rmsprop, torch.optim.RMSprop, {"lr": 0.01, "eps": 1e-4, "centered": True}),
    "rmsprop-both": (
        zoo.rmsprop,
        torch.optim.RMSprop,
        {"lr": 0.003, "alpha": 0.9, "eps": 1e-4, "momentum": 0.9, "centered": True},
    ),
    "asgd": (zoo.asgd, torch.optim.ASGD, {"lr": 0.05, "lambd": 0.2, "alpha": 0.6, "t0": 7}),
    "asgd-defaults": (zoo.asgd, torch.optim.ASGD, {}),
    "rprop": (zoo.rprop, torch.optim.Rprop, {"lr": 0.05, "etas": (0.4, 1.3), "step_sizes": (1e-3, 0.1)}),
    "rprop-defaults": (zoo.rprop, torch.optim.Rprop, {}),
    "sgd-nesterov": sgd_pair(lr=0.02, momentum=0.9, nesterov=True),
    "sgd": sgd_pair(lr=0.05),
    "sgd-dampening": sgd_pair(lr=0.05, dampening=0.4),  # without momentum torch ignores it
    "sgd-momentum": sgd_pair(lr=0.02, momentum=0.9),
    "sgd-momentum-dampening": sgd_pair(lr=0.05, momentum=0.9, dampening=0.9),
    "sgd-momentum-other-dampening": sgd_pair(lr=0.05, momentum=0.8, dampening=0.3),
}


def run_30(problem, build, options, layout):
    """x after each of 30 steps."""
    params = problem.params()
    if layout == "groups":
        lr = options.pop("lr") if "lr" in options else inspect.signature(build).parameters["lr"].default
        params_or_groups = [{"params": params[:2], "lr": lr}, {"params": params[2:], "lr": lr / 3}]
    else:
        params_or_groups = params
    opt = build(params_or_groups, **options)
    points = []
    for n in range(30):
        opt.step(problem.closure(opt, params, n))
        points.append(problem.join(params).detach().clone())
    return torch.stack(points)


MORE = [{}, {"weight_decay": 0.1}, {"weight_decay": 0.05, "maximize": True}]


@pytest.mark.parametrize(
    ("name", "more", "layout", "foreach"), pairs(OF_TORCH, MORE, ["list", "groups"], [False, True], one_in=4), ids=str
)
def test_equals_torch(name, more, layout, foreach, request):
    ours, theirs, options = OF_TORCH[name]
    problem = Stochastic()
    if "rprop" in name:  # which has no weight decay in torch
        more = {key: value for key, value in more.items() if key != "weight_decay"}
    if "nadam" in name or "asgd" in name:  # which keep a number of the default precision
        torch.set_default_dtype(torch.float64)
        request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))
    expected = run_30(problem, theirs, {**options, **more, "foreach": foreach}, layout)
    actual = run_30(problem, ours, {**options, **more, "foreach": foreach}, layout)
    equal(actual, expected, 1e-12)
    # Adadelta's first steps, and Adam's at lr = 1e-3, are small
    assert (expected[-1] - problem.x_1).abs().max() > (1e-3 if "defaults" in name else 0.1)


def test_defaults_are_torchs():
    """The same weight decay, momentum, … where the user says nothing. SGD's lr apart: zoo/test_defaults.py."""
    for name, theirs in {
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "adagrad": torch.optim.Adagrad,
        "adadelta": torch.optim.Adadelta,
        "adafactor": torch.optim.Adafactor,
        "adamax": torch.optim.Adamax,
        "nadam": torch.optim.NAdam,
        "radam": torch.optim.RAdam,
        "rmsprop": torch.optim.RMSprop,
        "rprop": torch.optim.Rprop,
    }.items():
        x = torch.zeros(1, requires_grad=True)
        for option in ("lr", "weight_decay", "maximize"):
            if option in theirs([x]).param_groups[0]:
                assert create(name, [x]).param_groups[0][option] == theirs([x]).param_groups[0][option]


STEPS = 40

SAMPLES = list(range(STEPS))

ADAFACTOR = [
    {},
    {"lr": 0.3, "beta2_decay": -0.6, "eps": (1e-3, 0.1), "d": 1.1},
    {"weight_decay": 0.3, "maximize": True},
]


@pytest.mark.parametrize("how", [{}, {"foreach": False}], ids=str)
@pytest.mark.parametrize("options", ADAFACTOR, ids=str)
def test_adafactor_equals_torch(options, how):
    """On tensors that have elements, which torch's needs."""
    problem = Stochastic(shapes=[(3,), (2, 5), (), (2, 2, 3), (2, 2, 3), (7,), (2, 5)])
    mine, others = problem.params(), problem.params()
    opt, other = create("adafactor", mine, **options, **how), torch.optim.Adafactor(others, **options)
    for i in SAMPLES:
        opt.step(problem.closure(opt, mine, i))
        other.step(problem.closure(other, others, i))
        equal(problem.join(mine).detach(), problem.join(others).detach())
    assert (problem.join(mine).detach() - problem.x_1).abs().max() > 0.05


def test_adafactor_keeps_rows_and_columns():
    opt = create("adafactor", torch.nn.Linear(200, 300))
    opt.init_state()
    kept = [sum(t.numel() for k, t in s.items() if torch.is_tensor(t) and k != "g") for s in opt.state.values()]
    assert kept == [501, 301]


def test_the_average_of_asgd_is_torchs(request):
    torch.set_default_dtype(torch.float64)  # in which torch keeps the weights of the average
    request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))
    problem, options = Stochastic(), {"lr": 0.05, "lambd": 0.1, "t0": 5, "weight_decay": 0.2}
    mine, others = problem.params(), problem.params()
    opt, other = create("asgd", mine, **options), torch.optim.ASGD(others, **options)
    for i in SAMPLES:
        opt.step(problem.closure(opt, mine, i))
        other.step(problem.closure(other, others, i))
    equal(problem.join(mine).detach(), problem.join(others).detach())
    with opt.at_x():
        equal(problem.join(mine).detach(), problem.join([other.state[p]["ax"] for p in others]))


def test_asgd_of_a_group_with_a_weight_decay_of_its_own_keeps_lambd():
    x = [torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)]
    opt = create("asgd", [{"params": x[:1], "weight_decay": 0.5}, {"params": x[1:]}], lambd=0.25)
    assert [group["weight_decay"] for group in opt.param_groups] == [0.75, 0.25]


@pytest.mark.parametrize("how", [{}, {"foreach": True}, {"foreach": False}], ids=str)
@pytest.mark.parametrize(
    ("name", "theirs", "options"),
    [
        ("rmsprop", torch.optim.RMSprop, {"momentum": 0.9, "centered": True, "weight_decay": 0.1, "eps": 1e-4}),
        ("rprop", torch.optim.Rprop, {"lr": 0.03}),
        ("sgd", torch.optim.SGD, {"lr": 0.01, "momentum": 0.9, "nesterov": True}),
    ],
)
def test_equals_torch_in_all_ways(name, theirs, options, how):
    problem = Stochastic()
    mine, others = problem.params(), problem.params()
    opt, other = create(name, mine, **options, **how), theirs(others, **options)
    for i in range(12):
        x = problem.join(mine).detach()
        for p, grad in zip(mine, problem.grad(x, i).split([p.numel() for p in mine]), strict=True):
            p.grad = grad.reshape(p.shape)
        opt.step()
        other.step(problem.closure(other, others, i))
    equal(problem.join(mine).detach(), problem.join(others).detach())


@pytest.mark.parametrize("more", [{}, {"clip": 0.5}, {"constraint": sets.Box(-0.8, 0.9)}], ids=str)
@pytest.mark.usefixtures("tiny")
def test_momentum_of_steps_is_the_same_in_pieces(more):
    options = {"matrix": matrices.Centered(0.9, 1e-3), "estimator": estimators.HeavyBall(0.8), "weight_decay": 0.1}
    expected = result(**options, **more, foreach=False)
    for how in ({}, {"foreach": True}):
        actual = result(**options, **more, **how)
        equal(actual[0], expected[0])


@pytest.mark.parametrize("constraint", [sets.Simplex(), sets.Box(-0.2, 0.3), sets.L2Ball(0.5)], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {"matrix": matrices.Centered(lam=1e-3), "estimator": estimators.HeavyBall(0.8)},
        {"matrix": matrices.Rprop()},
        {"matrix": matrices.Identity(), "stepsize": stepsizes.Decaying(1.0), "iterate": iterates.Averaged(1.0, 2)},
    ],
    ids=str,
)
def test_torchs_methods_stay_in_a_set(options, constraint):
    problem = Stochastic([(3,), (2, 5), (4, 2)])
    params = problem.params()
    opt = SuperAdam(params, lr=0.05, constraint=constraint, schedule=schedules.Constant(alpha=1.0), **options)
    start = problem.join(params).detach().clone()
    for i in range(10):
        opt.step(problem.closure(opt, params, i))
        assert opt.feasibility() < 1e-9
        with opt.at_x():
            assert opt.feasibility() < 1e-9
    assert (problem.join(params).detach() - start).abs().max() > 0.01


def test_momentum_of_steps_cannot_begin_later():
    """Without momentum g is the newest gradient: nothing in the state is a step."""
    x = torch.ones(2, requires_grad=True)
    opt = create("rmsprop", [x])
    x.grad = torch.ones(2)
    opt.step()
    opt.param_groups[0]["momentum"] = 0.9
    with pytest.raises(ValueError, match="with a non-zero momentum"):
        opt.step()
    with pytest.raises(ValueError, match="this g_t depends on H_t: a circular definition"):
        create("rmsprop", [x], momentum=0.9, matrix="Sign")
    with pytest.raises(ValueError, match="zero dampening"):
        create("sgd", [x], nesterov=True)

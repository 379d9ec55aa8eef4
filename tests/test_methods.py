"""Options of methods in param groups, which schedulers change; checkpoints to and from torch's optimizers."""

import copy
import inspect
import io

import pytest
import torch
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR

from pairs import pairs
from problems import Stochastic
from superadam import SuperAdam, create, list_methods, matrices, schedules, sets, zoo
from superadam.methods import DEFAULT, METHODS
from test_bad_input import identical
from versions import needs_recorded_decay

STEPS = 40
OF_TORCH = {
    "adam": (torch.optim.Adam, {"betas": (0.8, 0.99), "weight_decay": 0.1}),
    "adamw": (torch.optim.AdamW, {"weight_decay": 0.1}),
    "amsgrad": (lambda p, **options: torch.optim.Adam(p, amsgrad=True, **options), {"betas": (0.8, 0.95)}),
    "sgd": (torch.optim.SGD, {"momentum": 0.9}),
    "sgd without momentum": (torch.optim.SGD, {}),
    "sgd with Nesterov's momentum": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "rmsprop": (torch.optim.RMSprop, {"momentum": 0.9, "eps": 1e-3}),
    "rmsprop without momentum at first": (torch.optim.RMSprop, {"eps": 1e-3}),
    "sgd with dampening": (torch.optim.SGD, {"momentum": 0.8, "dampening": 0.3}),
}
SCHEDULERS = {
    "OneCycleLR": lambda opt: OneCycleLR(opt, max_lr=0.05, total_steps=STEPS + 1, base_momentum=0.5, max_momentum=0.95),
    "CyclicLR": lambda opt: CyclicLR(opt, 0.01, 0.05, step_size_up=5, base_momentum=0.3, max_momentum=0.9),
}


def first_beta(group):
    return group["betas"][0] if "betas" in group else group["momentum"]


def run(build, scheduler, steps=STEPS, *, interrupt=lambda opt: opt):
    """x after each step, and β₁ of each."""
    problem = Stochastic()
    params = problem.params()
    opt = build(params)
    cycle = scheduler(opt)
    points, betas = [], []
    for i in range(steps):
        opt = interrupt(opt) if i > 1 else opt
        params = [p for group in opt.param_groups for p in group["params"]]
        betas.append(first_beta(opt.param_groups[0]))
        opt.step(problem.closure(opt, params, i))
        points.append(problem.join(params).detach().clone())
        cycle.optimizer = opt
        cycle.step()
    return torch.stack(points), betas


@pytest.mark.parametrize(
    ("name", "scheduler", "options"),
    pairs(OF_TORCH, SCHEDULERS, [{}, {"foreach": True}, {"fused": False}], one_in=2),
    ids=str,
)
def test_cycled_momentum_equals_torch(name, scheduler, options):
    theirs, of_both = OF_TORCH[name]
    expected, betas = run(lambda p: theirs(p, lr=0.05, **of_both), SCHEDULERS[scheduler])
    actual, ours = run(lambda p: create(name.split()[0], p, lr=0.05, **of_both, **options), SCHEDULERS[scheduler])
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    assert ours == betas
    assert max(betas) - min(betas) > 0.3


def with_first_beta():
    """The methods whose builders take `betas` or `momentum`, by which of them it is."""
    own = {name: inspect.signature(getattr(zoo, name)).parameters for name in list_methods()}
    no_average = {"schedule_free_adamw", "rmsprop", "adopt"}  # a place between two points; momentum of steps
    return {name: key for name in sorted(own.keys() - no_average) for key in ("betas", "momentum") if key in own[name]}


@pytest.mark.parametrize("name", with_first_beta())
def test_every_method_with_betas_or_momentum_can_be_cycled(name):
    """The schedule has the β₁ that the scheduler wrote, in every step."""
    key = with_first_beta()[name]
    problem = Stochastic()
    params = problem.params()
    opt = create(name, params, lr=0.01)
    assert key in opt.defaults
    scheduler = SCHEDULERS["OneCycleLR"](opt)
    for i in range(STEPS):
        opt.step(problem.closure(opt, params, i))
        schedule = schedules.Schedule.find(opt.param_groups[0]["schedule"])
        limit = schedule.weight(10**6, 0.0)
        if name == "lion":  # whose average has the second β
            assert opt.param_groups[0]["estimator"]["a"] == 1 - first_beta(opt.param_groups[0]) / 0.99
            limit = 1 - first_beta(opt.param_groups[0])
        assert limit == pytest.approx(1 - first_beta(opt.param_groups[0]), abs=1e-15)
        scheduler.step()
    assert problem.join(params).isfinite().all()


AVERAGES = [
    (name, options)
    for name in (
        *("adam", "adamw", "amsgrad", "yogi", "padam", "adabound", "adabelief", "mars_approx", "adamw_ahead"),
        *("lamb", "radam", "adamax", "cautious_adamw", "ademamix", "soap", "super_adam_plus"),
    )
    for options in ({}, {"bias_correction": True}, {"bias_correction": False})
    if options.keys() <= inspect.signature(getattr(zoo, name)).parameters.keys()
]


@pytest.mark.parametrize(("name", "options"), AVERAGES, ids=str)
def test_the_average_itself_does_not_change_with_beta(name, options):
    """m_t = β_t m_{t-1} + (1 - β_t) ĝ_t, and g_t = m_t/(1 - β_t^t) with the newest β or g_t = m_t."""
    more = {"clip_corrected": None, "gamma": 0.0} if name == "mars_approx" else {}
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    opt = create(name, [x], lr=0.01, **options, **more)
    corrected = type(schedules.Schedule.find(opt.param_groups[0]["schedule"])) is schedules.BiasCorrected
    m = torch.zeros_like(x)
    for t, beta in enumerate([0.9, 0.9, 0.5, 0.95, 0.2, 0.2, 0.99], start=1):
        opt.param_groups[0]["betas"] = (beta, *opt.param_groups[0]["betas"][1:])
        x.grad = torch.randn(3, generator=torch.Generator().manual_seed(t), dtype=torch.float64)
        m = beta * m + (1 - beta) * x.grad
        opt.step()
        expected = m / (1 - beta**t) if corrected else m
        torch.testing.assert_close(opt.state[x]["g"], expected.detach(), rtol=1e-13, atol=1e-13)


def through_a_checkpoint(opt):
    """Between the scheduler's step and the optimizer's, where the options are ahead of the parts."""
    buffer = io.BytesIO()
    torch.save(opt.state_dict(), buffer)
    buffer.seek(0)
    opt.load_state_dict(torch.load(buffer, weights_only=True))
    return opt


@pytest.mark.parametrize("interrupt", [through_a_checkpoint, copy.deepcopy], ids=["state_dict", "deepcopy"])
@pytest.mark.parametrize("name", ["adamw", "sgd", "yogi", "mars_approx"])
def test_a_checkpoint_in_mid_cycle(name, interrupt):
    def build(params):
        return create(name, params, lr=0.05)

    expected, _ = run(build, SCHEDULERS["CyclicLR"])
    actual, _ = run(build, SCHEDULERS["CyclicLR"], interrupt=interrupt)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_groups_with_options_of_their_own():
    """As in torch; before, `betas` in a group was nobody's option and had no effect."""
    problem = Stochastic()

    def points(build):
        params = problem.params()
        groups = [{"params": params[:2], "betas": (0.5, 0.9)}, {"params": params[2:], "eps": 0.1}]
        opt = build(groups, lr=0.05)
        for i in range(20):
            opt.step(problem.closure(opt, params, i))
        return problem.join(params).detach()

    def ours(groups, lr):
        return create("adamw", groups, lr)

    torch.testing.assert_close(points(ours), points(torch.optim.AdamW), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("adamw", {"betas": (1.5, 0.9)}, "Invalid beta parameter at index 0: 1.5"),
        ("adamw", {"betas": 0.9}, r"Invalid betas: 0.9 \(expected two numbers\)"),
        ("sgd", {"momentum": 1.0}, "Invalid momentum parameter: 1.0"),
        ("adamw", {"eps": -1.0}, "Invalid lam parameter: -1.0"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_changes(name, change, message):
    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    opt = create(name, [x])
    x.grad = torch.ones(2)
    opt.step()
    before = copy.deepcopy((dict(opt.state[x]), x.detach()))
    good = {name: opt.param_groups[0][name] for name in change}
    opt.param_groups[0].update(change)
    with pytest.raises(ValueError, match=message):
        opt.step()
    assert identical((dict(opt.state[x]), x.detach()), before)
    opt.param_groups[0].update(good)
    with pytest.raises(ValueError, match=message):
        opt.add_param_group({"params": [y], **change})
    assert len(opt.param_groups) == 1
    opt.step()


def test_parts_of_the_users_own_stay():
    """A part that the method did not make is left alone; an option that would have no effect then is refused."""
    x = torch.ones(2, requires_grad=True)
    opt = create("adamw", [x], matrix="GradientNorm")
    opt.param_groups[0]["betas"] = (0.5, 0.999)
    x.grad = torch.ones(2)
    opt.step()
    assert opt.param_groups[0]["schedule"]["beta"] == 0.5
    assert opt.param_groups[0]["matrix"]["type"] == "GradientNorm"
    opt.param_groups[0]["eps"] = 0.1
    with pytest.raises(
        ValueError, match=r"eps of a param group was changed, but adamw did not construct the group's matrix"
    ):
        opt.step()
    opt.param_groups[0]["eps"] = 1e-8
    opt.param_groups[0]["schedule"] = schedules.Constant(alpha=0.3)  # one's own, from now on
    opt.step()
    assert opt.param_groups[0]["schedule"]["alpha"] == 0.3
    opt.param_groups[0]["betas"] = (0.8, 0.999)
    with pytest.raises(
        ValueError, match=r"betas of a param group was changed, but adamw did not construct the group's schedule"
    ):
        opt.step()


def test_groups_of_one_optimizer_make_another():
    x = torch.ones(2, requires_grad=True)
    first = create("adamw", [x], betas=(0.8, 0.9))
    second = SuperAdam([dict(group) for group in first.param_groups])
    second.param_groups[0]["betas"] = (0.5, 0.9)
    x.grad = torch.ones(2)
    second.step()
    assert second.param_groups[0]["schedule"] == {"type": "BiasCorrected", "beta": 0.5, "power": 0.0}
    assert first.param_groups[0]["schedule"]["beta"] == 0.8


def test_adamws_parts_without_its_name_can_be_cycled():
    """As fastai's `fit_one_cycle` does with a plain `SuperAdam`, whose parts these are."""
    matrix = matrices.SecondMoment(lam=1e-8, bias_correction=True)
    options = {"lr": 0.05, "weight_decay": 0.1}
    theirs, _ = run(lambda p: torch.optim.AdamW(p, **options), SCHEDULERS["OneCycleLR"])
    ours, betas = run(lambda p: SuperAdam(p, matrix=matrix, **options), SCHEDULERS["OneCycleLR"])
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    assert max(betas) - min(betas) > 0.3
    parts = METHODS[DEFAULT["type"]].parts(DEFAULT["options"])
    assert parts == {"matrix": matrix, "schedule": schedules.BiasCorrected()}
    x = torch.ones(2, requires_grad=True)
    for other in ({"tau": 1.0}, {"iterate": "Averaged"}, {"estimator": "Nesterov"}, {"schedule": "Paper"}):
        assert "betas" not in SuperAdam([x], matrix=matrix, **other).param_groups[0]


def test_no_momentum_to_cycle_where_the_composition_has_none():
    x = torch.ones(2, requires_grad=True)
    for opt in (
        SuperAdam([x], matrix="Yogi"),
        create("adagrad", [x]),
        create("storm", [x]),
        create("adamw", [x], schedule="Paper"),
    ):
        with pytest.raises(ValueError, match="must support momentum or beta1"):
            OneCycleLR(opt, max_lr=0.1, total_steps=10)
        OneCycleLR(opt, max_lr=0.1, total_steps=10, cycle_momentum=False)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's compiler, about itself
def test_compiled_kernels_are_not_made_anew_in_every_step():
    n = 1 << 17
    points = []
    for options in ({}, {"compile": True}):
        x = torch.linspace(-1, 1, n, dtype=torch.float64).requires_grad_()
        opt = create("yogi", [x], **options)
        for t in range(6):
            x.grad = x.detach().exp()
            opt.param_groups[0]["betas"] = (0.9 if t < 3 else 0.8 + t / 100, 0.999)
            if options and t == 3:
                with pytest.warns(UserWarning, match="now run without compile=True"):
                    opt.step()
            else:
                opt.step()
        points.append(x.detach())
    torch.testing.assert_close(*points, rtol=1e-12, atol=1e-12)
    assert not opt.param_groups[0]["compile"]


# ------------------------------------------------------------------------------ checkpoints of torch's optimizers

AFTER = 20


def amsgrad(build):
    return lambda params, **options: build(params, amsgrad=True, **options)


TWINS = {
    "sgd": ("sgd", torch.optim.SGD, {"lr": 0.05}),
    "sgd, momentum": ("sgd", torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1}),
    "sgd, dampening": ("sgd", torch.optim.SGD, {"lr": 0.05, "momentum": 0.8, "dampening": 0.3, "maximize": True}),
    "adagrad": ("adagrad", torch.optim.Adagrad, {"lr": 0.1}),
    "adagrad, decay": (
        "adagrad",
        torch.optim.Adagrad,
        {"lr": 0.1, "lr_decay": 0.05, "initial_accumulator_value": 0.5, "eps": 1e-6, "weight_decay": 0.1},
    ),
    "adadelta": ("adadelta", torch.optim.Adadelta, {"lr": 1.5, "rho": 0.95, "eps": 1e-3}),
    "adam": ("adam", torch.optim.Adam, {"lr": 0.03, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.1}),
    "adamw": ("adamw", torch.optim.AdamW, {"lr": 0.03, "betas": (0.8, 0.99), "weight_decay": 0.1}),
    "adamw, defaults": ("adamw", torch.optim.AdamW, {}),
    "radam": ("radam", torch.optim.RAdam, {"lr": 0.03, "betas": (0.8, 0.95), "weight_decay": 0.1}),
    "adamax": ("adamax", torch.optim.Adamax, {"lr": 0.03, "betas": (0.8, 0.95), "weight_decay": 0.1}),
    "amsgrad": ("amsgrad", amsgrad(torch.optim.Adam), {"lr": 0.03, "betas": (0.8, 0.95), "weight_decay": 0.1}),
}


class Training:
    def __init__(self, build, options, *, groups=2, dtype=torch.float64):
        self.problem = Stochastic(dtype=dtype)
        self.params = self.problem.params()
        halves = [{"params": self.params[:3]}, {"params": self.params[3:]}][:groups]
        self.opt = build(halves if groups == 2 else self.params, **options)

    def run(self, samples, without=()):
        """x after each; some parameters have no gradient."""
        points = []
        for i in samples:
            self.problem.closure(self.opt, self.params, i)()
            for j in without:
                self.params[j].grad = None
            self.opt.step()
            points.append(self.x())
        return torch.stack(points) if points else None

    def x(self):
        return self.problem.join(self.params).detach().clone()

    def take_over(self, x, state_dict):
        """Through a file, as it happens."""
        buffer = io.BytesIO()
        torch.save(state_dict, buffer)
        buffer.seek(0)
        with torch.no_grad():
            for p, values in zip(self.params, x.split([p.numel() for p in self.params]), strict=True):
                p.copy_(values.view_as(p))
        self.opt.load_state_dict(torch.load(buffer, weights_only=True))


def ours(name):
    return lambda params, **options: create(name, params, **options)


def pair(name, **more):
    method, theirs, options = TWINS[name]
    return Training(ours(method), {**options, **more}), Training(theirs, {**options, **more})


@pytest.mark.parametrize("before", [0, 1, 15])
@pytest.mark.parametrize("name", TWINS)
def test_from_torch(name, before):
    """With other options at first: those of the checkpoint hold."""
    method, _, _ = TWINS[name]
    _, theirs = pair(name)
    mine = Training(ours(method), {"lr": 0.5})
    mine.run(range(30, 33))  # what it had is gone
    theirs.run(range(before), without=(1, 4))
    mine.take_over(theirs.x(), theirs.opt.state_dict())
    samples = range(before, before + AFTER)
    torch.testing.assert_close(mine.run(samples), theirs.run(samples), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("before", [0, 1, 15])
@pytest.mark.parametrize("name", TWINS)
def test_to_torch(name, before):
    mine, _ = pair(name)
    theirs = Training(TWINS[name][1], {"lr": 0.5})
    mine.run(range(before), without=(1, 4))
    theirs.take_over(mine.x(), zoo.torch_state_dict(mine.opt))
    samples = range(before, before + AFTER)
    torch.testing.assert_close(mine.run(samples), theirs.run(samples), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", TWINS)
def test_there_and_back_is_the_same_checkpoint(name):
    """With torch's own keys and names, and nothing else."""
    mine, theirs = pair(name)
    theirs.run(range(7))
    saved = theirs.opt.state_dict()
    mine.opt.load_state_dict(copy.deepcopy(saved))
    back = zoo.torch_state_dict(mine.opt)
    assert back["state"].keys() == (saved["state"].keys() if TWINS[name][2].get("momentum", 1) else set())
    for index, state in back["state"].items():
        assert state.keys() == saved["state"][index].keys()
        torch.testing.assert_close(state, saved["state"][index], rtol=1e-14, atol=0)
    for group, expected in zip(back["param_groups"], saved["param_groups"], strict=True):
        assert expected.items() <= group.items()
        ways = {"foreach", "fused", "capturable", "differentiable"}
        assert group.keys() - expected.keys() <= ways | {"decoupled_weight_decay"}  # which torch 2.6 does not have


def test_every_method_that_equals_torchs_has_its_twin_here():
    """So that the tests above leave none out."""
    tested = {method for method, _, _ in TWINS.values()}
    assert {name for name, method in METHODS.items() if method.twin is not None} == tested
    assert tested <= set(list_methods())


def test_amsgrad_with_decoupled_weight_decay():
    options = {"lr": 0.03, "weight_decay": 0.1}
    theirs = Training(amsgrad(torch.optim.AdamW), options)
    mine = Training(ours("amsgrad"), {**options, "decoupled_weight_decay": True})
    theirs.run(range(5))
    mine.take_over(theirs.x(), theirs.opt.state_dict())
    torch.testing.assert_close(mine.run(range(5, 15)), theirs.run(range(5, 15)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["adamw", "sgd, momentum", "adagrad", "adadelta"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.complex128])
def test_other_dtypes(name, dtype):
    """State is float32 here and like the parameter there; complex numbers are pairs here."""
    method, build, options = TWINS[name]
    x = torch.tensor([1.0, -2.0, 3.0], dtype=dtype)
    params = [x.clone().requires_grad_() for _ in range(2)]
    theirs, mine = build([params[0]], **options), create(method, [params[1]], **options)

    def both(opts):
        for p, opt in zip(params, opts, strict=True):
            p.grad = p.detach() * 0.5
            opt.step()

    both([theirs, build([params[1]], **options)])
    mine.load_state_dict(theirs.state_dict())
    if dtype is torch.complex128:
        for _ in range(5):
            both([theirs, mine])
        torch.testing.assert_close(params[1], params[0], rtol=1e-12, atol=1e-12)
    again = build([params[1]], **options)
    again.load_state_dict(zoo.torch_state_dict(mine))
    tol = {"rtol": 1e-12, "atol": 1e-12} if dtype is torch.complex128 else {"rtol": 0.01, "atol": 0.0}
    torch.testing.assert_close(again.state[params[1]], theirs.state[params[0]], **tol)
    assert all(t.dtype is dtype for n, t in again.state[params[1]].items() if n != "step")


def test_keys_of_schedulers_and_of_ones_own_come_along():
    x = torch.ones(2, requires_grad=True)
    theirs = torch.optim.AdamW([("x", x)], lr=0.1, fused=True)
    torch.optim.lr_scheduler.OneCycleLR(theirs, max_lr=0.3, total_steps=10)
    theirs.param_groups[0]["layer"] = 3
    mine = create("adamw", [("x", x)])
    mine.load_state_dict(theirs.state_dict())
    group = mine.param_groups[0]
    for name in ("initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum", "layer", "betas", "param_names"):
        assert group[name] == theirs.param_groups[0][name]
    assert group["schedule"]["beta"] == 0.95
    assert group["fused"] is None  # how the steps run is not the checkpoint's affair
    back = zoo.torch_state_dict(mine)["param_groups"][0]
    for name in ("initial_lr", "max_lr", "layer", "betas", "param_names"):
        assert back[name] == theirs.param_groups[0][name]


def stepped(build, **options):
    x = torch.ones(3, requires_grad=True)
    opt = build([x], lr=0.1, **options)
    x.grad = torch.ones(3)
    opt.step()
    return opt


@pytest.mark.parametrize(
    ("mine", "theirs", "options", "message"),
    [
        pytest.param(
            *("adamw", torch.optim.Adam, {"weight_decay": 0.1}, "decoupled_weight_decay=False, and True here"),
            marks=needs_recorded_decay,
        ),
        pytest.param(
            *("adam", torch.optim.AdamW, {"weight_decay": 0.1}, "decoupled_weight_decay=True, and False here"),
            marks=needs_recorded_decay,
        ),
        ("adamw", torch.optim.AdamW, {"amsgrad": True}, r'has amsgrad=True. It fits create\("amsgrad"\)'),
        ("amsgrad", torch.optim.Adam, {}, r'has amsgrad=False. It fits create\("adam"\)'),
        ("adamw", torch.optim.SGD, {"momentum": 0.9}, r'has no betas. It fits create\("sgd"\)'),
        ("sgd", torch.optim.SGD, {"momentum": 0.9, "nesterov": True}, r"has nesterov=True\.$"),
        ("sgd", torch.optim.RMSprop, {}, "has no dampening"),
        ("adam", torch.optim.RAdam, {}, "has no amsgrad"),
        ("adam", torch.optim.NAdam, {}, "has no amsgrad"),
        ("adam", torch.optim.Adamax, {}, "has no amsgrad"),
        ("adagrad", torch.optim.Adadelta, {}, r'It fits create\("adadelta"\)'),
        ("adadelta", torch.optim.Adagrad, {}, r'It fits create\("adagrad"\)'),
    ],
    ids=str,
)
def test_checkpoints_of_other_methods_are_refused(mine, theirs, options, message):
    opt = stepped(getattr(zoo, mine))
    before = str(opt.state_dict())
    saved = stepped(theirs, **options).state_dict()
    with pytest.raises(ValueError, match=f"nor by torch.optim.*, which it equals: group 0 .*{message}"):
        opt.load_state_dict(saved)
    assert str(opt.state_dict()) == before


@needs_recorded_decay
def test_a_checkpoint_of_torch_for_a_method_that_torch_does_not_have():
    """The error names the method that fits the checkpoint."""
    for name, theirs, fits in (
        ("super_adam_plus", torch.optim.AdamW, "adamw"),
        ("sc_adagrad", torch.optim.Adagrad, "adagrad"),
    ):
        said = rf"no optimizer of torch equals this composition: torch has no {name}\. It fits create\(\"{fits}\"\)"
        with pytest.raises(ValueError, match=said):
            stepped(getattr(zoo, name)).load_state_dict(stepped(theirs).state_dict())


NO_COUNTERPART = {
    "without a method": lambda x: SuperAdam([x], matrix="Yogi"),
    "yogi": lambda x: create("yogi", [x]),
    "variance reduction": lambda x: create("adamw", [x], tau=1.0),
    "gradients taken ahead": lambda x: create("adamw_ahead", [x]),
    "another matrix": lambda x: create("adamw", [x], matrix="GradientNorm"),
    "another schedule": lambda x: create("adamw", [x], schedule="Paper"),
    "not corrected": lambda x: create("amsgrad", [x], bias_correction=False),
    "decoupled": lambda x: create("sgd", [x], weight_decay=0.1, decoupled_weight_decay=True),
}


@pytest.mark.parametrize("name", NO_COUNTERPART)
def test_what_torch_does_not_have_is_refused(name):
    x = torch.ones(3, requires_grad=True)
    opt = NO_COUNTERPART[name](x)
    with pytest.raises(ValueError, match="No optimizer of torch equals this composition"):
        zoo.torch_state_dict(opt)
    with pytest.raises(
        ValueError, match=r"no optimizer of torch equals this|was saved by another (optimizer|composition)"
    ):
        opt.load_state_dict(stepped(torch.optim.AdamW).state_dict())
    if "method" not in opt.param_groups[0]:  # so it is without a state, which would have other names
        with pytest.raises(ValueError, match=r"was saved by another (optimizer|composition)"):
            opt.load_state_dict(torch.optim.AdamW([x]).state_dict())


def test_a_set_here_takes_the_averages_from_there():
    x = torch.ones(3, requires_grad=True)
    opt = create("adamw", [x], constraint=sets.Box(-1.0, 1.0))
    opt.load_state_dict(stepped(torch.optim.AdamW).state_dict())
    assert opt.param_groups[0]["constraint"]["type"] == "Box"
    assert opt.state[x]["step"] == 1


def test_parameters_are_matched_by_name():
    """Where both sides have names, as with checkpoints of our own."""
    a, b = (torch.full((2,), value, requires_grad=True) for value in (1.0, 2.0))
    theirs = torch.optim.AdamW([("a", a), ("b", b)])
    for p in (a, b):
        p.grad = p.detach().clone()
    theirs.step()
    mine = create("adamw", [("b", b), ("a", a)])
    mine.load_state_dict(theirs.state_dict())
    for p in (a, b):
        torch.testing.assert_close(mine.state[p]["v"], theirs.state[p]["exp_avg_sq"], rtol=0, atol=0)
    back = torch.optim.AdamW([("b", b), ("a", a)])
    back.load_state_dict(zoo.torch_state_dict(mine))
    for p in (a, b):
        torch.testing.assert_close(back.state[p], theirs.state[p], rtol=1e-6, atol=0)

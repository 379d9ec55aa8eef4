"""A method's own options, kept in its param groups: schedulers and groups change them, and the parts follow."""

import copy
import inspect
import io

import pytest
import torch
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR

from pairs import pairs
from problems import Stochastic, SuperAdam
from superadam import create, list_methods, schedules, zoo
from test_bad_input import identical

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
    pairs(OF_TORCH, SCHEDULERS, [{}, {"foreach": True}, {"fused": False}, {"capturable": True}], one_in=2),
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
    own = {name: inspect.signature(zoo.METHODS[name]).parameters for name in list_methods()}
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
    for name in ("adam", "adamw", "amsgrad", "yogi", "padam", "adabound", "adabelief", "mars_approx", "adamw_ahead")
    for options in ({}, {"bias_correction": True}, {"bias_correction": False})
    if options.keys() <= inspect.signature(zoo.METHODS[name]).parameters.keys()
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
        opt.param_groups[0]["betas"] = (beta, 0.99)
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
        ValueError, match=r"eps of a param group was changed, but adam did not construct the group's matrix"
    ):
        opt.step()
    opt.param_groups[0]["eps"] = 1e-8
    opt.param_groups[0]["schedule"] = schedules.Constant(alpha=0.3)  # one's own, from now on
    opt.step()
    assert opt.param_groups[0]["schedule"]["alpha"] == 0.3
    opt.param_groups[0]["betas"] = (0.8, 0.999)
    with pytest.raises(
        ValueError, match=r"betas of a param group was changed, but adam did not construct the group's schedule"
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


def test_no_momentum_to_cycle_where_the_composition_has_none():
    x = torch.ones(2, requires_grad=True)
    for opt in (SuperAdam([x]), create("adagrad", [x]), create("storm", [x]), create("adamw", [x], schedule="Paper")):
        with pytest.raises(ValueError, match="must support momentum or beta1"):
            OneCycleLR(opt, max_lr=0.1, total_steps=10)
        OneCycleLR(opt, max_lr=0.1, total_steps=10, cycle_momentum=False)


def test_checkpoints_of_the_version_before_can_be_cycled():
    x = torch.ones(2, requires_grad=True)
    opt = create("adamw", [x], betas=(0.8, 0.9))
    old = opt.state_dict()
    for name in ("method", "betas", "eps"):
        del old["param_groups"][0][name]
    opt.load_state_dict(old)
    other = create("adamw", [x], betas=(0.7, 0.9))
    other.load_state_dict(old)
    assert "betas" not in other.param_groups[0]  # not those of its parts
    assert other.param_groups[0]["schedule"]["beta"] == 0.8
    OneCycleLR(opt, max_lr=0.1, total_steps=10)
    x.grad = torch.ones(2)
    opt.step()
    assert opt.param_groups[0]["schedule"]["beta"] == 0.95


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

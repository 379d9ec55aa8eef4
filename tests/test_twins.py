"""Checkpoints go to torch's optimizers and come from them, for every method that torch has."""

import copy
import io

import pytest
import torch

from problems import Stochastic
from superadam import SuperAdam, create, list_methods, sets, zoo
from superadam._state.recipes import RECIPES
from versions import needs_recorded_decay

STEPS = 20


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
    samples = range(before, before + STEPS)
    torch.testing.assert_close(mine.run(samples), theirs.run(samples), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("before", [0, 1, 15])
@pytest.mark.parametrize("name", TWINS)
def test_to_torch(name, before):
    mine, _ = pair(name)
    theirs = Training(TWINS[name][1], {"lr": 0.5})
    mine.run(range(before), without=(1, 4))
    theirs.take_over(mine.x(), zoo.torch_state_dict(mine.opt))
    samples = range(before, before + STEPS)
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
    assert {name for name, recipe in RECIPES.items() if recipe.twin is not None} | {"adamw"} == tested
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
    opt = stepped(zoo.METHODS[mine])
    before = str(opt.state_dict())
    saved = stepped(theirs, **options).state_dict()
    with pytest.raises(ValueError, match=f"nor by torch.optim.*, which it equals: group 0 .*{message}"):
        opt.load_state_dict(saved)
    assert str(opt.state_dict()) == before


NO_COUNTERPART = {
    "default": lambda x: SuperAdam([x]),
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
        ValueError, match=r"No optimizer of torch equals this|was saved by another (optimizer|composition)"
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

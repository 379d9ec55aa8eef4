"""Mistakes that people make, each with what was wrong and what to write."""

import copy
import re

import pytest
import torch
from torch import nn

from superadam import SuperAdam, create, list_methods, matrices, schedules


def trained(build, net):
    opt = build(net)
    net(torch.ones(1, net.in_features)).sum().backward()
    opt.step()
    return opt.state_dict()


def x():
    return [torch.ones(2, requires_grad=True)]


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("other", ["fewer", "more", "another shape"])
def test_a_checkpoint_of_another_model(other, named):
    """Refused before anything changes."""

    def build(net):
        return SuperAdam(net if named else net.parameters())

    net = nn.Linear(3, 2, bias=other != "more")
    theirs = nn.Linear(4 if other == "another shape" else 3, 2, bias=other != "fewer")
    saved, opt = trained(build, theirs), build(net)
    before = copy.deepcopy(opt.state_dict())
    with pytest.raises(ValueError, match=r"another model|doesn't match the size|does not fit the parameters"):
        opt.load_state_dict(saved)
    assert opt.state_dict().keys() == before.keys()
    assert opt.state_dict()["param_groups"] == before["param_groups"]
    assert not opt.state


def test_a_checkpoint_with_another_number_of_groups():
    net = nn.Linear(3, 2)
    saved = SuperAdam([{"params": [net.weight]}, {"params": [net.bias]}]).state_dict()
    with pytest.raises(ValueError, match="different number of parameter groups"):
        SuperAdam(net.parameters()).load_state_dict(saved)


@pytest.mark.parametrize(
    "build",
    [lambda net: SuperAdam(net, matrix="Yogi"), lambda net: create("super_adam_plus", net)],
    ids=["Yogi", "plus"],
)
def test_a_checkpoint_of_torch(build):
    net = nn.Linear(3, 2)
    saved = trained(lambda net: torch.optim.AdamW(net.parameters()), net)
    with pytest.raises(ValueError, match=r'saved by another optimizer.*create\("adamw"\)'):
        build(net).load_state_dict(saved)


def test_a_class_of_models():
    with pytest.raises(TypeError, match=r"got the class Linear: give it a model, Linear\(…\)"):
        SuperAdam(nn.Linear)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("Adam", r"write matrix=SecondMoment\(lam=1e-8, bias_correction=True\), which is the default"),
        ("adamw", r"write matrix=SecondMoment\("),
        ("Lion", r"write matrix=Sign\(\)"),
        ("SGD", r"write matrix=Identity\(\)"),
    ],
)
def test_a_method_as_a_matrix(name, instead):
    with pytest.raises(ValueError, match=f"Unknown matrix '{name}': {instead}"):
        SuperAdam(x(), matrix=name)


def test_what_to_write_can_be_written():
    for instead in matrices.Matrix._instead.values():
        assert {*re.findall(r"([A-Z]\w+)\(", instead)} <= {*matrices.__all__}
        assert {*re.findall(r'create\("(\w+)"', instead)} <= {*list_methods("*")}


def test_another_word_for_lr():
    with pytest.raises(TypeError, match="unknown option 'learning_rate': write lr=…"):
        SuperAdam(x(), learning_rate=0.1)


def test_a_schedule_whose_formula_branches():
    """t is a number, so that `if` works."""

    class Warm(schedules.Constant):
        warm: int = 2

        def mu_t(self, t, tau):
            return t / self.warm if t <= self.warm else 1.0

    try:
        (p,) = params = x()
        opt = SuperAdam(params, 0.1, schedule=Warm(alpha=1.0), matrix="Identity")
        moves = []
        for _ in range(4):
            before = p.detach().clone()
            p.grad = torch.ones_like(p)
            opt.step()
            moves.append(float((before - p.detach())[0]))
        assert moves == pytest.approx([0.05, 0.1, 0.1, 0.1])
    finally:
        del schedules.Schedule._names["Warm"]


def test_capturable_is_refused_with_what_to_write():
    with pytest.raises(ValueError, match=r"capturable=True is not supported: .*compile=True"):
        SuperAdam(x(), capturable=True)

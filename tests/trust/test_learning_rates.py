"""lr means what it means in Adam, and a scheduler that runs at the wrong speed is noticed."""

import warnings

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR

from superadam import SuperAdam, twice
from trust.compositions import Noisy, furthest, tensors

SHAPES = [(6, 5), (5,), ()]
OF_ADAM = {
    "AdamW": (torch.optim.AdamW, {"weight_decay": 0.1}),
    "Adam": (torch.optim.Adam, {}),
    "Adam with weight decay": (torch.optim.Adam, {"weight_decay": 0.1, "decoupled_weight_decay": False}),
    "maximize": (torch.optim.Adam, {"maximize": True}),
}


@pytest.mark.parametrize("foreach", [None, False])
@pytest.mark.parametrize("lr", [None, 1e-3, 0.1])
@pytest.mark.parametrize("name", OF_ADAM)
def test_the_default_takes_adams_steps(name, lr, foreach):
    theirs, options = OF_ADAM[name]
    mine, others = tensors(SHAPES), tensors(SHAPES)
    of_torch = {key: value for key, value in options.items() if key != "decoupled_weight_decay"}
    opt = SuperAdam(mine, lr, foreach=foreach, **options)
    other = theirs(others, lr=1e-3 if lr is None else lr, **of_torch)
    problem, twin = Noisy(mine), Noisy(others)
    for n in range(12):
        opt.step(problem.closure(n))
        other.step(twin.closure(n))
        assert furthest([mine], [others]) < 1e-10


# ------------------------------------------------------------------------------------------------ schedulers


def rates(advance, batches=4):
    """Train in a `twice` loop; `advance(i)` says in which turns the scheduler steps. Return lr after every batch."""
    p = torch.ones(3, requires_grad=True)
    opt = SuperAdam([p], lr=0.1, tau=1.0)
    scheduler = CosineAnnealingLR(opt, batches)
    found = []
    for i, _ in enumerate(twice(range(batches))):
        opt.zero_grad()
        p.square().sum().backward()
        opt.step()
        if advance(i):
            scheduler.step()
        if i % 2:
            found.append(opt.param_groups[0]["lr"])
    return found


def test_a_scheduler_that_steps_twice_a_batch_is_noticed_once():
    with pytest.warns(UserWarning, match="between the two turns of a batch.*`if i % 2: scheduler.step") as found:
        rates(lambda i: True)
    assert len(found) == 1


def test_a_scheduler_that_steps_once_a_batch_is_right():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = rates(lambda i: i % 2)
    assert found == sorted(found, reverse=True)
    assert found[-1] == pytest.approx(0, abs=1e-12)


def used(p, loop):
    for _ in loop:
        p.square().sum().backward()


def test_a_loop_without_a_step_says_so():
    p = torch.ones(3, requires_grad=True)
    opt = SuperAdam([p], tau=1.0)
    with pytest.warns(UserWarning, match=r"ended without a step\(\).*in both turns"):
        used(p, twice([0, 1]))
    assert opt.gradient_evaluations == 0


@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_a_loop_with_steps_or_without_batches_says_nothing(tau):
    p = torch.ones(3, requires_grad=True)
    opt = SuperAdam([p], tau=tau)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in (*twice([]), *twice([0])):
            pass
        for _ in twice([0, 1]) if tau else ():
            p.square().sum().backward()
            opt.step()

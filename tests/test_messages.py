"""Warnings point at the user's line, not into superadam or torch."""

import pytest
import torch

from superadam import SuperAdam, create, matrices, twice
from superadam.messages import warn


def parameter():
    x = torch.ones(2, requires_grad=True)
    x.grad = torch.ones(2)
    return x


def stepping(opt):
    torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)  # wraps opt.step
    for _ in twice([0]):
        opt.step()


def flushing(opt):
    for _ in twice([0]):
        opt.step()
        break
    opt.flush()


CASES = {
    "construction": lambda: SuperAdam([parameter()], matrix=matrices.Yogi(), fused=True),
    "the zoo": lambda: create("yogi", [parameter()], fused=True),
    "a step": lambda: stepping(SuperAdam([parameter()])),
    "flush": lambda: flushing(SuperAdam([parameter()], tau=1.0)),
}


@pytest.mark.parametrize("case", CASES)
def test_points_at_the_users_line(case):
    with pytest.warns(UserWarning, match="fused=True|two steps|flush") as found:
        CASES[case]()
    assert {w.filename for w in found} == {__file__}


def test_has_the_message_and_the_category():
    with pytest.warns(RuntimeWarning, match="^look$") as found:
        warn("look", RuntimeWarning)
    assert found[0].filename == __file__

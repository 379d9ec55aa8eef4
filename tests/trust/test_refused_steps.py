"""A step that is refused changes nothing, and finite gradients leave finite parameters: for every matrix."""

import copy
import math

import pytest
import torch

from equality import net
from pairs import pairs
from superadam import SuperAdam, matrices
from trust.compositions import Noisy, tensors

SHAPES = [(6, 5), (5, 4), (5,)]
OF_TENSORS = [label for label, (_, make) in net.EVERY.items() if isinstance(make(), matrices.ByShape)]
REFUSING = [
    label for label in OF_TENSORS if label.startswith(("SOAP", "Shampoo", "KLShampoo", "PSGD", "Spectral exact"))
]
REFUSING = [label for label in REFUSING if label not in ("SOAP batched", "SOAP split")]  # not for these shapes
BAD = {"NaN": math.nan, "inf": math.inf, "-inf": -math.inf}
HUGE = [1e19, 1e20, 1e30, 3e38]


class Training:
    """An optimizer after three steps, with what a refused step must leave as it is."""

    def __init__(self, label, tau, dtype=torch.float32):
        self.params = tensors(SHAPES, dtype)
        self.opt = SuperAdam(self.params, **net.choose(label, tau)())
        self.problem = Noisy(self.params)
        for n in range(3):
            self.opt.step(self.problem.closure(n))

    def spoilt(self, n, which, value, at=(0,)):
        """Return a closure whose gradient has `value` in one coordinate of a tensor, in the evaluations `at`."""
        calls = []

        def closure():
            loss = self.problem.closure(n)()
            if len(calls) in at:
                self.params[which].grad.view(-1)[-1] = value
            calls.append(1)
            return loss

        return closure

    def all(self):
        return copy.deepcopy([[p.detach() for p in self.params], self.opt.state_dict()])


def identical(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a.nan_to_num(7.7), b.nan_to_num(7.7))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(identical(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(identical, a, b))
    return a == b


def counted(state):
    """Return the state without the count of evaluations, which a refused step has made."""
    points, saved = state
    return [points, {name: value for name, value in saved.items() if name != "gradient_evaluations"}]


@pytest.mark.parametrize(("label", "value", "which", "tau"), pairs(OF_TENSORS, BAD, [0, 3], [0.0, 1.0], one_in=3))
def test_a_refused_step_changes_nothing(label, value, which, tau):
    """And training goes on as if its batch had not been there."""
    training, twin = Training(label, tau), Training(label, tau)
    before = training.all()
    try:
        training.opt.step(training.spoilt(3, which, BAD[value]))
    except (ValueError, RuntimeError):
        assert identical(counted(training.all()), counted(before))
        for one in (training, twin):
            one.opt.step(one.problem.closure(4))
        assert identical(counted(training.all()), counted(twin.all()))
    else:
        assert label not in REFUSING


@pytest.mark.parametrize("label", OF_TENSORS)
def test_a_second_evaluation_that_is_refused_leaves_x_t(label):
    """The move to x_t was taken with the gradients before it, and training goes on from there."""
    training, twin = Training(label, 1.0), Training(label, 1.0)
    try:
        training.opt.step(training.spoilt(3, 1, math.nan, at=(1,)))
    except (ValueError, RuntimeError):
        twin.opt.step(twin.problem.closure(3))
        assert identical([p.detach() for p in training.params], [p.detach() for p in twin.params])
        training.opt.step(training.problem.closure(4))
        training.opt.flush()
        assert all(p.isfinite().all() for p in training.params)
    else:
        assert label not in REFUSING


@pytest.mark.parametrize(("label", "value", "tau"), pairs(OF_TENSORS, HUGE, [0.0, 1.0], one_in=4))
def test_a_finite_gradient_leaves_finite_parameters(label, value, tau):
    """However large it is, it is used or refused."""
    training = Training(label, tau)
    before = training.all()
    try:
        training.opt.step(training.spoilt(3, 0, value, at=(0, 1)))
    except (ValueError, RuntimeError):
        assert identical(counted(training.all()), counted(before))
    else:
        assert all(p.isfinite().all() for p in training.params)
    training.opt.step(training.problem.closure(4))
    training.opt.flush()
    assert all(p.isfinite().all() for p in training.params)

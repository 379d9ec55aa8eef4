"""Mends after a review of the engine: errors in mid-batch, groups beside each other, changed options, anchors."""

from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from superadam import SuperAdam, anchored, estimators, matrices, schedules, sets, twice


def params(*shapes):
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes]


class Failing(matrices.Diagonal):
    """Raises an error in the update that `fail` asks for."""

    fail: ClassVar[list] = []

    def update(self, s, grad):
        if self.fail:
            raise self.fail.pop()

    def H(self, s):
        return s.g * 0 + 1.0


def test_an_error_in_mid_step_drops_the_batch_and_nothing_is_taken_in_twice():
    a, b = params(2, 2)
    schedule = schedules.Constant(alpha=0.5)
    groups = [{"params": [a], "matrix": "Identity"}, {"params": [b], "matrix": Failing()}]
    opt = SuperAdam(groups, lr=0.1, tau=1.0, schedule=schedule)

    def closure():
        for p in (a, b):
            p.grad = torch.ones_like(p)
        return 0.0

    opt.step(closure)
    Failing.fail.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        opt.step(closure)
    for _ in range(2):
        opt.step(closure)
    assert all(torch.equal(opt.state[p]["g"], torch.ones_like(p)) for p in (a, b))


def test_groups_that_need_different_moments_of_a_step_are_refused():
    a, b = params(2, 2)
    with pytest.raises(ValueError, match="an optimizer for each"):
        SuperAdam([{"params": [a], "tau": 1.0}, {"params": [b], "estimator": estimators.Nesterov(0.5)}], lr=0.1)


def test_another_matrix_begins_with_step_1():
    (x,) = params((4, 3))
    opt = SuperAdam([x], lr=0.01)
    for _ in range(20):
        x.grad = torch.randn_like(x)
        opt.step()
    opt.param_groups[0]["matrix"] = matrices.ByShape(matrices.SOAP())
    before = x.detach().clone()
    x.grad = torch.randn_like(x)
    opt.step()
    assert (x.detach() - before).abs().max() < 0.05
    assert opt.state[x]["step"] == 1


def test_another_matrix_is_refused_while_a_move_is_pending():
    (x,) = params(3)
    opt = SuperAdam([x], lr=0.01, tau=1.0)

    def closure():
        x.grad = torch.ones_like(x)
        return 0.0

    opt.step(closure)
    opt.param_groups[0]["matrix"] = "Yogi"
    for _ in range(2):  # refused each time
        with pytest.raises(ValueError, match=r"opt\.flush\(\) before changing the matrix"):
            opt.step(closure)


def test_a_refused_set_stays_refused():
    x = torch.ones(2, dtype=torch.complex64, requires_grad=True)
    opt = SuperAdam([x], lr=0.1)
    opt.param_groups[0]["constraint"] = sets.Box(0.0, 0.5)
    x.grad = torch.ones_like(x)
    for _ in range(2):
        with pytest.raises(ValueError, match="it is complex"):
            opt.step()
    assert torch.equal(x.detach(), torch.ones(2, dtype=torch.complex64))


@pytest.mark.parametrize("estimator", [estimators.Adan(), estimators.Mars(previous_batch=True)], ids=str)
def test_restart_forgets_a_gradient_that_is_not_finite(estimator):
    (x,) = params(3)
    opt = SuperAdam([x], lr=0.01, estimator=estimator)
    x.grad = torch.full_like(x, torch.nan)
    opt.step()
    with torch.no_grad():
        x.fill_(1.0)
    opt.restart()
    x.grad = torch.ones_like(x)
    opt.step()
    assert x.isfinite().all()


def test_stochastic_rounding_does_not_depend_on_the_order_of_named_parameters():
    ends = []
    for order in (("a", "b"), ("b", "a")):
        held = {name: torch.full((50,), 1.0, dtype=torch.bfloat16).requires_grad_() for name in ("a", "b")}
        opt = SuperAdam([(name, held[name]) for name in order], lr=1e-3, rounding="stochastic")
        for _ in range(20):
            for p in held.values():
                p.grad = torch.ones_like(p)
            opt.step()
        ends.append([held[name].detach() for name in ("a", "b")])
    assert all(map(torch.equal, *ends))
    assert not torch.equal(*ends[0])


def of_pages(**how):
    model = nn.Linear(2, 1)
    return model, SuperAdam(model, lr=0.1, matrix="Identity", estimator=estimators.Page(every=2), **how)


def walk(turns, model, opt):
    for (batch,) in turns:
        (model(batch).square().mean() * turns.share).backward()
        if turns.complete:
            opt.step()
            opt.zero_grad()


def test_a_large_batch_that_is_not_as_large_as_its_data_says_so():
    model, opt = of_pages()
    loader = DataLoader(TensorDataset(torch.randn(10, 2)), batch_size=4, drop_last=True)
    with pytest.raises(ValueError, match="expected 10 samples in a large batch and got 8"):
        walk(anchored(loader, opt), model, opt)


def test_an_iterator_is_no_large_batch():
    _, opt = of_pages()
    with pytest.raises(ValueError, match="give the samples of a large batch as data="):
        list(anchored(iter([torch.zeros(2, 2)]), opt, n=2))


def test_anchors_in_a_twice_loop_are_refused():
    model, opt = of_pages()
    with pytest.raises(RuntimeError, match=r"loop over superadam\.anchored"):
        walk(twice([(torch.randn(4, 2),)]), model, opt)


def test_unequal_anchors_are_refused():
    a, b = params(2, 2)
    groups = [{"params": [p], "estimator": estimators.Page(every=n)} for p, n in ((a, 3), (b, 50))]
    with pytest.raises(ValueError, match="different anchors"):
        SuperAdam(groups, lr=0.1, matrix="Identity").anchor_due()


def test_a_closure_that_raises_leaves_no_mark_in_the_gradients():
    (x,) = params(2)
    opt = SuperAdam([x], lr=0.1, tau=1.0)
    x.grad = torch.ones_like(x)

    def closure():
        raise KeyError

    with pytest.raises(KeyError):
        opt.step(closure)
    assert x.grad is None

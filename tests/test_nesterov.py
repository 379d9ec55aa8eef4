"""The estimator with one buffer: Nesterov's momentum, and what else is a mixture of an average and a gradient."""

import pytest
import torch

from superadam import Monitor, SuperAdam, estimators, matrices, schedules, sets
from superadam.estimators import Nesterov
from ways import equal, result, tiny

assert tiny  # a fixture is used by its name
# torch's inductor, as it is imported
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")

CONSTANT = schedules.Constant(alpha=0.1)
OPTIONS = {"estimator": Nesterov(), "schedule": CONSTANT, "matrix": matrices.Yogi(lam=0.1)}


def plain(x, grads, a, alpha, lr, matrix_v, lam=0.1, clip=None):
    """x - lr g / (v + lam) for g = (1-a) m + a ∇, with a constant v."""
    m = None
    for grad in grads:
        m = grad.clone() if m is None else (1 - alpha) * m + alpha * grad
        g = (1 - a) * m + a * grad
        if clip is not None:
            factor = min(1.0, clip / g.norm())
            m, g = m * factor, g * factor
        x = x - lr * g / (matrix_v + lam)
    return x


@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("a", [None, 0.05, 1.0])
def test_it_is_its_formula(a, clip):
    generator = torch.Generator().manual_seed(0)
    x, *grads = torch.randn(9, 6, generator=generator, dtype=torch.float64)
    p = x.clone().requires_grad_()
    opt = SuperAdam(
        [p], lr=0.1, estimator=Nesterov(a), schedule=CONSTANT, matrix=matrices.Identity(scale=2.0), clip=clip
    )
    for grad in grads:
        p.grad = grad.clone()
        opt.step()
    expected = plain(x, grads, 0.1 if a is None else a, 0.1, 0.1, 2.0, lam=0.0, clip=clip)
    equal(p.detach(), expected)
    assert opt.state[p].keys() == {"step", "phase", "g"}  # one buffer


def test_it_equals_two_buffers_with_the_gradient_of_the_last_batch():
    """`Corrected` without a bound, which keeps the last gradient, but for the first one's share."""
    two = estimators.Corrected(tau=0.1, alpha=0.1, bound=None, previous_batch=True)
    x = torch.ones(5, dtype=torch.float64)
    finals = []
    for estimator in (Nesterov(0.1), two):
        p = x.clone().requires_grad_()
        opt = SuperAdam([p], lr=0.01, estimator=estimator, schedule=CONSTANT, matrix=matrices.Identity())
        directions = []
        for n in range(300):
            p.grad = torch.sin(torch.arange(5, dtype=torch.float64) + n)
            before = p.detach().clone()
            opt.step()
            directions.append((before - p.detach()) / 0.01)
        finals.append(directions)
    equal(finals[0][-1], finals[1][-1])


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("variant", [{}, {"clip": 0.5, "weight_decay": 0.1}, {"constraint": sets.Box(-0.8, 0.9)}])
@pytest.mark.parametrize("way", [{"foreach": True}, {"foreach": False}, {"capturable": True}, {"compile": True}])
def test_every_way_takes_the_same_steps(way, variant):
    if "compile" in way and "clip" in variant:
        assert "clip changes" in str(SuperAdam([torch.ones(2, requires_grad=True)], **OPTIONS, **variant, **way).ways())
    equal(result(**OPTIONS, **variant, **way)[0], result(**OPTIONS, **variant)[0])


def test_the_monitor_sees_the_mixture():
    p = torch.ones(3, dtype=torch.float64, requires_grad=True)
    opt = SuperAdam([p], lr=0.1, estimator=Nesterov(0.5), schedule=CONSTANT, matrix=matrices.Identity())
    monitor = Monitor(opt, 1)
    for grad in (torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 1.0, 0.0])):
        p.grad = grad.double()
        opt.step()
    # m = (0.9, 0.1, 0), g = (0.45, 0.55, 0)
    assert monitor.history[-1]["gradient_mapping"] == pytest.approx((0.45**2 + 0.55**2) ** 0.5)


def test_it_refuses_a_matrix_whose_moves_wait():
    with pytest.raises(ValueError, match="when the gradient is gone"):
        SuperAdam([torch.ones(2, requires_grad=True)], estimator=Nesterov(), matrix=matrices.BarzilaiBorwein())

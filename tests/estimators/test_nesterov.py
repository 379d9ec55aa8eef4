"""The estimator with one buffer: Nesterov's momentum, and what else is a mixture of an average and a gradient."""

import pytest
import torch

from superadam import Monitor, SuperAdam, create, estimators, matrices, reference, schedules, sets, twice
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
    """`Mars` without a bound, which keeps the last gradient, but for the first one's share."""
    two = estimators.Mars(tau=0.1, alpha=0.1, bound=None, previous_batch=True)
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
@pytest.mark.parametrize("way", [{"foreach": True}, {"foreach": False}])
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
    with pytest.raises(ValueError, match="this estimator needs the current gradient"):
        SuperAdam([torch.ones(2, requires_grad=True)], estimator=Nesterov(), matrix=matrices.BarzilaiBorwein())


# ---------------------------------------------------------------------------------------- with line 11's τ

A = torch.tensor([[3.0, 1.0], [1.0, 2.0]], dtype=torch.float64)


def noisy(x, xi):
    """∇f(x; ξ) of a quadratic whose curvature depends on ξ: the difference of two gradients does too."""
    return (A + xi * torch.eye(2, dtype=torch.float64)) @ x - xi


def trained(opt, p, xis, half_steps):
    for xi in twice(xis) if half_steps else xis:

        def closure(xi=xi):
            opt.zero_grad()
            p.grad = noisy(p.detach(), xi)

        if half_steps:
            closure()
            opt.step()
        else:
            opt.step(closure)
    opt.flush()
    return p.detach()


@pytest.mark.parametrize("half_steps", [False, True])
@pytest.mark.parametrize("tau", [0.3, 1.0])
@pytest.mark.parametrize("a", [None, 0.2])
def test_with_tau_it_is_the_reference(tau, a, half_steps):
    """`reference.super_adam`, whose line 9 gets (1-a) g_t + a ∇f(x_t; ξ_t)."""
    xis = [0.5, -0.3, 0.9, -0.7, 0.1, 0.4]
    start, newest = torch.tensor([2.0, -1.0], dtype=torch.float64), []

    def rule(t, grad, g):
        newest.append(grad)
        return torch.full_like(grad, 2.0)

    def line_9(g, x, H, gamma):
        weight = (1.0 if len(newest) == 1 else 0.3) if a is None else a
        return reference.unconstrained((1 - weight) * g + weight * newest[-1], x, H, gamma)

    run = reference.super_adam(
        noisy, start, xis, case=rule, tau=tau, gamma=0.1, mu=lambda t: 1.0, alpha=lambda t: 0.3, argmin=line_9
    )
    p = start.clone().requires_grad_()
    opt = SuperAdam(
        [p],
        lr=0.1,
        estimator=estimators.NesterovRecursive(tau, a),
        matrix=matrices.Identity(scale=2.0),
        schedule=schedules.Constant(alpha=0.3),
    )
    equal(trained(opt, p, xis, half_steps), run.x[len(xis) + 1])


def test_without_tau_it_is_nesterovs():
    finals = []
    for estimator in (Nesterov(), estimators.NesterovRecursive(0.0)):
        p = torch.tensor([2.0, -1.0], dtype=torch.float64, requires_grad=True)
        opt = SuperAdam([p], lr=0.1, estimator=estimator, schedule=CONSTANT, matrix=matrices.SecondMoment())
        finals.append(trained(opt, p, [0.5, -0.3, 0.9], False))
    equal(*finals)


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("way", [{"foreach": True}, {"foreach": False}])
def test_every_way_takes_the_same_steps_with_tau(way):
    options = {**OPTIONS, "estimator": estimators.NesterovRecursive(0.5)}
    equal(result(**options, **way)[0], result(**options)[0])


@pytest.mark.parametrize(
    ("method", "options"), [("muon", {}), ("super_adam_plus", {}), ("sgd", {"momentum": 0.9, "nesterov": True})]
)
def test_methods_with_nesterovs_momentum_take_any_tau(method, options):
    opt = create(method, torch.nn.Linear(4, 3), tau=1.0, **options)
    assert opt.two_point
    assert opt.param_groups[0]["estimator"]["type"] == "NesterovRecursive"
    assert create(method, torch.nn.Linear(4, 3), tau=0, **options).param_groups[0]["estimator"]["type"] == "Nesterov"


def test_muon_with_tau_and_no_mixture_is_limuon():
    """With a = 0 the step is along line 11's own estimate."""
    finals = []
    for method, options in (("muon", {"estimator": estimators.NesterovRecursive(1.0, 0.0)}), ("limuon", {"rate": 1.0})):
        torch.manual_seed(0)
        net = torch.nn.Linear(4, 3).double()
        opt = create(method, net, lr=0.02, schedule=schedules.Constant(alpha=0.1), weight_decay=0.0, **options)
        for x in torch.randn(5, 8, 4, dtype=torch.float64):

            def closure(x=x, opt=opt, net=net):
                opt.zero_grad()
                loss = net(x).square().mean()
                loss.backward()
                return loss

            opt.step(closure)
        opt.flush()
        finals.append(net.weight.detach())
    equal(*finals)


def test_muon_without_nesterov_takes_tau():
    assert create("muon", torch.nn.Linear(4, 3), nesterov=False, tau=0.5).two_point

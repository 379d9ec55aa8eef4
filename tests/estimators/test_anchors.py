"""Anchors: line 11 with α_t = 1 on a large batch now and then, beside plain loops and the reference."""

import copy
import itertools

import pytest
import torch
from torch import nn

from superadam import SuperAdam, anchored, estimators, matrices, reference, schedules, sets

N, D = 24, 5


@pytest.fixture
def data():
    torch.manual_seed(0)
    A = torch.randn(N, D, dtype=torch.float64)
    return A, A @ torch.ones(D, dtype=torch.float64) + 0.3 * torch.randn(N, dtype=torch.float64)


def gradient(x, rows, data):
    """Of the mean of squares and a little curvature more, so that it is not linear."""
    A, y = data[0][rows], data[1][rows]
    return A.T @ torch.tanh(A @ x - y) / len(rows) + 0.1 * x


def batches(steps, b=4):
    generator = torch.Generator().manual_seed(1)
    return [torch.randperm(N, generator=generator)[:b] for _ in range(steps)]


def train(data, steps=30, lr=0.3, start=None, **options):
    """Return the points x_1, x_2, … of a run with closures, and the optimizer."""
    x = torch.zeros(D, dtype=torch.float64, requires_grad=True)
    opt = SuperAdam([x], lr=lr, **{"matrix": "Identity", "schedule": schedules.Constant(mu=1.0), **options})
    points = []
    for rows in batches(steps):

        def closure(rows=rows):
            x.grad = gradient(x.detach(), rows, data)
            return 0.0

        opt.step(closure, anchor=lambda: closure(torch.arange(N)))
        points.append(x.detach().clone())
    opt.flush()
    return [*points, x.detach().clone()], opt


def plain(data, anchors, steps=30, lr=0.3, alpha=0.0, tau=1.0):
    """PAGE, SPIDER and SARAH, as published."""
    x, g, points = torch.zeros(D, dtype=torch.float64), None, []
    for t, rows in enumerate(batches(steps), 1):
        points.append(x)
        if t in anchors:
            g = gradient(x, torch.arange(N), data)
        else:
            newest = gradient(x, rows, data)
            g = alpha * newest + (1 - alpha) * (g + tau * (newest - gradient(points[-2], rows, data)))
        x = x - lr * g
    return [*points, x]


@pytest.mark.parametrize(
    ("page", "alpha", "tau"),
    [
        (estimators.Page(p=0.2), 0.0, 1.0),
        (estimators.Page(every=5), 0.0, 1.0),
        (estimators.Page(every=7, alpha=0.1, tau=0.5), 0.1, 0.5),
        (estimators.Page(p=1.0), 0.0, 1.0),
    ],
    ids=str,
)
def test_equals_the_published_loops(data, page, alpha, tau):
    anchors = {t for t in range(1, 31) if page.due(t)}
    expected = plain(data, anchors, alpha=alpha, tau=tau)
    torch.testing.assert_close(train(data, estimator=page)[0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", ["1", "4a"])
def test_equals_the_reference(data, case):
    """With an adaptive matrix: an anchor is a sample ξ_t that is the whole sum, with α_t = 1."""
    page = estimators.Page(p=0.3, alpha=0.05)
    rows = [torch.arange(N) if page.due(t) else r for t, r in enumerate(batches(30), 1)]
    run = reference.super_adam(
        lambda x, r: gradient(x, r, data), torch.zeros(D), rows, case=case, tau=1.0, gamma=0.05, mu=lambda t: 0.5,
        alpha=lambda t: 1.0 if page.due(t) else 0.05,
    )  # fmt: skip
    matrix = {"1": matrices.SecondMoment(), "4a": matrices.Belief()}[case]
    points, _ = train(data, lr=0.05, matrix=matrix, estimator=page, schedule=schedules.Constant(mu=0.5))
    torch.testing.assert_close(points, [run.x[t] for t in range(1, 32)], rtol=0, atol=1e-12)


def test_the_error_of_the_estimate_has_mean_zero(data):
    """Over all pairs of batches of one sample after an anchor, by enumeration."""
    start = torch.zeros(D, dtype=torch.float64)
    mean = torch.zeros(D, dtype=torch.float64)
    for i, j in itertools.product(range(6), range(6)):
        x, six = start.clone().requires_grad_(), (data[0][:6], data[1][:6])
        opt = SuperAdam([x], lr=0.3, matrix="Identity", estimator=estimators.Page(every=10))
        for rows in ([i], [i], [j]):

            def closure(rows=rows, x=x, six=six):
                x.grad = gradient(x.detach(), torch.tensor(rows), six)
                return 0.0

            opt.step(closure, anchor=lambda closure=closure: closure(list(range(6))))
        # E[g_3] given x_3 differs from ∇f(x_3) only by the noise of g_2, which has mean 0 given x_2
        mean += opt.state[x]["g"] - gradient(x.detach(), torch.arange(6), six)
    # x_3 depends on i: what is averaged over j at fixed i is exact, and over i the errors at x_2 cancel
    assert mean.abs().max() / 36 < 1e-15


def test_the_gap_falls_linearly_on_a_strongly_convex_sum(data):
    """A fitted slope: the logarithm of ‖∇f‖ falls by a constant share, with a constant learning rate."""
    points, _ = train(data, steps=400, lr=0.2, estimator=estimators.Page(p=0.15))
    norms = torch.stack([gradient(x, torch.arange(N), data).norm() for x in points[:-1]]).log()
    t = torch.arange(len(norms), dtype=torch.float64)
    window = slice(20, 220)
    slope = torch.linalg.lstsq(torch.stack([t, torch.ones_like(t)], 1)[window], norms[window].unsqueeze(1))[0][0].item()
    assert slope < -0.03
    assert norms[-1] < norms[0] - 12
    momentum, _ = train(data, steps=400, lr=0.2, estimator=estimators.Page(every=1000, alpha=0.1))
    assert gradient(momentum[-1], torch.arange(N), data).norm() > 100 * norms[-1].exp()


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(D, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Dropout(0.3), nn.Linear(4, 1)).double()


def loop(model, opt, data, order, **how):
    loader = [(data[0][rows], data[1][rows]) for rows in order]
    turns = anchored(loader, opt, [(data[0][:10], data[1][:10]), (data[0][10:], data[1][10:])], **how)
    for inputs, targets in turns:
        loss = (model(inputs).squeeze(1) - targets).square().mean()
        (loss * turns.share).backward()
        if turns.complete:
            opt.step()
            opt.zero_grad()


def test_a_loop_gives_the_gradient_of_the_mean_over_all_samples(data):
    """Micro-batches of 10 and 14 samples, weighed by their share."""
    model = nn.Linear(D, 1).double()
    opt = SuperAdam(model, lr=0.1, matrix="Identity", estimator=estimators.Page(p=1.0))
    turns = anchored([(data[0][:4], data[1][:4])], opt, [(data[0][:10], data[1][:10]), (data[0][10:], data[1][10:])])
    for inputs, targets in turns:
        ((model(inputs).squeeze(1) - targets).square().mean() * turns.share).backward()
        if turns.anchor and turns.complete:
            whole = torch.autograd.grad((model(data[0]).squeeze(1) - data[1]).square().mean(), model.weight)[0]
            torch.testing.assert_close(model.weight.grad, whole)
        if turns.complete:
            opt.step()
            opt.zero_grad()
    assert opt.sample_gradients == N + 2 * 4


@pytest.mark.parametrize("options", [{}, {"constraint": sets.Box(-0.4, 0.4)}, {"matrix": matrices.AMSGrad(lam=0.01)}])
def test_resumed_is_uninterrupted_bit_for_bit(data, options):
    page, order = estimators.Page(p=0.3), batches(20)
    once, twice_ = net(), net()
    given = {"lr": 0.05, "estimator": page, **options}
    opt = SuperAdam(once, **given)
    loop(once, opt, data, order[:9])
    random = torch.get_rng_state()
    saved = copy.deepcopy((opt.state_dict(), once.state_dict()))
    loop(once, opt, data, order[9:])
    again = SuperAdam(twice_, **given)
    again.load_state_dict(saved[0])
    twice_.load_state_dict(saved[1])
    torch.set_rng_state(random)
    loop(twice_, again, data, order[9:])
    assert all(map(torch.equal, once.state_dict().values(), twice_.state_dict().values()))
    assert again.sample_gradients == opt.sample_gradients > 0


def test_without_p_the_probability_is_that_of_page(data):
    """b/(b + B): over many batches the share of anchors is near it, and the first batch is an anchor."""
    model = nn.Linear(D, 1).double()
    opt = SuperAdam(model, lr=1e-3, matrix="Identity", estimator=estimators.Page())
    anchors = 0
    turns = anchored([data[0][:4]] * 600, opt, [data[0]])
    for i, inputs in enumerate(turns):
        model(inputs).square().mean().backward()
        anchors += turns.anchor
        assert i > 0 or turns.anchor
        opt.step()
        opt.zero_grad()
    assert anchors / 600 == pytest.approx(4 / (4 + N), abs=0.04)


def test_after_flush_the_next_batch_is_an_anchor(data):
    _, opt = train(data, steps=3, estimator=estimators.Page(every=100))
    assert opt.anchor_due()


def test_bad_input(data):
    x = torch.zeros(D, dtype=torch.float64, requires_grad=True)
    page = estimators.Page(every=3)
    opt = SuperAdam([x], lr=0.1, matrix="Identity", estimator=page)

    def closure():
        x.grad = torch.ones(D, dtype=torch.float64)
        return 0.0

    with pytest.raises(TypeError, match=r"opt\.step\(closure, anchor=full_closure\)"):
        opt.step(closure)
    with pytest.raises(RuntimeError, match=r"loss\.backward"):
        opt.step(closure, anchor=lambda: 0.0)
    with pytest.raises(ValueError, match=r"Page\(p=…\), Page\(every=…\)"):
        estimators.Page().due(2)
    with pytest.raises(ValueError, match="large batch of 2"):
        list(anchored([torch.zeros(4, 2)], opt, [torch.zeros(2, 2)]))
    with pytest.raises(ValueError, match=r"anchored\(loader, opt, data, n=…\)"):
        list(anchored([torch.zeros(4, 2)], opt, iter([torch.zeros(2, 2)])))
    with pytest.raises(TypeError, match="anchor=…"):
        SuperAdam([x], tau=1.0).step(closure, anchor=closure)
    with pytest.raises(ValueError, match="p or every"):
        estimators.Page(p=0.1, every=3)
    with pytest.raises(ValueError, match="an anchor has one"):
        SuperAdam([x], matrix="BarzilaiBorwein", estimator=page)

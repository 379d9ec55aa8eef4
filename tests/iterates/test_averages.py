"""Averages of points take the steps of their formulas: schedule-free, EMA, Lookahead, with any matrix."""

import math

import pytest
import torch

from iterates.every import ITERATES
from problems import Stochastic, equal
from superadam import SuperAdam, iterates, matrices, schedules

STEPS = 25

HOW = [{}, {"foreach": True}, {"foreach": False}]


def run(problem, steps=STEPS, tau=0.0, **options):
    """x_t, by `at_x`, after each step, and the optimizer."""
    params = problem.params()
    opt = SuperAdam(params, lr=0.05, tau=tau, **options)
    points = []
    for n in range(steps):
        opt.step(problem.closure(opt, params, n % 50))
        with opt.at_x():
            points.append(problem.join(params).detach().clone())
    return points, opt, params


def plain_schedule_free(
    problem, *, beta=0.9, r=0.0, power=2.0, warmup=0, weight=None, decay=0.0, tau=0.0, lr=0.05, rates=(1.0,) * STEPS
):
    """AdaGrad's matrix, gradients at y. Gives x after each step."""
    largest = 0.0
    z = x = y = problem.x_1
    v, total, points, g, last = torch.zeros_like(x), 0.0, [], None, None
    for t in range(1, STEPS + 1):
        grad = problem.grad(y, (t - 1) % 50)
        g = grad if g is None or tau == 0 else 0.3 * grad + 0.7 * (g + tau * (grad - problem.grad(last, (t - 1) % 50)))
        v = v + grad**2
        rise = rates[t - 1] * (min(1, t / warmup) if warmup else 1.0)
        largest = max(largest, rise)
        last = y
        z = z - lr * rise * (g / (v.sqrt() + 1e-3) + decay * y)
        w = t**r * largest**power
        total += w
        c = w / total if weight is None else weight
        x = (1 - c) * x + c * z
        y = (1 - beta) * z + beta * x
        points.append(x)
    return points


FREE = {
    "defaults": {},
    "warm-up": {"warmup": 9},
    "decay": {"warmup": 3, "decay": 0.3},
    "r = 1": {"r": 1.0, "beta": 0.5},
    "all": {"r": 1.0, "power": 1.0, "warmup": 6, "decay": 0.1},
    "GPA": {"beta": 0.7, "weight": 0.03},
}


@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("name", FREE)
def test_schedule_free_equals_its_formula(name, how):
    problem, options = Stochastic(), FREE[name]
    expected = plain_schedule_free(problem, **options)
    own = {k: v for k, v in options.items() if k not in ("decay", "power")}
    iterate = iterates.ScheduleFree(weight_power=options.get("power", 2.0), **own)
    actual, _, _ = run(
        problem,
        iterate=iterate,
        matrix=matrices.AdaGrad(lam=1e-3),
        schedule=schedules.Constant(alpha=1.0),
        weight_decay=options.get("decay", 0.0),
        **how,
    )
    equal(actual, expected)


def test_schedule_free_with_variance_reduction_equals_its_formula():
    """Both gradients of a batch are taken where the parameters are: at y."""
    problem = Stochastic()
    expected = plain_schedule_free(problem, tau=1.0)
    params = problem.params()
    schedule, matrix = schedules.Constant(alpha=0.3), matrices.AdaGrad(lam=1e-3)
    opt = SuperAdam(params, lr=0.05, tau=1.0, iterate=iterates.ScheduleFree(), matrix=matrix, schedule=schedule)
    for n in range(STEPS):
        opt.step(problem.closure(opt, params, n % 50))
    opt.flush()
    equal(problem.join(params).detach(), expected[-1])


def plain_soap(shape, beta=0.9, lam=1e-3, every=2):
    v, A, Q = torch.zeros(shape).double(), [torch.zeros(n, n).double() for n in shape], [None, None]

    def rule(t, grad, g):
        nonlocal v
        products = grad @ grad.T, grad.T @ grad
        if t == 1:
            Q[:] = [torch.linalg.eigh(product)[1].flip(1) for product in products]
            A[:] = [(1 - beta) * product for product in products]
        elif (t - 1) % every == 0:
            for i in (0, 1):
                order = (Q[i].T @ A[i] @ Q[i]).diagonal().argsort(descending=True)
                Q[i], v = torch.linalg.qr(A[i] @ Q[i][:, order])[0], v.index_select(i, order)
        v = beta * v + (1 - beta) * (Q[0].T @ grad @ Q[1]) ** 2
        A[:] = [beta * a + (1 - beta) * product for a, product in zip(A, products, strict=True)]
        return Q[0] @ ((Q[0].T @ g @ Q[1]) / ((v / (1 - beta**t)).sqrt() + lam)) @ Q[1].T

    return rule


def plain_muon(shape):
    def rule(t, grad, g):
        X = g / g.norm()
        for _ in range(5):
            X = 3.4445 * X - 4.7750 * X @ X.T @ X + 2.0315 * X @ X.T @ X @ X.T @ X
        return math.sqrt(max(1.0, shape[0] / shape[1])) * X

    return rule


OF_TENSORS = {
    "SOAP": (plain_soap, matrices.SOAP(0.9, 1e-3, every=2)),
    "Muon": (plain_muon, matrices.Muon()),
}


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("shape", [(4, 3), (3, 4)])
@pytest.mark.parametrize("name", OF_TENSORS)
def test_schedule_free_with_a_matrix_of_each_tensor_equals_its_formula(name, shape, decay):
    """Schedule-free SOAP and Muon, with momentum, warm-up and weight decay: nothing in either knows of the other."""
    plain, matrix = OF_TENSORS[name]
    problem, rule = Stochastic([shape]), plain(shape)
    z = x = y = problem.x_1.reshape(shape)
    total, g, expected = 0.0, None, []
    for t in range(1, STEPS + 1):
        grad = problem.grad(y.reshape(-1), t - 1).reshape(shape)
        g = grad if g is None else 0.7 * g + 0.3 * grad
        rise = min(1, t / 7)
        z = z - 0.05 * rise * (rule(t, grad, g) + decay * y)
        total += rise**2
        x = x + rise**2 / total * (z - x)
        y = 0.1 * z + 0.9 * x
        expected.append(x.reshape(-1))
    options = {"iterate": iterates.ScheduleFree(warmup=7), "schedule": schedules.Constant(alpha=0.3)}
    actual, _, _ = run(problem, matrix=matrix, weight_decay=decay, **options)
    equal(actual, expected, 1e-9)  # eigenvectors lose some digits
    assert (actual[-1] - problem.x_1).abs().max() > 0.1


FACTORED = {
    "SOAP": matrices.SOAP(lam=0.03, every=2),
    "Muon": matrices.Muon(),
    "KL-Shampoo": matrices.KLShampoo(every=2),
    "PSGD": matrices.PSGDKron(),
}


@pytest.mark.parametrize("name", ITERATES)
@pytest.mark.parametrize("matrix", FACTORED)
def test_a_matrix_of_each_tensor_takes_the_same_steps_in_all_ways(matrix, name):
    ends, problem = [], Stochastic([(4, 3), (4, 3), (3,), (2, 5)])
    for how in ({}, {"foreach": True}, {"foreach": False}):
        points, _, _ = run(problem, 8, matrix=matrices.ByShape(FACTORED[matrix]), iterate=ITERATES[name], **how)
        ends.append(points[-1])
    equal(ends[1], ends[0], 1e-9)
    equal(ends[2], ends[0], 1e-9)
    assert (ends[0] - problem.x_1).abs().max() > 0.01


RATES = [0.05 * (1.2 + math.sin(t)) for t in range(STEPS)]  # falls and rises

CHANGING = {"defaults": {}, "warm-up, decay, r": {"warmup": 6, "decay": 0.1, "r": 0.7, "power": 1.5}}


@pytest.mark.parametrize("tensor", [False, True])
@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("name", CHANGING)
def test_the_weights_follow_the_largest_learning_rate_so_far(name, how, tensor):
    """As in the published code, with whatever scheduler: one group has twice the learning rate of the other."""
    problem, options = Stochastic(), CHANGING[name]
    own = {k: v for k, v in options.items() if k not in ("decay", "power")}
    iterate = iterates.ScheduleFree(weight_power=options.get("power", 2.0), **own)
    params = problem.params()
    groups = [{"params": params[:2]}, {"params": params[2:]}]
    composition = {"matrix": matrices.AdaGrad(lam=1e-3), "schedule": schedules.Constant(alpha=1.0)}
    lr = torch.tensor(1.0, dtype=torch.float64) if tensor else 1.0
    opt = SuperAdam(groups, lr=lr, iterate=iterate, weight_decay=options.get("decay", 0.0), **composition, **how)
    halves = [problem.join(params[:2]).numel(), problem.join(params[2:]).numel()]
    for t, rate in enumerate(RATES):
        for group, factor in zip(opt.param_groups, (2.0, 1.0), strict=True):
            group["lr"] = torch.full_like(lr, factor * rate) if tensor else factor * rate
        opt.step(problem.closure(opt, params, t))
    opt.flush()
    scale = torch.cat([torch.full((n,), f, dtype=torch.float64) for n, f in zip(halves, (2.0, 1.0), strict=True)])
    equal(problem.join(params).detach(), plain_schedule_free(problem, lr=scale, rates=RATES, **options)[-1])


@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_averaged_is_the_corrected_average_of_the_points(tau, how):
    problem = Stochastic()
    visited, _, _ = run(problem, tau=tau, **how)
    averaged, _, params = run(problem, tau=tau, iterate=iterates.Averaged(0.9), **how)
    mean, weight = torch.zeros_like(problem.x_1), 0.0
    moves = 0
    for x, actual in zip(visited, averaged, strict=True):
        if tau == 0 or moves or not torch.equal(x, problem.x_1):  # with tau > 0, the first call moves nothing
            moves += 1
            mean, weight = 0.9 * mean + 0.1 * x, 0.9 * weight + 0.1
            equal(actual, mean / weight)
    equal(problem.join(params).detach(), visited[-1])  # gradients are taken where they were


@pytest.mark.parametrize("how", HOW, ids=str)
def test_lookahead_equals_its_formula(how):
    problem = Stochastic()
    slow = x = problem.x_1
    v, g = torch.zeros_like(x), torch.zeros_like(x)
    actual, opt, params = run(
        problem, iterate=iterates.Lookahead(3, 0.4), matrix=matrices.AdaGrad(lam=1e-3), schedule="Constant", **how
    )
    for t in range(1, STEPS + 1):
        grad = problem.grad(x, (t - 1) % 50)
        g, v = (grad if t == 1 else 0.9 * g + 0.1 * grad), v + grad**2
        x = x - 0.05 * g / (v.sqrt() + 1e-3)
        if t % 3 == 0:
            slow = x = slow + 0.4 * (x - slow)
        equal(actual[t - 1], slow)
    equal(problem.join(params).detach(), x)
    opt.flush()
    equal(problem.join(params).detach(), slow)

"""The zoo: every method equals the published one, trains, can be saved, and is found by its name."""

import inspect
import io
import itertools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import LbfgsInvHessProduct

from pairs import pairs
from problems import SHAPES, Stochastic, SuperAdam, train
from superadam import create, estimators, iterates, list_methods, matrices, schedules, zoo

STEPS = 60
SAMPLES = [i % 50 for i in range(STEPS)]
SIZES = [torch.Size(shape).numel() for shape in SHAPES]


def equal(actual, expected, tol):
    torch.testing.assert_close(actual, expected, rtol=tol, atol=tol)


# ------------------------------------------------------------------------------------------------ equal to torch


def sgd_pair(**options):
    return zoo.sgd, torch.optim.SGD, options


OF_TORCH = {
    "adam": (zoo.adam, torch.optim.Adam, {"lr": 0.03, "betas": (0.8, 0.99), "eps": 1e-6}),
    "adam-defaults": (zoo.adam, torch.optim.Adam, {}),
    "adamw": (zoo.adamw, torch.optim.AdamW, {"lr": 0.03, "betas": (0.8, 0.99), "eps": 1e-6}),
    "adamw-defaults": (zoo.adamw, torch.optim.AdamW, {}),
    "amsgrad": (
        zoo.amsgrad,
        lambda params, **options: torch.optim.Adam(params, amsgrad=True, **options),
        {"lr": 0.03, "betas": (0.8, 0.95), "eps": 1e-6},
    ),
    "adagrad": (zoo.adagrad, torch.optim.Adagrad, {"lr": 0.3}),
    "adagrad-defaults": (zoo.adagrad, torch.optim.Adagrad, {}),
    "adagrad-decay": (
        zoo.adagrad,
        torch.optim.Adagrad,
        {"lr": 0.3, "lr_decay": 0.05, "initial_accumulator_value": 0.5, "eps": 1e-6},
    ),
    "adadelta": (zoo.adadelta, torch.optim.Adadelta, {"lr": 1.5, "rho": 0.95, "eps": 1e-3}),
    "adadelta-defaults": (zoo.adadelta, torch.optim.Adadelta, {}),
    "adamax": (zoo.adamax, torch.optim.Adamax, {"lr": 0.03, "betas": (0.8, 0.99), "eps": 1e-3}),
    "adamax-defaults": (zoo.adamax, torch.optim.Adamax, {}),
    "nadam": (zoo.nadam, torch.optim.NAdam, {"lr": 0.03, "betas": (0.8, 0.99), "momentum_decay": 0.1}),
    "nadam-defaults": (zoo.nadam, torch.optim.NAdam, {}),
    "nadamw": (
        zoo.nadamw,
        lambda params, **options: torch.optim.NAdam(params, **{"decoupled_weight_decay": True, **options}),
        {"lr": 0.03, "weight_decay": 0.2},
    ),
    "radam": (zoo.radam, torch.optim.RAdam, {"lr": 0.03, "betas": (0.8, 0.95), "eps": 1e-4}),
    "radam-defaults": (zoo.radam, torch.optim.RAdam, {}),
    "rmsprop": (zoo.rmsprop, torch.optim.RMSprop, {"lr": 0.03, "alpha": 0.9, "eps": 1e-4}),
    "rmsprop-defaults": (zoo.rmsprop, torch.optim.RMSprop, {}),
    "rmsprop-momentum": (zoo.rmsprop, torch.optim.RMSprop, {"lr": 0.01, "alpha": 0.9, "eps": 1e-4, "momentum": 0.8}),
    "rmsprop-centered": (zoo.rmsprop, torch.optim.RMSprop, {"lr": 0.01, "eps": 1e-4, "centered": True}),
    "rmsprop-both": (
        zoo.rmsprop,
        torch.optim.RMSprop,
        {"lr": 0.003, "alpha": 0.9, "eps": 1e-4, "momentum": 0.9, "centered": True},
    ),
    "asgd": (zoo.asgd, torch.optim.ASGD, {"lr": 0.05, "lambd": 0.2, "alpha": 0.6, "t0": 7}),
    "asgd-defaults": (zoo.asgd, torch.optim.ASGD, {}),
    "rprop": (zoo.rprop, torch.optim.Rprop, {"lr": 0.05, "etas": (0.4, 1.3), "step_sizes": (1e-3, 0.1)}),
    "rprop-defaults": (zoo.rprop, torch.optim.Rprop, {}),
    "sgd-nesterov": sgd_pair(lr=0.02, momentum=0.9, nesterov=True),
    "sgd": sgd_pair(lr=0.05),
    "sgd-dampening": sgd_pair(lr=0.05, dampening=0.4),  # without momentum torch ignores it
    "sgd-momentum": sgd_pair(lr=0.02, momentum=0.9),
    "sgd-momentum-dampening": sgd_pair(lr=0.05, momentum=0.9, dampening=0.9),
    "sgd-momentum-other-dampening": sgd_pair(lr=0.05, momentum=0.8, dampening=0.3),
}


def run_30(problem, build, options, layout):
    """x after each of 30 steps."""
    params = problem.params()
    if layout == "groups":
        lr = options.pop("lr") if "lr" in options else inspect.signature(build).parameters["lr"].default
        params_or_groups = [{"params": params[:2], "lr": lr}, {"params": params[2:], "lr": lr / 3}]
    else:
        params_or_groups = params
    opt = build(params_or_groups, **options)
    points = []
    for n in range(30):
        opt.step(problem.closure(opt, params, n))
        points.append(problem.join(params).detach().clone())
    return torch.stack(points)


MORE = [{}, {"weight_decay": 0.1}, {"weight_decay": 0.05, "maximize": True}]


@pytest.mark.parametrize(
    ("name", "more", "layout", "foreach"), pairs(OF_TORCH, MORE, ["list", "groups"], [False, True], one_in=4), ids=str
)
def test_equals_torch(name, more, layout, foreach, request):
    ours, theirs, options = OF_TORCH[name]
    problem = Stochastic()
    if "rprop" in name:  # which has no weight decay in torch
        more = {key: value for key, value in more.items() if key != "weight_decay"}
    if "nadam" in name or "asgd" in name:  # which keep a number of the default precision
        torch.set_default_dtype(torch.float64)
        request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))
    expected = run_30(problem, theirs, {**options, **more, "foreach": foreach}, layout)
    actual = run_30(problem, ours, {**options, **more, "foreach": foreach}, layout)
    equal(actual, expected, 1e-12)
    # Adadelta's first steps, and Adam's at lr = 1e-3, are small
    assert (expected[-1] - problem.x_1).abs().max() > (1e-3 if "defaults" in name else 0.1)


def test_defaults_are_torchs():
    """The same weight decay, momentum, … where the user says nothing. SGD's lr apart: zoo/test_defaults.py."""
    for name, theirs in {
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "adagrad": torch.optim.Adagrad,
        "adadelta": torch.optim.Adadelta,
        "adafactor": torch.optim.Adafactor,
        "adamax": torch.optim.Adamax,
        "nadam": torch.optim.NAdam,
        "radam": torch.optim.RAdam,
        "rmsprop": torch.optim.RMSprop,
        "rprop": torch.optim.Rprop,
    }.items():
        x = torch.zeros(1, requires_grad=True)
        for option in ("lr", "weight_decay", "maximize"):
            if option in theirs([x]).param_groups[0]:
                assert create(name, [x]).param_groups[0][option] == theirs([x]).param_groups[0][option]


# --------------------------------------------------------------------------------------- equal to the papers' equations
#
# Each function gives x_1, x_2, … x_{T+1}, in plain words: `grad(x, i)` on one vector, a loop, the paper's formula.


def plain_sc_adagrad(grad, x, samples, lr=0.1, xi1=0.1, xi2=0.1):
    v, xs = torch.zeros_like(x), [x]
    for i in samples:
        g = grad(x, i)
        v = v + g**2
        x = x - lr * g / (v + xi1 * torch.exp(-xi2 * v))
        xs.append(x)
    return xs


def plain_sadagrad(grad, x, samples, lr=1.0, length=100, growth=2.0, shrink=0.5, lam=1.0):
    xs, n, k = [x], 0, 0
    while n < len(samples):
        start, total, squares, visited = x, torch.zeros_like(x), torch.zeros_like(x), []
        size = math.floor(length * growth**k)
        for i in samples[n : n + size]:
            visited.append(x)
            g = grad(x, i)
            total, squares = total + g, squares + g**2
            x = start - lr * shrink**k * total / (lam + squares.sqrt())
            xs.append(x)
        if len(visited) == size:
            x = xs[-1] = torch.stack(visited).mean(0)
        n, k = n + size, k + 1
    return xs


def plain_yogi(grad, x, samples, lr=1e-2, betas=(0.9, 0.999), eps=1e-3, v_0=1e-6, bias_correction=False):
    m, v, xs = torch.zeros_like(x), torch.full_like(x, v_0), [x]
    for t, i in enumerate(samples, start=1):
        g = grad(x, i)
        m = betas[0] * m + (1 - betas[0]) * g
        v = v - (1 - betas[1]) * torch.sign(v - g**2) * g**2
        m_hat, v_hat = (m / (1 - betas[0] ** t), v / (1 - betas[1] ** t)) if bias_correction else (m, v)
        x = x - lr * m_hat / (v_hat.sqrt() + eps)
        xs.append(x)
    return xs


def plain_padam(
    grad, x, samples, lr=0.1, betas=(0.9, 0.999), eps=1e-8, p=0.125, bias_correction=False, eps_inside=False
):
    m, v, v_max, xs = torch.zeros_like(x), torch.zeros_like(x), torch.zeros_like(x), [x]
    for t, i in enumerate(samples, start=1):
        g = grad(x, i)
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g**2
        v_max = torch.maximum(v_max, v)
        m_hat, v_hat = (m / (1 - betas[0] ** t), v_max / (1 - betas[1] ** t)) if bias_correction else (m, v_max)
        x = x - lr * m_hat / ((v_hat.sqrt() + eps) ** (2 * p) if eps_inside else v_hat**p + eps)
        xs.append(x)
    return xs


def plain_amsgrad(grad, x, samples, lr, betas, eps):
    """Equation (4) of the SUPER-ADAM paper: no corrections."""
    return plain_padam(grad, x, samples, lr, betas, eps, p=0.5)


def plain_adafom(grad, x, samples, lr=3e-2, beta=0.9, eps=1e-8, bias_correction=False):
    m, total, xs = torch.zeros_like(x), torch.zeros_like(x), [x]
    for t, i in enumerate(samples, start=1):
        g = grad(x, i)
        m = beta * m + (1 - beta) * g
        total = total + g**2
        m_hat = m / (1 - beta**t) if bias_correction else m
        x = x - lr / math.sqrt(t) * m_hat / ((total / t).sqrt() + eps)
        xs.append(x)
    return xs


def plain_adabound(
    grad, x, samples, lr=1e-3, betas=(0.9, 0.999), final_lr=0.1, gamma=1e-3, eps=1e-8, bias_correction=False
):
    m, v, xs = torch.zeros_like(x), torch.zeros_like(x), [x]
    for t, i in enumerate(samples, start=1):
        g = grad(x, i)
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g**2
        m_hat, v_hat = (m / (1 - betas[0] ** t), v / (1 - betas[1] ** t)) if bias_correction else (m, v)
        low, high = final_lr * (1 - 1 / (gamma * t + 1)), final_lr * (1 + 1 / (gamma * t))
        x = x - torch.clamp(lr / (v_hat.sqrt() + eps), low, high) * m_hat
        xs.append(x)
    return xs


def plain_adabelief(grad, x, samples, lr=1e-3, betas=(0.9, 0.999), eps=1e-16, weight_decay=0.0):
    m, v, xs = torch.zeros_like(x), torch.zeros_like(x), [x]
    for t, i in enumerate(samples, start=1):
        g = grad(x, i)
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * (g - m) ** 2 + eps
        step = (m / (1 - betas[0] ** t)) / ((v / (1 - betas[1] ** t)).sqrt() + eps)
        x = (1 - lr * weight_decay) * x - lr * step
        xs.append(x)
    return xs


def plain_adagrad_norm(grad, x, samples, lr=1.0, b_0=0.1):
    b2, xs = b_0**2, [x]
    for i in samples:
        g = grad(x, i)
        b2 = b2 + g.dot(g)
        x = x - lr / b2.sqrt() * g
        xs.append(x)
    return xs


def plain_adaptive_sgd(grad, x, samples, lr=1.0, k=1.0, omega=1.0, eps=0.0):
    total, xs = 0.0, [x]
    for i in samples:
        g = grad(x, i)
        x = x - lr * k / (omega + total) ** (0.5 + eps) * g
        total = total + g.dot(g)
        xs.append(x)
    return xs


def plain_storm(grad, x, samples, lr=1.0, k=10.0, omega=6.0, c=100.0):
    total, xs, d, capped = 0.0, [x], grad(x, samples[0]), 0
    for n, i in enumerate(samples):
        g = grad(x, i)
        total = total + g.dot(g)
        eta = k / (omega + total) ** (1 / 3)
        old, x = x, x - lr * eta * d
        xs.append(x)
        if n + 1 < len(samples):
            a = min(c * eta**2, 1.0)
            capped += a == 1.0
            d = grad(x, samples[n + 1]) + (1 - a) * (d - grad(old, samples[n + 1]))
    plain_storm.capped = capped
    return xs


def plain_nigt(grad, x, samples, lr=3e-2, momentum=0.9):
    """x_1, …, and the points at which gradients are taken."""
    xs, ahead, m = [x], [x], None
    for i in samples:
        g = grad(ahead[-1], i)
        m = g if m is None else momentum * m + (1 - momentum) * g
        old, x = x, x - lr * m / m.norm()
        xs.append(x)
        ahead.append(x + momentum / (1 - momentum) * (x - old))
    return xs, ahead


def plain_adam_plus(grad, x, samples, lr=1.0, beta=0.1, a=1.0, eps_0=1e-8):
    xs, ahead, z = [x], [x], None
    for i in samples:
        g = grad(ahead[-1], i)
        z = g if z is None else (1 - beta) * z + beta * g
        old, x = x, x - lr * beta**a / max(z.norm() ** 0.5, eps_0) * z
        xs.append(x)
        ahead.append((1 - 1 / beta) * old + x / beta)
    return xs, ahead


def plain_adamw_ahead(grad, x, samples, lr=1e-2, betas=(0.9, 0.99), lam=5e-4, weight_decay=1e-2):
    xs, ahead, m, v = [x], [x], torch.zeros_like(x), torch.zeros_like(x)
    for t, i in enumerate(samples, start=1):
        g = grad(ahead[-1], i)
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g**2
        step = m / (1 - betas[0] ** t) / ((v / (1 - betas[1] ** t)).sqrt() + lam)
        old, x = x, (1 - lr * weight_decay) * x - lr * step
        xs.append(x)
        alpha = (1 - betas[0]) / (1 - betas[0] ** (t + 1))  # that of the gradient to come
        ahead.append(x + (1 - alpha) / alpha * (x - old))
    return xs, ahead


def plain_mars(
    grad, x, samples, lr=3e-3, betas=(0.95, 0.99), eps=1e-8, weight_decay=0.0, gamma=0.025, bound=1.0, approx=False
):
    m, v, xs, last, clipped = torch.zeros_like(x), torch.zeros_like(x), [x], None, 0
    for t, i in enumerate(samples, start=1):
        g = grad(x, i)
        if t == 1:
            c = g
        else:
            other = last if approx else grad(xs[-2], i)
            c = g + gamma * betas[0] / (1 - betas[0]) * (g - other)
        last = g
        parts = []
        for part in c.split(SIZES):  # each tensor by itself
            norm = part.norm()
            if bound is not None and norm > bound:
                part, clipped = part * bound / norm, clipped + 1
            parts.append(part)
        c = torch.cat(parts)
        m = betas[0] * m + (1 - betas[0]) * c
        v = betas[1] * v + (1 - betas[1]) * c**2
        step = m / (1 - betas[0] ** t) / ((v / (1 - betas[1] ** t)).sqrt() + eps)
        x = (1 - lr * weight_decay) * x - lr * step
        xs.append(x)
    plain_mars.clipped = clipped
    return xs


def plain_nesterov(grad, x, samples, gamma, bound, lr=3e-3, betas=(0.9, 0.99), weight_decay=0.0):
    """MARS-approx with γ = 1-β₁ is Nesterov's momentum of plain gradients; only H_t sees the corrected ones."""
    m, v, xs = torch.zeros_like(x), torch.zeros_like(x), [x]
    first = last = grad(x, samples[0])  # the first gradient has none before it to be corrected by
    for t, i in enumerate(samples, start=1):
        g = grad(x, i)
        previous, m = m, betas[0] * m + (1 - betas[0]) * g
        ahead = m + betas[0] * (m - previous) - betas[0] ** t * (1 - betas[0]) * first
        c, last = g + betas[0] * (g - last), g
        v = betas[1] * v + (1 - betas[1]) * c**2
        step = ahead / (1 - betas[0] ** t) / ((v / (1 - betas[1] ** t)).sqrt() + 1e-8)
        x = (1 - lr * weight_decay) * x - lr * step
        xs.append(x)
    return xs


def plain_sdlbfgs(grad, x, samples, lr=0.3, history=10, delta=10.0):
    xs, pairs, kappa, damped = [x], [], 1.0, 0
    for t, i in enumerate(samples, start=1):
        g = grad(x, i)
        if t > 1:
            s, y = x - xs[-2], g - grad(xs[-2], i)
            kappa = max(y.dot(y) / s.dot(y), delta) if s.dot(y) > 0 else delta
            if s.dot(y) < 0.25 * kappa * s.dot(s):
                theta = 0.75 * kappa * s.dot(s) / (kappa * s.dot(s) - s.dot(y))
                y = theta * y + (1 - theta) * kappa * s
                damped += 1
            pairs = [*pairs, (s, y)][-history:]
        u, weights = g, []
        for s, y in reversed(pairs):
            weights.append(s.dot(u) / s.dot(y))
            u = u - weights[-1] * y
        u = u / kappa
        for (s, y), weight in zip(pairs, reversed(weights), strict=True):
            u = u + (weight - y.dot(u) / s.dot(y)) * s
        x = x - lr * u
        xs.append(x)
    plain_sdlbfgs.damped = damped
    return xs


OF_PAPERS = {
    "sc_adagrad": (plain_sc_adagrad, {}),
    "sc_adagrad-other": (plain_sc_adagrad, {"lr": 0.3, "xi1": 0.5, "xi2": 0.2}),
    "sadagrad": (plain_sadagrad, {"length": 7}),
    "sadagrad-other": (plain_sadagrad, {"length": 5, "growth": 1.5, "shrink": 0.7, "lr": 0.3, "lam": 0.5}),
    "yogi": (plain_yogi, {}),
    "yogi-corrected": (plain_yogi, {"bias_correction": True, "betas": (0.8, 0.9)}),
    "amsgrad": (plain_amsgrad, {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-4}),
    "padam": (plain_padam, {}),
    "padam-corrected": (plain_padam, {"bias_correction": True, "eps": 1e-3, "betas": (0.8, 0.9)}),
    "padam-inside": (plain_padam, {"eps_inside": True, "eps": 1e-3, "p": 0.25}),
    "padam-both": (plain_padam, {"bias_correction": True, "eps_inside": True, "eps": 1e-2, "p": 0.0625}),
    "padam-half": (plain_padam, {"bias_correction": True, "eps_inside": True, "p": 0.5, "lr": 0.02}),
    "generalized_adam": (plain_adafom, {"lr": 0.05}),
    "adabound": (plain_adabound, {}),
    "adabound-corrected": (plain_adabound, {"bias_correction": True, "lr": 0.01, "final_lr": 0.02, "gamma": 0.1}),
    "adabelief": (plain_adabelief, {}),
    "adabelief-decay": (plain_adabelief, {"lr": 0.02, "eps": 1e-4, "betas": (0.8, 0.9), "weight_decay": 0.1}),
    "adagrad_norm": (plain_adagrad_norm, {}),
    "adagrad_norm-other": (plain_adagrad_norm, {"lr": 2.0, "b_0": 3.0}),
    "adaptive_sgd": (plain_adaptive_sgd, {"lr": 0.5}),
    "adaptive_sgd-other": (plain_adaptive_sgd, {"k": 2.0, "omega": 30.0, "eps": 0.1}),
    "storm": (plain_storm, {"lr": 0.1}),
    "storm-uncapped": (plain_storm, {"lr": 1.0, "k": 0.3, "omega": 20.0, "c": 5.0}),
    "mars": (plain_mars, {}),
    "mars-other": (plain_mars, {"lr": 0.02, "betas": (0.8, 0.9), "gamma": 0.3, "bound": 0.5, "weight_decay": 0.1}),
    "mars-unbounded": (plain_mars, {"bound": None, "gamma": 0.1}),
    "mars_approx": (plain_mars, {"approx": True}),
    "mars_approx-other": (plain_mars, {"approx": True, "lr": 0.02, "betas": (0.8, 0.9), "gamma": 0.3, "bound": 0.5}),
    "mars_approx-nesterov": (plain_nesterov, {"lr": 0.02, "betas": (0.9, 0.99), "gamma": 0.1, "bound": None}),
    "mars_approx-nesterov 2": (plain_nesterov, {"betas": (0.8, 0.9), "gamma": 0.2, "bound": None, "weight_decay": 0.1}),
    "sdlbfgs": (plain_sdlbfgs, {"lr": 0.02, "delta": 1.0}),  # with a smaller δ rounding errors grow fast
    "sdlbfgs-short": (plain_sdlbfgs, {"lr": 0.02, "history": 3, "delta": 0.5}),
}
RENAMED = {"p": "partial", "v_0": "initial_accumulator", "bound": "clip_corrected"}


def builder_options(name, options):
    options = {RENAMED.get(key, key): value for key, value in options.items() if key != "approx"}
    return {**options, "bias_correction": False} if name == "amsgrad" else options


@pytest.mark.parametrize(("name", "foreach"), pairs(OF_PAPERS, [False, True]))
def test_equals_the_papers_equations(name, foreach):
    plain, options = OF_PAPERS[name]
    method = name.partition("-")[0]
    problem = Stochastic()
    expected = plain(problem.grad, problem.x_1, SAMPLES, **options)
    params = problem.params()
    opt = create(method, params, foreach=foreach, **builder_options(method, options))
    points, last = train(problem, opt, params, SAMPLES)
    assert opt.two_point == (method in ("storm", "mars", "sdlbfgs"))
    # With two gradients per batch call n leaves x_n, and flush() brings the last point.
    for point, x in zip(points, expected if opt.two_point else expected[1:], strict=False):
        equal(point, x, 1e-10)
    equal(last, expected[-1], 1e-10)
    assert (last - problem.x_1).abs().max() > 0.02


def test_the_plain_methods_meet_their_special_cases():
    """The comparison above covers caps, clips and damping: they do occur there."""
    problem = Stochastic()
    for name, attribute in (("storm", "capped"), ("mars", "clipped"), ("sdlbfgs", "damped"), ("mars-other", "clipped")):
        plain, options = OF_PAPERS[name]
        plain(problem.grad, problem.x_1, SAMPLES, **options)
        assert getattr(plain, attribute) > 3
    plain_storm(problem.grad, problem.x_1, SAMPLES, **OF_PAPERS["storm-uncapped"][1])
    assert plain_storm.capped == 0
    *_, options = OF_PAPERS["adabound-corrected"]
    clipped, free = (
        plain_adabound(problem.grad, problem.x_1, SAMPLES, **{**options, "final_lr": final})[-1]
        for final in (options["final_lr"], 0.05)
    )
    assert (clipped - free).abs().max() > 0.01


class UncorrectedFom(schedules.Schedule):
    """Chen et al.'s own m_t, which starts at zero, and γ/√t."""

    beta: float = 0.9

    first = 0.1

    def mu_t(self, t, tau):
        return t**-0.5

    def alpha_t(self, t, tau):
        return 1 - self.beta


def test_generalized_adam_takes_any_momentum_and_second_moment():
    problem = Stochastic()
    expected = plain_adafom(problem.grad, problem.x_1, SAMPLES, lr=0.05)
    params = problem.params()
    opt = create("generalized_adam", params, lr=0.05, schedule=UncorrectedFom())
    equal(train(problem, opt, params, SAMPLES)[1], expected[-1], 1e-10)

    expected = plain_adafom(problem.grad, problem.x_1, SAMPLES, lr=0.05, bias_correction=True)
    params = problem.params()
    opt = create("generalized_adam", params, lr=0.05, schedule=schedules.BiasCorrected(0.9, power=0.5))
    equal(train(problem, opt, params, SAMPLES)[1], expected[-1], 1e-10)

    expected = plain_yogi(problem.grad, problem.x_1, SAMPLES, bias_correction=True)
    params = problem.params()
    matrix = matrices.Yogi(bias_correction=True)
    opt = create("generalized_adam", params, lr=0.01, matrix=matrix, schedule="bias_corrected")
    equal(train(problem, opt, params, SAMPLES)[1], expected[-1], 1e-10)


@pytest.mark.parametrize("foreach", [False, True], ids=["per-tensor", "foreach"])
@pytest.mark.parametrize(
    ("name", "plain", "options"),
    [
        ("nigt", plain_nigt, {"lr": 0.01}),
        ("nigt", plain_nigt, {"lr": 0.1, "momentum": 0.5}),
        ("nigt", plain_nigt, {"lr": 0.01, "momentum": 0.0}),
        ("adam_plus", plain_adam_plus, {"lr": 0.1}),
        ("adam_plus", plain_adam_plus, {"lr": 0.5, "beta": 0.4, "a": 0.5, "eps_0": 1.5}),
        ("adamw_ahead", plain_adamw_ahead, {}),
        ("adamw_ahead", plain_adamw_ahead, {"lr": 0.03, "betas": (0.8, 0.9), "lam": 0.1, "weight_decay": 0.1}),
    ],
)
def test_gradients_are_taken_ahead(name, plain, options, foreach):
    """The closure sees the extrapolated point; flush() brings x_t, at any time; at_x() does for a while."""
    problem = Stochastic()
    xs, ahead = plain(problem.grad, problem.x_1, SAMPLES, **options)
    params = problem.params()
    opt = create(name, params, foreach=foreach, **options)
    for n, i in enumerate(SAMPLES):
        with opt.at_x():
            equal(problem.join(params).detach(), xs[n], 1e-10)
        equal(problem.join(params).detach(), ahead[n], 1e-10)
        opt.step(problem.closure(opt, params, i))
    opt.flush()
    equal(problem.join(params).detach(), xs[-1], 1e-10)
    opt.flush()
    equal(problem.join(params).detach(), xs[-1], 1e-10)
    assert opt.gradient_evaluations == STEPS

    half = problem.params()
    opt = create(name, half, foreach=foreach, **options)
    for i in SAMPLES[:20]:
        opt.step(problem.closure(opt, half, i))
    opt.flush()
    equal(problem.join(half).detach(), xs[20], 1e-10)


@pytest.mark.parametrize("rounding", ["nearest", "master", "stochastic"])
def test_a_look_at_x_changes_nothing_of_what_follows(rounding):
    """Bit for bit, in bfloat16, where what is held is a rounded point ahead."""

    def trained(look):
        torch.manual_seed(0)
        model = torch.nn.Linear(5, 3, dtype=torch.bfloat16)
        opt = create("adamw_ahead", model, lr=0.05, rounding=rounding)
        for i in range(6):
            opt.zero_grad()
            model(torch.full((2, 5), 1.0 + i % 3, dtype=torch.bfloat16)).square().sum().backward()
            opt.step()
            if look:
                before = model.weight.detach().clone()
                with opt.at_x():
                    assert not torch.equal(before, model.weight)
                assert torch.equal(before, model.weight)
        return [model.weight.detach(), *(t for s in opt.state.values() for t in s.values() if torch.is_tensor(t))]

    assert all(map(torch.equal, trained(False), trained(True)))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sgd", {"lr": 0.01, "momentum": 0.9}),
        ("adabound", {"betas": (0.9, 0.0)}),  # its g_1 is (1-β) ĝ_1, an average that starts at zero
        ("adam", {"betas": (0.9, 0.0)}),
        ("nigt", {"lr": 0.01}),
        ("storm", {"lr": 1.0}),
    ],
)
def test_restart_begins_as_the_method_does(name, options):
    """After restart() the next gradient makes the g that a first one makes."""
    problem = Stochastic()
    params = problem.params()
    opt = create(name, params, **options)
    train(problem, opt, params, SAMPLES[:9])
    opt.restart()
    fresh = [p.detach().clone().requires_grad_() for p in params]
    other = create(name, fresh, **options)
    opt.step(problem.closure(opt, params, 11))
    other.step(problem.closure(other, fresh, 11))
    for p, q in zip(params, fresh, strict=True):
        equal(opt.state[p]["g"], other.state[q]["g"], 1e-10)


# ------------------------------------------------------------------------------------------------- curvature


class NoisyQuadratic:
    """f(x; ξ) = ½ xᵀ A x + ξᵀ x: eigenvalues over `condition`, and noise in the gradient."""

    def __init__(self, dim=20, condition=1e3, noise=0.03, samples=2000):
        generator = torch.Generator().manual_seed(1)
        basis, _ = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64))
        eigenvalues = torch.logspace(0, math.log10(condition), dim, dtype=torch.float64)
        self.A = basis @ torch.diag(eigenvalues) @ basis.T
        self.xi = noise * torch.randn(samples, dim, generator=generator, dtype=torch.float64)
        self.x_1 = torch.randn(dim, generator=generator, dtype=torch.float64)

    def mean_loss(self, x):
        return (0.5 * x @ self.A @ x).item()

    def run(self, build, evaluations):
        """The loss, without the noise, after a number of gradient evaluations."""
        x = self.x_1.clone().requires_grad_()
        opt = build([x])
        batches = iter(range(len(self.xi)))
        while opt.gradient_evaluations < evaluations:
            i = next(batches)

            def closure(i=i):
                opt.zero_grad()
                loss = 0.5 * x @ self.A @ x + self.xi[i] @ x
                loss.backward()
                return loss

            opt.step(closure)
        opt.flush()
        return self.mean_loss(x.detach())


def test_sdlbfgs_beats_sgd_on_an_ill_conditioned_noisy_quadratic():
    """Condition number 1000, 400 gradient evaluations, each at the best learning rate of a grid: the loss of SdLBFGS,
    which takes two gradients per step, is more than 500 times smaller than SGD's."""
    problem = NoisyQuadratic()

    def best(name, grid, **options):
        losses = [problem.run(lambda p, lr=lr: create(name, p, lr=lr, **options), 400) for lr in grid]
        return min(loss for loss in losses if math.isfinite(loss))

    assert 500 * best("sdlbfgs", [1.0, 0.5], delta=0.01) < best("sgd", [0.01, 2e-3, 1.5e-3, 1e-3, 5e-4])


@pytest.mark.parametrize("history", [1, 4, 20])
def test_lbfgs_direction_on_a_quadratic(history):
    """Where nothing needs damping H_t⁻¹ g_t is L-BFGS's: scipy's operator, and the dense BFGS recursion."""
    problem = NoisyQuadratic(dim=8, condition=3.0, noise=0.0)
    x = problem.x_1.clone().requires_grad_()
    opt = create("sdlbfgs", [x], lr=0.2, history=history, delta=0.01)
    points = []
    for _ in range(9):

        def closure():
            opt.zero_grad()
            loss = 0.5 * x @ problem.A @ x
            loss.backward()
            return loss

        opt.step(closure)
        points.append(x.detach().clone())
    opt.flush()
    direction = (points[-1] - x.detach()) / 0.2

    s = torch.stack([b - a for a, b in itertools.pairwise(points)])[-history:]
    y = s @ problem.A
    sy, ss, yy = (s * y).sum(1), (s * s).sum(1), (y * y).sum(1)
    assert (sy**2 > 0.25 * ss * yy).all()  # no pair is damped
    kappa = yy[-1] / sy[-1]
    g = problem.A @ points[-1]

    # scipy starts from I: with y/κ it is κ times the operator that starts from I/κ
    operator = LbfgsInvHessProduct(s.numpy(), (y / kappa).numpy())
    equal(direction, torch.from_numpy(operator.matvec(g.numpy())) / kappa, 1e-10)

    inverse = torch.eye(8, dtype=torch.float64) / kappa
    for s_i, y_i in zip(s, y, strict=True):
        rho = 1 / s_i.dot(y_i)
        left = torch.eye(8, dtype=torch.float64) - rho * torch.outer(s_i, y_i)
        inverse = left @ inverse @ left.T + rho * torch.outer(s_i, s_i)
    equal(direction, inverse @ g, 1e-10)
    assert np.isfinite(direction.numpy()).all()


def test_lbfgs_is_a_descent_direction_even_where_f_is_concave():
    """Damping keeps H_t positive definite: ⟨g_t, H_t⁻¹ g_t⟩ > 0."""
    problem = Stochastic()
    params = problem.params()
    opt = create("sdlbfgs", params, lr=0.05, delta=0.01)
    for i in SAMPLES:
        opt.step(problem.closure(opt, params, i))
        before, g = problem.join(params).detach(), torch.cat([opt.state[p]["g"].reshape(-1) for p in params])
        probe = [p.detach().clone().requires_grad_() for p in params]
        twin = create("sdlbfgs", probe, lr=0.05, delta=0.01)
        twin.load_state_dict(opt.state_dict())
        twin.flush()
        assert g.dot(before - problem.join(probe).detach()) > 0


# --------------------------------------------------------------------------------------------------- by name

ISSUE_LIST = [
    "sgd",
    "adagrad",
    "sc_adagrad",
    "sadagrad",
    "adadelta",
    "adam",
    "adamw",
    "amsgrad",
    "yogi",
    "padam",
    "generalized_adam",
    "adabound",
    "adabelief",
    "adagrad_norm",
    "adaptive_sgd",
    "storm",
    "nigt",
    "adam_plus",
    "mars",
    "mars_approx",
    "sdlbfgs",
    "super_adam",
    "super_adam_plus",
    "adamw_ahead",
    "adafactor",
    "adam_mini",
    "adan",
    "dog",
    "lamb",
    "lars",
    "prodigy",
    "adamax",
    "ademamix",
    "adopt",
    "cautious_adamw",
    "lion",
    "nadam",
    "nadamw",
    "radam",
    "rmsprop",
    "rprop",
    "asgd",
    "schedule_free_adamw",
    "sophia_g",
    "stable_adamw",
    "muon",
    "shampoo",
    "soap",
    "kl_shampoo",
    "psgd_kron",
    "mars_m",
    "mars_shampoo",
    "limuon",
]


def test_every_method_is_listed_and_can_be_created():
    assert set(list_methods()) == set(ISSUE_LIST) == set(zoo.METHODS)
    for name, line in list_methods().items():
        assert len(line) > 10
        assert not line.endswith(".")
        opt = create(name, torch.nn.Linear(2, 1))
        assert isinstance(opt, SuperAdam)
        assert getattr(zoo, name) is zoo.METHODS[name]


def test_the_learning_rate_may_come_third():
    """As in torch.optim; and it wins over that of a preset."""
    for preset in (None, "cifar10"):
        opt = zoo.create("super_adam", torch.nn.Linear(2, 1), 0.5, preset=preset)
        assert opt.param_groups[0]["lr"] == 0.5


def test_methods_are_listed_by_pattern():
    assert list(list_methods("ada*")) == sorted(n for n in ISSUE_LIST if n.startswith("ada"))
    assert list(list_methods("*storm*")) == ["storm"]
    assert list(list_methods("mars*")) == ["mars", "mars_approx", "mars_m", "mars_shampoo"]
    assert list(list_methods("adam?")) == ["adamw"]
    with pytest.raises(ValueError, match="No method matches 'lyons'"):
        list_methods("lyons")


@pytest.mark.parametrize(("wrong", "right"), [("addam", "adam"), ("AdamW", "adamw"), ("stormy", "storm")])
def test_unknown_methods_get_a_suggestion(wrong, right):
    with pytest.raises(ValueError, match=f"Unknown method {wrong!r}: did you mean {right!r}"):
        create(wrong, torch.nn.Linear(2, 1))


def test_unknown_methods_without_a_likeness_get_the_list():
    with pytest.raises(ValueError, match=r"known: .*adam.*yogi"):
        create("zzz", torch.nn.Linear(2, 1))


def test_unknown_options_get_a_suggestion():
    with pytest.raises(TypeError, match="did you mean 'foreach'"):
        create("adam", torch.nn.Linear(2, 1), foreahc=True)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("adam", {"betas": (1.0, 0.9)}),
        ("adam", {"betas": (0.9, -0.1)}),
        ("adam", {"eps": -1.0}),
        ("adam", {"lr": -1.0}),
        ("sgd", {"momentum": 1.0}),
        ("sgd", {"momentum": 0.9, "dampening": 1.0}),
        ("adabound", {"lr": 0.0}),
        ("adabound", {"final_lr": 0.0}),
        ("nigt", {"momentum": 1.0}),
        ("adam_plus", {"beta": 0.0}),
        ("mars", {"gamma": 2.0}),
        ("padam", {"partial": 0.7}),
        ("sadagrad", {"length": 0}),
        ("sc_adagrad", {"xi1": 0.0}),
        ("storm", {"c": 0.0}),
        ("sdlbfgs", {"history": 0}),
        ("yogi", {"initial_accumulator": -1.0}),
        ("adaptive_sgd", {"omega": 0.0}),  # the first step would divide by ω + an empty sum
    ],
    ids=str,
)
def test_options_out_of_range_are_refused(name, options):
    with pytest.raises(ValueError, match="Invalid"):
        create(name, torch.nn.Linear(2, 1), **options)


# FACTS.md, section 1: the paper's settings.
CIFAR = {"adam": {"lr": 1e-3}, "amsgrad": {"lr": 1e-3}, "adabelief": {"lr": 1e-3}, "adam_plus": {}}
SETTINGS = {
    "cifar10": {
        **CIFAR,
        "adagrad_norm": {"lr": 17},
        "storm": {"omega": 6, "k": 10, "c": 100},
        "super_adam": {0: {"k": 1, "m": 100, "lr": 1e-3, "c": 20}, 1: {"k": 1, "m": 100, "lr": 1e-3, "c": 40}},
    },
    "cifar100": {
        **CIFAR,
        "adagrad_norm": {"lr": 10},
        "storm": {"omega": 3, "k": 10, "c": 100},
        "super_adam": {0: {"k": 1, "m": 100, "lr": 1e-3, "c": 20}, 1: {"k": 1, "m": 100, "lr": 1e-3, "c": 40}},
    },
    "imagenet": {
        **CIFAR,
        "adagrad_norm": {"lr": 30},
        "adam_plus": {"lr": 0.1},
        "storm": {"omega": 100, "k": 5, "c": 10},
        "super_adam": {0: {"k": 1, "m": 100, "lr": 0.04, "c": 4}, 1: {"k": 1, "m": 100, "lr": 0.01, "c": 40}},
    },
    "wikitext2-lstm": {
        "adam": {"lr": 1e-3},
        "amsgrad": {"lr": 1e-3},
        "adabelief": {"lr": 0.1},
        "adagrad_norm": {"lr": 40},
        "adam_plus": {"lr": 20},
        "storm": {"omega": 50, "k": 10, "c": 100},
        "super_adam": {0: {"k": 1, "m": 100, "lr": 0.01, "c": 20}, 1: {"k": 1, "m": 100, "lr": 1e-3, "c": 40}},
    },
    "wikitext2-transformer": {
        "adam": {"lr": 2e-4},
        "amsgrad": {"lr": 2e-4},
        "adabelief": {"lr": 1.0},
        "adagrad_norm": {"lr": 10},
        "adam_plus": {"lr": 20},
        "storm": {"omega": 100, "k": 12.5, "c": 10},
        "super_adam": {0: {"k": 1, "m": 100, "lr": 3e-3, "c": 20}, 1: {"k": 1, "m": 100, "lr": 2e-3, "c": 20}},
    },
}


@pytest.mark.parametrize("task", SETTINGS)
@pytest.mark.parametrize("name", ["adam", "amsgrad", "adabelief", "adagrad_norm", "adam_plus", "storm"])
def test_presets_are_the_papers_settings(name, task):
    group = create(name, torch.nn.Linear(2, 1), preset=task).param_groups[0]
    for option, value in SETTINGS[task][name].items():
        home = group
        if option in ("omega", "k"):
            home = group["matrix"]
        elif option == "c":
            home = group["schedule"]
        assert home[option] == value


@pytest.mark.parametrize("tau", [0, 1])
@pytest.mark.parametrize("task", SETTINGS)
def test_presets_of_super_adam(task, tau):
    group = create("super_adam", torch.nn.Linear(2, 1), preset=task, tau=tau).param_groups[0]
    expected = SETTINGS[task]["super_adam"][tau]
    assert group["lr"] == expected["lr"]
    assert group["tau"] == tau
    for option in ("k", "m", "c"):
        assert group["schedule"][option] == expected[option]
    assert group["matrix"]["type"] == "SecondMoment"


def test_explicit_options_win_over_a_preset():
    opt = create("storm", torch.nn.Linear(2, 1), preset="imagenet", c=3.0, lr=0.5)
    assert opt.param_groups[0]["schedule"]["c"] == 3.0
    assert opt.param_groups[0]["lr"] == 0.5
    assert opt.param_groups[0]["matrix"]["omega"] == 100
    opt = create("super_adam", torch.nn.Linear(2, 1), preset="imagenet", lr=0.5, tau=1, matrix="gradient_norm")
    assert opt.param_groups[0]["lr"] == 0.5
    assert opt.param_groups[0]["matrix"]["type"] == "GradientNorm"
    # and the preset itself is not changed by it
    assert create("storm", torch.nn.Linear(2, 1), preset="imagenet").param_groups[0]["schedule"]["c"] == 10


def test_unknown_presets_are_refused():
    with pytest.raises(ValueError, match="Unknown preset 'cifar': did you mean 'cifar10"):
        create("adam", torch.nn.Linear(2, 1), preset="cifar")
    with pytest.raises(ValueError, match="Unknown preset 'xyz': known: cifar10"):
        create("adam", torch.nn.Linear(2, 1), preset="xyz")
    with pytest.raises(ValueError, match="no settings of yogi for cifar10"):
        create("yogi", torch.nn.Linear(2, 1), preset="cifar10")


# -------------------------------------------------------------------------------- compositions that make no sense


class NamedG(matrices.Matrix):
    buffers = ("g",)


class NamedX(matrices.Matrix):
    buffers = ("x",)


class NamedParams(matrices.Matrix):
    buffers = ("params",)


class NamedMatrix(matrices.Matrix):
    scalars = ("matrix",)


class NamedLast(matrices.Matrix):
    buffers = ("last",)


REFUSED = {
    "storm-diagonal": ({"matrix": "SecondMoment", "schedule": "Storm"}, "one learning rate for all coordinates"),
    "storm-lbfgs": ({"matrix": "DampedLBFGS", "schedule": "Storm"}, "one learning rate for all coordinates"),
    "transport-barzilai-borwein": (
        {"iterate": "Ahead", "matrix": "BarzilaiBorwein", "schedule": "Constant"},
        "compares gradients at x_t and",
    ),
    "transport-lbfgs": (
        {"iterate": "Ahead", "matrix": "DampedLBFGS", "schedule": "Constant"},
        "compares gradients at x_t and",
    ),
    "transport-storm": (
        {"iterate": "Ahead", "matrix": "AccumulatedNorm", "schedule": "Storm"},
        "must be known before the next gradient",
    ),
    "staged-scalar": (
        {"estimator": "Staged", "matrix": "GradientNorm", "schedule": schedules.Constant(alpha=1.0)},
        "GradientNorm is shared by all",
    ),
    "staged-lbfgs": (
        {"estimator": "Staged", "matrix": "DampedLBFGS", "schedule": schedules.Constant(alpha=1.0)},
        "DampedLBFGS is shared by all",
    ),
    "staged-paper": ({"estimator": "Staged", "matrix": "AdaGrad", "schedule": "Paper"}, "so μ must be 1"),
    "staged-mu": (
        {"estimator": "Staged", "matrix": "AdaGrad", "schedule": schedules.Constant(mu=0.5)},
        "so μ must be 1",
    ),
    "tau-and-estimator": ({"tau": 1.0, "estimator": "Corrected"}, "not both"),
    "clip-estimate-norm": ({"clip": 1.0, "matrix": "EstimateNorm"}, "divides g by its own norm"),
    "capturable-staged": (
        {
            "estimator": "Staged",
            "matrix": "AdaGrad",
            "schedule": schedules.Constant(alpha=1.0),
            "capturable": True,
        },
        "by the step count on the host",
    ),
    "buffer-g": ({"matrix": NamedG()}, "the state name g is already used"),
    "buffer-x": ({"matrix": NamedX()}, "the state name x is already used"),
    "buffer-params": ({"matrix": NamedParams()}, "the state name params is already used"),
    "scalar-matrix": ({"matrix": NamedMatrix()}, "the state name matrix is already used"),
    # Corrected keeps ∇f(x_{t-1}) under this name: one tensor would serve both
    "buffer-of-the-estimator": (
        {"matrix": NamedLast(), "estimator": "Corrected"},
        "the state name last is already used",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused_with_the_reason(name):
    options, reason = REFUSED[name]
    x = torch.zeros(2, requires_grad=True)
    with pytest.raises(ValueError, match=reason):
        SuperAdam([x], **options)
    with pytest.raises(ValueError, match=reason):  # in a param group, too
        SuperAdam([{"params": [x], **options}])


def test_a_part_assigned_later_is_refused_too():
    x = torch.ones(2, requires_grad=True)
    opt = SuperAdam([x])
    opt.param_groups[0]["schedule"] = schedules.Storm()
    x.sum().backward()
    with pytest.raises(ValueError, match="one learning rate for all coordinates"):
        opt.step()


# --------------------------------------------------------------------------------------------- compositions that do

SENSIBLE = {
    "variance-reduced AMSGrad": {"tau": 1.0, "matrix": "AMSGrad", "schedule": "Paper", "lr": 0.1},
    "variance-reduced Yogi": {"tau": 1.0, "matrix": "Yogi", "schedule": "Paper", "lr": 0.1},
    "variance-reduced AdaGrad": {"tau": 1.0, "matrix": "AdaGrad", "schedule": "Paper", "lr": 3.0},
    "half variance-reduced AdaBound": {"tau": 0.5, "matrix": "AdaBound", "schedule": "Paper", "lr": 0.05},
    "variance-reduced AdaDelta": {"tau": 1.0, "matrix": matrices.AdaDelta(eps=1e-2), "schedule": "Paper", "lr": 5.0},
    "variance-reduced L-BFGS": {"tau": 1.0, "matrix": matrices.DampedLBFGS(delta=0.01), "schedule": "Paper", "lr": 0.5},
    "MARS with belief": {
        "estimator": estimators.Corrected(bound=None),
        "matrix": "Belief",
        "schedule": schedules.BiasCorrected(0.95),
        "lr": 0.02,
    },
    "MARS with L-BFGS": {
        "estimator": estimators.Corrected(0.1, 0.5, bound=None),
        "matrix": "DampedLBFGS",
        "schedule": schedules.Constant(alpha=0.5),
        "lr": 0.1,
    },
    "transported Adam": {
        "iterate": "Ahead",
        "matrix": matrices.SecondMoment(bias_correction=True),
        "schedule": schedules.BiasCorrected(0.9),
        "lr": 0.05,
    },
    "transported AdaGrad-Norm": {
        "iterate": "Ahead",
        "matrix": "AccumulatedNorm",
        "schedule": schedules.Constant(alpha=0.2),
        "lr": 1.0,
    },
    "STORM on the gradient norm": {
        "tau": 1.0,
        "matrix": matrices.GradientNorm(0.9, lam=2.0),
        "schedule": schedules.Storm(c=1.0),
        "lr": 0.3,
    },
    "STORM's momentum, normalised": {"matrix": "EstimateNorm", "schedule": schedules.Storm(c=5.0), "lr": 0.03},
    "stages of SC-AdaGrad": {
        "estimator": estimators.Summed(),
        "iterate": iterates.Staged(length=20),
        "matrix": matrices.SCAdaGrad(xi1=1.0),
        "schedule": schedules.Constant(alpha=1.0),
        "lr": 30.0,
    },
    "normalised Barzilai-Borwein": {
        "matrix": "BarzilaiBorwein",
        "schedule": schedules.Constant(alpha=0.5),
        "lr": 0.2,
        "clip": 1.0,
    },
}


@pytest.mark.parametrize(("name", "foreach"), pairs(SENSIBLE, [False, True]))
def test_sensible_compositions_decrease_a_quadratic(name, foreach):
    """To a hundredth of the loss, within 300 batches, with a little noise in the gradients."""
    generator = torch.Generator().manual_seed(3)
    curvature = torch.tensor([1.0, 2.0, 5.0, 1.5], dtype=torch.float64)
    params = [torch.tensor([3.0, -2.0], dtype=torch.float64, requires_grad=True) for _ in range(2)]
    opt = SuperAdam(params, foreach=foreach, **SENSIBLE[name])

    def loss(noise=0.0):
        x = torch.cat(params)
        return (0.5 * curvature * x**2 + noise * x).sum()

    first = loss().item()
    for _ in range(300):
        noise = 0.1 * torch.randn(4, generator=generator, dtype=torch.float64)

        def closure(noise=noise):
            opt.zero_grad()
            value = loss(noise)
            value.backward()
            return value

        opt.step(closure)
    opt.flush()
    assert loss().item() < 0.01 * first


@pytest.mark.parametrize("tau", [0.0, 0.5])
def test_curvature_does_not_depend_on_the_estimator(tau):
    """Barzilai-Borwein's b is the curvature of f along the move, as its formula says, whatever g is: on L/2 ‖x‖² it is
    L."""
    x = torch.tensor([3.0, -2.0], dtype=torch.float64, requires_grad=True)
    opt = SuperAdam(
        [x],
        lr=0.1,
        estimator=estimators.Corrected(tau, 0.1, bound=1.0),
        matrix="BarzilaiBorwein",
        schedule=schedules.Constant(alpha=0.1),
    )
    for n in range(5):

        def closure():
            opt.zero_grad()
            loss = 3.5 * x.square().sum()
            loss.backward()
            return loss

        opt.step(closure)
        if n > 0:
            equal(opt.state[x]["b"], torch.tensor(7.0, dtype=torch.float64), 1e-10)


@pytest.mark.parametrize("foreach", [False, True], ids=["per-tensor", "foreach"])
@pytest.mark.parametrize("capturable", [False, True], ids=["host", "capturable"])
def test_storms_weight_for_a_parameter_that_joins_late(foreach, capturable):
    """Every parameter counts its own steps: its first gradient is its g, whatever the others' step count is."""
    a, b = (torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True) for _ in range(2))
    matrix = matrices.AccumulatedNorm(1 / 3, omega=50.0)
    for params in ([a, b], [b, a]):
        opt = SuperAdam(
            params,
            lr=0.1,
            matrix=matrix,
            schedule=schedules.Storm(c=1.0),
            foreach=foreach,
            capturable=capturable,
        )
        for n in range(4):
            opt.zero_grad()
            old = None if n == 0 else opt.state[a]["g"].clone()
            alpha = None if n == 0 else (1.0 / matrix.H(StateOf(opt, a)) ** 2).item()
            (a.square().sum() if n < 3 else a.square().sum() + b.square().sum()).backward()
            opt.step()
            if n > 0:
                equal(opt.state[a]["g"], (1 - alpha) * old + alpha * a.grad, 1e-10)
        equal(opt.state[b]["g"], b.grad, 1e-10)


class StateOf:
    """A parameter's state by attributes, as a matrix sees it."""

    def __init__(self, opt, p):
        self.__dict__.update(opt.state[p])


# Schedule-free decays y_t, not x_t; the others have a learning rate of their own.
OWN_DECAY = ("asgd", "dog", "lamb", "limuon", "prodigy", "schedule_free_adamw")


@pytest.mark.parametrize("name", [n for n in ISSUE_LIST if n not in OWN_DECAY])
def test_decoupled_weight_decay_is_what_the_option_says(name):
    """x_{t+1} is moved by -γ μ_t w x_t in addition: where f is flat, by that alone. A method that cannot, refuses."""
    x = torch.tensor([5.0, -1.0], dtype=torch.float64, requires_grad=True)
    try:
        opt = create(name, [x], lr=0.1, weight_decay=0.5, decoupled_weight_decay=True)
    except ValueError:
        assert name == "sadagrad"  # whose moves do not start at x_t
        return
    group = opt.param_groups[0]
    schedule = schedules.Schedule.find(group["schedule"])
    expected = x.detach().clone()

    def closure():
        opt.zero_grad()
        loss = 0.0 * x.sum()
        loss.backward()
        return loss

    for t in range(1, 31):
        opt.step(closure)
        expected = expected * (1 - 0.1 * schedule.mu_t(t, group["tau"]) * 0.5)
    opt.flush()
    equal(x.detach(), expected, 1e-10)


# ------------------------------------------------------------------------------------------------- saving

# Where the defaults would leave something out: stages that end, a history that is full, steps that are not tiny.
OPTIONS = {
    "sadagrad": {"length": 4},
    "sdlbfgs": {"history": 3, "lr": 0.02, "delta": 0.01},
    "super_adam": {"tau": 1.0, "lr": 0.01},
    "sgd": {"momentum": 0.9, "lr": 0.01},
    "storm": {"lr": 0.1},
}


def through_a_file(opt):
    file = io.BytesIO()
    torch.save(opt.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_saving_and_loading_halfway_changes_no_bit():
    problem = Stochastic()
    for name in zoo.METHODS:
        for foreach in (False, True):
            params = problem.params()
            opt = create(name, params, foreach=foreach, **OPTIONS.get(name, {}))
            for i in range(10):
                opt.step(problem.closure(opt, params, i))
            saved = through_a_file(opt)
            copies = [p.detach().clone().requires_grad_() for p in params]
            resumed = create(name, copies, foreach=foreach, **OPTIONS.get(name, {}))
            resumed.load_state_dict(saved)
            for i in range(10, 25):
                losses = [o.step(problem.closure(o, p, i)) for o, p in ((opt, params), (resumed, copies))]
                assert torch.equal(*losses), name
            opt.flush()
            resumed.flush()
            assert torch.equal(problem.join(params), problem.join(copies)), name
            assert resumed.gradient_evaluations == opt.gradient_evaluations


@pytest.mark.parametrize("name", ["adagrad_norm", "storm", "sdlbfgs"])
def test_saving_parameters_of_two_dtypes_changes_no_bit(name):
    """What all parameters share is kept in the widest dtype, also through a checkpoint."""
    params = [torch.tensor([3.0, -2.0], dtype=d, requires_grad=True) for d in (torch.float32, torch.float64)]

    def closure(opt, params):
        def closure():
            opt.zero_grad()
            loss = sum((p**2).sum().double() * 1.1 for p in params)
            loss.backward()
            return loss

        return closure

    opt = create(name, params, lr=0.1)
    for _ in range(5):
        opt.step(closure(opt, params))
    copies = [p.detach().clone().requires_grad_() for p in params]
    resumed = create(name, copies, lr=0.1)
    resumed.load_state_dict(through_a_file(opt))
    for _ in range(5):
        opt.step(closure(opt, params))
        resumed.step(closure(resumed, copies))
    for p, q in zip(params, copies, strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("foreach", [False, True], ids=["per-tensor", "foreach"])
def test_half_steps_equal_the_closure_loop(foreach):
    problem, samples = Stochastic(), SAMPLES[:20]
    two_point = [name for name in zoo.METHODS if create(name, problem.params(), **OPTIONS.get(name, {})).two_point]
    assert set(two_point) == {"storm", "mars", "sdlbfgs", "super_adam", "limuon"}
    for name in two_point:
        ends = []
        for half_steps in (False, True):
            params = problem.params()
            opt = create(name, params, foreach=foreach, **OPTIONS.get(name, {}))
            points, last = train(problem, opt, params, samples, half_steps=half_steps)
            ends.append(torch.stack([*points, last]))
        assert torch.equal(*ends), name

"""Each method takes the steps of its published formula, written as a loop on one vector."""

import math

import pytest
import torch

from pairs import pairs
from problems import SHAPES, Stochastic, SuperAdam, equal, train
from superadam import create, matrices, schedules

STEPS = 60

SAMPLES = [i % 50 for i in range(STEPS)]

SIZES = [torch.Size(shape).numel() for shape in SHAPES]


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


def plain_lion(grad, x, samples, lr=5e-4, betas=(0.9, 0.99), weight_decay=0.0):
    m = torch.zeros_like(x)
    for i in samples:
        g = grad(x, i)
        x = x * (1 - lr * weight_decay) - lr * torch.sign(betas[0] * m + (1 - betas[0]) * g)
        m = betas[1] * m + (1 - betas[1]) * g
    return x


def plain_ademamix(
    grad, x, samples, lr=1e-3, betas=(0.9, 0.999, 0.9999), eps=1e-8, alpha=2.0, warmup=0, weight_decay=0.0, clip=None
):
    m, n, v = (torch.zeros_like(x) for _ in range(3))
    for t, i in enumerate(samples, start=1):
        a, beta3 = alpha, betas[2]
        if t < warmup:  # linear in α, and in the half-life of β₃
            life = [math.log(0.5) / math.log(beta) for beta in (betas[0], betas[2])]
            a, beta3 = alpha * t / warmup, 0.5 ** (1 / (life[0] + t / warmup * (life[1] - life[0])))
        g = grad(x, i)
        m = betas[0] * m + (1 - betas[0]) * g
        n = beta3 * n + (1 - beta3) * g
        v = betas[1] * v + (1 - betas[1]) * g**2
        v_hat = v / (1 - betas[1] ** t)
        step = (m / (1 - betas[0] ** t) + a * n) / (v_hat.sqrt() + eps)
        x = x * (1 - lr * weight_decay) - lr * step
    return x


def plain_schedule_free_adamw(
    grad, x, samples, lr=2.5e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, warmup_steps=0, r=0.0, power=2.0
):
    z = y = x
    v, total, largest = torch.zeros_like(x), 0.0, 0.0
    for t, i in enumerate(samples, start=1):
        gamma = lr * (min(1, t / warmup_steps) if warmup_steps else 1)
        largest = max(largest, gamma)
        g = grad(y, i)
        v = betas[1] * v + (1 - betas[1]) * g**2
        z = z - gamma * (g / ((v / (1 - betas[1] ** t)).sqrt() + eps) + weight_decay * y)
        weight = t**r * largest**power
        total += weight
        x = x + weight / total * (z - x)
        y = (1 - betas[0]) * z + betas[0] * x
    return x


def plain_cautious_adamw(grad, x, samples, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, kappa=math.inf):
    m, v = torch.zeros_like(x), torch.zeros_like(x)
    for t, i in enumerate(samples, start=1):
        g = grad(x, i)
        m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g**2
        step = m / (1 - betas[0] ** t) / ((v / (1 - betas[1] ** t)).sqrt() + eps)
        mask = (m * g > 0).double()
        mask = mask + (1 - mask) / kappa
        mask = torch.cat([part / part.mean().clamp(min=1e-3) for part in mask.split(SIZES) if len(part)])
        x = x * (1 - lr * weight_decay) - lr * mask * step
    return x


def plain_adopt(grad, x, samples, lr=1e-3, betas=(0.9, 0.9999), eps=1e-6, weight_decay=0.0, clip_power=0.25):
    m, v = torch.zeros_like(x), None
    for n, i in enumerate(samples):
        g = grad(x, i)
        x = x * (1 - lr * weight_decay)
        if v is None:
            v = g**2
            continue
        bound = n**clip_power
        m = betas[0] * m + (1 - betas[0]) * (g / v.sqrt().clamp(min=eps)).clamp(-bound, bound)
        x = x - lr * m
        v = betas[1] * v + (1 - betas[1]) * g**2
    return x


def plain_stable_adamw(grad, x, samples, lr=1e-3, betas=(0.9, 0.99), eps=1e-8, weight_decay=1e-2):
    m, v = torch.zeros_like(x), torch.zeros_like(x)
    plain_stable_adamw.clipped = 0
    for t, i in enumerate(samples, start=1):
        g = grad(x, i)
        m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g**2
        H = (v / (1 - betas[1] ** t)).sqrt() + eps
        rms = [(part**2).mean().sqrt().clamp(min=1.0).expand_as(part) for part in (g / H).split(SIZES)]
        gamma = lr / torch.cat(rms)
        plain_stable_adamw.clipped += int((gamma < lr).sum())
        x = x * (1 - gamma * weight_decay) - gamma * m / (1 - betas[0] ** t) / H
    return x


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
    "adopt": (plain_adopt, {"lr": 0.01}),
    "adopt-other": (
        plain_adopt,
        {"lr": 0.01, "betas": (0.8, 0.9), "eps": 0.1, "weight_decay": 0.3, "clip_power": 0.1},
    ),
    "stable_adamw": (plain_stable_adamw, {"lr": 0.01}),
    "stable_adamw-other": (plain_stable_adamw, {"lr": 0.01, "betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.3}),
    "lion": (plain_lion, {}),
    "lion-other": (plain_lion, {"lr": 0.01, "betas": (0.8, 0.8), "weight_decay": 0.3}),
    "ademamix": (plain_ademamix, {"lr": 0.01}),
    "ademamix-warmup": (plain_ademamix, {"lr": 0.01, "warmup": 30, "alpha": 5.0, "betas": (0.8, 0.9, 0.99)}),
    "ademamix-decay": (plain_ademamix, {"lr": 0.01, "weight_decay": 0.3, "betas": (0.9, 0.99, 0.95)}),
    "schedule_free_adamw": (plain_schedule_free_adamw, {"lr": 0.02}),
    "schedule_free_adamw-decay": (plain_schedule_free_adamw, {"lr": 0.02, "weight_decay": 0.3, "warmup_steps": 11}),
    "schedule_free_adamw-r": (plain_schedule_free_adamw, {"lr": 0.02, "r": 1.0, "betas": (0.5, 0.9)}),
    "cautious_adamw": (plain_cautious_adamw, {"lr": 0.01}),
    "cautious_adamw-other": (plain_cautious_adamw, {"lr": 0.01, "kappa": 3.0, "betas": (0.8, 0.9)}),
}

RENAMED = {"p": "partial", "v_0": "initial_accumulator", "bound": "clip_corrected"}


def builder_options(name, options):
    options = {RENAMED.get(key, key): value for key, value in options.items() if key != "approx"}
    return {**options, "bias_correction": False} if name == "amsgrad" else options


@pytest.mark.parametrize(("name", "foreach"), pairs(OF_PAPERS, [False, True]))
def test_equals_the_published_formula(name, foreach):
    """Every point, or the result alone where the parameters hold another point during training."""
    plain, options = OF_PAPERS[name]
    method = name.partition("-")[0]
    problem = Stochastic()
    expected = plain(problem.grad, problem.x_1, SAMPLES, **options)
    params = problem.params()
    opt = create(method, params, foreach=foreach, **builder_options(method, options))
    points, last = train(problem, opt, params, SAMPLES)
    assert opt.two_point == (method in ("storm", "mars", "sdlbfgs"))
    if isinstance(expected, list):
        # With two gradients per batch call n leaves x_n, and flush() brings the last point.
        for point, x in zip(points, expected if opt.two_point else expected[1:], strict=False):
            equal(point, x, 1e-10)
        equal(last, expected[-1], 1e-10)
    else:
        equal(last, expected)
    assert (last - problem.x_1).abs().max() > 0.02


def test_the_plain_methods_meet_their_special_cases():
    """The comparison above covers caps, clips and damping: they do occur there."""
    problem = Stochastic()
    for name, attribute in (("storm", "capped"), ("mars", "clipped"), ("sdlbfgs", "damped"), ("mars-other", "clipped")):
        plain, options = OF_PAPERS[name]
        plain(problem.grad, problem.x_1, SAMPLES, **options)
        assert getattr(plain, attribute) > 3
    plain_stable_adamw(problem.grad, problem.x_1, SAMPLES, lr=0.01)
    assert plain_stable_adamw.clipped > 100  # of 60 steps of 27 coordinates
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


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
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


@pytest.mark.parametrize("foreach", [False, True], ids=["per-tensor", "foreach"])
def test_storms_weight_for_a_parameter_that_joins_late(foreach):
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


@pytest.mark.parametrize("how", [{}, {"foreach": False}], ids=str)
@pytest.mark.parametrize("rows", [1, 2])
def test_adam_mini_is_adam_with_the_mean_of_a_block(rows, how):
    torch.manual_seed(0)
    params = [
        torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in [(4, 3), (4, 3), (2, 3, 2), (5,)]
    ]
    x = [p.detach().clone() for p in params]
    opt = create("adam_mini", params, lr=0.03, betas=(0.8, 0.9), weight_decay=0.2, rows=rows, **how)
    m, v = [0.0] * 4, [0.0] * 4
    for t in range(1, 11):
        for i, p in enumerate(params):
            p.grad = torch.randn_like(p)
            blocks = p.grad.reshape(1 if p.dim() == 1 else len(p) // rows, -1)
            m[i] = 0.8 * m[i] + 0.2 * p.grad
            v[i] = 0.9 * v[i] + 0.1 * blocks.square().mean(1, keepdim=True)
            H = ((v[i] / (1 - 0.9**t)).sqrt() + 1e-8).expand_as(blocks).reshape(p.shape)
            x[i] = x[i] * (1 - 0.03 * 0.2) - 0.03 * m[i] / (1 - 0.8**t) / H
        opt.step()
        equal([p.detach() for p in params], x)


def test_sophia_equals_its_formula():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3, dtype=torch.float64)
    opt = create("sophia_g", model, lr=0.05, rho=4.0, batch=16, weight_decay=0.1)
    x = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    m, h = torch.zeros_like(x), torch.zeros_like(x)
    data, labels = torch.randn(16, 4, dtype=torch.float64), torch.randint(3, (16,))

    def gradient():
        return torch.cat([p.grad.reshape(-1) for p in model.parameters()])

    for t in range(12):
        if t % 4 == 1:
            matrices.sampled_label_loss(model(data)).backward()
            h = 0.99 * h + 0.01 * gradient() ** 2
            opt.observe()
            opt.zero_grad()
        torch.nn.functional.cross_entropy(model(data), labels).backward()
        m = 0.965 * m + 0.035 * gradient()
        ratio = (m.abs() / (4.0 * 16 * h + 1e-15)).clamp(max=1.0)
        x = x * (1 - 0.05 * 0.1) - 0.05 * m.sign() * ratio
        opt.step()
        opt.zero_grad()
        equal(torch.cat([p.detach().reshape(-1) for p in model.parameters()]), x, 1e-9)  # they add 1e-15 to ρ B h
    assert (ratio < 1).any()


def test_sampled_labels_are_those_of_the_model():
    """Their loss is an estimate of the entropy of the predictions."""
    torch.manual_seed(0)
    logits = torch.randn(1, 1, 5).expand(50, 200, 5)
    entropy = torch.distributions.Categorical(logits=logits[0, 0]).entropy()
    assert abs(float(matrices.sampled_label_loss(logits)) - float(entropy)) < 0.05

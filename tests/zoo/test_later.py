"""The methods from after the paper: equal to their published formulas; Lion, AdEMAMix and others on sets."""

import math

import pytest
import torch

from problems import SHAPES, Stochastic, equal, train
from superadam import SuperAdam, create, estimators, iterates, matrices, schedules, sets

STEPS = 40

SAMPLES = list(range(STEPS))

SIZES = [torch.Size(shape).numel() for shape in SHAPES]


def plain_lion(grad, x, lr=5e-4, betas=(0.9, 0.99), weight_decay=0.0):
    m = torch.zeros_like(x)
    for i in SAMPLES:
        g = grad(x, i)
        x = x * (1 - lr * weight_decay) - lr * torch.sign(betas[0] * m + (1 - betas[0]) * g)
        m = betas[1] * m + (1 - betas[1]) * g
    return x


def plain_ademamix(
    grad, x, lr=1e-3, betas=(0.9, 0.999, 0.9999), eps=1e-8, alpha=2.0, warmup=0, weight_decay=0.0, clip=None
):
    m, n, v = (torch.zeros_like(x) for _ in range(3))
    for t, i in enumerate(SAMPLES, start=1):
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
    grad, x, lr=2.5e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, warmup_steps=0, r=0.0, weight_lr_power=2.0
):
    z = y = x
    v, total, largest = torch.zeros_like(x), 0.0, 0.0
    for t, i in enumerate(SAMPLES, start=1):
        gamma = lr * (min(1, t / warmup_steps) if warmup_steps else 1)
        largest = max(largest, gamma)
        g = grad(y, i)
        v = betas[1] * v + (1 - betas[1]) * g**2
        z = z - gamma * (g / ((v / (1 - betas[1] ** t)).sqrt() + eps) + weight_decay * y)
        weight = t**r * largest**weight_lr_power
        total += weight
        x = x + weight / total * (z - x)
        y = (1 - betas[0]) * z + betas[0] * x
    return x


def plain_cautious_adamw(grad, x, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, kappa=math.inf):
    m, v = torch.zeros_like(x), torch.zeros_like(x)
    for t, i in enumerate(SAMPLES, start=1):
        g = grad(x, i)
        m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g**2
        step = m / (1 - betas[0] ** t) / ((v / (1 - betas[1] ** t)).sqrt() + eps)
        mask = (m * g > 0).double()
        mask = mask + (1 - mask) / kappa
        mask = torch.cat([part / part.mean().clamp(min=1e-3) for part in mask.split(SIZES) if len(part)])
        x = x * (1 - lr * weight_decay) - lr * mask * step
    return x


def plain_adopt(grad, x, lr=1e-3, betas=(0.9, 0.9999), eps=1e-6, weight_decay=0.0, clip_power=0.25):
    m, v = torch.zeros_like(x), None
    for n, i in enumerate(SAMPLES):
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


def plain_stable_adamw(grad, x, lr=1e-3, betas=(0.9, 0.99), eps=1e-8, weight_decay=1e-2):
    m, v = torch.zeros_like(x), torch.zeros_like(x)
    plain_stable_adamw.clipped = 0
    for t, i in enumerate(SAMPLES, start=1):
        g = grad(x, i)
        m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g**2
        H = (v / (1 - betas[1] ** t)).sqrt() + eps
        rms = [(part**2).mean().sqrt().clamp(min=1.0).expand_as(part) for part in (g / H).split(SIZES)]
        gamma = lr / torch.cat(rms)
        plain_stable_adamw.clipped += int((gamma < lr).sum())
        x = x * (1 - gamma * weight_decay) - gamma * m / (1 - betas[0] ** t) / H
    return x


PLAIN = {
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


@pytest.mark.parametrize("how", [{}, {"foreach": False}, {"capturable": True}], ids=str)
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


@pytest.mark.parametrize("how", [{}, {"foreach": True}, {"capturable": True, "foreach": False}], ids=str)
@pytest.mark.parametrize("name", PLAIN)
def test_equals_the_published_formula(name, how):
    plain, options = PLAIN[name]
    problem = Stochastic()
    expected = plain(problem.grad, problem.x_1, **options)
    params = problem.params()
    _, last = train(problem, create(name.partition("-")[0], params, **options, **how), params, SAMPLES)
    equal(last, expected)
    assert (last - problem.x_1).abs().max() > 0.01
    assert plain is not plain_stable_adamw or plain_stable_adamw.clipped > 100  # of 40 steps of 27 coordinates


def test_the_nesterov_weights_on_the_device_are_those_on_the_host():
    estimator = estimators.NesterovAdam(0.9, 0.01)
    steps = [1, 2, 30, 436, 437, 438, 10_000]
    tensors = estimator.weights(torch.tensor(steps, dtype=torch.float64))
    for i in range(2):
        equal(tensors[i], torch.tensor([estimator.weights(t)[i] for t in steps], dtype=torch.float64))


def test_lion_is_variance_reduced_when_asked():
    """τ = 1 gives g_t of line 11, and Sign its sign: nothing in either knows of the other."""
    problem = Stochastic()
    params = problem.params()
    opt = SuperAdam(params, lr=0.01, tau=1.0, matrix=matrices.Sign(), schedule=schedules.Constant(alpha=0.1))
    x, g, last = problem.x_1, None, None
    for i in range(10):
        opt.step(problem.closure(opt, params, i))
        grad = problem.grad(x, i)
        g = grad if g is None else grad + 0.9 * (g - problem.grad(last, i))
        last, x = x, x - 0.01 * g.sign()
    opt.flush()
    equal(problem.join(params).detach(), x)


@pytest.mark.parametrize("constraint", [sets.Simplex(), sets.L2Ball(0.5), sets.L1Ball(0.5)], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {"matrix": matrices.Sign(lam=1e-6), "estimator": estimators.Nesterov(0.05)},
        {"matrix": matrices.Sophia(lam=1e-6)},
        {"matrix": matrices.InfinityNorm()},
        {"matrix": matrices.Rectified()},
        {"matrix": matrices.Cautious(kappa=math.inf, rescale=True)},
        {"matrix": matrices.PastSecondMoment()},
        {"estimator": estimators.TwoAverages()},
        {"matrix": matrices.SecondMoment(), "iterate": iterates.ScheduleFree()},
    ],
    ids=str,
)
def test_line_9_is_exact_in_the_metric(options, constraint):
    """The step is the set's own argmin, from the point that H_t and g_t lead to."""
    x = torch.full((5,), 0.2, dtype=torch.float64, requires_grad=True)
    opt = SuperAdam([x], lr=0.03, constraint=constraint, schedule=schedules.Constant(alpha=0.5), **options)
    for t in range(1, 6):
        start = x.detach().clone()
        x.grad = torch.tensor([1.0, -0.3, 0.5, 0.02, -2.0], dtype=torch.float64) * (1 + t % 3) - start
        opt.step()
        if "iterate" not in options:
            view = next(opt._grouped(lambda p, s: True)).bound()
            H, g = view.matrix.H(view), view.estimate
            equal(x.detach(), constraint.argmin(start - 0.03 * g / H, H / 0.03), 1e-10)
        assert opt.feasibility() < 1e-9


def test_a_cautious_step_on_a_set_leaves_coordinates_where_they_are():
    """Where g_t and the newest gradient disagree: the others share what the ball allows."""
    x = torch.full((4,), 0.5, dtype=torch.float64, requires_grad=True)
    opt = create("cautious_adamw", [x], lr=0.2, weight_decay=0.0, constraint=sets.L2Ball(1.0))
    for grad in ([-1.0, -1.0, 1.0, 1.0], [-1.0, 0.1, 1.0, -0.1]):
        start = x.detach().clone()
        x.grad = torch.tensor(grad, dtype=torch.float64)
        opt.step()
        assert opt.feasibility() < 1e-9
    moved = (x.detach() - start).abs()
    assert moved[[1, 3]].max() < 1e-12 < 0.01 < moved[[0, 2]].min()


def test_lion_by_its_name_takes_tau_too():
    problem = Stochastic()
    ends = []
    for build in (
        lambda p: create("lion", p, lr=0.01, tau=1.0, weight_decay=0.1),
        lambda p: SuperAdam(p, 0.01, tau=1.0, matrix="Sign", schedule="BiasCorrected", weight_decay=0.1),
    ):
        params = problem.params()
        ends.append(train(problem, build(params), params, SAMPLES[:10])[1])
    assert torch.equal(*ends)


@pytest.mark.parametrize("name", ["ademamix", "adan", "adopt", "nadam"])
def test_an_estimator_of_its_own_has_no_tau_and_says_what_to_write(name):
    with pytest.raises(ValueError, match=r"write SuperAdam\(params, lr, tau=1.0, matrix="):
        create(name, torch.nn.Linear(2, 2), tau=1.0)


@pytest.mark.parametrize("name", ["ademamix", "adan"])
def test_a_method_of_three_averages_says_so(name):
    with pytest.raises(ValueError, match=r"Invalid betas: \(0.9, 0.999\) \(expected three numbers\)"):
        create(name, torch.nn.Linear(2, 2), betas=(0.9, 0.999))
    with pytest.raises(ValueError, match=r"Invalid beta parameter at index 1: 1\.5"):
        create(name, torch.nn.Linear(2, 2), betas=(0.9, 1.5, 0.99))
    with pytest.raises(ValueError, match=r"\(expected two numbers\)"):
        create("adamw", torch.nn.Linear(2, 2), betas=(0.9, 0.99, 0.999))


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


def test_gradients_that_nobody_asks_for_are_refused():
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="found no gradient"):
        create("sophia_g", [x]).observe()
    x.grad = torch.ones(2)
    with pytest.raises(RuntimeError, match="SecondMoment does not: leave the call out"):
        SuperAdam([x]).observe()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (matrices.Sign, {"lam": 0.0}),
        (matrices.Sophia, {"rho": 0.0}),
        (matrices.Sophia, {"batch": 0}),
        (matrices.InfinityNorm, {"beta": 1.0}),
        (matrices.Rectified, {"lam": -1.0}),
        (matrices.Adafactor, {"decay": 0.0}),
        (matrices.Adafactor, {"eps1": 0.0}),
        (matrices.Adafactor, {"eps2": 0.0}),
        (matrices.Adafactor, {"d": 0.0}),
        (matrices.AdamMini, {"rows": 0}),
        (matrices.Cautious, {"kappa": 0.5}),
        (matrices.Centered, {"beta": 1.0}),
        (matrices.PastSecondMoment, {"power": -1.0}),
        (matrices.Resilient, {"grow": 1.0}),
        (matrices.Resilient, {"shrink": 1.0}),
        (matrices.Resilient, {"least": 0.0}),
        (estimators.HeavyBall, {"momentum": 1.0}),
        (estimators.HeavyBall, {"dampening": 1.0}),
        (estimators.TwoAverages, {"beta": 1.0}),
        (estimators.TwoAverages, {"a": -1.0}),
        (estimators.TwoAverages, {"warmup": -1}),
        (estimators.NesterovAdam, {"beta": 1.0}),
        (estimators.NesterovAdam, {"decay": -1.0}),
    ],
)
def test_options_out_of_range_are_refused(kind, options):
    with pytest.raises(ValueError, match=f"Invalid {next(iter(options))} parameter"):
        kind(**options)

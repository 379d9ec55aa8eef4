"""Methods from after the paper against published packages. They are no dependencies: without them, skipped.

Tried with schedulefree 1.4.1, prodigyopt 1.1.2, pytorch_optimizer 4.1.0 and HeavyBall 3.2.1. Known deviations:

| method              | the package                           | the zoo                  | here                   |
|---------------------|---------------------------------------|--------------------------|------------------------|
| schedule_free_adamw | counts for each group                 | for each parameter       | all have gradients     |
| prodigy             | ε d_t                                 | ε d_1                    | ε = 1e-14              |
| lion, ademamix      | none                                  |                          | equal as they are      |
| adan                | x/(1 + γw) with decoupled decay       | x (1 - γw)               | without decay          |
| lars                | ‖x‖/(‖g‖ + w‖x‖), w for matrices only | ‖x‖/‖g + w x‖, w for all | without decay          |
| lamb                | averages that are not corrected, but  | corrected, as published  | parts without          |
|                     | steps are: γ/(1 - β₁^t)               |                          | corrections; γ         |
|                     | ‖x‖/(‖u‖ + ε), ‖x‖ at most 10         | ‖x‖/‖u‖                  | ε = 1e-14, ‖x‖ < 10    |
| adam_mini           | one mean for a whole matrix, but for  | a mean for each `rows`   | groups with `rows`     |
|                     | queries and keys; none for embeddings | rows                     |                        |
|                     | state in float32                      | in x's dtype             | tolerance 1e-5         |
| cautious_adamw      | HeavyBall: state in float32           | in x's dtype             | tolerance 1e-5         |
|                     | pytorch_optimizer: no AdamW with it   |                          | not compared           |
| adopt               | the bound is that of t, not t - 1     | as published             | told to use t - 1      |
| stable_adamw        | RMS of g/max(√v, ε)                   | of g/(√v + ε)            | ε = 1e-14              |
"""

import copy

import pytest
import torch

from problems import Stochastic
from superadam import create, matrices, schedules

pytestmark = pytest.mark.slow

SHAPES = [(3,), (2, 5), (4,), (2, 3)]
UNCORRECTED = {
    "matrix": matrices.SecondMoment(0.999, 1e-14),
    "schedule": schedules.Constant(alpha=0.1, first=0.1),
}


def run(problem, build, steps=50, scheduler=None):
    """x after some steps, as the result is evaluated."""
    params = problem.params()
    opt = build(params)
    rates = scheduler and scheduler(opt)
    if hasattr(opt, "train"):
        opt.train()
    for i in range(steps):
        problem.closure(opt, params, i)()
        opt.step()
        if rates:
            rates.step()
    if hasattr(opt, "eval"):
        opt.eval()
    return problem.join(params).detach().clone()


def check(actual, expected, problem, least=0.02, tol=1e-10):
    torch.testing.assert_close(actual, expected, rtol=tol, atol=tol)
    assert (expected - problem.x_1).abs().max() > least


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"warmup_steps": 20, "weight_decay": 0.1}, {"r": 1.0, "betas": (0.8, 0.99)}], ids=str
)
def test_schedule_free_adamw(options, foreach):
    package, problem = pytest.importorskip("schedulefree"), Stochastic(SHAPES)
    expected = run(problem, lambda p: package.AdamWScheduleFree(p, lr=0.02, foreach=foreach, **options))
    check(run(problem, lambda p: create("schedule_free_adamw", p, lr=0.02, **options)), expected, problem)


@pytest.mark.parametrize("options", [{}, {"warmup_steps": 20, "weight_decay": 0.1, "r": 0.5}], ids=str)
def test_schedule_free_adamw_with_a_scheduler_on_top(options):
    """A learning rate that rises, and then falls: the weights of points follow the largest so far."""
    package, problem = pytest.importorskip("schedulefree"), Stochastic(SHAPES)

    def scheduler(opt):
        return torch.optim.lr_scheduler.LambdaLR(opt, lambda t: min((t + 1) / 30, (60 - t) / 30))

    theirs = run(problem, lambda p: package.AdamWScheduleFree(p, lr=0.02, **options), scheduler=scheduler)
    ours = run(problem, lambda p: create("schedule_free_adamw", p, lr=0.02, **options), scheduler=scheduler)
    check(ours, theirs, problem)


@pytest.mark.parametrize(
    "options", [{}, {"d0": 1e-3, "weight_decay": 0.1}, {"d_coef": 0.5, "betas": (0.8, 0.99)}, {"beta3": 0.9}], ids=str
)
def test_prodigy(options):
    package, problem = pytest.importorskip("prodigyopt"), Stochastic(SHAPES)
    # With the d that it finds here rounding errors grow tenfold every three steps.
    expected = run(problem, lambda p: package.Prodigy(p, eps=1e-14, **options), 16)
    check(run(problem, lambda p: create("prodigy", p, eps=1e-14, **options), 16), expected, problem, 1e-3, 1e-8)


@pytest.mark.parametrize(
    ("name", "theirs", "options", "their_options"),
    [
        ("lion", "Lion", {"lr": 0.01, "weight_decay": 0.1}, {"weight_decouple": True}),
        ("lion", "Lion", {"lr": 0.01, "betas": (0.8, 0.9)}, {}),
        ("ademamix", "AdEMAMix", {"lr": 0.01, "alpha": 5.0}, {}),
        ("ademamix", "AdEMAMix", {"lr": 0.01, "alpha": 5.0, "warmup": 30}, {"t_alpha_beta3": 30}),
        ("adan", "Adan", {"lr": 0.01}, {}),
        ("lars", "LARS", {"lr": 0.1, "trust_coefficient": 0.1}, {}),
        (
            "lamb",
            "Lamb",
            {"lr": 0.03, "weight_decay": 0.1, "eps": 1e-14, **UNCORRECTED},
            {"weight_decouple": False, "adam_debias": True},
        ),
        (
            "adopt",
            "ADOPT",
            {"lr": 0.01, "weight_decay": 0.1},
            {"weight_decouple": True, "clip_lambda": lambda step: (step - 1) ** 0.25},
        ),
        ("stable_adamw", "StableAdamW", {"lr": 0.01, "weight_decay": 0.1, "eps": 1e-14}, {}),
    ],
    ids=str,
)
def test_of_pytorch_optimizer(name, theirs, options, their_options):
    package, problem = pytest.importorskip("pytorch_optimizer"), Stochastic(SHAPES)
    shared = {key: value for key, value in options.items() if key not in ("warmup", "matrix", "schedule")}
    expected = run(problem, lambda p: getattr(package, theirs)(p, **shared, **their_options))
    check(run(problem, lambda p: create(name, p, **options)), expected, problem)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_cautious_adamw(weight_decay, monkeypatch):
    heavyball, problem = pytest.importorskip("heavyball"), Stochastic([(30,), (20, 5)])
    monkeypatch.setattr(heavyball.utils, "compile_mode", None)
    options = {"lr": 0.01, "betas": (0.9, 0.99), "weight_decay": weight_decay}
    expected = run(problem, lambda p: heavyball.AdamW(p, caution=True, **options))
    check(run(problem, lambda p: create("cautious_adamw", p, **options)), expected, problem, tol=1e-5)
    plain = run(problem, lambda p: create("adamw", p, **options))
    assert (plain - expected).abs().max() > 0.01  # some steps were left out


def test_adam_mini():
    """A block of queries or keys is a head; the rest of a network has one second moment for each tensor."""
    package = pytest.importorskip("pytorch_optimizer")
    torch.manual_seed(0)
    theirs = torch.nn.ModuleDict({n: torch.nn.Linear(8, 8) for n in ("q_proj", "k_proj", "mlp")})
    ours = copy.deepcopy(theirs)
    options = {"lr": 0.01, "betas": (0.9, 0.99), "weight_decay": 0.1}
    other = package.AdamMini(theirs, num_embeds=8, num_heads=2, **options)
    heads = {"params": [ours["q_proj"].weight, ours["k_proj"].weight], "rows": 4}
    rest = {"params": [ours["mlp"].weight, *(layer.bias for layer in ours.values())], "rows": 8}
    opt = create("adam_mini", [heads, rest], **options)
    start = [p.detach().clone() for p in ours.parameters()]
    for _ in range(50):
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        opt.step()
        other.step()
    for p, q, x in zip(ours.parameters(), theirs.parameters(), start, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-5)
        assert (p.detach() - x).abs().max() > 0.02

"""Methods of the zoo against published packages. They are no dependencies: without them, skipped.

Tried with pytorch_optimizer 4.1.0, schedulefree 1.4.1, prodigyopt 1.1.2 and HeavyBall 3.2.1.

Known deviations of pytorch_optimizer from the papers, and how each is met here:

| method    | the package                            | the paper, and the zoo      | here                              |
|-----------|----------------------------------------|-----------------------------|-----------------------------------|
| all       | weight decay is decoupled by default   | AdaBelief only              | said explicitly                   |
| Yogi      | m_0 = v_0 = initial_accumulator        | m_0 = 0                     | their m_0 is set to 0             |
| Yogi      | Adam's corrections                     | none                        | bias_correction=True              |
| AdaBelief | none                                   |                             | equal as it is                    |
| AdaBound  | clip(γ √(1-β₂ᵗ)/(1-β₁ᵗ) / (√v + ε)) m  | clip(γ / (√v + ε)) m        | equal if β₁ = 0 and ε = 0, or     |
|           |                                        |                             | where the bounds bind             |
| AdaBound  | v + 1e-15 under the root               | v                           | tolerance 1e-8                    |
| Padam     | v itself, no maximum                   | max v (AMSGrad)             | equal while v grows               |
| Padam     | γ √(1-β₂ᵗ)/(1-β₁ᵗ), outside of the     | none; with bias_correction  | γ_t given by hand; equal as it is |
|           | power 2p                               | (v/(1-β₂ᵗ))^p, inside       | if p = 1/2 and ε = 0              |
| Padam     | (√v + ε)^2p                            | v^p + ε                     | eps_inside=True                   |

And of the packages of later methods:

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
import math

import pytest
import torch

from problems import Stochastic
from superadam import create, matrices, schedules

pytestmark = pytest.mark.slow

STEPS = 50
BETAS = (0.9, 0.99)


@pytest.fixture(scope="module")
def package():
    return pytest.importorskip("pytorch_optimizer")


class Growing(Stochastic):
    """Gradients that keep away from zero and grow, so that v_t does."""

    def loss(self, x, i):
        return ((1 + 0.1 * i) * x + 0.1 * torch.sin(x * self.w[i])).sum()


def trajectory(problem, build, before=None):
    """x after each of 50 steps. `before(opt, t)` may change an option first."""
    params = problem.params()
    opt = build(params)
    points = []
    for t in range(1, STEPS + 1):
        problem.closure(opt, params, t - 1)()
        if before is not None:
            before(opt, t)
        opt.step()
        points.append(problem.join(params).detach().clone())
    return torch.stack(points)


def check(actual, expected, problem, tol=1e-10):
    torch.testing.assert_close(actual, expected, rtol=tol, atol=tol)
    assert (expected[-1] - problem.x_1).abs().max() > 0.02


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("decoupled", [False, True], ids=["in-gradient", "decoupled"])
@pytest.mark.parametrize("v_0", [0.0, 1e-6, 0.3])
def test_yogi(package, v_0, decoupled, decay):
    problem = Stochastic()

    def average_from_zero(opt, t):
        if t == 1:
            opt.init_group(opt.param_groups[0])
            for state in opt.state.values():
                state["exp_avg"].zero_()

    options = {"lr": 0.01, "betas": BETAS, "eps": 1e-3, "initial_accumulator": v_0, "weight_decay": decay}
    expected = trajectory(problem, lambda p: package.Yogi(p, weight_decouple=decoupled, **options), average_from_zero)
    actual = trajectory(
        problem, lambda p: create("yogi", p, bias_correction=True, decoupled_weight_decay=decoupled, **options)
    )
    check(actual, expected, problem)


def test_yogi_differs_by_the_start_of_its_average_only(package):
    """With the package's own m_0 = 1e-6 the difference is there, and of that order."""
    problem = Stochastic()
    options = {"lr": 0.01, "betas": BETAS, "eps": 1e-3}
    expected = trajectory(problem, lambda p: package.Yogi(p, **options))
    actual = trajectory(problem, lambda p: create("yogi", p, bias_correction=True, **options))
    assert 1e-10 < (actual - expected).abs().max() < 1e-4


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("decoupled", [False, True], ids=["in-gradient", "decoupled"])
@pytest.mark.parametrize("eps", [1e-16, 1e-4])
def test_adabelief(package, eps, decoupled, decay):
    problem = Stochastic()
    options = {"lr": 0.01, "betas": BETAS, "eps": eps, "weight_decay": decay}
    expected = trajectory(problem, lambda p: package.AdaBelief(p, weight_decouple=decoupled, **options))
    actual = trajectory(problem, lambda p: create("adabelief", p, decoupled_weight_decay=decoupled, **options))
    check(actual, expected, problem)


def test_adabelief_with_the_defaults(package):
    problem = Stochastic()
    check(trajectory(problem, lambda p: create("adabelief", p)), trajectory(problem, package.AdaBelief), problem)


@pytest.mark.parametrize("gamma", [1e-3, 0.1, 0.9])
def test_adabound_without_momentum(package, gamma):
    """β₁ = 0 leaves nothing to correct in m, and ε = 0 nothing that a correction of v could scale. They still add 1e-15
    under the root."""
    problem = Stochastic()
    options = {"lr": 0.01, "betas": (0.0, 0.99), "eps": 0.0, "final_lr": 0.03, "gamma": gamma}
    expected = trajectory(problem, lambda p: package.AdaBound(p, **options))
    actual = trajectory(problem, lambda p: create("adabound", p, bias_correction=True, **options))
    check(actual, expected, problem, tol=1e-8)


@pytest.mark.parametrize("bound", ["low", "high"])
def test_adabound_where_the_bounds_bind(package, bound):
    """What is clipped does not depend on the corrections: m_t times the bound, with the package's uncorrected m_t."""
    problem = Stochastic()
    lr = 1e-9 if bound == "low" else 1e6
    options = {"lr": lr, "betas": BETAS, "final_lr": 0.02, "gamma": 0.5}
    expected = trajectory(problem, lambda p: package.AdaBound(p, **options))
    actual = trajectory(problem, lambda p: create("adabound", p, **options))
    check(actual, expected, problem)


@pytest.mark.parametrize("p", [0.5, 0.25, 0.125])
def test_padam(package, p):
    """With γ_t = γ √(1-β₂ᵗ)/(1-β₁ᵗ) given by hand, the zoo's uncorrected Padam is theirs, while v grows."""
    problem = Growing()
    options = {"lr": 0.02, "betas": BETAS, "eps": 1e-4, "partial": p}

    def their_rate(opt, t):
        opt.param_groups[0]["lr"] = 0.02 * math.sqrt(1 - BETAS[1] ** t) / (1 - BETAS[0] ** t)

    expected = trajectory(problem, lambda params: package.PAdam(params, **options))
    actual = trajectory(problem, lambda params: create("padam", params, eps_inside=True, **options), their_rate)
    check(actual, expected, problem)


def test_padam_with_corrections(package):
    """At p = 1/2 inside and outside of the power are one."""
    problem = Growing()
    options = {"lr": 0.02, "betas": BETAS, "eps": 0.0, "partial": 0.5}
    expected = trajectory(problem, lambda params: package.PAdam(params, **options))
    actual = trajectory(problem, lambda params: create("padam", params, bias_correction=True, **options))
    check(actual, expected, problem)


def test_padam_differs_where_v_shrinks(package):
    """There the maximum of the paper's algorithm is not the package's v."""
    problem = Stochastic()
    options = {"lr": 0.02, "betas": (0.9, 0.5), "eps": 0.0, "partial": 0.5}
    expected = trajectory(problem, lambda params: package.PAdam(params, **options))
    actual = trajectory(problem, lambda params: create("padam", params, bias_correction=True, **options))
    assert (actual - expected).abs().max() > 1e-3


SHAPES = [(3,), (2, 5), (4,), (2, 3)]
UNCORRECTED = {
    "matrix": matrices.SecondMoment(0.999, 1e-14),
    "schedule": schedules.Constant(alpha=0.1, first=0.1),
}


def result(problem, build, steps=50, scheduler=None):
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


def check_last(actual, expected, problem, least=0.02, tol=1e-10):
    torch.testing.assert_close(actual, expected, rtol=tol, atol=tol)
    assert (expected - problem.x_1).abs().max() > least


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"warmup_steps": 20, "weight_decay": 0.1}, {"r": 1.0, "betas": (0.8, 0.99)}], ids=str
)
def test_schedule_free_adamw(options, foreach):
    package, problem = pytest.importorskip("schedulefree"), Stochastic(SHAPES)
    expected = result(problem, lambda p: package.AdamWScheduleFree(p, lr=0.02, foreach=foreach, **options))
    check_last(result(problem, lambda p: create("schedule_free_adamw", p, lr=0.02, **options)), expected, problem)


@pytest.mark.parametrize("options", [{}, {"warmup_steps": 20, "weight_decay": 0.1, "r": 0.5}], ids=str)
def test_schedule_free_adamw_with_a_scheduler_on_top(options):
    """A learning rate that rises, and then falls: the weights of points follow the largest so far."""
    package, problem = pytest.importorskip("schedulefree"), Stochastic(SHAPES)

    def scheduler(opt):
        return torch.optim.lr_scheduler.LambdaLR(opt, lambda t: min((t + 1) / 30, (60 - t) / 30))

    theirs = result(problem, lambda p: package.AdamWScheduleFree(p, lr=0.02, **options), scheduler=scheduler)
    ours = result(problem, lambda p: create("schedule_free_adamw", p, lr=0.02, **options), scheduler=scheduler)
    check_last(ours, theirs, problem)


@pytest.mark.parametrize(
    "options", [{}, {"d0": 1e-3, "weight_decay": 0.1}, {"d_coef": 0.5, "betas": (0.8, 0.99)}, {"beta3": 0.9}], ids=str
)
def test_prodigy(options):
    package, problem = pytest.importorskip("prodigyopt"), Stochastic(SHAPES)
    # With the d that it finds here rounding errors grow tenfold every three steps.
    expected = result(problem, lambda p: package.Prodigy(p, eps=1e-14, **options), 16)
    check_last(result(problem, lambda p: create("prodigy", p, eps=1e-14, **options), 16), expected, problem, 1e-3, 1e-8)


def of_the_step_before(step):
    """ADOPT's bound, as published."""
    return (step - 1) ** 0.25


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
        pytest.param(
            "adopt",
            "ADOPT",
            {"lr": 0.01, "weight_decay": 0.1},
            {"weight_decouple": True, "clip_lambda": of_the_step_before},
            id="adopt with the bound of the step before",
        ),
        ("stable_adamw", "StableAdamW", {"lr": 0.01, "weight_decay": 0.1, "eps": 1e-14}, {}),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_of_pytorch_optimizer(name, theirs, options, their_options):
    package, problem = pytest.importorskip("pytorch_optimizer"), Stochastic(SHAPES)
    shared = {key: value for key, value in options.items() if key not in ("warmup", "matrix", "schedule")}
    expected = result(problem, lambda p: getattr(package, theirs)(p, **shared, **their_options))
    check_last(result(problem, lambda p: create(name, p, **options)), expected, problem)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_cautious_adamw(weight_decay, monkeypatch):
    heavyball, problem = pytest.importorskip("heavyball"), Stochastic([(30,), (20, 5)])
    monkeypatch.setattr(heavyball.utils, "compile_mode", None)
    options = {"lr": 0.01, "betas": (0.9, 0.99), "weight_decay": weight_decay}
    expected = result(problem, lambda p: heavyball.AdamW(p, caution=True, **options))
    check_last(result(problem, lambda p: create("cautious_adamw", p, **options)), expected, problem, tol=1e-5)
    plain = result(problem, lambda p: create("adamw", p, **options))
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

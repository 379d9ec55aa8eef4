"""What the monitor reports is what it says, and watching changes nothing."""

import copy
import io
import itertools
import json
import math
import pickle
import socket
import sys
import warnings
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

import superadam
from problems import CASES, LR, Stochastic, train
from superadam import Monitor, SuperAdam, estimators, iterates, matrices, penalties, schedules, sets, twice
from superadam.monitor import MonitorWarning, TensorBoard, measures

QUIET = dict.fromkeys(("variance_ratio", "difference_ratio", "explosion", "condition"), math.inf)


def norm(tensors):
    return math.sqrt(sum(t.double().square().sum().item() for t in tensors))


def flat(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors])


class Run:
    """A network with dropout and BatchNorm, trained in one of the two loops."""

    def __init__(self, case, tau, half_steps, watch=None):
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, 1))
        generator = torch.Generator().manual_seed(2)
        data = TensorDataset(torch.randn(24, 4, generator=generator), torch.randn(24, 1, generator=generator))
        loader = DataLoader(data, batch_size=4, shuffle=True, generator=generator)
        self.opt = SuperAdam(self.model, lr=LR[case], tau=tau, matrix=CASES[case], weight_decay=0.01)
        monitor = None if watch is None else watch(self.opt, self.loss, loader)
        for _ in range(2):
            if not half_steps:
                for batch in loader:
                    self.opt.step(lambda batch=batch: self.evaluate(batch))
            else:
                for batch in twice(loader) if self.opt.two_point else loader:
                    self.evaluate(batch)
                    self.opt.step()
        self.reports = None if monitor is None else list(monitor.history)
        self.generators = torch.get_rng_state(), generator.get_state()

    def loss(self, batch):
        return (self.model(batch[0]) - batch[1]).square().mean()

    def evaluate(self, batch):
        self.opt.zero_grad()
        loss = self.loss(batch)
        loss.backward()
        return loss.detach()

    def everything(self):
        tensors = [*self.model.state_dict().values(), *(p.grad for p in self.model.parameters()), *self.generators]
        state = self.opt.state_dict()
        for values in state["state"].values():
            tensors += [torch.as_tensor(values[name]) for name in sorted(values) if name != "phase"]
        return tensors, state["gradient_evaluations"]


@pytest.mark.parametrize("half_steps", [False, True], ids=["closure", "half-steps"])
@pytest.mark.parametrize("tau", [0.0, 1.0])
@pytest.mark.parametrize("case", CASES)
def test_watching_changes_no_bit(case, tau, half_steps):
    """Parameters, buffers, gradients, state and generators, with probes and without."""

    def probing(opt, loss, loader):
        full = lambda: (loss(batch) / 6 for batch in loader)  # noqa: E731
        return Monitor(opt, 3, loss=loss, batches=loader, full=full, limits=QUIET)

    expected, evaluations = Run(case, tau, half_steps).everything()
    for watch in (lambda opt, *_: Monitor(opt, 1, limits=QUIET), probing):
        run = Run(case, tau, half_steps, watch)
        found, counted = run.everything()
        assert counted == evaluations
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert len(run.reports) == (12 if run.reports[0]["step"] == 1 else 4)
        assert run.reports[-1]["step"] == 12


@pytest.mark.parametrize("half_steps", [False, True], ids=["closure", "half-steps"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_quantities_equal_their_formulas(case, tau, half_steps):
    """In float64, against the parameters and gradients that the loop itself sees."""
    problem = Stochastic()
    params = problem.params()
    opt = SuperAdam(params, lr=LR[case], tau=tau, matrix=CASES[case], schedule="Paper")
    seen = []  # the points where gradients were taken
    original = problem.loss
    problem.loss = lambda x, i: (seen.append((x.detach().clone(), i)), original(x, i))[1]
    with Monitor(opt, every=6, limits=QUIET) as monitor:
        train(problem, opt, params, list(range(6)), half_steps=half_steps)
    (*_, (x_before, _), (x, i)), report = seen, monitor.last
    g, grad = flat(opt.state[p]["g"] for p in params), problem.grad(x, i)
    state = opt.state[params[0]]
    lam = CASES[case].lam
    H = torch.cat([(opt.state[p]["v"].sqrt() + lam).reshape(-1) for p in params]) if "v" in state else state["b"] + lam
    H = H.expand_as(g)
    mu = schedules.Paper().mu_t(6, tau)
    expected = {
        "step": 6,
        "gradient_evaluations": 11 if opt.two_point and not half_steps else 12 if opt.two_point else 6,
        "lr": LR[case],
        "mu": mu,
        "alpha": schedules.Paper().alpha_t(6, tau),
        "grad_norm": grad.norm(),
        "g_norm": g.norm(),
        "cosine": torch.cosine_similarity(g, grad, dim=0),
        "gradient_mapping": (g / H).norm(),
        "x_norm": x.norm(),
        "update_ratio": mu * LR[case] * (g / H).norm() / x.norm(),
        "H_min": H.min(),
        "H_median": H.sort().values[round(0.5 * (len(H) - 1))],
        "H_max": H.max(),
        "condition": H.max() / H.min(),
    }
    if opt.two_point:
        difference = grad - problem.grad(x_before, i)
        expected["smoothness"] = difference.norm() / (x - x_before).norm()
        expected["difference_ratio"] = (difference.norm() / grad.norm()) ** 2
    for name, value in expected.items():
        assert report[name] == pytest.approx(float(value), rel=1e-11), name
    assert not {"variance_ratio", "M", "feasibility"} & report.keys()


@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_gradient_mapping_of_a_constrained_step(tau):
    """Line 9 with a set, a penalty and weight decay: the distance to x̃ over γ; and `feasibility`."""
    target = torch.tensor([0.9, 0.8, -1.0], dtype=torch.float64)
    x = torch.full((3,), 0.3, dtype=torch.float64, requires_grad=True)
    parts = {"constraint": sets.Box(0.0, 0.5), "penalty": penalties.L1(0.1), "weight_decay": 0.1}
    opt = SuperAdam([x], lr=0.3, tau=tau, schedule=schedules.Constant(mu=0.5, alpha=0.3), **parts)

    def closure():
        opt.zero_grad()
        ((x - target) ** 2).sum().backward()
        return 0.0

    with Monitor(opt, every=1) as monitor:
        for _ in range(3):
            before = x.detach().clone()
            opt.step(closure)
    if tau == 0:  # x is x_{t+1} = (x_t + x̃)/2
        distance = 2 * (x.detach() - before).norm()
    else:
        before = x.detach().clone()
        with opt.at_x_tilde():
            distance = (x.detach() - before).norm()
    assert monitor.last["gradient_mapping"] == pytest.approx(distance.item() / 0.3, rel=1e-12)
    assert monitor.last["update_ratio"] == pytest.approx(0.5 * distance.item() / before.norm().item(), rel=1e-12)
    assert monitor.last["feasibility"] == 0.0


def test_gradient_mapping_survives_rounding():
    """In float32, with steps of less than an ulp of x, where x_{t+1} - x_t is 0."""
    x = torch.full((5,), 1e6, requires_grad=True)
    opt = SuperAdam([x], lr=1e-6, weight_decay=1e-9, matrix="SecondMoment")
    monitor = Monitor(opt, every=1)
    x.sum().backward()
    before = x.detach().clone()
    opt.step()
    assert torch.equal(x, before)
    H = math.sqrt(1e-3) + 5e-4
    assert monitor.last["gradient_mapping"] == pytest.approx(math.sqrt(5) * (1 / H + 1e-3), rel=1e-6)


def test_quadratic_smoothness_is_its_curvature():
    x = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    opt = SuperAdam([x], lr=0.01, tau=1.0)
    monitor = Monitor(opt, every=2)

    def closure():
        opt.zero_grad()
        (3.5 * x.square().sum()).backward()
        return 0.0

    for _ in range(4):
        opt.step(closure)
    assert [r["smoothness"] for r in monitor.history] == pytest.approx([7.0, 7.0])


class Noisy:
    """f(x; ξ) = ½‖x‖² + ⟨σ ξ, x⟩ with a standard normal ξ: ∇f(x) = x and Var = σ² d."""

    def __init__(self, dim=4, sigma=0.5, **options):
        self.generator = torch.Generator().manual_seed(0)
        self.x = torch.full((dim,), 1.0, dtype=torch.float64, requires_grad=True)
        self.dim, self.sigma = dim, sigma
        self.opt = SuperAdam([self.x], **options)

    def batches(self):
        while True:
            yield self.sigma * torch.randn(self.dim, generator=self.generator, dtype=torch.float64)

    def loss(self, noise):
        return 0.5 * self.x.square().sum() + (noise * self.x).sum()

    def closure(self, noise):
        def closure():
            self.opt.zero_grad()
            loss = self.loss(noise)
            loss.backward()
            return loss

        return closure


@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_two_half_estimates_are_unbiased(tau):
    """The mean of 200 reports is the truth within four standard errors: of the estimator's error (whose truth is
    measured at each report by `full`), of ‖∇f‖², of the variance, and of the noise scale."""
    problem = Noisy(tau=tau, lr=1e-4, schedule=schedules.Constant(mu=1.0, alpha=0.1))
    draw, probes = problem.batches(), problem.batches()
    halves = Monitor(problem.opt, 1, loss=problem.loss, batches=probes, limits=QUIET)
    exact = Monitor(problem.opt, 1, full=lambda: problem.loss(torch.zeros(4, dtype=torch.float64)), limits=QUIET)
    points = []
    for noise in itertools.islice(draw, 200):
        problem.opt.step(problem.closure(noise))
        points.append(problem.x.detach().clone())

    def off(name, truths):
        errors = torch.tensor([r[name] - t for r, t in zip(halves.history, truths, strict=True)])
        assert errors.std() > 0
        return errors.mean().abs() / (errors.std() / len(errors) ** 0.5)

    truth = [r["estimator_error"] ** 2 for r in exact.history]
    assert sum(truth) / len(truth) > 0.01
    assert off("estimator_error2", truth) < 4
    assert off("full_gradient_norm2", [p.square().sum().item() for p in points]) < 4
    assert off("probe_variance", itertools.repeat(4 * 0.25, 200)) < 4
    scale = torch.tensor([r["noise_scale"] for r in halves.history if "noise_scale" in r]).median().item()
    assert scale == pytest.approx(1 / points[100].square().sum().item(), rel=0.2)


def test_probes_equal_their_formulas():
    """With maximize and weight decay in the gradient, which g has seen and the probes' gradients must have too."""
    q1, q2 = torch.tensor([1.0, -2.0], dtype=torch.float64), torch.tensor([0.5, 3.0], dtype=torch.float64)
    x = torch.tensor([2.0, 1.0], dtype=torch.float64, requires_grad=True)
    opt = SuperAdam([x], maximize=True, weight_decay=0.1, decoupled_weight_decay=False, matrix="SecondMoment")
    monitor = Monitor(opt, 1, loss=lambda a: (a * x).sum(), batches=[q1, q2], limits=QUIET)
    (x * torch.tensor([3.0, 4.0], dtype=torch.float64)).sum().backward()
    x_t = x.detach().clone()
    opt.step()
    g, a, b = (0.1 * x_t - v for v in (torch.tensor([3.0, 4.0]), q1, q2))
    report, H_min = monitor.last, ((1e-3 * g.square()).sqrt() + 5e-4).min().item()
    error2 = ((g - a) @ (g - b)).item()
    assert report["estimator_error2"] == pytest.approx(error2, rel=1e-12)
    assert report["estimator_error"] == pytest.approx(math.sqrt(error2), rel=1e-12)
    assert report["rho"] == pytest.approx(H_min, rel=1e-12)
    assert report["M_error"] == pytest.approx(math.sqrt(error2) / H_min, rel=1e-12)
    assert report["M"] == pytest.approx(report["M_error"] + report["gradient_mapping"], rel=1e-12)
    assert report["full_gradient_norm2"] == pytest.approx((a @ b).item(), rel=1e-12)
    assert report["probe_variance"] == pytest.approx((a - b).square().sum().item() / 2, rel=1e-12)


def test_ratios_equal_their_formulas():
    """f(x; a) = ½ Σ a x², so that every gradient is a x; averages over the reports have weights 1 and 0.8."""
    batches = torch.tensor([[1.0, 2.0], [3.0, 1.0], [2.0, 2.0], [1.0, 4.0]], dtype=torch.float64)
    x = torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)
    opt = SuperAdam([x], tau=1.0)
    loss = lambda a: 0.5 * (a * x.square()).sum()  # noqa: E731
    monitor = Monitor(opt, 1, loss=loss, batches=batches, limits=QUIET)
    a, points = torch.tensor([5.0, -1.0], dtype=torch.float64), []

    def closure():
        opt.zero_grad()
        loss(a).backward()
        return 0.0

    for _ in range(3):  # the first has no pair: its probes are batches 0, 1; then 2, 3; then 0, 1 again
        opt.step(closure)
        points.append(x.detach().clone())
    above = below = scale_above = scale_below = 0.0
    for n, (i, j) in enumerate([(0, 1), (2, 3), (0, 1)]):
        b, c, x_t = batches[i], batches[j], points[n]
        scale_above = 0.8 * scale_above + ((b - c) * x_t).square().sum().item() / 2
        scale_below = 0.8 * scale_below + (b * c * x_t.square()).sum().item()
        assert monitor.history[n]["noise_scale"] == pytest.approx(scale_above / scale_below, rel=1e-12)
        if n == 0:
            assert "variance_ratio" not in monitor.history[n]
            continue
        moved = x_t - points[n - 1]
        above = 0.8 * above + ((a - b) * (a - c) * moved.square()).sum().item()
        below = 0.8 * below + ((a - b) * (a - c) * x_t.square()).sum().item()
        assert monitor.history[n]["variance_ratio"] == pytest.approx(above / below, rel=1e-9)


@pytest.mark.parametrize("tau", [0.0, 1.0])
@pytest.mark.parametrize("case", CASES)
def test_M_bounds_the_exact_gradient_mapping(case, tau):
    """M_t ≥ ‖𝒢(x_t, ∇f(x_t), γ)‖ (section 5), here on a box, with ∇f over all samples."""
    problem = Stochastic(shapes=[(6,)], samples=10)
    (x,) = problem.params()
    opt = SuperAdam([x], lr=LR[case], tau=tau, matrix=CASES[case], constraint=sets.Box(-1.0, 1.0))
    full = lambda: sum(problem.loss(x, i) for i in range(10)) / 10  # noqa: E731
    monitor = Monitor(opt, 1, full=full, limits=QUIET)
    for i in range(20):
        x_t = x.detach().clone()
        opt.step(problem.closure(opt, [x], i % 10))
        if opt.two_point:
            x_t = x.detach().clone()
        grad = sum(problem.grad(x_t, i) for i in range(10)) / 10
        state, lam, report = opt.state[x], CASES[case].lam, monitor.last
        H = state["v"].sqrt() + lam if "v" in state else state["b"] + lam
        mapping = (x_t - (x_t - LR[case] * grad / H).clamp(-1, 1)).norm().item() / LR[case]
        assert report["estimator_error"] == pytest.approx((grad - state["g"]).norm().item(), rel=1e-9)
        assert report["rho"] <= H.min().item() * (1 + 1e-12)
        assert report["M"] >= max(mapping, report["gradient_mapping"]) * (1 - 1e-12)


@pytest.mark.parametrize("replayed", [True, False])
def test_variance_ratio_tells_if_masks_are_replayed(replayed):
    """On an MLP with dropout 0.5: below 0.2 with the same masks, above 1, with an alarm, with others."""
    inputs, labels = torch.randn(512, 20), torch.randint(2, (512,))
    inputs[labels == 1, 0] += 1.5
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 64), nn.ReLU())
    model = model.extend([nn.Dropout(0.5), nn.Linear(64, 2)])
    opt = SuperAdam(model, lr=1e-3, tau=1.0, matrix="SecondMoment", schedule="Paper")
    seeds = itertools.count()

    def loss(rows):
        return nn.functional.cross_entropy(model(inputs[rows]), labels[rows])

    monitor = Monitor(opt, 5, loss=loss, batches=torch.arange(512).split(64), limits={**QUIET, "variance_ratio": 1})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(50):
            rows = torch.randint(512, (64,))

            def closure(rows=rows):
                if not replayed:
                    torch.manual_seed(next(seeds))
                opt.zero_grad()
                loss(rows).backward()
                return 0.0

            opt.step(closure)
    ratios = [report["variance_ratio"] for report in list(monitor.history)[2:]]
    assert len(ratios) == 8
    if replayed:
        assert max(ratios) < 0.2
        assert not caught
    else:
        assert min(ratios) > 1
        assert [w.category for w in caught] == [MonitorWarning]
        assert "same dropout masks" in str(caught[0].message)
        assert "twice" in monitor.last["alarms"]["variance_ratio"]


def quadratic(**options):
    """x and a function that takes a step with a given gradient."""
    x = torch.ones(2, dtype=torch.float64, requires_grad=True)
    opt = SuperAdam([x], lr=1e-3, **options)

    def step(grad):
        x.grad = torch.as_tensor(grad, dtype=torch.float64).expand(2).clone()
        opt.step()

    return x, opt, step


def test_alarms_fire_once_until_they_clear():
    _, opt, step = quadratic(schedule=schedules.Constant(alpha=0.5), matrix=matrices.SecondMoment(beta=0.0, lam=0.0))
    monitor = Monitor(opt, 1, limits={"condition": 1e6})
    step([1.0, 1.0])
    with pytest.warns(MonitorWarning, match=r"step 2: cond\(H\) = 1e\+08.*Raise lam") as caught:
        step([1.0, 1e-8])
    step([1.0, 1e-8])  # and no warning, which would be an error
    assert len(caught) == 1
    assert [set(r["alarms"]) for r in monitor.history] == [set(), {"condition"}, {"condition"}]
    step([1.0, 1.0])
    assert monitor.last["alarms"] == {}
    with pytest.warns(MonitorWarning, match=r"cond\(H\)"):
        step([1.0, 1e-8])


def test_alarm_of_an_exploding_estimator():
    _, opt, step = quadratic(schedule=schedules.Constant(alpha=0.1))
    monitor = Monitor(opt, 1)
    step(1.0), step(0.01)  # one batch may be an odd one
    assert monitor.last["alarms"] == {}
    with pytest.warns(MonitorWarning, match="errors of g add up"):
        step(0.01)
    assert set(monitor.last["alarms"]) == {"explosion"}
    _, opt, step = quadratic(schedule=schedules.Constant(alpha=1.0))
    monitor = Monitor(opt, 1)
    for grad in (1.0, 2.0, 4.0, 8.0):
        step(grad)
    with pytest.warns(MonitorWarning, match="has grown from 1.41 to 28.3"):
        step(20.0)
    step(19.0)  # less than ten times the 2.83 of now more than three reports ago
    assert monitor.last["alarms"] == {}


def test_a_sum_of_gradients_does_not_explode():
    """SAdaGrad's g is larger than any gradient by design."""
    stages = {"estimator": estimators.Summed(), "iterate": iterates.SAdaGrad(), "schedule": schedules.Constant()}
    opt = SuperAdam([torch.ones(2, requires_grad=True)], **stages)
    monitor = Monitor(opt, 1)
    for _ in range(30):
        opt.param_groups[0]["params"][0].grad = torch.ones(2)
        opt.step()
    assert monitor.last["g_norm"] > 20 * monitor.last["grad_norm"]
    assert monitor.last["alarms"] == {}


def test_alarm_of_alpha_at_its_cap():
    _, opt, step = quadratic(schedule="Paper")
    monitor = Monitor(opt, 1, limits={"capped_steps": 390})
    for _ in range(390):
        step(1.0)
    with pytest.warns(MonitorWarning, match="α is still at its cap, 0.9"):
        step(1.0)
    while opt.state[opt.param_groups[0]["params"][0]]["step"] < 396:
        step(1.0)
    assert monitor.last["alpha"] < 0.9
    assert monitor.last["alarms"] == {}


def test_no_alarm_with_the_defaults():
    _, opt, step = quadratic()
    monitor = Monitor(opt, 100)
    for _ in range(500):
        step(1.0)
    assert not any(r["alarms"] for r in monitor.history)


@pytest.mark.parametrize("name", ["adamw", "super_adam_plus", "super_adam"])
def test_no_alarm_in_a_healthy_run(name):
    """On images with pixels that are always dark and units that do not fire: their H is eps."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16, torch.tensor(labels)
    layers = nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(576, 10)
    model = nn.Sequential(*layers)
    opt = superadam.create(name, model)
    monitor = Monitor(opt, 1)
    for rows in torch.randperm(len(y)).split(64):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        monitor.note(loss=loss)
        opt.step()
    assert not any(report["alarms"] for report in monitor.history)
    assert monitor.last["loss"] == loss.item() < monitor.history[0]["loss"]


@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_a_closure_notes_its_first_loss(tau):
    problem = Noisy(tau=tau)
    monitor, losses = Monitor(problem.opt, 2), []
    for noise in itertools.islice(problem.batches(), 4):
        losses.append(problem.opt.step(problem.closure(noise)).item())
    assert [report["loss"] for report in monitor.history] == losses[1::2]


def test_a_note_is_in_the_next_report_alone():
    _, opt, step = quadratic()
    monitor = Monitor(opt, 2)
    monitor.note(loss=torch.tensor([2.0], requires_grad=True) * 2, accuracy=1)
    for _ in range(4):
        step(1.0)
    assert (monitor.history[0]["loss"], monitor.history[0]["accuracy"]) == (4.0, 1.0)
    assert not {"loss", "accuracy"} & monitor.last.keys()


def test_alarm_of_what_is_not_finite():
    _, opt, step = quadratic()
    monitor = Monitor(opt, 1)
    with pytest.warns(MonitorWarning, match="ĝ, g not finite"):
        step([math.nan, 1.0])
    assert set(monitor.last["alarms"]) == {"non_finite"}


def test_alarm_of_infeasible_parameters():
    x, opt, step = quadratic(constraint=sets.Box(0.0, 2.0), schedule="Paper")
    Monitor(opt, 1)
    with torch.no_grad():
        x[0] = 5.0
    with pytest.warns(MonitorWarning, match="outside of their set"):
        step(-1.0)


def test_proxy_alarm_without_probes():
    x = torch.ones(50, dtype=torch.float64, requires_grad=True)
    opt = SuperAdam([x], tau=1.0)
    own = torch.Generator().manual_seed(0)
    Monitor(opt, 1)

    def closure():
        x.grad = torch.randn(50, dtype=torch.float64, generator=own)  # which the optimizer cannot reset
        return 0.0

    for _ in range(2):
        opt.step(closure)
    with pytest.warns(MonitorWarning, match=r"‖ĝ-q‖²/‖ĝ‖² = .*lower lr.*same dropout masks"):
        opt.step(closure)


def test_report_survives_warnings_that_are_errors():
    """The report is kept and written before the warning is raised, and training can go on."""
    _, opt, step = quadratic()
    got = []
    monitor = Monitor(opt, 1, to=got.append)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(MonitorWarning):
            step([math.inf, 1.0])
    assert len(got) == len(monitor.history) == 1


def test_sinks(tmp_path):
    class Writer:
        def __init__(self):
            self.scalars, self.texts = [], []

        def add_scalar(self, *args):
            self.scalars.append(args)

        def add_text(self, *args):
            self.texts.append(args)

    writer, got, path = Writer(), [], tmp_path / "logs" / "run.jsonl"
    _, opt, step = quadratic()
    monitor = Monitor(opt, 2, to=[str(path), writer, got.append])
    for _ in range(4):
        step(1.0)
    with pytest.warns(MonitorWarning):
        step(math.nan), step(math.nan)
    assert len(got) == 3
    assert str(got) == str(list(monitor.history))
    lines = [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]
    assert lines[:2] == list(monitor.history)[:2]
    assert lines[2]["g_norm"] is None
    assert "not finite" in lines[2]["alarms"]["non_finite"]
    assert ("superadam/g_norm", lines[0]["g_norm"], 2) in writer.scalars
    assert writer.texts == [("superadam/alarms/non_finite", lines[2]["alarms"]["non_finite"], 6)]


def test_tensorboard_is_imported_only_when_used(monkeypatch):
    made = []
    writer = SimpleNamespace(add_scalar=lambda *args: made.append(args))
    module = SimpleNamespace(SummaryWriter=lambda directory: made.append(directory) or writer)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    _, opt, step = quadratic()
    Monitor(opt, 1, to=TensorBoard("runs/1"))
    step(1.0)
    assert made[0] == "runs/1"
    assert ("superadam/lr", 1e-3, 1) in made
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match="pip install tensorboard"):
        TensorBoard("runs/1")


@pytest.mark.parametrize("tau", [0.0, 1.0])
@pytest.mark.parametrize("case", CASES)
def test_one_synchronisation_per_report(case, tau):
    """On (fake) CUDA, where any other look at a value raises, and on two devices at once."""
    reads = []

    def tolist(tensor):
        reads.append(tensor.device.type)
        return [1.0] * len(tensor)

    # The binding of Tensor.copy_ asks for a CUDA driver before it gets to the fake tensor; the operator does not.
    copy_ = mock.patch.object(torch.Tensor, "copy_", lambda x, y: torch.ops.aten.copy_.default(x, y))
    with mock.patch.object(FakeTensor, "tolist", tolist), copy_, FakeTensorMode():
        params = [torch.zeros(3, 2, device=d, requires_grad=True) for d in ("cuda", "cuda", "cpu")]
        opt = SuperAdam(params, tau=tau, matrix=CASES[case], weight_decay=0.1)
        monitor = Monitor(opt, every=2, limits=QUIET)

        def closure():
            for p in params:
                p.grad = torch.ones_like(p)
            return 0.0

        for n in range(1, 5):
            opt.step(closure)
            assert reads == ["cuda"] * (n // 2)
    assert len(monitor.history) == 2


def test_steps_between_reports_cost_nothing():
    """Not one tensor operation more than without the monitor."""

    class Count(TorchDispatchMode):
        operations = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.operations += 1
            return func(*args, **(kwargs or {}))

    counts = []
    for watched in (False, True):
        _, opt, step = quadratic()
        if watched:
            Monitor(opt, every=100)
        with Count() as count:
            step(1.0), step(1.0)
        counts.append(count.operations)
    assert counts[0] == counts[1] > 0


def test_the_optimizer_can_be_saved_while_watched():
    """state_dict, pickle and deepcopy know nothing of the monitor, and a copy is not watched."""
    _, opt, step = quadratic()
    plain = repr(opt.state_dict())
    monitor = Monitor(opt, 1, to=lambda report: None)  # a lambda could not be pickled
    assert repr(opt.state_dict()) == plain
    step(1.0)
    for clone in (pickle.loads(pickle.dumps(opt)), copy.deepcopy(opt)):
        (p,) = clone.param_groups[0]["params"]
        p.grad = torch.ones_like(p)
        clone.step()
    assert len(monitor.history) == 1
    file = io.BytesIO()
    torch.save(opt.state_dict(), file)
    file.seek(0)
    opt.load_state_dict(torch.load(file, weights_only=True))
    step(1.0)
    assert monitor.last["step"] == 2


def test_close_stops_watching():
    _, opt, step = quadratic()
    with Monitor(opt, 1) as monitor:
        step(1.0)
    step(1.0)
    assert len(monitor.history) == 1
    assert not opt._optimizer_step_pre_hooks
    assert not opt._optimizer_step_post_hooks


def test_a_closure_by_keyword_is_watched_too():
    problem = Noisy(tau=1.0)
    monitor = Monitor(problem.opt, 2)
    for noise in itertools.islice(problem.batches(), 2):
        problem.opt.step(closure=problem.closure(noise))
    assert monitor.last["smoothness"] == pytest.approx(1.0)


def test_a_failed_step_leaves_no_report():
    problem = Noisy(tau=1.0)
    monitor = Monitor(problem.opt, 2)
    (noise,) = itertools.islice(problem.batches(), 1)
    problem.opt.step(problem.closure(noise))
    with pytest.raises(ZeroDivisionError):
        problem.opt.step(lambda: 1 / 0)
    problem.opt.step(problem.closure(noise))
    assert not monitor.history
    problem.opt.step(problem.closure(noise))
    assert monitor.last["step"] == 3


def test_quantiles_are_of_a_bounded_sample():
    """Every k-th entry of all parameters, wherever the tensors begin and end: here 30,000 known entries."""
    v = torch.linspace(0, 1, 30_000, dtype=torch.float64) ** 2
    params = [torch.zeros(n, dtype=torch.float64, requires_grad=True) for n in (10_001, 3, 19_996)]
    opt = SuperAdam(params, matrix=matrices.SecondMoment(beta=0.0, lam=0.0))
    monitor = Monitor(opt, 1, limits=QUIET)
    for p, part in zip(params, v.split([len(p) for p in params]), strict=True):
        p.grad = part.sqrt()
    with mock.patch.object(torch, "cat", wraps=torch.cat) as cat:
        opt.step()
    assert max(sum(map(len, call.args[0])) for call in cat.call_args_list) == measures.SAMPLES
    found = [monitor.last[name] for name in ("H_min", "H_q10", "H_median", "H_q90", "H_max")]
    assert found == pytest.approx([0.0, 0.1, 0.5, 0.9, 1.0], abs=2e-4)


@pytest.mark.parametrize("name", superadam.list_methods())
def test_every_method_of_the_zoo_can_be_watched(name):
    problem = Stochastic()
    params = problem.params()
    opt = superadam.create(name, params)
    with Monitor(opt, 5, limits=QUIET) as monitor:
        train(problem, opt, params, list(range(10)))
    assert [r["step"] for r in monitor.history] == [5, 10]
    assert all(math.isfinite(v) for r in monitor.history for v in r.values() if isinstance(v, float))
    assert all(r["gradient_mapping"] > 0 for r in monitor.history)


@pytest.mark.parametrize("options", [{"foreach": True}, {"foreach": False}, {"lr": torch.tensor(1e-3)}], ids=str)
@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_reports_do_not_depend_on_how_a_step_runs(tau, options):
    problem, reports = Stochastic(), []
    for given in ({}, options):
        params = problem.params()
        opt = SuperAdam(params, **{"lr": 1e-3, "tau": tau, **given})
        with Monitor(opt, 5, limits=QUIET) as monitor:
            train(problem, opt, params, list(range(10)))
        reports.append({name: value for name, value in monitor.last.items() if name != "alarms"})
    assert reports[0] == pytest.approx(reports[1], rel=1e-6)


def test_low_precision_and_complex_parameters():
    params = [
        torch.ones(3, dtype=torch.bfloat16, requires_grad=True),
        torch.ones(2, dtype=torch.complex64, requires_grad=True),
    ]
    opt = SuperAdam(params, tau=1.0)
    monitor = Monitor(opt, 1, limits=QUIET)

    def closure():
        opt.zero_grad()
        sum(p.abs().square().float().sum() for p in params).backward()
        return 0.0

    opt.step(closure)
    assert monitor.last["grad_norm"] == pytest.approx(math.sqrt(5 * 4))
    opt.step(closure)
    assert monitor.last["smoothness"] == pytest.approx(2.0, rel=0.02)  # bfloat16


def scaled_run(tau, *, scaled=True, unscale=False, overflow_at=None):
    """Six batches with a GradScaler, reported on one by one; the loss of one evaluation may overflow."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    data = list(torch.randn(6, 16, 4, dtype=torch.float64))
    opt = SuperAdam(model, lr=1e-2, tau=tau)
    monitor = Monitor(opt, 1, loss=lambda x: model(x).square().mean(), batches=data, limits=QUIET)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled)
    for n, x in enumerate(twice(data) if tau > 0 else data):
        opt.zero_grad()
        scaler.scale(model(x).square().mean() * (math.inf if n == overflow_at else 1)).backward()
        if unscale:
            scaler.unscale_(opt)
        scaler.step(opt)
        scaler.update()
    return list(monitor.history)


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_reports_are_of_unscaled_gradients(tau, unscale):
    plain, scaled = scaled_run(tau, scaled=False), scaled_run(tau, unscale=unscale)
    assert plain[-1].keys() >= {"noise_scale", *(("smoothness", "difference_ratio") if tau > 0 else ())}
    for report, other in zip(plain, scaled, strict=True):
        assert report.pop("alarms") == other.pop("alarms") == {}
        assert other == pytest.approx(report, rel=1e-9)


@pytest.mark.parametrize(("tau", "overflow_at"), [(0.0, 3), (1.0, 6), (1.0, 7)])
def test_no_report_of_a_batch_that_a_scaler_skips(tau, overflow_at):
    reports = scaled_run(tau, overflow_at=overflow_at)  # in the fourth batch, in its first or second half
    assert [report["step"] for report in reports] == [1, 2, 3, 4, 5]
    assert all(not report["alarms"] and math.isfinite(report["grad_norm"]) for report in reports)


def test_parameters_without_a_gradient_are_left_out():
    a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    opt = SuperAdam([a, b])
    monitor = Monitor(opt, 1)
    opt.step()
    assert monitor.last == {}
    a.square().sum().backward()
    opt.step()
    assert monitor.last["x_norm"] == pytest.approx(math.sqrt(2))


def sharded(rank, world, port, path):
    """On every rank: reports on a sharded model and on a whole one."""
    store = torch.distributed.TCPStore("127.0.0.1", port, world, rank == 0)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=world, store=store)
    mesh = torch.distributed.init_device_mesh("cpu", (world,))
    reports = []
    for shard in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1))  # of one row, the second rank has none
        if shard:
            torch.distributed.fsdp.fully_shard(model, mesh=mesh)
        opt = SuperAdam(model, lr=1e-3, tau=1.0, constraint=sets.Box(-0.3, 0.3))
        with torch.no_grad():
            model[0].bias.add_(0.5)  # out of the set
        monitor = Monitor(opt, 2, limits=QUIET)

        def closure(opt=opt, model=model):
            opt.zero_grad()
            loss = model(torch.linspace(-1, 1, 20).reshape(4, 5)).square().mean()
            loss.backward()
            return loss

        for _ in range(4):
            opt.step(closure)
        reports.append({k: v for k, v in monitor.last.items() if k not in ("alarms", *measures.QUANTILES)})
    torch.distributed.destroy_process_group()
    (path / str(rank)).write_text(json.dumps(reports))


@pytest.mark.slow
def test_sharded_parameters(tmp_path):
    """With FSDP2, two ranks report the norms and extremes of the whole."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(sharded, (2, port, tmp_path), nprocs=2)
    for rank in ("0", "1"):
        whole, parts = json.loads((tmp_path / rank).read_text())
        assert parts == pytest.approx(whole, rel=1e-5)


def test_bad_input():
    _, opt, _ = quadratic()
    with pytest.raises(TypeError, match="watches a SuperAdam, not SGD"):
        Monitor(torch.optim.SGD([torch.ones(1, requires_grad=True)]))
    with pytest.raises(ValueError, match="Invalid every: 0"):
        Monitor(opt, 0)
    with pytest.raises(ValueError, match=r"ends in \.jsonl.*TensorBoard"):
        Monitor(opt, to="runs/1")
    with pytest.raises(TypeError, match=r"Invalid to: 3 .*wandb"):
        Monitor(opt, to=3)
    with pytest.raises(ValueError, match="loss= and batches= go together"):
        Monitor(opt, loss=lambda batch: None)
    with pytest.raises(ValueError, match="did you mean 'condition'"):
        Monitor(opt, limits={"conditon": 1e3})
    with pytest.raises(TypeError, match=r"Invalid limit 'condition'.*a number"):
        Monitor(opt, limits={"condition": "1e3"})
    with pytest.raises(TypeError, match=r"Invalid loss: 3 .*a function"):
        Monitor(opt, loss=3, batches=[])
    with pytest.raises(TypeError, match=r"Invalid batches: 3 .*the loader"):
        Monitor(opt, loss=lambda batch: None, batches=3)
    assert not opt._optimizer_step_pre_hooks


def test_bad_probes():
    _, opt, step = quadratic()
    with Monitor(opt, 1, loss=lambda batch: batch, batches=[]), pytest.raises(ValueError, match="has no batch"):
        step(1.0)
    for bad in (torch.ones(()), 1.0, torch.ones(2, requires_grad=True) * 2):
        with Monitor(opt, 1, full=lambda bad=bad: bad), pytest.raises(TypeError, match="a differentiable tensor"):
            step(1.0)
    another = torch.ones((), requires_grad=True)
    with Monitor(opt, 1, full=lambda: another * 2), pytest.raises(ValueError, match="depends on no parameter"):
        step(1.0)

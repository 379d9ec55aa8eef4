"""`probe` measures what it says, leaves everything as it was, and its verdict comes true."""

import copy
import dataclasses
import math
import random

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import superadam
from superadam import SuperAdam, matrices, noise_model, probe, schedules
from superadam.probe import payoff


def squared(model, batch):
    return (model(batch[0]) - batch[1]).square().mean()


def linear_data(n=24, size=8, dim=5):
    return [(x, x.sum(1, keepdim=True) + torch.randn(size, 1).double()) for x in torch.randn(n, size, dim).double()]


# ------------------------------------------------------------------------------------------------ leaves no trace


class Counting(nn.Module):
    """Puts a new tensor in place of its buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls = self.calls + 1
        return x


def busy_model():
    model = nn.Sequential(
        nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), Counting(), nn.Linear(8, 8), nn.Linear(8, 1)
    ).double()
    model[5].eval().requires_grad_(False)
    model[0].weight.grad = torch.randn_like(model[0].weight)
    return model


def everything(model):
    """What must not change, as plain values."""
    return (
        [(name, p.tolist(), id(p), p.requires_grad) for name, p in model.named_parameters()],
        [(name, None if p.grad is None else (id(p.grad), p.grad.tolist())) for name, p in model.named_parameters()],
        [(name, id(b), b.tolist()) for name, b in model.named_buffers()],
        [module.training for module in model.modules()],
        torch.get_rng_state().tolist(),
        random.getstate(),
        repr(np.random.get_state()),
        torch.is_grad_enabled(),
    )


class Shuffled(torch.utils.data.Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, i):
        return torch.rand(5).double(), torch.full((1,), float(i)).double() / 96


@pytest.mark.parametrize("fails_at", [None, 1, 3, 30, 40], ids=lambda n: f"fails at {n}" if n else "succeeds")
def test_leaves_everything_as_it_was(fails_at):
    random.seed(3), np.random.seed(4)
    model = busy_model()
    loader = torch.utils.data.DataLoader(Shuffled(), batch_size=8, shuffle=True)
    before, calls = everything(model), 0

    def loss_fn(model, batch):
        nonlocal calls
        calls += 1
        model[1].train(calls % 2 == 0)  # a loss function may do odd things
        scale = 1 + random.random() + np.random.rand()
        if calls == fails_at:
            raise RuntimeError("out of memory, say")
        return scale * squared(model, batch)

    if fails_at is None:
        report = probe(model, loss_fn, loader, lr=0.01)
        assert report.evaluations == calls == 6 + 6 * 4 + 4 * 9
    else:
        with torch.no_grad(), pytest.raises(RuntimeError, match="out of memory"):
            probe(model, loss_fn, loader, lr=0.01)
        assert calls == fails_at
    assert everything(model) == before


@pytest.mark.parametrize("batched", [False, True])
def test_a_loaders_own_generator_is_left_as_it_was(batched):
    generator = torch.Generator().manual_seed(5)
    sampler = torch.utils.data.RandomSampler(range(96), generator=generator)
    batches = torch.utils.data.BatchSampler(sampler, 8, drop_last=True)
    how = {"batch_sampler": batches} if batched else {"batch_size": 8, "shuffle": True, "generator": generator}
    loader = torch.utils.data.DataLoader(Shuffled(), **how)
    before = generator.get_state()
    probe(nn.Linear(5, 1).double(), squared, loader)
    assert torch.equal(generator.get_state(), before)


def test_a_loader_that_fails_leaves_everything_as_it_was():
    model = busy_model()
    before = everything(model)

    def loader():
        yield linear_data(1)[0]
        torch.rand(3)
        raise OSError("no such file")

    with pytest.raises(OSError, match="no such file"):
        probe(model, squared, loader())
    assert everything(model) == before


# ------------------------------------------------------------------------------------------------ measures


def test_numbers_are_their_definitions():
    """Against all gradients, stacked, on a network without randomness."""
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1)).double()
    data, lr, lam = linear_data(), 0.03, 1e-3
    report = probe(model, squared, data, lr=lr, lam=lam)
    params = list(model.parameters())
    x = nn.utils.parameters_to_vector(params).detach()

    def grads(at, samples):
        nn.utils.vector_to_parameters(at, params)
        return torch.stack(
            [torch.cat([g.flatten() for g in torch.autograd.grad(squared(model, b), params)]) for b in samples]
        )

    first = grads(x, data[:12])
    g, u = first.mean(0), (first[::2].sum(0) - first[1::2].sum(0)) / 12
    H = first.square().mean(0).sqrt() + lam
    at_x = grads(x, data[12:])
    along = {name: grads(x - lr * d / H, data[12:]) - at_x for name, d in (("gradient", g), ("noise", u))}

    def var(a, weight):
        return (a.var(0) * weight).sum().item()

    noise = var(at_x, 1)
    p = report.measured
    expected = {
        report.loss: np.mean([squared_at(model, x, params, b) for b in data[12:]]),
        report.noise: noise,
        report.gradient2: max(at_x.mean(0).square().sum().item() - noise / 12, 0.0),
        report.variance_ratio: var(along["gradient"], 1) / noise,
        report.variance_ratio_without_replay: var(along["gradient"], 1) / noise,
        p.noise: var(at_x, 1 / H),
        p.kappa_gradient2: var(along["gradient"], 1 / H) / (lr**2 * (g * g / H).sum().item()),
        p.kappa_noise2: var(along["noise"], 1 / H) / (lr**2 * (u * u / H).sum().item()),
        report.curvature_gradient: (along["gradient"].mean(0) @ (-g / H)).item() / (lr * (g * g / H).sum().item()),
        report.curvature_noise: (along["noise"].mean(0) @ (-u / H)).item() / (lr * (u * u / H).sum().item()),
    }
    for measured, value in expected.items():
        assert measured == pytest.approx(value, rel=1e-6)


def squared_at(model, x, params, batch):
    nn.utils.vector_to_parameters(x, params)
    return squared(model, batch).item()


def test_curvatures_of_a_quadratic():
    """The largest eigenvalue of H^{-1/2} A H^{-1/2}; the noise is additive, so differences have no variance at all."""
    x = nn.Linear(6, 1, bias=False).double()
    root = torch.randn(6, 6).double()
    A = root @ root.T

    def loss_fn(model, shift):
        w = model.weight[0]
        return 0.5 * w @ A @ w - shift @ w

    shifts = list(torch.randn(40, 6).double())
    report = probe(x, loss_fn, shifts, lr=0.01, batches=40, power_iterations=60)
    first = torch.stack([A @ x.weight.detach()[0] - s for s in shifts[:20]])
    H = first.square().mean(0).sqrt() + 5e-4
    largest = torch.linalg.eigvalsh(A / (H[:, None] * H[None, :]).sqrt())[-1].item()
    assert report.curvature_max == pytest.approx(largest, rel=1e-3)
    assert report.stable_lr(1.0) == pytest.approx(2 / largest, rel=1e-3)
    assert report.variance_ratio == pytest.approx(0, abs=1e-12)
    assert noise_model.least_alpha(report.measured) == pytest.approx(0, abs=1e-6)


def digits_loader(n=64):
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    return [(x[rows], y[rows]) for rows in torch.randperm(len(y)).split(16)][:n]


def cross_entropy(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def dropout_mlp(loader, steps=60):
    """A network with dropout 0.5, trained a little."""
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10))
    opt = torch.optim.Adam(model.parameters(), 4e-3)
    for batch in loader[:steps]:
        opt.zero_grad()
        cross_entropy(model, batch).backward()
        opt.step()
    return model


def test_masks_must_be_the_same_for_noise_to_cancel():
    """The variance ratio is below 0.2 with replay, and above 1 without."""
    loader = digits_loader()
    report = probe(dropout_mlp(loader), cross_entropy, loader, lr=8e-3, batches=64)
    assert report.variance_ratio < 0.2 < 1 < report.variance_ratio_without_replay


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0.0}, "Invalid lr parameter"),
        ({"lr": "1e-3"}, "Invalid lr parameter"),
        ({"lr": 1e300}, "non-finite gradients after a step with lr = 1e[+]300: use a smaller lr"),
        ({"lam": -1.0}, "Invalid lam parameter"),
        ({"batches": 8.0}, "Invalid batches parameter"),
        ({"batches": 3}, "Invalid batches parameter"),
        ({"power_iterations": 0}, "Invalid power_iterations parameter"),
        ({"model": nn.Linear(5, 1).bfloat16()}, "which torch.bfloat16 rounds away"),
        ({"loader": linear_data(3)}, "at least 4 batches .* the loader has 3"),
        ({"model": nn.Linear(5, 1).double().requires_grad_(False)}, "no parameter requires a gradient"),
    ],
)
def test_bad_input(options, message):
    arguments = {"model": nn.Linear(5, 1).double(), "loader": linear_data(6), **options}
    with pytest.raises(ValueError, match=message):
        probe(arguments.pop("model"), squared, arguments.pop("loader"), **arguments)


def test_arguments_in_the_wrong_order():
    with pytest.raises(TypeError, match="in this order; it got function, Linear and list"):
        probe(squared, nn.Linear(5, 1).double(), linear_data(6))


@pytest.mark.parametrize("factor", [math.nan, math.inf])
def test_no_verdict_on_what_is_not_finite(factor):
    with pytest.raises(ValueError, match="non-finite loss or gradient at the model's current parameters"):
        probe(nn.Linear(5, 1).double(), lambda m, b: squared(m, b) * factor, linear_data(6))


def test_the_loss_of_another_model_is_refused():
    other = nn.Linear(5, 1).double()
    with pytest.raises(ValueError, match="depends on no parameter"):
        probe(nn.Linear(5, 1).double(), lambda m, b: squared(other, b), linear_data(6))


@pytest.mark.parametrize("bad", [lambda m, b: 1.0, lambda m, b: m(b[0]), lambda m, b: squared(m, b).detach()])
def test_loss_fn_must_return_a_loss(bad):
    with pytest.raises(TypeError, match="loss_fn must return the loss"):
        probe(nn.Linear(5, 1).double(), bad, linear_data(6))


def test_parameters_that_the_loss_does_not_use_count_as_zero():
    model = nn.Linear(5, 1).double()
    alone = probe(model, squared, linear_data(8), power_iterations=2)
    torch.manual_seed(0)
    model.unused = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    torch.manual_seed(0)
    model2 = nn.Linear(5, 1).double()
    assert probe(model2, squared, linear_data(8), power_iterations=2).noise == pytest.approx(alone.noise)
    assert math.isfinite(probe(model, squared, linear_data(8), power_iterations=2).noise)


# ------------------------------------------------------------------------------------------------ the rule


@pytest.mark.parametrize(("alpha", "ratio", "ell"), [(0.1, 0.01, 0.3), (0.03, 0.002, 0.05), (0.5, 0.3, 1.0)])
def test_error_and_noise_in_x_are_those_of_line_11(alpha, ratio, ell):
    """Simulated on a quadratic: noise n of the new gradient and n' of the old one with Var(n - n') = r Var(n)."""
    generator = torch.Generator().manual_seed(0)
    chains, c = 20_000, 1 - ratio / 2  # the correlation of n and n'
    x, plain, e = torch.zeros(3, chains, dtype=torch.float64)
    for _ in range(int(6 / min(alpha, ell))):
        n, other = torch.randn(2, chains, generator=generator, dtype=torch.float64)
        old = c * n + math.sqrt(1 - c * c) * other
        e = alpha * n + (1 - alpha) * (e + n - old)
        x, plain = x - (ell * x + e), plain - (ell * plain + n)  # γ = 1
    assert e.var().item() == pytest.approx(noise_model.error(alpha, ratio), rel=0.05)
    assert (x.var() / plain.var()).item() == pytest.approx(noise_model.noise_in_x(alpha, ratio, ell), rel=0.07)


def test_below_the_least_alpha_the_error_feeds_itself():
    p = noise_model.Measured(0.1, 2.0, 1.0, 50.0, 30.0, 1.0, 2.0)
    least = noise_model.least_alpha(p)
    assert noise_model.ratio_at(p, 0.99 * least) == math.inf
    for alpha in (1.01 * least, 0.3, 1.0):  # above it, D is what the steps make of it
        r = noise_model.ratio_at(p, alpha)
        assert r == pytest.approx(0.1**2 * (50 * 2.0 + 30 * noise_model.error(alpha, r)))


def test_momentum_does_not_change_the_noise_in_x():
    """Which is why the rule has no α for τ = 0: Var(x) = γσ²/(λ(2 - αγλ/(2-α))), against γσ²/(λ(2 - γλ))."""
    generator = torch.Generator().manual_seed(0)
    ell, alpha = 0.1, 0.1
    x, g = torch.zeros(2, 20_000, dtype=torch.float64)
    for _ in range(300):
        g = (1 - alpha) * g + alpha * (ell * x + torch.randn(20_000, generator=generator, dtype=torch.float64))
        x = x - g
    assert x.var().item() == pytest.approx(1 / (ell * (2 - alpha * ell / (2 - alpha))), rel=0.05)


# ------------------------------------------------------------------------------------------------ the verdict


def noisy_regression(d=10):
    scale = torch.logspace(-0.5, 0.5, d).double()

    def batch(generator):
        a = torch.randn(16, d, generator=generator, dtype=torch.float64) * scale
        return a, a.sum(1, keepdim=True) + torch.randn(16, 1, generator=generator, dtype=torch.float64)

    model = nn.Linear(d, 1, bias=False).double()
    nn.init.ones_(model.weight)  # the solution
    return model, batch, lambda model: (((model.weight.detach() - 1) * scale) ** 2).sum().item() / 2


def test_predicted_noise_comes_true():
    """Least squares at its solution: τ = 1 at γ leaves as much of the noise of τ = 0 at γ/2 as the probe says."""
    start, batch, excess = noisy_regression()
    generator = torch.Generator().manual_seed(0)
    report = probe(start, squared, [batch(generator) for _ in range(100)], lr=0.05, batches=100)
    assert report.tau == 1.0
    assert "variance reduction pays" in str(report)
    level = {}
    for tau, lr, alpha, steps in ((0.0, 0.025, 0.3, 1600), (1.0, 0.05, report.alpha, 800)):
        model, losses = copy.deepcopy(start), []
        matrix = matrices.SecondMoment(bias_correction=True)
        opt = SuperAdam(model, lr, tau=tau, matrix=matrix, schedule=schedules.BiasCorrected(1 - alpha))
        generator = torch.Generator().manual_seed(1)
        for _ in range(steps):
            samples = batch(generator)

            def closure(opt=opt, model=model, samples=samples):
                opt.zero_grad()
                loss = squared(model, samples)
                loss.backward()
                return loss

            opt.step(closure)
            losses.append(excess(model))
        level[tau] = np.mean(losses[steps // 4 :])
    assert 0.5 < level[1.0] / level[0.0] / report.noise_ratio < 2
    assert level[1.0] < 0.7 * level[0.0]


def test_verdict_on_a_network_with_dropout():
    """At twice the learning rate that is best for Adam there (docs/stability.md): too large, or not worth it."""
    loader = digits_loader()
    model = dropout_mlp(loader)
    for lr in (8e-3, 2e-3):
        report = probe(model, cross_entropy, loader, lr=lr, batches=64)
        assert report.tau == 0.0
        assert "Use tau=0" in str(report)
    assert report.noise_ratio > 1


def test_verdict_where_there_is_no_noise():
    batch = linear_data(1)[0]
    report = probe(nn.Linear(5, 1).double(), squared, [batch] * 8, lr=0.01)
    assert report.noise == pytest.approx(0, abs=1e-12)
    assert report.tau == 0.0
    assert "nothing for tau=1 to gain" in str(report)


def test_report_is_frozen_and_readable():
    report = probe(nn.Linear(5, 1).double(), squared, linear_data(8), lr=0.01)
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.noise = 0.0
    assert str(report).startswith("probe: 8 batches, 56 gradients")
    assert "verdict: " in str(report)


def test_the_noise_model_has_its_earlier_name_too():
    assert payoff is superadam.payoff is noise_model

"""`probe`: what a model's own gradients say about τ and the learning rate, before training with them."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from superadam import payoff
from superadam.chunks import real, state_dtype
from superadam.parts import check
from superadam.replay import Replay
from superadam.tensors import TensorList, dot, norm2

__all__ = ["ProbeReport", "probe"]

LossFn = Callable[[nn.Module, Any], Tensor]


@dataclass(frozen=True)
class ProbeReport:
    """What `probe` has measured. `str(report)` says it in words.

    Curvatures are those of $H^{-1/2} \\nabla^2 f H^{-1/2}$: 1 divided by one is a learning rate.
    """

    batches: int
    """How many batches the measurement has used."""
    evaluations: int
    """How many gradients it has taken."""
    lr: float
    """γ μ_t of the step over which differences were taken."""
    loss: float
    gradient2: float
    """‖∇f(x)‖², without the part that noise adds to it (so it may be 0)."""
    noise: float
    """tr Σ, the variance of a batch's gradient."""
    variance_ratio: float
    """Var(∇f(x+δ; ξ) - ∇f(x; ξ)) / Var(∇f(x; ξ)), with the same masks and buffers."""
    variance_ratio_without_replay: float
    """The same with fresh masks and buffers."""
    curvature_gradient: float
    """Along the averaged gradient."""
    curvature_noise: float
    """Along the noise of the gradient."""
    curvature_max: float
    """The largest, by power iterations."""
    problem: payoff.Problem
    """The same in the norm of H⁻¹: what the rule is applied to."""

    @property
    def noise_scale(self) -> float:
        """tr Σ / ‖∇f‖²: the mean of that many batches has as much noise as gradient."""
        return self.noise / self.gradient2 if self.gradient2 > 0 else math.inf

    @property
    def noise_share(self) -> float:
        """What noise takes back of the progress of a step: γλσ²/(2‖∇f‖²), along the noise. Above 1, f does not fall."""
        p = self.problem
        loss = p.lr * p.curvature_noise * p.noise / 2
        return loss / p.gradient2 if p.gradient2 > 0 else math.inf

    @property
    def alpha(self) -> float:
        """The best α with τ = 1."""
        return payoff.best_alpha(self.problem)

    @property
    def noise_ratio(self) -> float:
        """Noise in x with τ = 1 as a multiple of that with τ = 0, at equal progress for each gradient."""
        return payoff.noise_ratio(self.problem, self.alpha)

    @property
    def tau(self) -> float:
        """The τ to take at this learning rate: 1 if noise matters, is reduced, and the step is stable."""
        pays = self.noise_ratio < 1 and self.noise_share > 0.1 and self.lr < self.stable_lr(1.0)
        return 1.0 if pays else 0.0

    def stable_lr(self, tau: float, alpha: float = 0.1) -> float:
        """Where line 11 with a given τ and α diverges on a quadratic with the largest curvature."""
        return payoff.curvature_limit(self.curvature_max, alpha=alpha, tau=tau)

    def __str__(self) -> str:
        return "\n".join(_words(self))


def probe(
    model: nn.Module,
    loss_fn: LossFn,
    loader: Iterable[Any],
    *,
    lr: float = 1e-3,
    batches: int = 32,
    power_iterations: int = 8,
    lam: float = 5e-4,
) -> ProbeReport:
    r"""Measure gradient noise, the noise of differences, and curvature; say if variance reduction would pay.

    The first half of the batches gives the step δ = -lr · H⁻¹ḡ, Adam's after as many steps: ḡ is their mean gradient
    and H = diag(√(mean of squares) + λ). The second half measures, at x and at x + δ. Everything is left as it was,
    bit for bit, also if `loss_fn` raises: parameters, buffers, `p.grad`, training mode, torch's generators, Python's
    and NumPy's. (What is not: a generator of your own, and an iterator given as `loader`.) In memory it needs about
    seven copies of the parameters, and the batches.

    The rule, in `superadam.payoff`, takes f for a quadratic, and what is measured here for what stays so. It speaks
    of the point where the model is: probe again after some training.

    Args:
        model: in the mode in which it is trained.
        loss_fn: `loss_fn(model, batch)` gives the loss, a scalar. It does not call `backward`.
        loader: batches, as for training. At least four.
        lr: γμ_t of the step of τ = 1. It is compared with two steps of half the size with τ = 0, so that both take two
            gradients: give twice a learning rate that is good for Adam.
        batches: how many batches to use, at most. `5/2 · batches + 4 · (power_iterations + 1)` gradients are taken.
        power_iterations: for the largest curvature, on up to four batches.
        lam: λ.

    >>> from superadam import probe
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 1))
    >>> data = [(x, x.sum(1, keepdim=True)) for x in torch.randn(32, 8, 4)]
    >>> report = probe(model, lambda model, batch: (model(batch[0]) - batch[1]).square().mean(), data)
    >>> report.variance_ratio < 0.1 < 0.5 < report.variance_ratio_without_replay
    True
    >>> report.tau
    0.0
    """
    check(lr > 0, "lr", lr, "lr > 0")
    check(batches >= 4, "batches", batches, "batches >= 4")
    check(power_iterations >= 1, "power_iterations", power_iterations, "power_iterations >= 1")
    with _untouched(model) as params:
        samples = list(itertools.islice(loader, batches))
        if len(samples) < 4:
            raise ValueError(
                f"probe needs at least 4 batches to tell noise from gradient, and the loader has {len(samples)}"
            )
        at = _Evaluator(model, loss_fn, params)
        half = len(samples) // 2
        g, u, H = _direction(at, samples[:half], lam)
        steps = {"gradient": g / H * -lr, "noise": u / H * -lr}
        metric = H.reciprocal()
        seen = {name: Moments(metric) for name in ("at x", "gradient", "fresh", "noise")}
        loss = 0.0
        for batch in samples[half:]:
            start = Replay([model])
            at_x = at(batch)
            loss += float(at.loss)
            seen["at x"].add(at_x)
            at.move(steps["gradient"])
            seen["fresh"].add(at(batch) - at_x)  # the generators and buffers are where at_x has left them
            start.restore()
            seen["gradient"].add(at(batch) - at_x)
            at.move(steps["noise"])
            start.restore()
            seen["noise"].add(at(batch) - at_x)
            at.move(None)
        along = {name: _ratio(dot(seen[name].mean, step), dot(step * H, step)) for name, step in steps.items()}
        largest = _largest_curvature(at, samples[half : half + 4], steps["gradient"], metric, power_iterations)
        D, sigma2 = seen["gradient"], seen["at x"]
        problem = payoff.Problem(
            lr=lr,
            gradient2=sigma2.mean2(weighted=True),
            noise=sigma2.variance(weighted=True),
            kappa_gradient2=_ratio(D.variance(weighted=True), lr**2 * dot(g * metric, g)),
            kappa_noise2=_ratio(seen["noise"].variance(weighted=True), lr**2 * dot(u * metric, u)),
            curvature_noise=max(along["noise"], 0.0),
            curvature_max=max(largest, *along.values()),
        )
        return ProbeReport(
            batches=len(samples),
            evaluations=at.count,
            lr=lr,
            loss=loss / (len(samples) - half),
            gradient2=sigma2.mean2(),
            noise=sigma2.variance(),
            variance_ratio=_ratio(D.variance(), sigma2.variance()),
            variance_ratio_without_replay=_ratio(seen["fresh"].variance(), sigma2.variance()),
            curvature_gradient=along["gradient"],
            curvature_noise=along["noise"],
            curvature_max=problem.curvature_max,
            problem=problem,
        )


@contextmanager
def _untouched(model: nn.Module) -> Iterator[list[Tensor]]:
    """The parameters that are trained, with everything put back afterwards."""
    replay = Replay([model])
    modes = [(module, module.training) for module in model.modules()]
    kept = [(p, p.grad, p.detach().clone()) for p in model.parameters()]
    try:
        for p, _, _ in kept:
            p.grad = None
        yield [p for p in model.parameters() if p.requires_grad]
    finally:
        with torch.no_grad():
            for p, grad, value in kept:
                p.copy_(value)
                p.grad = grad
        for module, training in modes:
            module.training = training
        replay.restore()


class _Evaluator:
    """The gradients of batches, at x or at x + a step."""

    def __init__(self, model: nn.Module, loss_fn: LossFn, params: list[Tensor]) -> None:
        if not params:
            raise ValueError("probe got a model without parameters that require a gradient")
        self.model, self.loss_fn, self.params = model, loss_fn, params
        self.x = [p.detach().clone() for p in params]
        self.count = 0

    def __call__(self, batch: Any) -> Tensor:
        with torch.enable_grad():
            loss = self.loss_fn(self.model, batch)
            if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
                raise TypeError(
                    "loss_fn must return the loss of the batch, a tensor with one element that autograd knows, and "
                    f"leave backward() to probe; it has returned {loss!r}"
                )
            grads = torch.autograd.grad(loss, self.params, allow_unused=True)
        self.loss = loss.detach()
        self.count += 1
        return cast(
            Tensor,
            TensorList(
                torch.zeros_like(real(p), dtype=state_dtype(p)) if g is None else real(g).to(state_dtype(p))
                for p, g in zip(self.params, grads, strict=True)
            ),
        )

    @torch.no_grad()
    def move(self, step: Tensor | None) -> None:
        """Go to x + step."""
        steps = itertools.repeat(None) if step is None else step
        for p, x, s in zip(self.params, self.x, steps, strict=False):
            p.copy_(x)
            if s is not None:
                real(p).add_(s)


class Moments:
    """Mean and variance of gradients, in the Euclidean norm and in that of H⁻¹, without keeping them."""

    def __init__(self, metric: Tensor) -> None:
        self.metric, self.n = metric, 0
        self.squares = {False: 0.0, True: 0.0}

    def add(self, g: Tensor) -> None:
        self.n += 1
        self.mean: Tensor = g * 1.0 if self.n == 1 else self.mean + (g - self.mean) / self.n
        for weighted in (False, True):
            self.squares[weighted] += self._norm2(g, weighted)

    def variance(self, weighted: bool = False) -> float:
        """E‖g - E g‖², unbiased."""
        return max(self.squares[weighted] - self.n * self._norm2(self.mean, weighted), 0.0) / (self.n - 1)

    def mean2(self, weighted: bool = False) -> float:
        """‖E g‖², without the variance that the mean has; 0 if that is all there is."""
        return max(self._norm2(self.mean, weighted) - self.variance(weighted) / self.n, 0.0)

    def _norm2(self, g: Tensor, weighted: bool) -> float:
        return float(dot(g * self.metric, g) if weighted else norm2(g))


def _direction(at: _Evaluator, samples: list[Any], lam: float) -> tuple[Tensor, Tensor, Tensor]:
    """The mean gradient, a mean of the noise alone (with alternating signs), and H."""
    g = u = v = at(samples[0])
    v = v * v
    for i, batch in enumerate(samples[1:], start=1):
        new = at(batch)
        g, u, v = g + new, u + new * (-1.0) ** i, v + new * new
    if len(samples) % 2:
        u = u - new  # as many of either sign, so that the gradient itself cancels
    n = len(samples)
    return g / n, u / n, (v / n).sqrt() + lam


def _largest_curvature(at: _Evaluator, samples: list[Any], start: Tensor, metric: Tensor, iterations: int) -> float:
    """The largest eigenvalue of H⁻¹∇²f over some batches, by differences of gradients over steps as long as `start`."""
    origin = Replay([at.model])

    def gradient() -> Tensor:
        origin.restore()
        return functools.reduce(operator.add, map(at, samples)) / len(samples)

    v, size, value, at_x = start, _length(start, metric), 0.0, gradient()
    for _ in range(iterations):
        at.move(v)
        difference = gradient() - at_x
        at.move(None)
        value = _ratio(dot(difference, v), dot(v / metric, v))
        v = difference * metric
        v = v * (size / max(_length(v, metric), 1e-30))
    return value


def _length(step: Tensor, metric: Tensor) -> float:
    """‖step‖ in the norm of H."""
    return math.sqrt(float(dot(step / metric, step)))


def _ratio(a: float | Tensor, b: float | Tensor) -> float:
    """a/b, and 0 where both are."""
    a, b = float(a), float(b)
    return a / b if b != 0 else (math.inf if a > 0 else 0.0)


def _words(r: ProbeReport) -> Iterator[str]:
    """The numbers, and what follows from them."""
    yield f"probe: {r.batches} batches, {r.evaluations} gradients, a step of lr {r.lr:g} (τ = 0: two of {r.lr / 2:g})"
    yield f"  loss {r.loss:.4g}, gradient norm² {r.gradient2:.3g}, noise tr Σ {r.noise:.3g} in a batch"
    yield f"  noise scale {r.noise_scale:.3g}: the mean of so many batches has as much noise as gradient"
    yield (
        f"  variance of the difference of two gradients, to that of one: {r.variance_ratio:.3g} with the same masks, "
        f"{r.variance_ratio_without_replay:.3g} with others"
    )
    yield (
        f"  curvature in the metric of H: {r.curvature_gradient:.3g} along the gradient, {r.curvature_noise:.3g} "
        f"along the noise, {r.curvature_max:.3g} at most"
    )
    yield (
        f"  stable on a quadratic: lr < {r.stable_lr(1.0):.2g} with tau=1, {r.stable_lr(0.0):.2g} with tau=0 and "
        f"alpha=0.1; alpha > {payoff.least_alpha(r.problem):.2g} with tau=1"
    )
    yield f"  noise takes back {r.noise_share:.2g} of a step's progress"
    yield (
        f"  noise in x with tau=1, at its best alpha {r.alpha:.2g}: {r.noise_ratio:.2f} of that with tau=0, at equal "
        "progress for each gradient"
    )
    if r.tau > 0:
        yield f"  verdict: variance reduction pays for its second gradient here. Use tau=1, alpha about {r.alpha:.2g}."
    elif r.lr >= r.stable_lr(1.0):
        yield "  verdict: this lr is too large for tau=1. Use tau=0, or probe a smaller one."
    elif r.noise_share <= 0.1:
        yield "  verdict: noise does not limit the step here, so there is nothing for tau=1 to gain. Use tau=0."
    else:
        yield "  verdict: the second gradient costs more than it brings here. Use tau=0."

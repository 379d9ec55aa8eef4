"""`probe`: measure a model's gradients to choose τ and the learning rate before training."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from superadam.lists import dot
from superadam.parts import check
from superadam.probe import noise_model
from superadam.probe.gradients import Evaluator, LossFn, differences, directions, largest_curvature, ratio, untouched

__all__ = ["ProbeReport", "probe"]


@dataclass(frozen=True)
class ProbeReport:
    """The measurements of `probe`. `str(report)` gives them in words.

    Curvatures are those of $H^{-1/2} \\nabla^2 f H^{-1/2}$. The inverse of a curvature is a learning rate.

    >>> import torch
    >>> from superadam import probe
    >>> data = [torch.full((2, 1), float(i)) for i in range(8)]
    >>> report = probe(nn.Linear(1, 1), lambda model, x: (model(x) - x).square().mean(), data)
    >>> report.batches, report.stable_lr(tau=1.0) < report.stable_lr(tau=0.0)
    (8, True)
    """

    batches: int
    """The number of batches used."""
    evaluations: int
    """The number of gradients computed."""
    lr: float
    """γ μ_t of the step for the differences."""
    loss: float
    gradient2: float
    """‖∇f(x)‖² with the noise subtracted, so it may be 0."""
    noise: float
    """tr Σ, the variance of a batch's gradient."""
    variance_ratio: float
    """Var(∇f(x+δ; ξ) - ∇f(x; ξ)) / Var(∇f(x; ξ)), with the same masks and buffers."""
    variance_ratio_without_replay: float
    """The same with fresh masks and buffers."""
    curvature_gradient: float
    """Curvature along the mean gradient."""
    curvature_noise: float
    """Curvature along the noise of the gradient."""
    curvature_max: float
    """The largest curvature, by power iterations."""
    measured: noise_model.Measured
    """The inputs of the rule, in the norm of H⁻¹."""

    @property
    def noise_scale(self) -> float:
        """Return tr Σ / ‖∇f‖², the number of batches whose mean gradient has equal noise and signal."""
        return self.noise / self.gradient2 if self.gradient2 > 0 else math.inf

    @property
    def noise_share(self) -> float:
        """Return the fraction of a step's progress that noise cancels: γλσ²/(2‖∇f‖²). Above 1, f does not decrease."""
        p = self.measured
        return p.lr * p.curvature_noise * p.noise / 2 / p.gradient2 if p.gradient2 > 0 else math.inf

    @property
    def alpha(self) -> float:
        """Return the best α with τ = 1."""
        return noise_model.best_alpha(self.measured)

    @property
    def noise_ratio(self) -> float:
        """Return the noise in x with τ = 1 as a multiple of that with τ = 0, at equal progress per gradient."""
        return noise_model.noise_ratio(self.measured, self.alpha)

    @property
    def tau(self) -> float:
        """Return the recommended τ at this learning rate: 1 if noise matters, τ = 1 reduces it, and it is stable."""
        pays = self.noise_ratio < 1 and self.noise_share > 0.1 and self.lr < self.stable_lr(1.0)
        return 1.0 if pays else 0.0

    def stable_lr(self, tau: float, alpha: float = 0.1) -> float:
        """Return the learning rate above which line 11 diverges on a quadratic with `curvature_max`."""
        return noise_model.curvature_limit(self.curvature_max, alpha=alpha, tau=tau)

    def __str__(self) -> str:
        """Return the numbers and the verdict in words."""
        if self.tau > 0:
            verdict = f"variance reduction pays for its second gradient here. Use tau=1, alpha about {self.alpha:.2g}."
        elif self.lr >= self.stable_lr(1.0):
            verdict = "this lr is too large for tau=1. Use tau=0, or probe a smaller one."
        elif self.noise_share <= 0.1:
            verdict = "noise does not limit the step here, so there is nothing for tau=1 to gain. Use tau=0."
        else:
            verdict = "the second gradient costs more than it brings here. Use tau=0."
        return f"""\
probe: {self.batches} batches, {self.evaluations} gradients, a step of lr {self.lr:g} (τ = 0: two of {self.lr / 2:g})
  loss {self.loss:.4g}, gradient norm² {self.gradient2:.3g}, noise tr Σ {self.noise:.3g} in a batch
  noise scale {self.noise_scale:.3g}: the mean of so many batches has as much noise as gradient
  variance of the difference of two gradients, to that of one: {self.variance_ratio:.3g} with the same masks, \
{self.variance_ratio_without_replay:.3g} with others
  curvature in the metric of H: {self.curvature_gradient:.3g} along the gradient, {self.curvature_noise:.3g} \
along the noise, {self.curvature_max:.3g} at most
  stable on a quadratic: lr < {self.stable_lr(1.0):.2g} with tau=1, {self.stable_lr(0.0):.2g} with tau=0 and \
alpha=0.1; alpha > {noise_model.least_alpha(self.measured):.2g} with tau=1
  noise takes back {self.noise_share:.2g} of a step's progress
  noise in x with tau=1, at its best alpha {self.alpha:.2g}: {self.noise_ratio:.2f} of that with tau=0, at equal \
progress for each gradient
  verdict: {verdict}"""


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
    r"""Measure gradient noise, the noise of differences, and curvature, to say whether variance reduction would pay.

    The first half of the batches gives Adam's step δ = -lr · H⁻¹ḡ after as many steps: ḡ is their mean gradient and
    H = diag(√(mean of squares) + λ). The second half is for measurements at x and at x + δ. `probe` restores everything
    bit for bit, also if `loss_fn` raises: parameters, buffers, `p.grad`, training mode, torch's generators, Python's,
    NumPy's and a DataLoader's. It cannot restore a generator that only `loss_fn` knows, or an iterator given as
    `loader`. It needs memory for the batches and about fifteen copies of the parameters.

    The rule, in `superadam.noise_model`, assumes a quadratic f and constant values of what is measured. It holds for
    the current parameters: probe again after some training.

    Args:
        model: the model, in the mode in which you train it.
        loss_fn: `loss_fn(model, batch)` returns the loss, a scalar. It does not call `backward`.
        loader: batches, as for training. At least four.
        lr: γμ_t of a step with τ = 1. It is compared with two steps of half the size with τ = 0, so that both take two
            gradients: pass twice a learning rate that is good for Adam.
        batches: the largest number of batches. It takes `5/2 · batches + 4 · (power_iterations + 1)` gradients.
        power_iterations: iterations for the largest curvature, on up to four batches.
        lam: λ.

    >>> import torch
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
    if not isinstance(model, nn.Module) or not callable(loss_fn):
        raise TypeError(
            "probe takes a model, a function of model and batch that returns the loss, and a loader, in this order; it "
            f"got {type(model).__name__}, {type(loss_fn).__name__} and {type(loader).__name__}"
        )
    check(isinstance(lr, int | float) and 0 < lr < math.inf, "lr", lr, "a number lr > 0")
    check(isinstance(lam, int | float) and 0 < lam < math.inf, "lam", lam, "a number lam > 0")
    for name, value, least in (("batches", batches, 4), ("power_iterations", power_iterations, 1)):
        check(isinstance(value, int) and value >= least, name, value, f"a whole number, {name} >= {least}")
    with untouched(model, loader):
        samples = list(itertools.islice(loader, batches))
        if len(samples) < 4:
            raise ValueError(
                f"probe needs at least 4 batches to separate noise from the gradient; the loader has {len(samples)}"
            )
        return _measure(Evaluator(model, loss_fn), samples, lr, power_iterations, lam)


def _measure(at: Evaluator, samples: list[Any], lr: float, power_iterations: int, lam: float) -> ProbeReport:
    half = len(samples) // 2
    g, u, H = directions(at, samples[:half], lam)
    steps = {"gradient": g / H * -lr, "noise": u / H * -lr}
    seen, loss = differences(at, samples[half:], steps, H)
    sigma2, var = seen["at x"], {name: moments.variance() for name, moments in seen.items()}
    along = {name: ratio(dot(seen[name].mean, step), dot(step * H, step)) for name, step in steps.items()}
    kappa = {name: ratio(seen[name].variance(weighted=True), dot(step * H, step)) for name, step in steps.items()}
    largest = largest_curvature(at, samples[half : half + 4], steps["gradient"], H, power_iterations)
    if not math.isfinite(loss + var["at x"]):
        raise ValueError("probe found a non-finite loss or gradient at the model's current parameters")
    if not math.isfinite(largest + sum(var.values())):
        raise ValueError(f"probe found non-finite gradients after a step with lr = {lr:g}: use a smaller lr")
    measured = noise_model.Measured(
        lr=lr,
        gradient2=sigma2.mean2(weighted=True),
        noise=sigma2.variance(weighted=True),
        kappa_gradient2=kappa["gradient"],
        kappa_noise2=kappa["noise"],
        curvature_noise=max(along["noise"], 0.0),
        curvature_max=max(largest, *along.values()),
    )
    return ProbeReport(
        batches=len(samples),
        evaluations=at.count,
        lr=lr,
        loss=loss,
        gradient2=sigma2.mean2(),
        noise=var["at x"],
        variance_ratio=ratio(var["gradient"], var["at x"]),
        variance_ratio_without_replay=ratio(var["fresh"], var["at x"]),
        curvature_gradient=along["gradient"],
        curvature_noise=along["noise"],
        curvature_max=measured.curvature_max,
        measured=measured,
    )

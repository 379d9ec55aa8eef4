"""`find_lr`: record the loss of a model while the learning rate rises, and suggest a learning rate."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from superadam.parts import check
from superadam.probe.gradients import LossFn, untouched
from superadam.zoo import create

__all__ = ["LrReport", "find_lr"]


@dataclass(frozen=True)
class LrReport:
    """The result of `find_lr`: a loss for each learning rate, in the order tried.

    >>> LrReport((0.1, 1.0, 10.0), (3.0, 2.0, 9.0), (3.0, 2.5, 5.0), True).suggestion
    0.1
    """

    lrs: tuple[float, ...]
    losses: tuple[float, ...]
    smoothed: tuple[float, ...]
    """The losses as a bias-corrected exponential average."""
    diverged: bool
    """Whether the run ended because the loss rose, before the largest learning rate."""

    @property
    def suggestion(self) -> float:
        """Return a tenth of the learning rate with the least averaged loss, after which the loss rises."""
        return 0.1 * self.lrs[self.smoothed.index(min(self.smoothed))]

    def __str__(self) -> str:
        best = min(range(len(self.lrs)), key=self.smoothed.__getitem__)
        end = f"diverged at {self.lrs[-1]:.1e}" if self.diverged else f"had not diverged at {self.lrs[-1]:.1e}"
        return (
            f"lr {self.suggestion:.1e}. Of {len(self.lrs)} learning rates from {self.lrs[0]:.1e}, the averaged loss "
            f"was least at {self.lrs[best]:.1e} ({self.smoothed[best]:.4g}), and {end}."
        )

    def plot(self, ax: Any = None) -> Any:
        """Draw the curve and the suggestion with matplotlib, and return the axes. Without `ax`, use new ones."""
        if ax is None:
            try:
                from matplotlib import pyplot
            except ImportError:
                raise ImportError("plot() needs matplotlib: pip install matplotlib") from None
            _, ax = pyplot.subplots()
        ax.plot(self.lrs, self.losses, alpha=0.3, label="loss")
        ax.plot(self.lrs, self.smoothed, label="averaged")
        ax.axvline(self.suggestion, linestyle=":", label=f"lr = {self.suggestion:.1e}")
        ax.set(xscale="log", xlabel="learning rate", ylabel="loss")
        ax.legend()
        return ax


def find_lr(
    model: nn.Module,
    loss_fn: LossFn,
    batches: Iterable[Any],
    build: str | Callable[[nn.Module], Optimizer] = "adamw",
    *,
    low: float = 1e-6,
    high: float = 10.0,
    steps: int = 100,
    smoothing: float = 0.9,
    stop: float = 4.0,
) -> LrReport:
    """Train for some steps with a learning rate that rises from `low` to `high`, and record the loss.

    It restores the model, its gradients, buffers and mode, and the random generators.

    Args:
        model: the model, at the start of training.
        loss_fn: `loss_fn(model, batch)` returns the loss, a tensor.
        batches: a loader. It restarts when it ends.
        build: a method of the zoo by name, or a function that returns an optimizer for the model, ours or torch's.
            Groups keep the ratios of their learning rates.
        low: the first learning rate.
        high: the last learning rate.
        steps: how many learning rates to try, at equal ratios.
        smoothing: weight of the past in the average of the losses.
        stop: stop when the average exceeds this many times its least value (or a tenth of the first loss, if that is
            larger), or when a loss is not finite.

    >>> import torch
    >>> from superadam import find_lr
    >>> batches = [torch.randn(8, 3, generator=torch.Generator().manual_seed(i)) for i in range(10)]
    >>> report = find_lr(nn.Linear(3, 1), lambda model, x: (model(x) - x[:, :1]).square().mean(), batches, "sgd")
    >>> report.diverged, 1e-3 < report.suggestion < 1
    (True, True)
    """
    check(0 < low < high, "low", low, "0 < low < high")
    check(steps >= 3, "steps", steps, "steps >= 3")
    check(0 <= smoothing < 1, "smoothing", smoothing, "0 <= smoothing < 1")
    lrs, losses, smoothed, average, diverged = [], [], [], 0.0, False

    def step(opt: Optimizer, batch: Any) -> float:
        def closure() -> float:
            opt.zero_grad()
            loss = loss_fn(model, batch)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss.item()

        return float(opt.step(closure))

    with untouched(model, batches):
        opt = create(build, model) if isinstance(build, str) else build(model)
        shares = [float(group["lr"]) for group in opt.param_groups]
        rest = _endless(batches)
        for n in range(steps):
            lrs.append(low * (high / low) ** (n / (steps - 1)))
            for group, share in zip(opt.param_groups, shares, strict=True):
                group["lr"] = lrs[-1] * share / (max(shares) or 1.0)
            losses.append(step(opt, next(rest)))
            average = smoothing * average + (1 - smoothing) * losses[-1]
            smoothed.append(average / (1 - smoothing ** (n + 1)))
            least = min(smoothed)
            bound = least + (stop - 1) * max(abs(least), 0.1 * abs(losses[0]))
            diverged = not smoothed[-1] <= bound
            if diverged:
                break
    if not math.isfinite(losses[-1]):
        lrs, losses, smoothed = lrs[:-1], losses[:-1], smoothed[:-1]
    if not losses:
        raise ValueError(f"The loss is not finite at lr = {low:g}, the smallest that find_lr tries: use a smaller low")
    return LrReport(tuple(lrs), tuple(losses), tuple(smoothed), diverged)


def _endless(batches: Iterable[Any]) -> Iterator[Any]:
    for n in itertools.count():
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty:
            raise ValueError("find_lr got no batches" if n == 0 else "find_lr's batches can be iterated only once")

"""The noise of tuning: how much the result would vary if tuning were repeated. p and the intervals do not include
it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from superadam_lab.comparison.plan.jobs import scores
from superadam_lab.comparison.records import Results
from superadam_lab.comparison.statistics.analysis import Comparison, Statistics
from superadam_lab.comparison.statistics.intervals import LEVEL, holm
from superadam_lab.comparison.statistics.power import spread

__all__ = ["of_differences", "tuning_variance", "unsure"]

DRAWS = 2000


def tuning_variance(losses: Sequence[float], noise: float) -> float:
    """The variance of the logarithm of a method's loss over repeated tuning.

    Args:
        losses: logarithms of the final losses of the trials, each a mean over the tuning seeds.
        noise: standard deviation of each of them.

    The losses of the trials are taken as the truth. Noise is added to them, and the trial that is then the best is
    chosen. The variance is 0 if one trial is far better than all others, or if several are equally good.

    >>> tuning_variance([0.0, 1.0], 0.01), tuning_variance([0.0, 0.0], 0.01), tuning_variance([0.0, 0.02], 0.02) > 5e-5
    (0.0, 0.0, True)
    """
    found = np.asarray(losses, dtype=np.float64)
    return float(found[(found + noise * _normal(len(found))).argmin(1)].var()) if len(found) else 0.0


@cache
def _normal(n: int) -> NDArray[np.float64]:
    """Normal random numbers that are always the same, so that reports are reproducible."""
    return np.random.default_rng(0).standard_normal((DRAWS, n))


def unsure(results: Results, found: Statistics) -> dict[str | None, set[str]]:
    """By task, and for None over all tasks: the methods whose difference is significant with the chosen options, but no
    longer when the variance of tuning is added to that of the seeds."""
    variances = {name: _of_task(results, found, name) for name in found.tasks}
    tested: list[tuple[str | None, Comparison, float]] = []
    for task in found.tasks.values():
        both = {m: _sum(variances[task.name], found.baseline, m) for m in task.comparisons}
        tested += [(task.name, c, _p(c, both[m])) for m, c in task.comparisons.items()]
    for m, c in found.overall.items():
        every = [_sum(variance, found.baseline, m) for variance in variances.values()]
        tested.append((None, c, _p(c, sum(every) / len(every) ** 2)))
    tested = [one for one in tested if not math.isnan(one[2])]
    corrected = holm([p for *_, p in tested])
    said: dict[str | None, set[str]] = {None: set(), **{name: set() for name in found.tasks}}
    for (name, c, _), p in zip(tested, corrected, strict=True):
        if c.outcome in ("better", "worse") and p >= 1 - LEVEL:
            said[name].add(c.method)
    return said


def of_differences(results: Results, found: Statistics) -> dict[str, float]:
    """By task: the variance that tuning adds to the difference of a method and the baseline, as a mean over methods."""
    made = {}
    for name in found.tasks:
        variances = _of_task(results, found, name)
        others = [_sum(variances, found.baseline, m) for m in found.methods if m != found.baseline]
        made[name] = sum(others) / len(others) if others else 0.0
    return made


def _of_task(results: Results, found: Statistics, name: str) -> dict[str, float]:
    """The variance of tuning by method. Methods whose spread is unknown are left out."""
    task, plan = found.tasks[name], results.plan
    noise = spread(o.finals for o in task.outcomes.values()) / math.sqrt(2 * max(1, len(plan.tuning_seeds)))
    variances = {}
    for m in found.methods:
        tuned = [r for r in results.records if (r.task, r.method, r.phase) == (name, m, "tune")]
        losses = [loss for _, loss in scores(plan, tuned).values() if 0 < loss < math.inf]
        variances[m] = tuning_variance([math.log(f) for f in losses], noise) if math.isfinite(noise) else 0.0
    return variances


def _sum(variances: dict[str, float], *methods: str) -> float:
    return sum(variances[m] for m in methods)


def _p(c: Comparison, variance: float) -> float:
    """p of Student's test with the variance of tuning; never smaller than without it."""
    if c.evidence is None or not c.relative or not c.error > 0:
        return math.nan if c.evidence is None else c.evidence.p
    t = abs(math.log(c.finals.value)) / math.sqrt(c.error**2 + variance)
    return max(c.evidence.p, float(2 * stats.t.sf(t, c.finals.n - 1)))

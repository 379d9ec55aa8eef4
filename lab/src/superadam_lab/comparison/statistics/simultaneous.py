"""Simultaneous intervals and corrected p-values of several methods, from one procedure: the largest studentised mean.

A method's statistic is t = mean / standard error, where the mean is over seeds and tasks of the log ratios to the
baseline. The same statistic of random normal data with the residuals' variances and half of their correlations, taken
over and over, shows how large the largest |t| of all methods gets by chance alone. p of a method is the share of draws
in which it gets as large as the method's |t|. The interval is mean ± c · standard error, where c is exceeded in 5 of
100 draws. So an interval is without 0 exactly if its p is below 0.05, and all intervals hold at once in 95 of 100
studies.

Methods share the baseline's runs, so their statistics are correlated. Half of it is counted on. The gain over Holm's
method comes from the standard error: it adds the variances of the tasks, so its degrees of freedom grow with their
number, and from single tasks that are no hypotheses. Simulations are in `research/verdict`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from superadam_lab.comparison.statistics.intervals import LEVEL, Estimate

__all__ = ["Differences", "Judged", "each", "together"]

DRAWS = 3999
SHARED = 0.5
"""The part of the methods' correlations that draws have. A few seeds make correlations look larger than they are, and
with all of them the intervals would be too narrow."""
Floats = NDArray[np.float64]


class Differences(NamedTuple):
    """The differences of the methods from the baseline on one task.

    `values` is a table of seeds and methods, NaN where a run is lost. `tuning` has the variance that another tuning
    would add, by method, `baseline` that of the baseline.
    """

    values: Floats
    tuning: Floats
    baseline: float


class Judged(NamedTuple):
    """The mean difference of a method with its simultaneous interval, its corrected p and its standard error."""

    estimate: Estimate
    p: float
    error: float


class _Moments(NamedTuple):
    """Means, squared standard errors and numbers of the seeds, by method."""

    mean: Floats
    square: Floats
    n: NDArray[np.int64]


def together(tasks: Sequence[Differences]) -> list[Judged]:
    """Judge each method by its mean over tasks, in which every task has the same weight. All tasks have its column."""
    found = [_moments(task.values, task.tuning + task.baseline) for task in tasks]
    mean = np.mean([one.mean for one in found], axis=0)
    square = np.sum([one.square for one in found], axis=0) / len(tasks) ** 2
    drawn = [_drawn(task, i) for i, task in enumerate(tasks)]
    means = np.mean([one.mean for one in drawn], axis=0)
    squares = np.sum([one.square for one in drawn], axis=0) / len(tasks) ** 2
    return _judged(_Moments(mean, square, np.min([one.n for one in found], axis=0)), _largest(means, squares))


def each(tasks: Sequence[Differences]) -> list[list[Judged]]:
    """Judge each method on each task, corrected for all of them."""
    largest = np.zeros(DRAWS)
    for i, task in enumerate(tasks):
        drawn = _drawn(task, i)
        largest = np.maximum(largest, _largest(drawn.mean, drawn.square))
    return [_judged(_moments(task.values, task.tuning + task.baseline), largest) for task in tasks]


def _moments(values: Floats, extra: Floats) -> _Moments:
    """Of tables of seeds and methods."""
    there = ~np.isnan(values)
    n = there.sum(-2)
    mean = np.where(there, values, 0.0).sum(-2) / np.maximum(n, 1)
    squares = np.where(there, (values - mean[..., None, :]) ** 2, 0.0).sum(-2)
    with np.errstate(divide="ignore", invalid="ignore"):
        square = squares / (n - 1) / n
    return _Moments(np.where(n > 0, mean, np.nan), np.where(n > 1, square, np.nan) + extra, n)


def _drawn(task: Differences, i: int) -> _Moments:
    """The moments of draws without any difference, always the same ones, so that reports are reproducible."""
    random = np.random.default_rng(i)
    seeds, methods = task.values.shape
    there = ~np.isnan(task.values)
    n = there.sum(0)
    rest = np.where(there, task.values - np.where(there, task.values, 0.0).sum(0) / np.maximum(n, 1), 0.0)
    rest /= np.sqrt(np.maximum(n - 1, 1))
    shared = random.standard_normal((DRAWS, seeds, seeds)) @ rest
    own = random.standard_normal((DRAWS, seeds, methods)) * np.sqrt((rest**2).sum(0))
    values = math.sqrt(SHARED) * shared + math.sqrt(1 - SHARED) * own
    found = _moments(np.where(there, values, np.nan), task.tuning + task.baseline)
    tuned = np.sqrt(task.tuning) * random.standard_normal((DRAWS, methods))
    return found._replace(mean=found.mean + tuned + np.sqrt(task.baseline) * random.standard_normal((DRAWS, 1)))


def _largest(mean: Floats, square: Floats) -> Floats:
    """The largest |t| of each draw."""
    t: Floats = np.nan_to_num(_t(mean, square)).max(-1, initial=0.0)
    return t


def _t(mean: Floats, square: Floats) -> Floats:
    """|t|; infinite for a difference without any variation, 0 for no difference."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(mean == 0.0, 0.0, np.abs(mean) / np.sqrt(square))


def _judged(found: _Moments, largest: Floats) -> list[Judged]:
    largest = np.sort(largest)
    allowed = int((1 - LEVEL) * (DRAWS + 1)) - 1  # draws may be as large as |t|, and p still be below 0.05
    c = largest[-allowed]
    made = []
    for mean, square, n, t in zip(*found, _t(found.mean, found.square), strict=True):
        value = float(mean)
        if np.isnan(t):
            made.append(Judged(Estimate(value, np.nan, np.nan, int(n)), np.nan, np.nan))
            continue
        half = float(c * np.sqrt(square))
        p = (1 + DRAWS - int(np.searchsorted(largest, t))) / (DRAWS + 1)
        made.append(Judged(Estimate(value, value - half, value + half, int(n)), p, float(np.sqrt(square))))
    return made

"""The smallest difference that a comparison can detect."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy import optimize, stats

from superadam_lab.comparison.statistics.intervals import LEVEL

if TYPE_CHECKING:
    from superadam_lab.comparison.statistics.analysis import Statistics

__all__ = ["FEWEST", "POWER", "Noise", "detectable", "percent", "shown", "spread", "statement", "where"]

FEWEST = 3  # seeds: fewer are not enough for a verdict
POWER = 0.8
MOST = 50.0  # of a logarithm: what is more cannot be shown


class Noise(NamedTuple):
    """The noise of a task: of the difference of two methods on one seed (deviation), and of tuning (variance)."""

    spread: float
    tuning: float = 0.0


def detectable(tasks: Sequence[Noise], seeds: int, family: int = 1) -> float:
    """Return the smallest log ratio over all tasks that is detected in 4 of 5 comparisons of `family` methods.

    Student's test at 0.05/family stands for the verdict's procedure, which detects a little more. More seeds do not
    reduce the variance of tuning.

    >>> one = [Noise(0.1)]
    >>> round(detectable(one, 5), 2), round(detectable(one, 5, family=10), 2), round(detectable(one * 2, 5), 2)
    (0.17, 0.32, 0.1)
    """
    if seeds < 2 or not all(task.spread < math.inf for task in tasks):
        return math.inf
    squares = [task.spread**2 / seeds for task in tasks]
    error = math.sqrt(sum(squares) + sum(task.tuning for task in tasks)) / len(tasks)
    if error == 0:
        return 0.0
    degrees = (seeds - 1) * (sum(squares) ** 2 / sum(s**2 for s in squares) if any(squares) else 1)
    critical = float(stats.t.isf((1 - LEVEL) / (2 * family), degrees))

    def lack(shift: float) -> float:
        return float(stats.nct.sf(critical, degrees, shift)) - POWER

    high = 1.0
    while lack(high) < 0:
        high *= 2
        if high * error > MOST:
            return math.inf
    return float(optimize.brentq(lack, 0.0, high)) * error


def spread(losses: Iterable[Mapping[int, float]]) -> float:
    """The standard deviation of the log ratio of two methods' losses on one seed; infinite if unknown.

    It is √2 times the standard deviation of the residuals after subtracting the means of every method and of every
    seed. It pools the methods, because a few seeds of one method say little. Methods with a diverged or failed run are
    left out. No method's variance counts as more than ten times the median: one that nearly diverges says nothing of
    the rest.

    >>> quiet, wild = {0: 1.0, 1: 1.1, 2: 0.9}, {0: 1.0, 1: 1e9, 2: 1.0}
    >>> spread([quiet, {s: f**2 for s, f in quiet.items()}, wild, *[quiet] * 5]) < 10
    True
    """
    whole = [list(of.values()) for of in losses if of and all(0 < f < math.inf for f in of.values())]
    if len(whole) < 2 or len({len(row) for row in whole}) > 1 or len(whole[0]) < 2:
        return math.inf
    table = np.log(np.array(whole))
    rest = table - table.mean(1, keepdims=True) - table.mean(0) + table.mean()
    squares = (rest**2).sum(1)
    most = 10 * float(np.median(squares)) or math.inf
    return math.sqrt(2 * float(squares.clip(max=most).sum()) / ((table.shape[0] - 1) * (table.shape[1] - 1)))


def percent(logarithm: float) -> str:
    """A difference of losses in percent, in words.

    >>> percent(0.0392), percent(0.7), percent(4.0), percent(math.inf)
    ('4.0 %', '101 %', '55-fold', 'any size')
    """
    if not logarithm < MOST:
        return "any size"
    share = 100 * math.expm1(logarithm)
    if share >= 1000:
        return f"{math.exp(logarithm):.0f}-fold"
    return f"{share:.{1 if share < 10 else 0}f} %"


def shown(found: Statistics) -> float:
    """Return the smallest log ratio for which such runs give a verdict in 4 of 5 cases; infinite if it is unknown.

    It is that of the method in the middle, by the width of its interval.
    """
    shift = float(stats.norm.ppf(POWER))
    judged = [c for c in found.verdict.values() if c.judged and c.relative]
    needed = [math.log(c.finals.high / c.finals.value) + shift * c.error for c in judged if c.finals.value > 0]
    return float(np.median(needed)) if needed else math.inf


def statement(least: float, seeds: int, tasks: Sequence[str], forecast: Mapping[str, float]) -> str:
    """A sentence about the difference that the runs could detect, and about the forecast; empty if unknown."""
    if not math.isfinite(least):
        return ""
    said = ", ".join(f"{percent(d)} on {place}" for place, d in forecast.items())
    before = f" The forecast before the runs was {said}." if forecast else ""
    often = f"{round(100 * POWER)} of 100 comparisons"
    return (
        f"Power: with {seeds} seeds and this spread of losses, a true difference of {percent(least)} on {where(tasks)} "
        f"is detected in {often}. Smaller differences are missed more often.{before}"
    )


def where(tasks: Sequence[str]) -> str:
    """Name the tasks of the verdict in a sentence.

    >>> where(["digits-mlp"]), where(["digits-mlp", "ratings"])
    ('digits-mlp', 'these 2 tasks together')
    """
    return tasks[0] if len(tasks) == 1 else f"these {len(tasks)} tasks together"

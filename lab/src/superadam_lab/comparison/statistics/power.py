"""The smallest difference that a comparison can detect."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
from scipy import optimize, stats

from superadam_lab.comparison.statistics.analysis import Statistics
from superadam_lab.comparison.statistics.intervals import LEVEL

__all__ = ["FEWEST", "POWER", "detectable", "listed", "percent", "shown", "spread", "statement"]

FEWEST = 3  # seeds: fewer are not enough for a verdict
POWER = 0.8
MOST = 50.0  # of a logarithm: what is more cannot be shown


def detectable(spread: float, seeds: int, family: int = 1, tuning: float = 0.0) -> float:
    """The smallest log ratio that is detected in 4 of 5 comparisons, by Student's paired test at 0.05/family.

    `spread` is the standard deviation of the difference on one seed, `tuning` the variance that tuning adds to the mean
    difference. More seeds do not reduce it. Holm's method starts at 0.05/family, so if there are other true
    differences, smaller ones can be detected.

    >>> round(detectable(0.1, 5), 3), round(detectable(0.1, 5, family=10), 3), round(detectable(0.1, 20), 3)
    (0.168, 0.316, 0.066)
    """
    if seeds < 2 or not spread < math.inf:
        return math.inf
    spread = math.sqrt(spread**2 + seeds * tuning)
    if spread == 0:
        return 0.0
    critical = float(stats.t.isf((1 - LEVEL) / (2 * family), seeds - 1))

    def lack(shift: float) -> float:
        return float(stats.nct.sf(critical, seeds - 1, shift)) - POWER

    high = 1.0
    while lack(high) < 0:
        high *= 2
        if high * spread / math.sqrt(seeds) > MOST:
            return math.inf
    return float(optimize.brentq(lack, 0.0, high)) * spread / math.sqrt(seeds)


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
    if not math.isfinite(logarithm):
        return "any size"
    share = 100 * math.expm1(logarithm)
    if share >= 1000:
        return f"{math.exp(logarithm):.0f}-fold"
    return f"{share:.{1 if share < 10 else 0}f} %"


def shown(found: Statistics, seeds: int, tuning: Mapping[str, float]) -> dict[str, float]:
    """By task, the smallest log ratio for which such runs give a verdict in 4 of 5 cases, if it is known.

    `tuning` is, by task, the variance that tuning adds to a difference.
    """
    found_by_task = {
        name: detectable(spread(o.finals for o in task.outcomes.values()), seeds, max(1, found.family), tuning[name])
        for name, task in found.tasks.items()
    }
    return {name: least for name, least in found_by_task.items() if math.isfinite(least)}


def statement(least: Mapping[str, float], seeds: int, forecast: Mapping[str, float]) -> str:
    """A sentence about the differences that the runs could detect, and about the forecast; empty if unknown."""
    if not least:
        return ""
    before = f" The forecast before the runs was {listed(forecast)}." if forecast else ""
    return (
        f"Power: with {seeds} seeds and this spread of losses, a true difference of {listed(least)} is detected in "
        f"{round(100 * POWER)} of 100 comparisons. Smaller differences are missed more often.{before}"
    )


def listed(least: Mapping[str, float]) -> str:
    """By task, in a sentence."""
    return ", ".join(f"{percent(d)} on {name}" for name, d in least.items())

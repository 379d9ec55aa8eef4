"""Comparison of all methods with each other: ranks and performance profiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple, Protocol

import numpy as np
from scipy import stats

from superadam_lab.comparison.statistics.intervals import LEVEL
from superadam_lab.comparison.statistics.outcomes import Outcome

__all__ = ["Ranks", "profile", "ranks_of", "studentized"]


class Ranked(Protocol):
    """The data of a task for ranking."""

    target: float
    outcomes: dict[str, Outcome]


class Ranks(NamedTuple):
    """Ranks by final loss among all methods, for each task and seed; 1 is the lowest loss."""

    means: dict[str, float]
    blocks: int
    p: float
    """Friedman's test that all have the same; NaN if there are fewer than 3 methods or 2 blocks."""
    critical: float
    """Nemenyi's difference, from which on two mean ranks differ."""


def ranks_of(tasks: Sequence[Ranked], methods: list[str]) -> Ranks:
    """Blocks are a task and a seed that all methods have run with, from the same weights in the same order."""
    blocks = []
    present = [m for m in methods if all(t.outcomes[m].runs for t in tasks)]
    for task in tasks:
        finals = [task.outcomes[m].finals for m in present]
        for seed in dict.fromkeys(s for f in finals for s in f):
            if all(seed in f for f in finals):
                blocks.append(stats.rankdata([f[seed] for f in finals]))
    if not blocks:
        return Ranks({}, 0, math.nan, math.nan)
    table = np.array(blocks)
    n, k = table.shape
    p = math.nan
    if k >= 3 and n >= 2:
        p = float(stats.friedmanchisquare(*table.T).pvalue) if np.ptp(table, axis=1).any() else 1.0
    critical = studentized(k) * math.sqrt(k * (k + 1) / (6 * n)) if k >= 3 else math.nan
    return Ranks(dict(zip(present, table.mean(0).tolist(), strict=True)), n, p, critical)


@cache
def studentized(k: int) -> float:
    """Nemenyi's q for k methods (Demšar, JMLR 7, 2006)."""
    return float(stats.studentized_range.ppf(LEVEL, k, math.inf)) / math.sqrt(2)


def profile(tasks: Sequence[Ranked], methods: list[str], axis: str) -> dict[str, list[float]]:
    """Dolan and Moré's ratios (Math. Programming 91, 2002), sorted. What no method has solved is infinite for all."""
    found: dict[str, list[float]] = {m: [] for m in methods}
    for task in tasks:
        if not math.isfinite(task.target) or not all(o.timed(axis) for o in task.outcomes.values()):
            continue
        times = {m: o.times(dict.fromkeys(o.runs, task.target))[axis] for m, o in task.outcomes.items()}
        for seed in dict.fromkeys(s for t in times.values() for s in t):
            best = min(t.get(seed, math.inf) for t in times.values())
            for m in methods:
                t = times[m].get(seed, math.inf)
                found[m].append(max(t, 1e-9) / max(best, 1e-9) if math.isfinite(t) else math.inf)
    return {m: sorted(ratios) for m, ratios in found.items()}

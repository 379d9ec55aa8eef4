"""The noise of tuning: how much the result would vary if tuning were repeated."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from superadam_lab.comparison.plan.jobs import scores
from superadam_lab.comparison.records import Results
from superadam_lab.comparison.statistics.outcomes import Outcome
from superadam_lab.comparison.statistics.power import spread

__all__ = ["tuning_variance", "variances"]

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


def variances(results: Results, name: str, outcomes: Mapping[str, Outcome]) -> dict[str, float]:
    """The variance of tuning on a task, by method; 0 where the spread of losses is unknown."""
    plan = results.plan
    noise = spread(o.finals for o in outcomes.values()) / math.sqrt(2 * max(1, len(plan.tuning_seeds)))
    found = {}
    for m in outcomes:
        tuned = [r for r in results.records if (r.task, r.method, r.phase) == (name, m, "tune")]
        losses = [loss for _, loss in scores(plan, tuned).values() if 0 < loss < math.inf]
        found[m] = tuning_variance([math.log(f) for f in losses], noise) if math.isfinite(noise) else 0.0
    return found

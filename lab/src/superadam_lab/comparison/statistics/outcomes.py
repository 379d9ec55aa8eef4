"""The outcome of a method's runs on a task, by seed: final and best values, times to a target, curves."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from superadam_lab.comparison.records import Record, Row, final, known
from superadam_lab.comparison.statistics.intervals import Estimate, log_ratio, mean

__all__ = ["AXES", "Curves", "Outcome", "columns", "crossing"]

AXES = ("gradient_evaluations", "seconds", "epoch")
TIMES = AXES[:2]
SHARES = ("_accuracy",)
"""Scores from 0 to 1, which are better if higher."""
POINTS = 150
"""Of a curve, at the most."""

Curves = dict[str, list[Any]]


def columns(records: Iterable[Record]) -> list[str]:
    """The measured columns: train before valid before test, losses before scores."""
    names = dict.fromkeys(name for record in records for row in record.rows[:1] + record.rows[-1:] for name in row)
    splits = [name for name in names if name.startswith(("train_", "valid_", "test_"))]
    order = ("train", "valid", "test")
    return sorted(splits, key=lambda name: (not name.endswith("_loss"), order.index(name.split("_")[0])))


def crossing(rows: Sequence[Row], name: str, target: float) -> dict[str, float]:
    """When the loss first reached the target: evaluations and seconds, infinite if never.

    Between two rows the logarithm of the loss is interpolated linearly (the loss itself, if one is not positive). The
    initial weights never count.

    >>> rows = [{"gradient_evaluations": e, "seconds": e / 10, "loss": f} for e, f in ((0, 4.0), (10, 1.0))]
    >>> crossing(rows, "loss", 2.0)
    {'gradient_evaluations': 5.0, 'seconds': 0.5}
    """
    before: Row | None = None
    for row in rows:
        loss = known(row.get(name))
        trained = known(row.get("gradient_evaluations")) > 0
        if loss <= target and trained:
            part = 1.0 if before is None else _part(known(before.get(name)), loss, target)
            found = {}
            for axis in TIMES:
                end = known(row.get(axis))
                start = end if before is None else known(before.get(axis))
                found[axis] = end if math.isinf(start) else start + part * (end - start)
            return found
        before = row if loss > target and math.isfinite(loss) else None
    return dict.fromkeys(TIMES, math.inf)


def _part(above: float, below: float, target: float) -> float:
    """The position of the target between two losses, from 0 to 1: below <= target < above."""
    if below > 0:
        return log_ratio(above, target) / log_ratio(above, below)
    unit = max(above, -below)  # so that no difference overflows, or is 0
    return (above / unit - target / unit) / (above / unit - below / unit)


@dataclasses.dataclass
class Outcome:
    """The runs of a method on a task, one for each report seed."""

    task: str
    method: str
    runs: dict[int, Record]
    criterion: str
    names: list[str]

    @cached_property
    def finals(self) -> dict[int, float]:
        """The final loss of the criterion, by seed."""
        return {seed: final(run, self.criterion) for seed, run in self.runs.items()}

    @property
    def finished(self) -> int:
        """The number of runs that finished."""
        return sum(math.isfinite(f) for f in self.finals.values())

    @property
    def options(self) -> dict[str, Any]:
        """The options that tuning chose."""
        return next((run.options for run in self.runs.values()), {})

    def least(self, seed: int) -> float:
        """The lowest loss of the criterion in a run, without the initial weights."""
        rows = [r for r in self.runs[seed].rows if known(r.get(AXES[0])) > 0]
        return min((known(row.get(self.criterion)) for row in rows), default=math.inf)

    def times(self, targets: Mapping[int, float]) -> dict[str, dict[int, float]]:
        """Evaluations and seconds to the target of each seed."""
        found = {seed: crossing(self.runs[seed].rows, self.criterion, f) for seed, f in targets.items()}
        return {axis: {seed: times[axis] for seed, times in found.items()} for axis in TIMES}

    def timed(self, axis: str) -> bool:
        """Whether evaluations, or seconds, are known; seconds of runs from other comparisons are not."""
        return all(run.rows[-1].get(axis, 0.0) is not None for run in self.runs.values() if run.rows)

    def spent(self, axis: str) -> dict[int, float]:
        """Evaluations or seconds of whole runs, by seed. A run that stopped early gets the largest value of the
        others."""
        last = {seed: known(run.rows[-1].get(axis)) if run.rows else math.inf for seed, run in self.runs.items()}
        whole = [last[seed] for seed, f in self.finals.items() if math.isfinite(f) and math.isfinite(last[seed])]
        most = max(whole or [v for v in last.values() if math.isfinite(v)] or [math.inf])
        return {seed: last[seed] if math.isfinite(f) and f < math.inf else most for seed, f in self.finals.items()}

    def summary(self, name: str) -> tuple[Estimate, Estimate]:
        """Means at the end of the finished runs, and at each run's row with the lowest loss of the criterion.

        They are geometric means, because the ratios use these. Accuracies and values that are not positive have plain
        means.
        """
        ends, bests = [], []
        for seed, run in self.runs.items():
            if math.isfinite(self.finals[seed]):
                ends.append(known(run.rows[-1].get(name)))
                best = min(run.rows, key=lambda row: known(row.get(self.criterion)))
                bests.append(known(best.get(name)))
        return _average(ends, name), _average(bests, name)

    def curves(self) -> Curves:
        """The median over seeds, lowest and highest of each column by gradient evaluations; None if not finite.

        A diverged run counts as infinite from the divergence on.
        """
        rows = {seed: {known(r.get(AXES[0])): r for r in run.rows} for seed, run in self.runs.items()}
        places = sorted({e for by in rows.values() for e in by if math.isfinite(e)})
        if len(places) > POINTS:
            places = [places[round(i)] for i in np.linspace(0, len(places) - 1, POINTS)]
        found: Curves = {axis: [] for axis in AXES} | {name: [] for name in self.names}
        for place in places:
            here = [by[place] for by in rows.values() if place in by]
            for axis in AXES:
                found[axis].append(_round(float(np.median([known(row.get(axis)) for row in here]))))
            ended = sum(run.status != "finished" and place not in rows[seed] for seed, run in self.runs.items())
            for name in self.names:
                worst = -math.inf if name.endswith(SHARES) else math.inf
                measured = [known(row.get(name)) for row in here]
                values = sorted([v if math.isfinite(v) else worst for v in measured] + [worst] * ended)
                found[name].append([_round(v) for v in (_median(values), values[0], values[-1])])
        return found


def _median(values: Sequence[float]) -> float:
    """The median of sorted values; infinite if one of the two in the middle is."""
    n = len(values)
    return (values[(n - 1) // 2] + values[n // 2]) / 2


def _average(values: Iterable[float], name: str) -> Estimate:
    finite = [v for v in values if math.isfinite(v)]
    if name.endswith(SHARES):
        found = mean(finite)
        return found._replace(low=max(found.low, 0.0), high=min(found.high, 1.0)) if found.n > 1 else found
    return mean([math.log(v) for v in finite]).exp() if all(v > 0 for v in finite) else mean(finite)


def _round(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None

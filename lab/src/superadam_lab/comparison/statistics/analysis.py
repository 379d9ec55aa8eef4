"""The statistics of a comparison: each method against the baseline, on each task and on all of them.

The criterion is the ratio of validation losses at the end of equal budgets, paired by seed. Each method is judged on
all tasks together by its logarithm, with the noise of seeds and of tuning (`simultaneous`). Single tasks have an
interval, and a verdict only if it is asked for. Evaluations and seconds to the median final loss of the baseline are
reported as well.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from superadam_lab.comparison.records import Results, criterion
from superadam_lab.comparison.statistics import chance, simultaneous
from superadam_lab.comparison.statistics.intervals import LEVEL, NOTHING, Estimate, log_ratio, mean, paired
from superadam_lab.comparison.statistics.outcomes import TIMES, Outcome, columns
from superadam_lab.comparison.statistics.ranking import Ranks, profile, ranks_of
from superadam_lab.comparison.statistics.tuning import Trials, trials_of

__all__ = ["Comparison", "Ratio", "Statistics", "TaskStatistics", "analyse"]

ALPHA = 1 - LEVEL

Outcomes = dict[str, Outcome]
BySeed = Mapping[int, float]


class Ratio(NamedTuple):
    """Time to the target, as a multiple of the baseline's.

    A miss counts as infinite, so the geometric mean is infinite too. A miss of the baseline counts as its whole budget,
    a lower bound of the true time, so that it favours no method. The lower end of the interval allows for this
    uncertainty: it counts a miss as reaching the target at the end of the budget and, where the baseline missed, uses
    the time to the loss that the baseline reached.
    """

    estimate: Estimate
    reached: int
    reached_baseline: int
    runs: int


@dataclasses.dataclass
class Comparison:
    """A method against the baseline: on one task, or on average over those whose losses have a ratio.

    `finals` is the ratio of final losses, or their difference if some are not positive (`relative` is False), over the
    seeds on which neither run was `lost`, that is, diverged or failed.
    """

    method: str
    finals: Estimate
    relative: bool
    lost: int
    lost_baseline: int
    n: int
    times: dict[str, Ratio]
    p: float = math.nan
    """Corrected, from the same procedure as the interval of `finals`; NaN where no verdict was asked for."""

    error: float = math.nan
    """The standard error of the mean difference, or of its logarithm."""

    @property
    def judged(self) -> bool:
        """Whether this comparison is part of the verdict: its interval holds together with all others."""
        return not math.isnan(self.p)

    @property
    def outcome(self) -> Literal["better", "worse", "lost", "same"]:
        """The outcome: "better" or "worse" if the difference is significant at the 5 % level.

        A method that lost more runs than the baseline is not "better", and one that lost fewer is not "worse", because
        the remaining seeds are a selection. More lost runs are reported separately.
        """
        sign = np.sign(self.finals.value - (1.0 if self.relative else 0.0)) if self.p < ALPHA else 0.0
        more = self.lost - self.lost_baseline
        if sign < 0 and more <= 0:
            return "better"
        if sign > 0 and more >= 0:
            return "worse"
        return "lost" if more > 0 else "same"


@dataclasses.dataclass
class TaskStatistics:
    """One task."""

    name: str
    names: list[str]
    criterion: str
    target: float
    """The median final loss of the baseline; infinite if it has none."""
    outcomes: Outcomes
    comparisons: dict[str, Comparison]
    trials: dict[str, Trials]
    tuning: dict[str, float]
    """By method, the variance that another tuning would add to the logarithm of its loss."""


@dataclasses.dataclass
class Statistics:
    """All tasks. `overall` is empty if there is only one task, or if some losses are not positive and have no ratio."""

    baseline: str
    methods: list[str]
    tasks: dict[str, TaskStatistics]
    overall: dict[str, Comparison]
    ranks: Ranks
    profiles: dict[str, dict[str, list[float]]]
    """For evaluations and seconds, by method: the factors by which the best of all was faster, by task and seed."""
    per_task: bool
    """Whether single tasks have verdicts, too, corrected for all of them."""

    @property
    def verdict(self) -> dict[str, Comparison]:
        """The comparisons of the verdict: over all tasks, or on the only task."""
        return self.overall if len(self.tasks) != 1 else next(iter(self.tasks.values())).comparisons

    @property
    def family(self) -> int:
        """The number of comparisons of the verdict, which are corrected for."""
        return len(self.verdict)


def analyse(results: Results, *, per_task: bool = False) -> Statistics:
    """The statistics of a study, which may be unfinished. `per_task` gives verdicts on single tasks, too."""
    baseline, methods = results.plan.baseline, _methods(results)
    tasks = {name: _task(results, name, methods) for name in _tasks(results)}
    pairs = {name: _pairs(task, baseline) for name, task in tasks.items()}
    overall = {}
    for name, task in tasks.items():
        task.comparisons = {m: _compare(m, [pairs[name][m]], [task], baseline) for m in methods if m in pairs[name]}
    if len(tasks) > 1:
        every = {m: [pairs[t][m] for t in tasks if m in pairs[t]] for m in methods}
        complete = {m: found for m, found in every.items() if len(found) == len(tasks)}
        relative = {m: found for m, found in complete.items() if all(t.relative for t in found)}
        overall = {m: _compare(m, found, list(tasks.values()), baseline) for m, found in relative.items()}
    ranks = ranks_of(list(tasks.values()), methods)
    profiles = {axis: profile(list(tasks.values()), methods, axis) for axis in TIMES}
    made = Statistics(baseline, methods, tasks, overall, ranks, profiles, per_task or len(tasks) == 1)
    if main := made.verdict:
        tables = [_differences(pairs[name], list(main), task, baseline) for name, task in tasks.items()]
        _judge(main, simultaneous.together(tables))
    if per_task and len(tasks) > 1:
        tables = [_differences(pairs[t.name], list(t.comparisons), t, baseline) for t in tasks.values()]
        for task, found in zip(tasks.values(), simultaneous.each(tables), strict=True):
            _judge(task.comparisons, found)
    return made


def _tasks(results: Results) -> list[str]:
    return list(dict.fromkeys([*results.plan.tasks, *(r.task for r in results.records)]))


def _methods(results: Results) -> list[str]:
    """The baseline first."""
    planned = [results.plan.baseline, *results.plan.methods, *sorted({r.method for r in results.records})]
    return list(dict.fromkeys(planned))


def _task(results: Results, name: str, methods: list[str]) -> TaskStatistics:
    records = [r for r in results.records if r.task == name]
    names = columns(records)
    by = criterion(names)
    outcomes = {}
    for m in methods:
        runs = {r.seed: r for r in records if (r.method, r.phase, r.budget) == (m, "report", "gradients")}
        outcomes[m] = Outcome(name, m, dict(sorted(runs.items())), by, names)
    finals = list(outcomes[results.plan.baseline].finals.values())
    target = float(np.median(finals)) if finals else math.inf
    tuned = {m: [r for r in records if r.method == m and r.phase == "tune"] for m in methods}
    chosen = {m: next((r.trial for r in o.runs.values()), None) for m, o in outcomes.items()}
    trials = {m: trials_of(tuned[m], by, list(results.plan.space_of(m)), chosen[m]) for m in methods}
    return TaskStatistics(name, names, by, target, outcomes, {}, trials, chance.variances(results, name, outcomes))


# ------------------------------------------------------------------------------------------------ pairs


@dataclasses.dataclass
class Pairs:
    """A method and the baseline on a task, by seed: final losses, and times with their lower bounds."""

    ours: BySeed
    theirs: BySeed
    relative: bool
    times: dict[str, tuple[BySeed, BySeed]]
    """Logarithms of ratios: the most that they could be, infinite for a miss; and the least."""
    reached: dict[str, tuple[int, int]]

    def difference(self, seed: int) -> float:
        a, b = self.ours[seed], self.theirs[seed]
        if math.isinf(a) or math.isinf(b):
            return math.inf
        return log_ratio(a, b) if self.relative else a - b

    @property
    def finite(self) -> list[float]:
        """The differences on the seeds on which neither run is lost."""
        return [d for d in map(self.difference, self.ours) if math.isfinite(d)]


def _pairs(task: TaskStatistics, baseline: str) -> dict[str, Pairs]:
    """The pairs of each method except the baseline, where both have runs."""
    theirs = task.outcomes[baseline]
    found = {}
    for m, ours in task.outcomes.items():
        seeds = [s for s in ours.runs if s in theirs.runs]
        if m == baseline or not seeds:
            continue
        a, b = ({s: o.finals[s] for s in seeds} for o in (ours, theirs))
        times, reached = {}, {}
        if math.isfinite(task.target):
            for axis, (values, least, *counts) in _times(ours, theirs, task.target, seeds).items():
                times[axis], reached[axis] = (values, least), (counts[0], counts[1])
        relative = all(f > 0 for f in (*a.values(), *b.values()))
        found[m] = Pairs(a, b, relative, times, reached)
    return found


def _times(
    ours: Outcome, theirs: Outcome, target: float, seeds: list[int]
) -> dict[str, tuple[BySeed, BySeed, int, int]]:
    """Upper and lower bounds of the log ratios, and the number of runs that reached the target."""
    eased = {s: max(target, theirs.least(s)) for s in seeds}
    strict = dict.fromkeys(seeds, target)
    (a, a_eased), (b, b_eased) = ((o.times(strict), o.times(eased)) for o in (ours, theirs))
    found: dict[str, tuple[BySeed, BySeed, int, int]] = {}
    for axis in (axis for axis in TIMES if ours.timed(axis) and theirs.timed(axis)):
        spent, spent_theirs = ours.spent(axis), theirs.spent(axis)
        most, least = {}, {}
        for s in seeds:
            most[s] = _log_ratio(a[axis][s], min(b[axis][s], spent_theirs[s]))
            least[s] = _log_ratio(min(a_eased[axis][s], spent[s]), min(b_eased[axis][s], spent_theirs[s]))
        reached, reached_theirs = (sum(math.isfinite(x[axis][s]) for s in seeds) for x in (a, b))
        found[axis] = (most, least, reached, reached_theirs)
    return found


def _log_ratio(top: float, bottom: float) -> float:
    """The log ratio; infinite if a time is infinite, that is, unknown."""
    return log_ratio(max(top, 1e-9), max(bottom, 1e-9)) if math.isfinite(top) and math.isfinite(bottom) else math.inf


def _compare(method: str, tasks: list[Pairs], found: list[TaskStatistics], baseline: str) -> Comparison:
    """Compare on one task, or on the mean over tasks. The interval of one task is not corrected for others."""
    seeds = [s for s in tasks[0].ours if all(s in t.ours for t in tasks)]
    ours, theirs = ([sum(getattr(t, side)[s] for t in tasks) for s in seeds] for side in ("ours", "theirs"))
    relative = tasks[0].relative
    finals = NOTHING
    if len(tasks) == 1:
        finals = mean(tasks[0].finite, found[0].tuning[method] + found[0].tuning[baseline] if relative else 0.0)
    times = {}
    for axis in TIMES:
        if all(axis in t.times for t in tasks):
            times[axis] = _ratio([t.times[axis] for t in tasks], [t.reached[axis] for t in tasks], seeds)
    lost, lost_theirs = (sum(math.isinf(v) for v in side) for side in (ours, theirs))
    return Comparison(method, finals.exp() if relative else finals, relative, lost, lost_theirs, len(seeds), times)


def _differences(
    pairs: dict[str, Pairs], methods: list[str], task: TaskStatistics, baseline: str
) -> simultaneous.Differences:
    """The table of a task for the verdict."""
    seeds = sorted({s for m in methods for s in pairs[m].ours})
    values = np.full((len(seeds), len(methods)), math.nan)
    for j, m in enumerate(methods):
        for i, s in enumerate(seeds):
            if s in pairs[m].ours and math.isfinite(d := pairs[m].difference(s)):
                values[i, j] = d
    relative = all(pairs[m].relative for m in methods)
    tuning = np.array([task.tuning[m] if relative else 0.0 for m in methods])
    return simultaneous.Differences(values, tuning, task.tuning[baseline] if relative else 0.0)


def _judge(comparisons: dict[str, Comparison], found: list[simultaneous.Judged]) -> None:
    for c, (estimate, p, error) in zip(comparisons.values(), found, strict=True):
        c.finals, c.p, c.error = estimate.exp() if c.relative else estimate, p, error


def _ratio(tasks: list[tuple[BySeed, BySeed]], reached: list[tuple[int, int]], seeds: Sequence[int]) -> Ratio:
    values, least = ([_mean([t[i][s] for t in tasks]) for s in seeds] for i in (0, 1))
    estimate = paired(values, least) if all(map(math.isfinite, least)) else NOTHING
    ours, theirs = (sum(r[i] for r in reached) for i in (0, 1))
    return Ratio(estimate.exp(), ours, theirs, sum(len(t[0]) for t in tasks))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)

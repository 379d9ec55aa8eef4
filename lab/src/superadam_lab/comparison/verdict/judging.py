"""The outcome of each method: that of the statistics, unless the runs are not enough to tell."""

from __future__ import annotations

from typing import NamedTuple

from superadam_lab.comparison.statistics.analysis import Comparison, Statistics, TaskStatistics
from superadam_lab.comparison.statistics.power import FEWEST
from superadam_lab.methods.by_name import label

__all__ = ["OUTCOMES", "SIDES", "Judgement", "judged"]

OUTCOMES = ("better", "worse", "insufficient", "lost", "same", "shown", "none")
SIDES = {"lowest": "below", "highest": "above"}


class Judgement(NamedTuple):
    """The outcome of a method.

    `outcome` is one of `OUTCOMES`: significantly "better" or "worse"; "insufficient", if there are too few seeds or a
    learning rate was not tried far enough; "lost", with more runs that diverged or failed than the baseline; "same"
    without a significant difference; "shown" on a single task that no verdict was asked for; "none" without runs.
    `needs` says what would be sufficient.
    """

    outcome: str
    needs: tuple[str, ...] = ()


def judged(found: Statistics) -> dict[str | None, dict[str, Judgement]]:
    """By task, and for None over all tasks: the outcome of each method except the baseline.

    Fewer than three seeds are not enough. If a best learning rate is the lowest or highest that was tried, a better one
    may lie beyond it. If it is the baseline's, no method is "better" or "same". If it is the method's, this method is
    not "worse", "lost" or "same"; it can be "better", because a better learning rate would only increase the
    difference. Other tuned options have a range that their author chose: at its edge they cause a caution, but do not
    prevent a verdict.
    """
    said: dict[str | None, dict[str, Judgement]] = {}
    for name, comparisons in [(None, found.overall), *((t.name, t.comparisons) for t in found.tasks.values())]:
        tasks = [found.tasks[name]] if name is not None else list(found.tasks.values())
        said[name] = {
            m: _judged(comparisons.get(m), tasks, found.baseline, found.per_task or name is None)
            for m in found.methods
            if m != found.baseline
        }
    return said


def _judged(c: Comparison | None, tasks: list[TaskStatistics], baseline: str, asked: bool) -> Judgement:
    if c is None or c.n == 0:
        return Judgement("none")
    if not asked:
        return Judgement("shown")
    if needs := _seeds(c):
        return Judgement("insufficient", (needs,))
    open_ended = {"better": [baseline], "same": [baseline, c.method]}.get(c.outcome, [c.method])
    if rates := tuple(need for t in tasks for m in open_ended for need in _rates(t, m, len(tasks))):
        return Judgement("insufficient", rates)
    return Judgement(c.outcome)


def _seeds(c: Comparison) -> str:
    """The seeds that are missing. A difference needs seeds on which neither run diverged or failed."""
    if c.n < FEWEST:
        return f"at least {FEWEST} seeds ({c.n} here)"
    if c.finals.n < FEWEST and c.outcome != "lost":
        return f"at least {FEWEST} seeds on which both runs finish ({c.finals.n} here)"
    return ""


def _rates(task: TaskStatistics, method: str, tasks: int) -> list[str]:
    """The direction in which further learning rates of a method should be tried."""
    trials, needs = task.trials[method], []
    where = f" on {task.name}" if tasks > 1 else ""
    for key, side in trials.edges.items():
        if key.rpartition(".")[2] != "lr" or trials.best is None:
            continue
        if side in SIDES:
            best = trials.points[trials.best][0][key]
            needs.append(f"values of {key} {SIDES[side]} {best:.2g} for {label(method)}{where}")
        else:
            needs.append(f"more than one value of {key} for {label(method)}{where}")
    return needs

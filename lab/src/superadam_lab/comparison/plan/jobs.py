"""The runs that a comparison needs, given those that are done: a function of the plan and of their numbers only."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Literal

from superadam_lab.comparison.plan.budgets import Budget, kept, lengths, rungs
from superadam_lab.comparison.plan.sampling import Tuned, proposed
from superadam_lab.comparison.records import Plan, Record, criterion, final

__all__ = ["Job", "best", "complete", "finished_seeds", "judged", "needed", "scores"]

Place = tuple[str, str]
"""A task and a method."""


@dataclasses.dataclass(frozen=True)
class Job:
    """A run to do. Its length is the task's gradient evaluations, or `amount`: gradient evaluations, or batches if
    `budget` is "epochs"."""

    task: str
    method: str
    phase: Literal["tune", "report"]
    trial: int
    seed: int
    options: tuple[tuple[str, float], ...]
    budget: Budget = "gradients"
    amount: int | None = None

    @classmethod
    def of(cls, record: Record) -> Job:
        options = tuple(record.options.items())
        length = record.budget, record.amount
        return cls(record.task, record.method, record.phase, record.trial, record.seed, options, *length)

    def record(
        self, status: Literal["finished", "diverged", "failed"], rows: list[dict[str, Any]], error: str = ""
    ) -> Record:
        return Record(**{**vars(self), "options": dict(self.options)}, status=status, rows=rows, error=error)


def needed(plan: Plan, done: Iterable[Record]) -> list[Job]:
    """All runs that are known so far, in the plan's order: tuning, and the final runs where tuning is done."""
    found = _by_place(plan, done)
    tuning, chosen = {}, {}
    for (task, method), records in found.items():
        tuning[task, method], chosen[task, method] = _tuning(plan, task, method, records)
    jobs = []
    for (task, method), records in found.items():
        jobs += tuning[task, method]
        ours, theirs = chosen[task, method], chosen.get((task, plan.baseline))
        if ours is not None:
            i, given = ours[0], tuple(ours[1].items())
            for length in lengths(plan, task, records, found[task, plan.baseline] if theirs else None):
                jobs += [Job(task, method, "report", i, seed, given, *length) for seed in plan.report_seeds]
    return jobs


def complete(plan: Plan, done: Iterable[Record]) -> bool:
    """Whether all runs are done."""
    records = list(done)
    return _tuned(plan, records) and not _missing(plan, records)


def finished_seeds(plan: Plan, done: Iterable[Record]) -> list[int]:
    """The report seeds whose runs are all done: of every method, on every task, with every budget."""
    records = list(done)
    if not _tuned(plan, records):
        return []
    lacking = {job.seed for job in _missing(plan, records)}
    return [seed for seed in plan.report_seeds if seed not in lacking]


def _tuned(plan: Plan, records: list[Record]) -> bool:
    return all(best(plan, of_place) for of_place in _by_place(plan, records).values())


def _missing(plan: Plan, records: list[Record]) -> list[Job]:
    made = {_name(r) for r in records}
    return [job for job in needed(plan, records) if _name(job) not in made]


def _name(run: Job | Record) -> tuple[Any, ...]:
    return run.task, run.method, run.phase, run.trial, run.seed, run.budget, run.amount


def _by_place(plan: Plan, done: Iterable[Record]) -> dict[Place, list[Record]]:
    found: dict[Place, list[Record]] = {(task, method): [] for task in plan.tasks for method in plan.methods}
    for record in done:
        if (record.task, record.method) in found:
            found[record.task, record.method].append(record)
    return found


def _tuning(plan: Plan, task: str, method: str, records: list[Record]) -> tuple[list[Job], tuple[int, Tuned] | None]:
    """The trials that are known so far, from rung to rung, and the best one of the last rung."""
    trials = dict(enumerate(proposed(plan, method, scores(plan, records))))
    jobs: list[Job] = []
    for amount in rungs(plan, task):
        for i, options in trials.items():
            given = tuple(options.items())
            jobs += [Job(task, method, "tune", i, s, given, "gradients", amount) for s in plan.tuning_seeds]
        found = scores(plan, records, amount)
        if (len(trials) < plan.trials and plan.halving is None) or any(i not in found for i in trials):
            return jobs, None
        order = sorted(trials, key=lambda i: (found[i][1], i))
        trials = {i: trials[i] for i in sorted(order[: kept(plan, len(order))])} if amount is not None else trials
    return jobs, (order[0], found[order[0]][0])


def judged(record: Record) -> float:
    """The score of a trial: the criterion's loss at the end of the run; ∞ if the run did not finish."""
    return final(record, criterion(record.rows[-1] if record.rows else ()))


def scores(plan: Plan, records: Iterable[Record], amount: int | None = None) -> dict[int, tuple[Tuned, float]]:
    """For each complete trial of a task and method: its options, and the mean final loss over the seeds."""
    by_trial: dict[int, dict[int, Record]] = {}
    for record in records:
        if record.phase == "tune" and record.seed in plan.tuning_seeds and record.amount == amount:
            by_trial.setdefault(record.trial, {})[record.seed] = record
    result = {}
    for i, runs in sorted(by_trial.items()):
        if len(runs) == len(plan.tuning_seeds):
            losses = [judged(runs[s]) for s in plan.tuning_seeds]
            result[i] = (runs[plan.tuning_seeds[0]].options, sum(losses) / len(losses))
    return result


def best(plan: Plan, records: Iterable[Record]) -> tuple[int, Tuned] | None:
    """The trial of a task and method with the lowest loss (ties: the first); None while one is missing."""
    found = list(records)
    return _tuning(plan, found[0].task, found[0].method, found)[1] if found else None

"""Which runs a comparison needs, given those that are done. A function of the plan and of their numbers alone."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from superadam.lab.comparison.records import Plan, Record, criterion, final

__all__ = ["Job", "best", "judged", "needed", "quiet", "scores"]

SOBOL = 375  # a scrambling that leaves small gaps between 5 to 16 points on a line, and next to its ends
TPE_STARTUP = 4  # trials before the sampler "tpe" looks at results

Tuned = dict[str, Any]
Place = tuple[str, str]
"""A task and a method."""


@dataclasses.dataclass(frozen=True)
class Job:
    """A run to be made."""

    task: str
    method: str
    phase: Literal["tune", "report"]
    trial: int
    seed: int
    options: tuple[tuple[str, float], ...]

    @classmethod
    def of(cls, record: Record) -> Job:
        options = tuple(record.options.items())
        return cls(record.task, record.method, record.phase, record.trial, record.seed, options)

    def record(
        self, status: Literal["finished", "diverged", "failed"], rows: list[dict[str, Any]], error: str = ""
    ) -> Record:
        options = dict(self.options)
        return Record(self.task, self.method, self.phase, self.trial, options, self.seed, status, rows, error)


def needed(plan: Plan, done: Iterable[Record]) -> list[Job]:
    """All runs that can be named by now, in the plan's order: tuning, and the report where tuning is done."""
    found: dict[Place, list[Record]] = {(task, method): [] for task in plan.tasks for method in plan.methods}
    for record in done:
        if (record.task, record.method) in found:
            found[record.task, record.method].append(record)
    jobs = []
    for (task, method), records in found.items():
        for i, options in enumerate(_proposed(plan, scores(plan, records))):
            jobs += [Job(task, method, "tune", i, seed, tuple(options.items())) for seed in plan.tuning_seeds]
        chosen = best(plan, records)
        if chosen is not None:
            i, options = chosen
            jobs += [Job(task, method, "report", i, seed, tuple(options.items())) for seed in plan.report_seeds]
    return jobs


def judged(record: Record) -> float:
    """What a trial is judged by: the loss that decides, at the end of the run; ∞ if it did not come to its end."""
    return final(record, criterion(record.rows[-1] if record.rows else ()))


def scores(plan: Plan, records: Iterable[Record]) -> dict[int, tuple[Tuned, float]]:
    """Of each trial of one task and method that is complete: its options, and the mean final loss over the seeds."""
    by_trial: dict[int, dict[int, Record]] = {}
    for record in records:
        if record.phase == "tune" and record.seed in plan.tuning_seeds:
            by_trial.setdefault(record.trial, {})[record.seed] = record
    result = {}
    for i, runs in sorted(by_trial.items()):
        if len(runs) == len(plan.tuning_seeds):
            losses = [judged(runs[s]) for s in plan.tuning_seeds]
            result[i] = (runs[plan.tuning_seeds[0]].options, sum(losses) / len(losses))
    return result


def best(plan: Plan, records: Iterable[Record]) -> tuple[int, Tuned] | None:
    """The trial with the least loss, the first of several; None as long as one is missing."""
    found = scores(plan, records)
    if len(found) < plan.trials:
        return None
    i = min(found, key=lambda i: (found[i][1], i))
    return i, found[i][0]


# ------------------------------------------------------------------------------------------------ what is tried

_kept: dict[str, list[Tuned]] = {}


def _proposed(plan: Plan, found: Mapping[int, tuple[Tuned, float]]) -> list[Tuned]:
    """The options of the trials so far. With "qmc" and "random": all, the same for every task and method."""
    if plan.sampler == "tpe":
        known = [found[i] for i in range(plan.trials) if i in found]
        tried = [options for options, _ in known]
        return tried if len(known) == plan.trials else [*tried, _next_of_tpe(plan, known)]
    key = repr((plan.sampler, plan.trials, plan.space))
    if key not in _kept:
        _kept[key] = _drawn(plan)
    return _kept[key]


def _drawn(plan: Plan) -> list[Tuned]:
    import optuna

    sampler: optuna.samplers.BaseSampler = optuna.samplers.RandomSampler(seed=0)
    if plan.sampler == "qmc":
        with quiet():
            sampler = optuna.samplers.QMCSampler(scramble=True, seed=SOBOL, independent_sampler=sampler)
    study = _study(sampler)
    study.ask(_distributions(plan))  # from which QMCSampler learns the space; it has no part in the sequence
    return [dict(study.ask(_distributions(plan)).params) for _ in range(plan.trials)]


def _next_of_tpe(plan: Plan, known: list[tuple[Tuned, float]]) -> Tuned:
    import optuna

    study = _study(optuna.samplers.TPESampler(seed=len(known), n_startup_trials=TPE_STARTUP))
    space = _distributions(plan)
    for options, loss in known:
        study.add_trial(optuna.create_trial(params=options, distributions=space, value=loss))
    return dict(study.ask(space).params)


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warning of Optuna that quasi-random numbers are experimental."""
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield


def _study(sampler: Any) -> Any:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(sampler=sampler)


def _distributions(plan: Plan) -> dict[str, Any]:
    from optuna.distributions import FloatDistribution

    return {name: FloatDistribution(low, high, log=True) for name, (low, high) in plan.space.items()}

"""Runs of earlier comparisons that this one would make once more, number by number."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from superadam.lab.comparison.jobs import Job
from superadam.lab.comparison.records import VERSIONS, Plan, Record, Results
from superadam.lab.packages import sources

__all__ = ["Reusable"]

CODE = (*VERSIONS, "code", "cpu")
"""What of an environment must be the same."""
RULES = ("scale", "decay", "warmup", "device", "data_dir")


class Reusable:
    """The runs in results.json of some folders, whose numbers would be the same here: the same task, method, options,
    seed and length, with the same code on the same kind of processor.

    Args:
        folders: of comparisons.
        plan, environment: of the one that is to be made.
    """

    def __init__(self, folders: Sequence[str | Path], plan: Plan, environment: dict[str, Any]) -> None:
        self._plan = plan
        self._found: dict[tuple[Any, ...], Record] = {}
        for folder in folders:
            path = Path(folder) / "results.json"
            if not path.is_file():
                raise ValueError(f"{folder} holds no comparison to reuse: there is no {path.name}")
            results = Results.read(path)
            if _same_code(results, environment) and all(getattr(results.plan, r) == getattr(plan, r) for r in RULES):
                self._add(results)

    def _add(self, results: Results) -> None:
        for record in results.records:
            task, theirs = record.task, results.plan
            same = all(_of_task(theirs, task)[i] == of for i, of in enumerate(_of_task(self._plan, task)))
            if same and record.status != "failed":
                method = theirs.compositions.get(record.method, record.method)
                packages = {source: theirs.packages.get(source) for source in sources([method])}
                if packages == sources([method]):
                    self._found[_key(Job.of(record), method)] = record

    def __len__(self) -> int:
        return len(self._found)

    def of(self, job: Job) -> Record | None:
        """The run of a job, if there is one."""
        found = self._found.get(_key(job, self._plan.compositions.get(job.method, job.method)))
        if found is None:
            return None
        return dataclasses.replace(found, method=job.method, trial=job.trial, phase=job.phase)


def _key(job: Job, method: str) -> tuple[Any, ...]:
    return job.task, method, job.seed, tuple(sorted(job.options)), job.budget, job.amount


def _of_task(plan: Plan, task: str) -> tuple[Any, ...]:
    """What a run on a task depends on, in a plan."""
    return plan.budget_evals.get(task), plan.sizes.get(task), plan.task_digest


def _same_code(results: Results, environment: dict[str, Any]) -> bool:
    stages = [results.environment, *results.environment.get("earlier", [])]
    return all(stage.get(name) == environment.get(name) for stage in stages for name in CODE)

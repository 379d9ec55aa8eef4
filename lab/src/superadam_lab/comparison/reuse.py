"""Runs of earlier comparisons that would be identical in this one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from superadam_lab.comparison.plan.jobs import Job
from superadam_lab.comparison.records import VERSIONS, Plan, Record, Results
from superadam_lab.reading import json_file
from superadam_lab.user_code import sources

__all__ = ["Reusable", "is_reused"]

FILE = "results.json"
CODE = (*VERSIONS, "code", "cpu")
"""What of an environment must be the same."""
RULES = ("scale", "decay", "warmup", "device", "data_dir")


class Reusable:
    """The runs in results.json of some folders whose numbers would be the same here: same task, method, options, seed
    and length, same code, same kind of processor. Their seconds are left out, because they were measured at another
    time.

    Args:
        folders: folders of comparisons; None means those next to `place`, of which only embedded tasks without
            --data-dir and methods of installed packages are used, because a file can read other files that have
            changed.
        plan, environment: those of this comparison.
        place: the folder of this comparison.
    """

    def __init__(
        self, folders: Sequence[str | Path] | None, plan: Plan, environment: dict[str, Any], place: Path = Path()
    ) -> None:
        self._plan, self._asked = plan, folders is not None
        self._found: dict[tuple[Any, ...], Record] = {}
        self.folders: list[str] = []
        """Those with runs that can be taken."""
        if "seconds" in plan.budgets:
            if folders:
                raise ValueError("--equal seconds measures how long runs take, so it cannot reuse any: drop --reuse")
            return
        for folder, results in _beside(place, plan) if folders is None else map(_read, folders):
            before = len(self)
            if _same_code(results, environment) and all(getattr(results.plan, r) == getattr(plan, r) for r in RULES):
                self._add(results)
            if len(self) > before:
                self.folders.append(str(folder))

    def _add(self, results: Results) -> None:
        for record in results.records:
            task, theirs = record.task, results.plan
            same = all(_of_task(theirs, task)[i] == of for i, of in enumerate(_of_task(self._plan, task)))
            if same and record.status != "failed":
                method = theirs.compositions.get(record.method, record.method)
                packages = {source: theirs.packages.get(source) for source in sources([method])}
                trusted = self._asked or not any(source.endswith(".py") for source in packages)
                if trusted and packages == sources([method]):
                    self._found[_key(Job.of(record), method)] = record

    def __len__(self) -> int:
        return len(self._found)

    def of(self, job: Job) -> Record | None:
        """The run of a job, if there is one."""
        found = self._found.get(_key(job, self._plan.compositions.get(job.method, job.method)))
        if found is None:
            return None
        rows = [{**row, "seconds": None} for row in found.rows]
        return dataclasses.replace(found, method=job.method, trial=job.trial, phase=job.phase, rows=rows)


def is_reused(record: Record) -> bool:
    """Whether a run was taken from another comparison."""
    return bool(record.rows) and record.rows[-1].get("seconds", 0.0) is None


def _read(folder: str | Path) -> tuple[str | Path, Results]:
    path = Path(folder) / FILE
    if not path.is_file():
        raise ValueError(f"{folder} holds no comparison to reuse: there is no {path.name}")
    return folder, Results.read(path)


def _beside(place: Path, plan: Plan) -> Iterator[tuple[str | Path, Results]]:
    """The comparisons in the folders next to this one that share a task with it. Other files are not read."""
    if plan.task_file or plan.data_dir:
        return
    here = place.resolve()
    for path in sorted(here.parent.glob(f"*/{FILE}")):
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # none, or a damaged one
            if path.parent != here and set(json_file(path)["plan"]["tasks"]) & set(plan.tasks):
                yield path.parent, Results.read(path)


def _key(job: Job, method: str) -> tuple[Any, ...]:
    return job.task, method, job.seed, tuple(sorted(job.options)), job.budget, job.amount


def _of_task(plan: Plan, task: str) -> tuple[Any, ...]:
    """The parts of a plan on which a run on a task depends."""
    return plan.budget_evals.get(task), plan.sizes.get(task), plan.task_digest


def _same_code(results: Results, environment: dict[str, Any]) -> bool:
    stages = [results.environment, *results.environment.get("earlier", [])]
    return all(stage.get(name) == environment.get(name) for stage in stages for name in CODE)

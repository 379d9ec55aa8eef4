"""A run as a row of the database: JSON that is checked when it is read."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Literal, TypeVar, get_args

from superadam_lab.comparison.plan.jobs import Job
from superadam_lab.comparison.records import Plan, Record
from superadam_lab.reading import json_of, typed

__all__ = ["Entry", "Result", "State", "plan_from", "read", "text_of"]

State = Literal["waiting", "running", "done", "lost"]
T = TypeVar("T")


@dataclasses.dataclass
class Result:
    """The result of a run as a worker stores it, with its rows by column."""

    status: Literal["finished", "diverged", "failed"]
    rows: dict[str, list[Any]]
    error: str = ""

    @classmethod
    def of(cls, record: Record) -> Result:
        names = dict.fromkeys(name for row in record.rows for name in row)
        return cls(record.status, {name: [row.get(name) for row in record.rows] for name in names}, record.error)

    def record(self, job: Job, where: str) -> Record:
        if len({len(column) for column in self.rows.values()}) > 1:
            raise ValueError(f"{where} has columns of unequal lengths")
        rows = [dict(zip(self.rows, values, strict=True)) for values in zip(*self.rows.values(), strict=True)]
        return job.record(self.status, rows, self.error)


@dataclasses.dataclass
class Worker:
    """A process, as in `identity.this`."""

    host: str
    boot: str
    pid: int
    started: str | None


@dataclasses.dataclass(frozen=True)
class Entry:
    """A row of the table."""

    id: int
    job: Job
    state: State
    deaths: int
    holder: str | None
    """The worker, as it stands in the table."""
    worker: dict[str, Any] | None
    alive: Any
    record: Record | None

    @classmethod
    def of(cls, row: Any) -> Entry:
        """From JSON, which is checked because anybody may have written it."""
        where = f"run {row.id}"
        if row.state not in get_args(State) or type(row.deaths) is not int:
            raise ValueError(f"{where} has the state {row.state!r} after {row.deaths!r} deaths of workers")
        job = read(Job, row.job, where)
        job = dataclasses.replace(job, options=tuple((k, v) for k, v in job.options))
        worker = None if row.worker is None else dataclasses.asdict(read(Worker, row.worker, f"the worker of {where}"))
        record = None
        if row.state == "done":
            record = read(Result, row.result, f"the result of {where}").record(job, f"the result of {where}")
        return cls(row.id, job, row.state, row.deaths, row.worker, worker, row.alive, record)


def text_of(found: Any) -> str:
    """The job as JSON. Default values are left out, so that jobs of earlier versions keep their digests."""
    plain = dataclasses.asdict(found)
    if isinstance(found, Job):
        plain = {f.name: plain[f.name] for f in dataclasses.fields(Job) if plain[f.name] != f.default}
    return json.dumps(plain)


def plan_from(text: str) -> Plan:
    """A plan from its `text_of`."""
    plan = read(Plan, text, "the plan of the comparison")
    space, *spaces = ({k: (low, high) for k, (low, high) in s.items()} for s in (plan.space, *plan.spaces.values()))
    return dataclasses.replace(plan, space=space, spaces=dict(zip(plan.spaces, spaces, strict=True)))


def read(cls: type[T], text: Any, where: str) -> T:
    return typed(cls, json_of(text, where) if isinstance(text, str) else text, where)

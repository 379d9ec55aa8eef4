"""The comparison in a database: one row for each run, which is waiting, running, done or lost.

A worker claims a run by one UPDATE that changes its state from waiting to running and names the worker. If several
workers try, the database lets one succeed. The worker sends heartbeats during the run and stores the result in the row.
A run whose worker is silent, or known to be dead, waits again. Each change of a row is one statement, so after a kill
at any moment the run is either with its dead worker or in the queue. If a run is done twice nevertheless, both have the
same numbers, and the first result is used.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy import func, insert, select, update
from typing_extensions import Self

from superadam_lab.comparison.entries import Entry, Result, State, plan_from, text_of
from superadam_lab.comparison.plan.jobs import Job
from superadam_lab.comparison.records import BUDGETS, VERSIONS, Plan, Record, Results, check_environment
from superadam_lab.comparison.statistics.tuning import length
from superadam_lab.comparison.storage import (
    FILE,
    comparisons,
    connected,
    known,
    known_to_optuna,
    masked,
    patiently,
    runs,
    sound,
)
from superadam_lab.reading import json_of
from superadam_lab.runs.identity import gone, here, this

__all__ = ["BEAT", "GRACE", "RETRIES", "Queue", "known_plan", "name_of", "restore"]

BEAT, GRACE = 5, 30  # seconds between signs of life, and without one until a worker is taken for dead
RETRIES = 3  # of a run whose worker died
CHUNK = 500  # rows that are read at once


class Queue:
    """The runs of a comparison.

    Args:
        storage: sqlite:///PATH or postgresql://…
        name: name of the comparison in the database.
        plan: the plan, to start a comparison, to resume one with the same plan, or to extend one. Without a plan, the
            comparison must exist.
        environment: environment of this process, for the results. If a plan is extended, or the code differs, it
            replaces the old environment, which is kept under "earlier".
    """

    def __init__(
        self, storage: str, name: str, plan: Plan | None = None, environment: dict[str, Any] | None = None
    ) -> None:
        self.name, self._url = name, storage
        self._done: dict[int, Entry] = {}  # they do not change any more
        with sound(storage):
            self._engine = connected(storage)
            names = known(self._engine)
            if name not in names and known_to_optuna(self._engine, name):
                raise ValueError(
                    f"{masked(storage)} holds the comparison {name!r} of an earlier version, which this version "
                    "cannot continue. Choose another folder with --out; `superadam report` still reads the old "
                    "results.json"
                )
            if name not in names and plan is None:
                raise ValueError(
                    f"{masked(storage)} holds no comparison {name!r}: it holds {', '.join(names) or 'none'}"
                )
            if plan is not None:
                patiently(lambda: self._begin(plan, environment or {}))

    def _begin(self, plan: Plan, environment: dict[str, Any]) -> None:
        with self._engine.begin() as connection:
            mine = comparisons.c.name == self.name
            found = connection.execute(select(comparisons).where(mine).with_for_update()).one_or_none()
            if found is None:
                values = {"plan": text_of(plan), "environment": json.dumps(environment)}
                connection.execute(insert(comparisons).values(name=self.name, **values))
                return
            there = plan_from(found.plan)
            if names := plan.unlike(there):
                differ = ", ".join(f"{k} ({getattr(there, k)} there, {getattr(plan, k)} here)" for k in names)
                raise ValueError(
                    f"Another comparison has the name {self.name!r} and differs in {differ}. Tasks, methods "
                    "and seeds can be added to it; for anything else, choose another folder with --out"
                )
            before = _environment(found.environment)
            if plan == there and all(before.get(k) == environment.get(k) for k in (*VERSIONS, "code")):
                environment = before
            else:
                earlier = [*before.pop("earlier", []), {**before, "report_seeds": there.report_seeds}]
                environment = {**environment, "earlier": earlier}
            values = {"plan": text_of(plan), "environment": json.dumps(environment)}
            connection.execute(update(comparisons).where(mine).values(ended=None, **values))

    def shorten(self, plan: Plan) -> None:
        """From now on use a plan with fewer report seeds."""
        with self._engine.begin() as connection:
            mine = comparisons.c.name == self.name
            connection.execute(update(comparisons).where(mine).values(plan=text_of(plan)))

    @property
    def plan(self) -> Plan:
        """The current plan. Another process may have extended it."""
        return plan_from(self._comparison().plan)

    @property
    def environment(self) -> dict[str, Any]:
        """The environment of the process that started or extended the comparison."""
        return _environment(self._comparison().environment)

    def _comparison(self) -> Any:
        with self._engine.begin() as connection:
            return connection.execute(select(comparisons).where(comparisons.c.name == self.name)).one()

    def close(self) -> None:
        """Close the connection to the database."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self.close()
        if error is not None:
            with sound(self._url):
                raise error

    # ------------------------------------------------------------------------------------------------ to be done

    def put(self, jobs: list[Job], made: Callable[[Job], Record | None] = lambda job: None) -> None:
        """Add the runs that are missing; those in `made` are added as done."""
        with self._engine.begin() as connection:
            there = set(connection.scalars(select(runs.c.digest).where(runs.c.comparison == self.name)))
        for text, job in {text_of(job): job for job in jobs}.items():
            digest = hashlib.sha256(text.encode()).hexdigest()
            if digest not in there:
                row = {"comparison": self.name, "digest": digest, "job": text, "state": "waiting", "deaths": 0}
                if (record := made(job)) is not None:
                    row |= {"state": "done", "result": text_of(Result.of(record))}
                with suppress(sqlalchemy.exc.IntegrityError), self._engine.begin() as connection:
                    connection.execute(insert(runs).values(row))  # refused if another process has just done it

    def revive(self, *, counting: bool = True) -> None:
        """Put runs back into the queue whose worker is silent, or was a process of this machine that has ended.

        Without `counting` these do not count as deaths: the comparison was stopped together with its workers.
        """
        with self._engine.begin() as connection:
            now = connection.scalar(select(func.current_timestamp()))
        for entry in self.entries("running"):
            worker = entry.worker
            silent = entry.alive is None or (now - entry.alive).total_seconds() > GRACE
            # A process of this machine that lives, and is silent, has too little of the processor.
            if worker is None or gone(worker) or (silent and not here(worker)):
                self._give_back(entry, counting=counting)

    def _give_back(self, entry: Entry, *, counting: bool) -> None:
        """Put a run back that its worker gave up. A requested stop does not count as a death."""
        deaths = entry.deaths + counting
        state = "lost" if counting and deaths > RETRIES else "waiting"
        self._change(entry, "running", worker=entry.holder, to={"state": state, "deaths": deaths})

    def _change(self, entry: Entry, *states: State, worker: str | None = None, to: dict[str, Any]) -> bool:
        """Change a run if it is in one of the states and with that worker. False otherwise."""
        where = [runs.c.id == entry.id, runs.c.state.in_(states)]
        if worker is not None:
            where.append(runs.c.worker == worker)
        with self._engine.begin() as connection:
            return connection.execute(update(runs).where(*where).values(to)).rowcount == 1

    # ------------------------------------------------------------------------------------------------ doing it

    @contextmanager
    def take(self) -> Iterator[Taken | None]:
        """Claim a waiting run and send heartbeats for it; None if there is none."""
        plan, me = self.plan, json.dumps(this())
        claim = {"state": "running", "worker": me, "alive": func.current_timestamp()}
        for entry in sorted(self.entries("waiting"), key=_order if plan.minutes else _reports_first):
            if plan.needs(entry.job) and self._change(entry, "waiting", to=claim):
                break
        else:
            yield None
            return
        entry, counting = dataclasses.replace(entry, holder=me), True
        taken = Taken(entry.job, lambda record: self._finish(entry, me, record))
        try:
            with self._kept_alive(entry):
                yield taken
        except KeyboardInterrupt:
            counting = False
            raise
        finally:
            if taken.record is None:
                self._give_back(entry, counting=counting)
            else:
                taken.finish(taken.record)

    def _finish(self, entry: Entry, me: str, record: Record) -> None:
        """Store the result, even if this worker was considered dead in the meantime."""
        done = {"state": "done", "worker": me, "result": text_of(Result.of(record))}
        self._change(entry, "waiting", "running", to=done)

    @contextmanager
    def _kept_alive(self, entry: Entry) -> Iterator[None]:
        ended = threading.Event()

        def beat() -> None:
            while not ended.wait(BEAT):
                with suppress(sqlalchemy.exc.SQLAlchemyError):  # if it stays, the end of the run will meet it, too
                    self._change(entry, "running", worker=entry.holder, to={"alive": func.current_timestamp()})

        pulse = threading.Thread(target=beat, daemon=True)
        pulse.start()
        try:
            yield
        finally:
            ended.set()
            pulse.join()

    # ------------------------------------------------------------------------------------------------ what is done

    @property
    def ended(self) -> bool:
        """Whether all runs of the plan are done, and nobody has extended it since."""
        found = self._comparison()
        return bool(found.ended == found.plan)

    def end(self, plan: Plan) -> None:
        """Mark the comparison as ended."""
        with self._engine.begin() as connection:
            connection.execute(update(comparisons).where(comparisons.c.name == self.name).values(ended=text_of(plan)))

    def entries(self, *states: State) -> list[Entry]:
        """The runs, or those in some states, in the order of the queue."""
        where = [runs.c.comparison == self.name, *([runs.c.state.in_(states)] if states else [])]
        with self._engine.begin() as connection:
            numbers = list(connection.scalars(select(runs.c.id).where(*where).order_by(runs.c.id)))
            missing = [i for i in numbers if i not in self._done]
            rows: list[Any] = []
            for i in range(0, len(missing), CHUNK):
                rows += connection.execute(select(runs).where(runs.c.id.in_(missing[i : i + CHUNK]))).all()
        found = {row.id: Entry.of(row) for row in rows}
        self._done |= {i: entry for i, entry in found.items() if entry.state == "done"}
        return [found[i] if i in found else self._done[i] for i in numbers]

    def records(self) -> list[Record]:
        """The finished runs of the plan. A run whose workers died repeatedly has failed."""
        plan, found = self.plan, []
        for entry in self.entries("done", "lost"):
            if plan.needs(entry.job):
                lost = entry.job.record("failed", [], f"{entry.deaths} workers died with it")
                found.append(lost if entry.record is None else entry.record)
        return found

    def running(self) -> list[Job]:
        return [entry.job for entry in self.entries("running")]

    def results(self) -> Results:
        """The results so far, in the plan's order."""
        plan, phases = self.plan, ("tune", "report")
        environment = self.environment
        environment["hosts"] = sorted({e.worker["host"] for e in self.entries("done") if e.worker is not None})
        records = sorted(
            self.records(),
            key=lambda r: (
                plan.tasks.index(r.task),
                plan.methods.index(r.method),
                phases.index(r.phase),
                BUDGETS.index(r.budget),
                length(r),
                r.trial,
                r.seed,
            ),
        )
        return Results(plan, environment, records)


@dataclasses.dataclass
class Taken:
    """A claimed run. If it ends without a record, it goes back to the queue."""

    job: Job
    finish: Callable[[Record], None]
    """Leaves a record at once."""
    record: Record | None = None


def _reports_first(entry: Entry) -> tuple[Any, ...]:
    return entry.job.phase != "report", entry.id


def _order(entry: Entry) -> tuple[Any, ...]:
    """Tuning first, then one report seed after the other for all methods, so that seeds are complete when the time is
    over."""
    report = entry.job.phase == "report"
    return report, entry.job.seed if report else 0, entry.id


def known_plan(storage: str, name: str) -> Plan | None:
    """The plan of a comparison, if there is one of this name."""
    path = storage.removeprefix(FILE)
    if storage.startswith(FILE) and not Path(path).exists():
        return None
    with sound(storage):
        engine = connected(storage)
        there = name in known(engine)
        engine.dispose()
    if not there:
        return None
    with Queue(storage, name) as queue:
        return queue.plan


def name_of(storage: str, folder: Path) -> str:
    """Return the name of a folder's comparison: that of its folder.

    A copied or renamed folder has a database with one comparison of another name, which is the folder's.
    """
    path, name = Path(storage.removeprefix(FILE)), folder.resolve().name
    if not storage.startswith(FILE) or path.parent.resolve() != folder.resolve() or not path.exists():
        return name
    with sound(storage):
        engine = connected(storage)
        names = known(engine)
        engine.dispose()
    return names[0] if len(names) == 1 else name


def restore(storage: str, name: str, there: Results) -> None:
    """Put the runs of a results.json into a database that lacks them: whatever is written later holds them, too."""
    new = known_plan(storage, name) is None
    with Queue(storage, name, there.plan if new else None, there.environment) as queue:
        made = {Job.of(record): record for record in there.records}
        queue.put(list(made), made.get)


def _environment(text: str) -> dict[str, Any]:
    found = json_of(text, "the environment of the comparison")
    check_environment(found, "the comparison")
    return dict(found)

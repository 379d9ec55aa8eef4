"""The comparison in a data base: one Optuna study, whose trials are the runs, waiting, running or done.

A worker takes a trial by changing its state from WAITING to RUNNING, says that it is alive as long as the run takes,
and leaves the rows of the run as an attribute of the trial. A trial whose worker is silent, or known to be dead, is
failed and put into the queue anew. Should a run be made twice all the same, its numbers are the same, and the first
are taken.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal, Self

from superadam.lab.comparison.jobs import Job, judged, quiet
from superadam.lab.comparison.records import VERSIONS, Plan, Record, Results, check_environment
from superadam.lab.comparison.storage import connected, masked, sound
from superadam.lab.identity import gone, here, this
from superadam.lab.reading import typed

__all__ = ["BEAT", "GRACE", "RETRIES", "Queue"]

BEAT, GRACE = 5, 30  # seconds between signs of life, and without one until a worker is taken for dead
RETRIES = 3  # of a run whose worker died


class Queue:
    """The runs of a comparison.

    Args:
        storage: sqlite:///PATH or postgresql://…
        name: of the comparison there.
        plan: to begin one, or to go on with one of the same plan, or of one that it extends. Without it, one must be
            there.
        environment: of this process, for the results. It replaces that of a plan that is extended, or of other
            versions; theirs are kept under "earlier".
    """

    def __init__(
        self, storage: str, name: str, plan: Plan | None = None, environment: dict[str, Any] | None = None
    ) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.name, self._url = name, storage
        self._counting = True
        self._states = optuna.trial.TrialState
        with quiet(), sound(storage):
            self._storage = connected(
                storage,
                heartbeat_interval=BEAT,
                grace_period=GRACE,
                heartbeat_stale_trial_callback=lambda study, trial: self._again(trial),
            )
            known = [study.study_name for study in optuna.get_all_study_summaries(self._storage)]
            if name not in known and plan is None:
                raise ValueError(
                    f"{masked(storage)} holds no comparison {name!r}: it holds {', '.join(known) or 'none'}"
                )
            self._study = optuna.create_study(storage=self._storage, study_name=name, load_if_exists=True)
            if plan is not None:
                self._begin(plan, environment or {})
            self._space = self.plan.space  # an extension leaves it as it is

    @property
    def plan(self) -> Plan:
        """As it is now: another process may have extended it."""
        return _plan(self._study.user_attrs.get("plan"))

    def _environment(self) -> dict[str, Any]:
        found = self._study.user_attrs.get("environment", {})
        check_environment(found, "the comparison")
        return dict(found)

    def _begin(self, plan: Plan, environment: dict[str, Any]) -> None:
        attributes = self._study.user_attrs
        if "plan" in attributes:
            there = _plan(attributes["plan"])
            if names := plan.unlike(there):
                differ = ", ".join(f"{k} ({getattr(there, k)} there, {getattr(plan, k)} here)" for k in names)
                raise ValueError(
                    f"There is another comparison of the name {self.name!r}, that differs in {differ}. Tasks, methods "
                    "and seeds can be added to it; for anything else, choose another folder by --out"
                )
            before = self._environment()
            if plan == there and all(before.get(k) == environment.get(k) for k in VERSIONS):
                environment = before
            else:
                earlier = [*before.pop("earlier", []), {**before, "report_seeds": there.report_seeds}]
                environment = {**environment, "earlier": earlier}
        self._study.set_user_attr("environment", environment)
        self._study.set_user_attr("plan", dataclasses.asdict(plan))  # last: with it, all is there
        self._study.set_user_attr("ended", None)

    def close(self) -> None:
        """Let go of the data base."""
        self._storage.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self.close()
        if error is not None:
            with sound(self._url):
                raise error

    # ------------------------------------------------------------------------------------------------ to be done

    def put(self, jobs: list[Job]) -> None:
        """Add those that are not there yet."""
        lost = self._states.FAIL  # a kill may have come between a failure and its retry
        known = {_job(t) for t in self._trials() if t.state != lost or _retries(t) >= RETRIES}
        for job in dict.fromkeys(jobs):
            if job not in known:
                self._add(job, 0)

    def _add(self, job: Job, retries: int) -> None:
        import optuna
        from optuna.distributions import FloatDistribution

        space: Any = {k: FloatDistribution(low, high, log=True) for k, (low, high) in self._space.items()}
        attributes = {"job": dataclasses.asdict(job), "retries": retries}
        params = dict(job.options)
        with quiet():
            state = self._states.WAITING
            trial = optuna.create_trial(state=state, params=params, distributions=space, user_attrs=attributes)
            self._study.add_trial(trial)

    def _again(self, trial: Any) -> None:
        """A trial has failed because of its worker. A stop that somebody asked for does not count as its death."""
        retries = _retries(trial)
        if retries < RETRIES or not self._counting:
            self._add(_job(trial), retries + self._counting)

    def revive(self, *, counting: bool = True) -> None:
        """Put runs anew into the queue whose worker is silent, or a process of this machine that is no more.

        Without `counting` these are no deaths: the comparison was stopped, and its workers with it.
        """
        self._counting = counting
        try:
            self._revive()
        finally:
            self._counting = True

    def _revive(self) -> None:
        import optuna

        workers = {t._trial_id: (t, _worker(t)) for t in self._trials(self._states.RUNNING)}
        for number in self._storage._get_stale_trial_ids(self._study._study_id):
            worker = workers.get(number, (None, None))[1]
            if worker is not None and here(worker):  # silent because the machine is busy
                self._storage.record_heartbeat(number)
        with quiet():
            optuna.storages.fail_stale_trials(self._study)
        for trial, worker in workers.values():
            if worker is not None and gone(worker):
                self._give_back(trial)

    def _give_back(self, trial: Any) -> None:
        import optuna

        try:
            if self._storage.set_trial_state_values(trial._trial_id, self._states.FAIL):
                self._again(trial)
        except optuna.exceptions.UpdateFinishedTrialError:
            pass  # somebody else did it, or the run has just ended

    # ------------------------------------------------------------------------------------------------ doing it

    @contextmanager
    def take(self) -> Iterator[Taken | None]:
        """A run that nobody else makes, kept alive while it is made; None if there is none."""
        plan = self.plan
        waiting = [trial for trial in self._trials(self._states.WAITING) if plan.needs(_job(trial))]
        for trial in sorted(waiting, key=lambda t: (_job(t).phase != "report", t.number)):
            self._storage.record_heartbeat(trial._trial_id)  # before it runs: without one it would never be stale
            if self._storage.set_trial_state_values(trial._trial_id, self._states.RUNNING):
                break
        else:
            yield None
            return
        self._storage.set_trial_user_attr(trial._trial_id, "worker", this())
        ended = threading.Event()
        pulse = threading.Thread(target=self._beat, args=(trial._trial_id, ended), daemon=True)
        pulse.start()
        taken = Taken(_job(trial))
        try:
            yield taken
        except KeyboardInterrupt:
            self._counting = False
            raise
        finally:
            ended.set()
            pulse.join()
            if taken.record is None:
                self._give_back(trial)
            else:
                self._finish(trial, taken.record)
            self._counting = True

    def _beat(self, trial_id: int, ended: threading.Event) -> None:
        import sqlalchemy

        while not ended.wait(BEAT):
            with suppress(sqlalchemy.exc.SQLAlchemyError):  # if it is not for once, the run's end will meet it, too
                self._storage.record_heartbeat(trial_id)

    def _finish(self, trial: Any, record: Record) -> None:
        import optuna

        result = {"status": record.status, "rows": _columns(record.rows), "error": record.error}
        try:
            self._storage.set_trial_user_attr(trial._trial_id, "result", result)
            self._storage.set_trial_state_values(trial._trial_id, self._states.COMPLETE, [judged(record)])
        except optuna.exceptions.UpdateFinishedTrialError:
            pass  # taken for dead meanwhile: another worker makes the run, with the same numbers

    # ------------------------------------------------------------------------------------------------ what is done

    @property
    def ended(self) -> bool:
        """Whether there will be no more runs: the plan that was ended is that of now."""
        attributes = self._study.user_attrs
        return bool(attributes.get("ended") == attributes.get("plan"))

    def end(self, plan: Plan) -> None:
        """All of its runs are done."""
        self._study.set_user_attr("ended", dataclasses.asdict(plan))

    def records(self) -> list[Record]:
        """The runs of the plan that are done. One whose workers died again and again has failed."""
        plan = self.plan
        done: dict[Job, Record] = {}
        lost: dict[Job, Record] = {}
        for trial in self._trials(self._states.COMPLETE, self._states.FAIL):
            job = _job(trial)
            if not plan.needs(job):
                continue
            if trial.state == self._states.COMPLETE:
                result = typed(Result, trial.user_attrs.get("result"), f"the result of run {trial.number}")
                done.setdefault(job, job.record(result.status, _rows(result.rows, trial.number), result.error))
            elif _retries(trial) >= RETRIES:
                lost.setdefault(job, job.record("failed", [], f"{RETRIES + 1} workers died with it"))
        return list({**lost, **done}.values())

    def running(self) -> list[Job]:
        return [_job(trial) for trial in self._trials(self._states.RUNNING)]

    def results(self) -> Results:
        """What there is, in the plan's order."""
        plan, phases = self.plan, ("tune", "report")
        environment, trials = self._environment(), self._trials(self._states.COMPLETE)
        environment["hosts"] = sorted({worker["host"] for trial in trials if (worker := _worker(trial)) is not None})
        records = sorted(
            self.records(),
            key=lambda r: (
                plan.tasks.index(r.task),
                plan.methods.index(r.method),
                phases.index(r.phase),
                r.trial,
                r.seed,
            ),
        )
        return Results(plan, environment, records)

    def _trials(self, *states: Any) -> list[Any]:
        return list(self._study.get_trials(deepcopy=False, states=states or None))


@dataclasses.dataclass
class Taken:
    """A run that is being made. Without a record in the end, it goes back."""

    job: Job
    record: Record | None = None


@dataclasses.dataclass
class Result:
    """What a worker leaves of a run, its rows by column."""

    status: Literal["finished", "diverged", "failed"]
    rows: dict[str, list[Any]]
    error: str = ""


@dataclasses.dataclass
class Worker:
    """A process, as `identity.this` says it."""

    host: str
    boot: str
    pid: int
    started: str | None


def _job(trial: Any) -> Job:
    found = typed(Job, trial.user_attrs.get("job"), f"run {trial.number}")
    return dataclasses.replace(found, options=tuple((k, v) for k, v in found.options))


def _worker(trial: Any) -> dict[str, Any] | None:
    found = trial.user_attrs.get("worker")
    return None if found is None else dataclasses.asdict(typed(Worker, found, f"the worker of run {trial.number}"))


def _retries(trial: Any) -> int:
    found = trial.user_attrs.get("retries")
    return found if isinstance(found, int) else 0


def _plan(found: Any) -> Plan:
    plan = typed(Plan, found, "the plan of the comparison")
    return dataclasses.replace(plan, space={k: (low, high) for k, (low, high) in plan.space.items()})


def _columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _rows(columns: dict[str, list[Any]], number: int) -> list[dict[str, Any]]:
    if len({len(column) for column in columns.values()}) > 1:
        raise ValueError(f"the result of run {number} has columns of unequal lengths")
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

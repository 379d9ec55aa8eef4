"""`superadam compare`: keeps the queue filled and the workers alive until every run of the plan is done."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from superadam_lab.comparison.limits import end_group, has_ended
from superadam_lab.comparison.options import Options
from superadam_lab.comparison.plan.budgets import kept, rungs
from superadam_lab.comparison.plan.jobs import Job, complete, needed
from superadam_lab.comparison.plan.planning import plan_of
from superadam_lab.comparison.planner import Planner, child_environment
from superadam_lab.comparison.queue import RETRIES, Queue, known_plan, name_of, restore
from superadam_lab.comparison.records import Plan, Record, Results
from superadam_lab.comparison.reuse import Reusable, is_reused
from superadam_lab.errors import WRONG, AllFailedError
from superadam_lab.runs.folders import environment
from superadam_lab.runs.parallel import check_device
from superadam_lab.tasks import own
from superadam_lab.user_code import executing, own_code

if TYPE_CHECKING:
    from superadam_lab.comparison.verdict.words import Verdict

__all__ = ["RESULTS", "carry_out", "compare", "place_of", "planned", "report", "to_reuse"]

RESULTS = "results.json"
POLL = 1.0  # seconds
FEW = 3  # runs that fail before any other has ended: so will the rest

Listener = Callable[[Queue, list[Record]], None]


def compare(tasks: Sequence[str] = (), methods: Sequence[str] | None = None, **options: Any) -> Results:
    """Tune every method in the same way, run the best options on other seeds, and write results and reports into a
    folder.

    To resume a comparison that was stopped, call this again with the same arguments. To extend it, pass more tasks,
    methods or seeds and the same `out`.

    Args:
        tasks: names of tasks.
        methods: methods with their options, such as "super_adam tau=1".
        options: the other fields of `Options`, such as `scale`, `trials`, `seeds`, `jobs` and `out`.
    """
    if executing:
        raise ValueError(
            f"{executing[-1].path} calls lab.compare while it is loaded, as worker processes load it: put the call "
            'behind `if __name__ == "__main__":`'
        )
    asked = Options(tasks, methods, **options)
    begun = time.monotonic()
    plan, folder, _ = planned(asked)
    results = carry_out(plan, folder, asked.storage, asked.jobs, reuse=to_reuse(asked), begun=begun)
    report(results, folder, per_task=asked.per_task)
    return results


compare.__signature__ = inspect.signature(Options).replace(return_annotation="Results")  # type: ignore[attr-defined]


def planned(options: Options) -> tuple[Plan, Path, str]:
    """The plan, its folder, and the message before it starts: what fits into the minutes.

    With limits, a child process makes the plan, so that user code that hangs or leaks can be stopped.
    """
    begun, minutes = time.monotonic(), options.minutes
    if minutes is None and options.run_seconds is None and options.run_memory is None:
        plan = plan_of(options)
        own.check_known(plan.tasks)
        return plan, place_of(plan, options.out), ""
    if options.task_file is None:
        own.check_known(options.tasks)
    with Planner(None if minutes is None else begun + 60 * minutes) as planner:
        plan = planner.plan(options)
        folder = place_of(plan, options.out)
        if minutes is None:
            return plan, folder, ""
        storage, jobs = _storage(folder, options.storage), _jobs(options.jobs)
        if (there := known_plan(storage, name_of(storage, folder))) is not None:  # it goes on with what was chosen then
            chosen = {
                name: getattr(there, name) for name in ("trials", "report_seeds", "minutes", "forecast", "dropped")
            }
            return dataclasses.replace(plan, **chosen), folder, ""
        pilots = planner.pilots(plan)
    from superadam_lab.comparison.plan import minutes as timing  # scipy takes a second to import

    plan = timing.fitted(plan, minutes, max(1, jobs), pilots, time.monotonic() - begun)
    return plan, folder, timing.said(plan)


def to_reuse(options: Options) -> Sequence[str | Path] | None:
    """The folders whose runs may be reused; None for the folders next to the comparison's own."""
    if options.no_reuse and options.reuse:
        raise ValueError("--reuse and --no-reuse contradict each other: give one of them")
    return () if options.no_reuse else options.reuse


def _storage(folder: Path, storage: str | None) -> str:
    return storage or f"sqlite:///{(folder / 'comparison.db').resolve()}"


def _jobs(jobs: int | None) -> int:
    return (os.cpu_count() or 1) if jobs is None else jobs


def report(results: Results, folder: Path, source: Path | None = None, *, per_task: bool = False) -> Verdict:
    """Write report.html and report.md, and return the verdict. `source` is the results.json that they are of."""
    from superadam_lab.comparison.report import write  # scipy takes a second to import

    return write(results, folder, source=source, per_task=per_task)


def place_of(plan: Plan, out: str | Path | None) -> Path:
    """The folder of a comparison. Its name depends on the comparison, so that the same call resumes it."""
    return Path(out) if out is not None else Path("comparisons") / "-".join([*plan.tasks, plan.scale])


def carry_out(
    plan: Plan,
    folder: Path,
    storage: str | None = None,
    jobs: int | None = None,
    listener: Listener = lambda queue, records: None,
    reuse: Sequence[str | Path] | None = (),
    begun: float | None = None,
) -> Results:
    """Do all runs of the plan and write the results. If it is stopped, write the results so far.

    Identical runs in the `reuse` folders are reused; None means the folders next to this one. The minutes of the plan
    count from `begun`, by `time.monotonic`.
    """
    begun = time.monotonic() if begun is None else begun
    folder.mkdir(parents=True, exist_ok=True)
    storage, jobs = _storage(folder, storage), _jobs(jobs)
    name = name_of(storage, folder)
    if (folder / RESULTS).exists():
        restore(storage, name, Results.read(folder / RESULTS))
    if jobs:
        check_device(plan.device)
    here = environment() | {"optuna": version("optuna"), "threads": 1, "jobs": jobs, "code": own_code()}
    known = Reusable(reuse, plan, here, folder)
    if known.folders:
        here["reused"] = known.folders
    with Queue(storage, name, plan, here) as queue:
        if "seconds" in plan.budgets and any(map(is_reused, queue.records())):
            raise ValueError(
                f"{folder} holds runs of other comparisons, whose seconds are not known here. For --equal seconds, "
                "choose another --out with --no-reuse"
            )
        queue.revive(counting=False)
        try:
            with Workers(storage, name, jobs, folder / "workers.log") as workers:
                queue.end(_until_done(queue, workers, listener, known.of, begun))
        finally:  # if it is stopped, too
            results = queue.results()
            results.write(folder / RESULTS)
    return results


def _until_done(
    queue: Queue,
    workers: Workers,
    listener: Listener,
    made: Callable[[Job], Record | None] = lambda job: None,
    begun: float = math.inf,
) -> Plan:
    """Returns the plan whose runs are all done. Another process may have extended it."""
    known: tuple[Plan, int] | None = None
    while True:
        plan, records = queue.plan, queue.records()
        if known != (plan, len(records)):
            queue.put(needed(plan, records), made)
            known = plan, len(records)
            workers.forget()
        listener(queue, records)
        if len(records) >= min(FEW, plan_size(plan)) and all(r.status == "failed" for r in records):
            raise AllFailedError(
                f"The first {len(records)} runs have all failed: {records[-1].error or 'see workers.log'}. "
                "Fix the error, then use a new --out"
            )
        if complete(plan, records):
            return plan
        if plan.minutes and time.monotonic() - begun > 60 * plan.minutes:
            from superadam_lab.comparison.plan.minutes import in_time  # scipy takes a second to import

            if (shorter := in_time(plan, records)) is not None and shorter != plan:
                queue.shorten(shorter)
                continue
        if workers.restart():
            queue.revive()
        time.sleep(POLL)


def plan_size(plan: Plan) -> int:
    """The number of runs, without those for budgets other than equal gradients."""
    found = 0
    for task in plan.tasks:
        trials = plan.trials
        for amount in rungs(plan, task):
            found += trials * len(plan.tuning_seeds)
            trials = trials if amount is None else kept(plan, trials)
        found += len(plan.report_seeds)
    return len(plan.methods) * found


class Workers:
    """Worker processes. They end when this process does, however it ends.

    The database counts the workers that a run kills; after some of them the run has failed. `deaths` counts dead
    workers since the last finished run: if there are more, the cause is not a run. A worker that stops with a reason
    (no data, no memory, another task file) is not restarted often, because the next worker would stop too.
    """

    def __init__(self, storage: str, name: str, jobs: int, log: Path) -> None:
        self._told = json.dumps([storage, name]).encode() + b"\n"  # not as arguments, which all users of a machine see
        self._jobs, self._log = jobs, log
        self._processes: list[subprocess.Popen[bytes]] = []
        self.forget()

    def forget(self) -> None:
        """Reset the count: a run is done."""
        self.deaths = self.refusals = 0

    def __enter__(self) -> Self:
        self._processes = [self._start() for _ in range(self._jobs)]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for process in self._processes:
            if kind is not None:
                process.kill()
            _close(process)
        for process in self._processes:
            has_ended(process, wait=True)
            end_group(process)

    def _start(self) -> subprocess.Popen[bytes]:
        # A process group of its own: Ctrl-C is for this process, which then ends them; nice is for all of a session.
        code = "import os; os.setpgrp(); from superadam_lab.comparison import worker; worker.main()"
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.PIPE,
                bufsize=0,  # what a dead worker has not read must not come up again when its end is closed
                stdout=log,
                stderr=log,
                env=child_environment(),
            )
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it is dead already, which `restart` will see
            process.stdin.write(self._told)
        return process

    def restart(self) -> int:
        """Restart the workers that died. Returns their number."""
        dead = [i for i, process in enumerate(self._processes) if has_ended(process)]
        for i in dead:
            _close(self._processes[i])
            end_group(self._processes[i])
        self.deaths += len(dead)
        self.refusals += sum(self._processes[i].returncode == WRONG for i in dead)
        if self.deaths > (RETRIES + 1) * self._jobs or self.refusals > self._jobs:
            said = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            said = [line.removeprefix("Error: ") for line in said]
            why = ", ".join([*said, f"more is in {self._log}"])
            raise ValueError(f"All workers crashed before finishing a run: {why}")
        for i in dead:
            self._processes[i] = self._start()
        return len(dead)


def _close(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()

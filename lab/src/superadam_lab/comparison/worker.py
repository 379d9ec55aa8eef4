"""Workers, which do the runs of a comparison: any number of processes, on any machine."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

import superadam
from superadam_lab.comparison.limits import limited
from superadam_lab.comparison.plan.jobs import Job
from superadam_lab.comparison.queue import Queue
from superadam_lab.comparison.records import Plan, Record
from superadam_lab.data import DataError
from superadam_lab.errors import deliberate, one_line, place_and, said
from superadam_lab.passwords import masked
from superadam_lab.runs.folders import Config, Folder, Row, plain
from superadam_lab.runs.parallel import check_device
from superadam_lab.runs.training import Run, Watcher
from superadam_lab.tasks import own
from superadam_lab.user_code import check_trust, described, own_code

__all__ = ["check_versions", "config_of", "main", "run", "work"]

ROWS = 12  # at the most
SPACING = 20  # gradient evaluations between two of them: to measure takes longer than to train
WAIT = 0.3  # seconds, when there is nothing to do


class Memory(Folder):
    """A run's files, in memory."""

    def __init__(self, config: Config) -> None:
        super().__init__(os.devnull)
        self._config = config
        self.rows: list[Row] = []

    def read(self) -> Config:
        return self._config

    def append(self, row: Row) -> None:
        self.rows.append(plain({k: v for k, v in row.items() if k != "monitor"}))

    def write_environment(self) -> None: ...


class Light(Run):
    """A run that only records rows: no monitor, no full gradients, no checkpoints.

    Rows are at the same gradient evaluations for every method, and at the end of an epoch only if the task's recipe
    uses the validation loss there.
    """

    folder: Memory

    def __init__(self, config: Config, watcher: Watcher | None = None) -> None:
        super().__init__(Memory(config), watcher)
        self.workload.evaluate_less()

    def _due(self) -> bool:
        steps = self.config.budget_steps
        budget = steps or self.config.budget_evals or 0
        used, after = (self.step, self.step + 1) if steps else (self.opt.gradient_evaluations, self._after)
        spacing = budget / min(ROWS, max(4, budget // SPACING))
        recipe = self.plateau is not None and self.batch + 1 == self.workload.length
        return recipe or math.floor(after / spacing) > math.floor(used / spacing)

    def _watched(self, closure: Any) -> tuple[Any, Row]:
        return self.opt.step(closure), {}

    def _measure(self) -> Row:
        return self._splits()

    def _save(self) -> None: ...

    @contextmanager
    def _held(self) -> Iterator[None]:
        yield


def config_of(plan: Plan, job: Job) -> Config:
    """The configuration of a job's run."""
    amount = job.amount or plan.budget_evals[job.task]
    return Config(
        job.task,
        plan.compositions.get(job.method, job.method),
        plan.scale,
        options=dict(job.options),
        seed=job.seed,
        device=plan.device,
        data_dir=plan.data_dir,
        budget_evals=None if job.budget == "epochs" else amount,
        budget_steps=amount if job.budget == "epochs" else None,
        decay=plan.decay,
        warmup=plan.warmup,
        sizes=plan.sizes.get(job.task, {}),
    )


def _length(job: Job) -> str:
    what = {"gradients": "evaluations", "epochs": "batches", "seconds": "evaluations, for equal seconds"}[job.budget]
    return "" if job.amount is None else f", {job.amount} {what}"


def run(plan: Plan, job: Job) -> Record:
    """Do a run. An error in the run is its result, because another worker would get the same error. Missing data, a
    missing device or too little memory on this machine are raised instead.
    """
    rows: list[Row] = []
    check_device(plan.device)  # it can be lost, too
    me = os.getpid()
    try:
        one = Light(config_of(plan, job))
        rows = one.folder.rows
        ended = one.train()
    except (DataError, OSError, MemoryError, torch.OutOfMemoryError):
        raise
    except (Exception, SystemExit) as error:
        traceback.print_exception(error)
        why = place_and(error) or (str(error) if deliberate(error) else f"{type(error).__name__}: {error}")
        return job.record("failed", rows, one_line(why))
    finally:
        if os.getpid() != me:  # the task has forked, and this is the copy
            os._exit(0)
    if ended == "interrupted":
        raise KeyboardInterrupt
    return job.record("diverged" if ended == "diverged" else "finished", rows)


def work(
    storage: str,
    name: str,
    *,
    task_file: str | None = None,
    data_dir: str | None = None,
    say: Callable[[str], None] = lambda line: None,
    trust: bool = True,
) -> int:
    """Do runs until the comparison has ended. Returns their number.

    Args:
        storage, name: database and name of a comparison that `superadam compare` started.
        task_file, data_dir: their paths on this machine, if different.
        say: a function that gets a message about each run.
        trust: whether code that the comparison names may run unasked.
    """
    import torch._dynamo  # as torch does with the first optimizer, in a run whose time may be limited

    torch.set_num_threads(1)  # sums over threads depend on their number, and runs are many
    with Queue(storage, name) as queue:
        plan = _here(queue, task_file, data_dir)
        methods = [plan.compositions.get(method, method) for method in plan.methods]
        check_trust(masked(storage), methods, plan.task_file if task_file is None else None, trust=trust)
        check_versions(plan, queue.environment)
        check_device(plan.device)
        if plan.task_file is not None:
            if own.digest(plan.task_file) != plan.task_digest:  # before any of it is run
                raise ValueError(f"{plan.task_file} is not the task file with which this comparison was started")
            own.load(plan.task_file)
        made = 0
        while not queue.ended:
            if (job := _one(queue, task_file, data_dir, say)) is None:
                queue.revive()
                time.sleep(WAIT)
            made += job is not None
    return made


def check_versions(plan: Plan, environment: dict[str, Any]) -> None:
    """Raise an error if the code differs from that of the comparison, because its numbers would not be comparable."""
    code = "the code of superadam"
    there = {"superadam": environment.get("superadam"), "torch": environment.get("torch")} | plan.packages
    there[code] = environment.get("code")
    here = {"superadam": superadam.__version__, "torch": torch.__version__, code: own_code()}
    for source in plan.packages:
        try:
            here[source] = described(source)
        except OSError:
            raise ValueError(f"{source}, which a method comes from, is not on this machine: put it there") from None
    for name, found in here.items():
        if there[name] not in (None, found):
            raise ValueError(
                f"{name} is {found} on this machine, and {there[name]} where the comparison was started: "
                "install that version"
            )


def _here(queue: Queue, task_file: str | None, data_dir: str | None) -> Plan:
    """The plan with the paths of this machine."""
    plan = queue.plan
    plan.task_file, plan.data_dir = task_file or plan.task_file, data_dir or plan.data_dir
    return plan


def _one(queue: Queue, task_file: str | None, data_dir: str | None, say: Callable[[str], None]) -> Job | None:
    """Do one run, if one is waiting."""
    with queue.take() as taken:
        if taken is None:
            return None
        job, plan = taken.job, _here(queue, task_file, data_dir)
        say(f"{job.task}, {job.method}, {job.phase} {job.trial}, seed {job.seed}{_length(job)}")
        with limited(plan.run_seconds, plan.run_memory, lambda why: taken.finish(job.record("failed", [], why))):
            taken.record = run(plan, job)
        return job


def main() -> None:
    """A worker of `superadam compare`. It gets its orders on stdin and ends when the parent process ends."""
    storage, name = json.loads(sys.stdin.readline())

    def orphaned() -> None:
        sys.stdin.read()
        os._exit(1)

    threading.Thread(target=orphaned, daemon=True).start()
    try:
        work(storage, name)
    except Exception as error:
        traceback.print_exception(error)
        code, line = said(error)
        print(line, file=sys.stderr, flush=True)
        sys.exit(code)

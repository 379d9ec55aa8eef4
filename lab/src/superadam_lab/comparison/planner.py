"""The plan and the pilot runs, in a child process, where user code that hangs or leaks can be stopped."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, Pipe
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from superadam_lab.comparison.entries import plan_from, text_of
from superadam_lab.comparison.limits import end_group, has_ended, limited
from superadam_lab.comparison.options import Options
from superadam_lab.comparison.plan.planning import plan_of
from superadam_lab.comparison.records import Plan
from superadam_lab.errors import VARIABLE, WRONG, said
from superadam_lab.methods.own import places

if TYPE_CHECKING:
    from superadam_lab.comparison.plan.minutes import Pilots

__all__ = ["Planner", "child_environment", "main"]

LOADING = 60.0  # seconds for a task file, which may import much; more if a run may take more


def child_environment() -> dict[str, str]:
    """The environment of child processes: one thread, and the same import path as this process."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
    }


class Planner:
    """A planning process. It ends when this process ends, in any way.

    The task file, the first gradient of each task, each optimizer that is made and each pilot run have the limits of a
    run. Whatever exceeds them is named in the error.

    Args:
        ends: the deadline, by `time.monotonic`; None for no deadline.
    """

    def __init__(self, ends: float | None = None) -> None:
        self._ends = ends

    def __enter__(self) -> Self:
        self._pipe, theirs = Pipe()
        # A process group of its own: Ctrl-C is for this process, which then ends it.
        code = "import os; os.setpgrp(); from superadam_lab.comparison import planner; planner.main()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env=child_environment(),
        )
        theirs.close()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        end_group(self._process)
        self._pipe.close()

    def plan(self, options: Options) -> Plan:
        """`planning.plan_of` in the child process."""
        return plan_from(json.dumps(self._asked({"options": dataclasses.asdict(options), "own": places()})))

    def pilots(self, plan: Plan) -> Pilots:
        """`timing.piloted` in the child process, for the plan that it made."""
        from superadam_lab.comparison.plan.minutes import Pilot  # scipy takes a second to import

        found = self._asked({"pilots": text_of(plan)})
        return {(task, m): Pilot._make([*rest, dict(losses)]) for task, m, *rest, losses in found}

    def _asked(self, request: dict[str, Any]) -> Any:
        what = "planning"
        try:
            self._pipe.send_bytes(json.dumps(request, default=_plain).encode())
            while True:
                left = None if self._ends is None else max(0.0, self._ends - time.monotonic())
                if not self._pipe.poll(left):
                    raise ValueError(f"{what}: not done within --minutes. Give more minutes, or fewer methods or tasks")
                kind, value = json.loads(self._pipe.recv_bytes())
                if kind == "made":
                    return value
                if kind == "wrong":
                    raise ValueError(value)
                if kind == "bug":
                    raise AssertionError(value)
                what = value
        except (EOFError, OSError):
            has_ended(self._process, wait=True)
            end_group(self._process)
            code = self._process.returncode
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise ValueError(f"{what}: the planning process {how}") from None


def _plain(value: Any) -> Any:
    """Convert paths and NumPy numbers for JSON."""
    return value.item() if hasattr(value, "item") else str(value)


# ------------------------------------------------------------------------------------------------ in that process


def main() -> None:
    """Answer the requests of the parent process until it ends."""
    import torch._dynamo  # noqa: F401 - torch imports it with the first optimizer, whose time is limited

    pipe: Connection = Connection(int(sys.argv[1]))
    asked: SimpleQueue[bytes] = SimpleQueue()

    def listen() -> None:
        try:
            while True:
                asked.put(pipe.recv_bytes())
        except (EOFError, OSError):
            os._exit(1)

    sending = threading.Lock()  # a limit is told from another thread

    def send(kind: str, value: Any) -> None:
        with sending:
            pipe.send_bytes(json.dumps([kind, value]).encode())

    threading.Thread(target=listen, daemon=True).start()
    while True:
        request = json.loads(asked.get())
        try:
            send("made", _answer(request, send))
        except Exception as error:
            if os.environ.get(VARIABLE, "0") not in ("", "0"):
                traceback.print_exception(error)
            code, line = said(error)
            if code == WRONG:
                send("wrong", line.removeprefix("Error: "))
            else:
                send("bug", f"{type(error).__name__}: {error}")


def _answer(request: dict[str, Any], send: Any) -> Any:
    if "options" in request:
        options = Options(**request["options"])
        guard = _Guard(send, options.run_seconds, options.run_memory)
        return dataclasses.asdict(plan_of(options, guard, request["own"]))
    from superadam_lab.comparison.plan.minutes import piloted

    plan = plan_from(request["pilots"])
    pilots = piloted(plan, _Guard(send, plan.run_seconds, plan.run_memory))
    return [[*place, *pilot[:-1], list(pilot.losses.items())] for place, pilot in pilots.items()]


class _Guard:
    """Limits user code and names it in the error."""

    def __init__(self, send: Any, seconds: float | None, memory: float | None) -> None:
        self._send, self._seconds, self._memory = send, seconds, memory

    @contextmanager
    def __call__(self, what: str, *, loading: bool = False) -> Iterator[None]:
        self._send("begun", what)
        seconds, words, me = self._seconds, {}, os.getpid()
        if loading and seconds is not None and seconds < LOADING:
            seconds, words = LOADING, {"limit": "the limit for loading a file where --run-seconds is less"}
        try:
            with limited(seconds, self._memory, lambda why: self._send("wrong", f"{what}: {why}"), **words):
                yield
        finally:
            if os.getpid() != me:  # the task has forked, and this is the copy
                os._exit(0)

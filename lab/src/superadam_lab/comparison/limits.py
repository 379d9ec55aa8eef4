"""Limits for runs that hang or leak memory. The whole worker is ended, because nothing else is certain to stop the
run."""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["EXCEEDED", "descendants", "end_group", "has_ended", "limited", "resident"]

EXCEEDED = 75  # the exit code of a worker whose run has met a limit
POLL = 0.2  # seconds
GRACE = 15.0  # seconds that the polite end may take
GIGABYTE = 1e9


def resident() -> float:
    """The memory of this process and its descendants, in gigabytes. Shared pages count once.

    >>> 0.01 < resident() < 1000
    True
    """
    try:
        if started := descendants():
            return sum(map(_memory, [os.getpid(), *started])) / GIGABYTE
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:  # no Linux: the most that it ever was, without others
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most * (1 if sys.platform == "darwin" else 1024) / GIGABYTE
    return pages * os.sysconf("SC_PAGE_SIZE") / GIGABYTE


def _memory(pid: int) -> float:
    """The memory of a process in bytes, with its part of shared pages; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended, or the kernel has no such file
        with suppress(OSError):
            return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return 0.0
    return sum(1024 * float(line.split()[1]) for line in lines if line.startswith("Pss:"))


def descendants() -> list[int]:
    """All descendants of this process. Known only on Linux."""
    found, new = [], [os.getpid()]
    while new:
        texts = [_read(path) for pid in new for path in Path(f"/proc/{pid}/task").glob("*/children")]
        new = [int(child) for text in texts for child in text.split()]
        found += new
    return found


def _read(path: Path) -> str:
    """The content of a file in /proc; empty if its process has ended."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _end(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def has_ended(process: subprocess.Popen[bytes], *, wait: bool = False) -> bool:
    """Whether a process has ended, or `wait` until it has. Its exit code is not collected.

    So its number, which is that of its group, is given to no other process before `end_group`. Without `os.waitid` the
    code is collected: other processes of the group may then go on.
    """
    if process.returncode is None and hasattr(os, "waitid"):  # macOS has it from Python 3.13 on
        with suppress(ChildProcessError):  # the system collects exit codes itself
            how = os.WEXITED | os.WNOWAIT | (0 if wait else os.WNOHANG)
            return os.waitid(os.P_PID, process.pid, how) is not None
    return (process.wait() if wait else process.poll()) is not None


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads a process group, with all others of the group, and collect its exit code.

    Where the code has been collected before, the number may be that of a stranger: then nothing is ended.
    """
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError, PermissionError):  # it has ended, or not made its group yet
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def _copies() -> list[int]:
    """Processes that were forked off this one and run the same program."""
    mine = _read(Path("/proc/self/cmdline"))
    return [pid for pid in descendants() if mine and _read(Path(f"/proc/{pid}/cmdline")) == mine]


@contextmanager
def limited(
    seconds: float | None,
    memory: float | None,
    stopped: Callable[[str], None],
    limit: str = "the limit of --run-seconds",
) -> Iterator[None]:
    """Limit the seconds, and the gigabytes of this process and its descendants, inside the context.

    If a limit is exceeded, `stopped` gets the reason, in another thread, and all of these processes end. `limit` names
    the limit of the seconds.

    Copies of this process that were forked inside always end. C code that never lets another thread run is ended by the
    system a little later, without a message.
    """
    if seconds is None and memory is None:
        yield
        return
    begun, over, me, before = time.monotonic(), threading.Event(), os.getpid(), set(_copies())

    def watch() -> None:
        while not over.wait(POLL):
            why = ""
            if seconds is not None and time.monotonic() - begun > seconds:
                why = f"stopped after {seconds:g} s, {limit}"
            elif memory is not None and resident() > memory:
                why = f"stopped with {resident():.2f} GB of memory, beyond {memory:g} GB, the limit of --run-memory"
            if why:
                stopped(why)
                _end(descendants())
                os._exit(EXCEEDED)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    if seconds is not None:
        faulthandler.dump_traceback_later(seconds + GRACE, exit=True, file=2)
    try:
        yield
    finally:
        over.set()
        faulthandler.cancel_dump_traceback_later()
        watcher.join()
        if os.getpid() == me:
            _end(pid for pid in _copies() if pid not in before)

"""A run that hangs, or leaks, ends: with its worker, since nothing else would surely end it."""

from __future__ import annotations

import faulthandler
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["EXCEEDED", "limited", "resident"]

EXCEEDED = 75  # the exit code of a worker whose run has met a limit
POLL = 0.2  # seconds
GRACE = 15.0  # seconds that the polite end may take
GIGABYTE = 1e9


def resident() -> float:
    """The memory of this process, in gigabytes.

    >>> 0.01 < resident() < 1000
    True
    """
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:  # no Linux: the most that it ever was
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most * (1 if sys.platform == "darwin" else 1024) / GIGABYTE
    return pages * os.sysconf("SC_PAGE_SIZE") / GIGABYTE


@contextmanager
def limited(
    seconds: float | None,
    memory: float | None,
    stopped: Callable[[str], None],
    limit: str = "the limit of --run-seconds",
) -> Iterator[None]:
    """Inside, at most so many seconds, and so many gigabytes of this process. Beyond, `stopped` is told why, in another
    thread, and the process ends. `limit` says what the seconds are.

    Code that never lets another thread run, in C, is ended by the system a little later, without a word.
    """
    if seconds is None and memory is None:
        yield
        return
    begun, over = time.monotonic(), threading.Event()

    def watch() -> None:
        while not over.wait(POLL):
            why = ""
            if seconds is not None and time.monotonic() - begun > seconds:
                why = f"stopped after {seconds:g} s, {limit}"
            elif memory is not None and resident() > memory:
                why = f"stopped with {resident():.2f} GB of memory, beyond {memory:g} GB, the limit of --run-memory"
            if why:
                stopped(why)
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

"""The identity of a process, so that another process can tell whether it still runs."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

__all__ = ["gone", "here", "this"]


def this() -> dict[str, Any]:
    """This process, as plain data.

    >>> gone(this()), gone({**this(), "started": "before"})
    (False, True)
    """
    pid = os.getpid()
    return {"host": socket.gethostname(), "boot": _boot(), "pid": pid, "started": _started(pid)}


def gone(process: dict[str, Any]) -> bool:
    """Whether the process is known to have ended. This is never known for another machine."""
    return _known(process) and _started(process["pid"]) != process["started"]


def here(process: dict[str, Any]) -> bool:
    """Whether the process is known to run on this machine.

    >>> here(this()), here({**this(), "host": "elsewhere"})
    (True, False)
    """
    return _known(process) and not gone(process)


def _known(process: dict[str, Any]) -> bool:
    return (process["host"], process["boot"]) == (socket.gethostname(), _boot())


def _boot() -> str:
    """Identifies the machine, its boot and its process namespace, because host names can be equal."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _started(pid: int) -> str | None:
    """The start time of a process, which distinguishes it from a later one with the same number; None if it ended."""
    if Path("/proc/self/stat").exists():
        try:
            state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if state == "Z" else rest[18]
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return "unknown"

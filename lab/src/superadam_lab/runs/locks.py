"""One process at a time writes into a folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import IO, Any

from superadam_lab.disk import locked
from superadam_lab.runs.identity import gone, this

__all__ = ["HeldError", "Lock"]


class HeldError(ValueError):
    """Another process has the lock."""


class Lock:
    """A lock file: it exists while a process holds it, and names that process.

    The system's lock on the file decides; it ends with its process. If the system has no such locks, the content of the
    file decides: the lock is void once its process is known to have ended.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     lock, other = (Lock(Path(folder, "lock")) for _ in range(2))
    ...     lock.take()
    ...     try:
    ...         other.take()
    ...     except HeldError:
    ...         print("held")
    ...     lock.release()
    ...     other.take()
    ...     other.release()
    held
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] | None = None
        self._takes = 0

    def take(self) -> None:
        """Take the lock, or raise `HeldError`. It is held until `release` was called as many times as `take`."""
        if self._takes == 0:
            self._file = self._taken()
        self._takes += 1

    def release(self) -> None:
        """Release the lock."""
        self._takes -= 1
        if self._takes == 0 and self._file is not None:
            if os.name == "posix":  # first, so that whoever locks the file later sees that it is none any more
                self.path.unlink(missing_ok=True)
            self._file.close()
            if os.name != "posix":  # no open file is removed there
                self.path.unlink(missing_ok=True)
            self._file = None

    def _taken(self) -> IO[bytes]:
        while True:
            file = open(self.path, "a+b")  # noqa: SIM115
            try:
                held = locked(file)
                if self._is_at_the_path(file):
                    file.seek(0)
                    holder = _holder(file.read())
                    if held is False:
                        raise HeldError(self._words(holder))
                    if held is None and holder is not None and not gone(holder):
                        known = f"If there is no such process any more, remove {self.path}."
                        raise HeldError(f"{self._words(holder)} {known}")
                    file.truncate(0)
                    file.write(json.dumps(this()).encode())
                    file.flush()
                    return file
            except BaseException:
                file.close()
                raise
            file.close()  # the one before has just let go of it, and removed it

    def _is_at_the_path(self, file: IO[bytes]) -> bool:
        try:  # not exists() first: the file may be removed between two calls
            there = os.stat(self.path)
        except FileNotFoundError:
            return False
        return os.path.samestat(os.fstat(file.fileno()), there)

    def _words(self, holder: dict[str, Any] | None) -> str:
        who = "another process" if holder is None else f"process {holder['pid']} on {holder['host']}"
        return f"{self.path.parent} is in use: {who} writes into it. Wait until it has ended, or end it."


def _holder(content: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(content)
    except ValueError:
        return None
    return found if isinstance(found, dict) and found.keys() >= this().keys() else None

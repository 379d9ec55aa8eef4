"""Atomic file writes, also with several processes and interrupted runs."""

from __future__ import annotations

import glob
import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["locked", "whole", "write_text"]


@contextmanager
def whole(path: str | os.PathLike[str], *, new: bool = False) -> Iterator[IO[bytes]]:
    """A file to write to. It replaces `path` atomically, once all of it is on the disk.

    After an error or a kill, `path` is unchanged. Any number of processes may write the same path: the last one wins.
    Temporary files of killed processes are removed.

    Args:
        path: a path in an existing folder. A symbolic link is followed. A path that is not a regular file, such as
            /dev/stdout, is written to directly.
        new: raise FileExistsError if the file exists in the end: of several processes, the first one wins.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "file")
    ...     with whole(path) as file:
    ...         _ = file.write(b"all of it")
    ...         print(path.exists())
    ...     print(path.read_text())
    False
    all of it
    """
    mode = _mode(Path(path))
    if mode is not None and not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        with open(path, "wb") as device:
            yield device
        return
    path = Path(os.path.realpath(path))
    _clear(path)
    file, temporary = _beside(path)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if mode is not None:
                temporary.chmod(stat.S_IMODE(mode))
            if fcntl is not None:  # as long as it is locked, nobody clears it away
                _place(temporary, path, new)
        if fcntl is None:  # an open file cannot be renamed there
            _place(temporary, path, new)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    if os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_text(path: str | os.PathLike[str], text: str, *, new: bool = False) -> None:
    """Write UTF-8 text atomically."""
    with whole(path, new=new) as file:
        file.write(text.encode())


def locked(file: IO[bytes]) -> bool | None:
    """Lock a file while it is open. False if another process holds the lock, None if the system has no locks.

    The system releases the lock when the process ends, for whatever reason.
    """
    if fcntl is None:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except OSError:
        return None


def _clear(path: Path) -> None:
    """Remove temporary files of killed processes: those that nobody has locked."""
    for left_over in path.parent.glob(glob.escape(f".{path.name}.") + "*.tmp"):
        with suppress(OSError), open(left_over, "rb") as file:
            if locked(file):
                left_over.unlink(missing_ok=True)


def _beside(path: Path) -> tuple[IO[bytes], Path]:
    """A new, locked temporary file."""
    while True:
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
        file = open(temporary, "xb")  # noqa: SIM115
        if locked(file) is not False and (fcntl is None or os.fstat(file.fileno()).st_nlink):
            return file, temporary
        file.close()  # another process took it for a left-over, before it was locked


def _place(temporary: Path, path: Path, new: bool) -> None:
    if not new:
        os.replace(temporary, path)
        return
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        with open(path, "xb") as file:
            file.write(temporary.read_bytes())
    temporary.unlink()

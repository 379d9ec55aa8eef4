"""How a command ends: every error is one line on stderr and an exit code.

| code | meaning | |---|---| | 0 | done | | 1 | the run diverged, or every run of a comparison failed | | 2 | an error
that you can fix: an argument, a file, a device, a database, a task file, memory | | 70 | a bug in superadam | | 130 |
stopped by Ctrl-C |

With `SUPERADAM_TRACEBACK=1` the traceback comes before the line.
"""

from __future__ import annotations

import difflib
import dis
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import torch
import typer

import superadam

__all__ = [
    "BUG",
    "FAILED",
    "STOPPED",
    "VARIABLE",
    "WRONG",
    "AllFailedError",
    "deliberate",
    "ended",
    "nearest",
    "one_line",
    "printable",
    "said",
]

FAILED, WRONG, BUG, STOPPED = 1, 2, 70, 130
VARIABLE = "SUPERADAM_TRACEBACK"
LONGEST = 2000  # characters of a line: a file can hold a name of any length
HERE = tuple(f"{Path(file).parent}{os.sep}" for file in (__file__, superadam.__file__))
NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")  # what torch says on a CPU

task_files: set[str] = set()
"""Whose code is the user's: what goes wrong there is told by file and line."""


class AllFailedError(ValueError):
    """All runs of a comparison so far have failed."""


@contextmanager
def ended() -> Iterator[None]:
    """Handles all errors of a command, in one place."""
    try:
        yield
    except (typer.Exit, typer.Abort, BrokenPipeError):
        raise
    except (Exception, KeyboardInterrupt) as error:
        if hasattr(error, "exit_code"):
            raise  # of the command line itself, which Typer shows with the usage
        if os.environ.get(VARIABLE, "0") not in ("", "0"):
            traceback.print_exception(error)
        code, line = said(error)
        print(line, file=sys.stderr, flush=True)
        raise typer.Exit(code) from error


def said(error: BaseException) -> tuple[int, str]:
    """The exit code and the line of an error."""
    if isinstance(error, KeyboardInterrupt):
        return STOPPED, "Stopped."
    rank = os.environ.get("RANK", "0")
    head = "Error" if rank == "0" else f"Error in process {rank}"
    if (text := _of_user(error)) is not None:
        return FAILED if isinstance(error, AllFailedError) else WRONG, one_line(f"{head}: {text}")
    return BUG, one_line(
        f"{head}: this is a bug in superadam: {type(error).__name__}: {error}. "
        f"Please report it, with the traceback that {VARIABLE}=1 before the command shows."
    )


def _of_user(error: BaseException) -> str | None:
    """The message for an error that the user can fix; None for a bug."""
    by_task_file = any(frame.tb_frame.f_code.co_filename in task_files for frame in _frames(error))
    if (by_task_file or not deliberate(error)) and (text := place_and(error)) is not None:
        return text
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in NO_MEMORY)
    ):
        return f"There is not enough memory: choose smaller sizes. {error}"
    if deliberate(error):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and not (error.name or "superadam").startswith("superadam"):
        return f"{error.name} is not installed: pip install superadam-lab"
    return None


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the most similar known name, or all of them."""
    known = sorted(known)
    by_lower = {k.lower(): k for k in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f"did you mean {by_lower[close[0]]!r}?" if close else f"known: {', '.join(known)}"


def deliberate(error: BaseException) -> bool:
    """Whether superadam raised the error on purpose, with a message for the user. All other errors are bugs: an operand
    of the wrong type, a missing key, an unexpected error of another package."""
    if not isinstance(error, (ValueError, TypeError, RuntimeError, ImportError)):
        return False  # an assertion is raised, too
    for last in _frames(error)[-1:]:
        code = last.tb_frame.f_code
        return code.co_filename.startswith(HERE) and code.co_code[last.tb_lasti] == dis.opmap["RAISE_VARARGS"]
    return False


def place_and(error: BaseException) -> str | None:
    """The innermost line of a task file in the traceback of an error, and the error; None if there is none."""
    cause: BaseException | None = error
    while cause is not None:  # a StopIteration that leaves a generator is another error's cause
        for frame in reversed(_frames(cause)):
            if (file := frame.tb_frame.f_code.co_filename) in task_files:
                return f"{file}, line {frame.tb_lineno}: {type(cause).__name__}: {cause}"
        cause = cause.__cause__
    return None


def modules(error: BaseException) -> list[str]:
    """The modules in the traceback of an error."""
    return [str(frame.tb_frame.f_globals.get("__name__")) for frame in _frames(error)]


def _frames(error: BaseException) -> list[TracebackType]:
    found, frame = [], error.__traceback__
    while frame is not None:
        found.append(frame)
        frame = frame.tb_next
    return found


def one_line(text: str) -> str:
    """The text without line breaks and control characters, shortened to the size of a screen.

    >>> one_line("a\\nb \\x1b[31m")
    'a b \\\\x1b[31m'
    """
    shown = printable(text)
    return shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}…"


def printable(text: str) -> str:
    """Return the text in one line, without control characters."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(text.split()))

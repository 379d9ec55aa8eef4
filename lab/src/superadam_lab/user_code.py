"""The foreign code that a comparison runs: versions and content."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from importlib.machinery import SourceFileLoader
from importlib.metadata import packages_distributions, version
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple

import torch
import typer

from superadam_lab.errors import place_and, printable, task_files
from superadam_lab.methods.specs import read

__all__ = ["check_trust", "described", "executed", "executing", "file_of", "own_code", "sources"]

NAMED = ("superadam", "torch")
"""Their versions are in every report."""


class Executing(NamedTuple):
    """A file of the user that is being executed."""

    path: str
    declares: bool
    """Whether its calls of `lab.task` and `lab.method` count: it is a task file, not one with an optimizer."""


executing: list[Executing] = []
"""The innermost last."""


class FromSource(SourceFileLoader):
    """Ignores bytecode, which Python finds by the file's size and second: a file just changed would run as it was."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def executed(path: Path, what: str, *, declares: bool = False) -> ModuleType:
    """Execute a file of the user and return its module. `what` describes it in errors."""
    if not path.is_file():
        raise ValueError(f"There is no {what} {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path, loader=FromSource(path.stem, str(path)))
    if path.suffix != ".py" or spec is None or spec.loader is None:
        raise ValueError(f"{path} is not a Python file: expected a {what}")
    module = importlib.util.module_from_spec(spec)
    task_files.add(str(path))
    executing.append(Executing(str(path), declares))
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise ValueError(f"{error.filename}, line {error.lineno}: {error.msg}") from error
    except (Exception, SystemExit) as error:
        raise ValueError(place_and(error) or f"{path} cannot be run: {type(error).__name__}: {error}") from error
    finally:
        executing.pop()
    return module


def file_of(target: str) -> Path | None:
    """The file of a target such as my_file.py:Mine; None if it is a module."""
    place, colon, _ = target.rpartition(":")
    return Path(place) if colon and place.endswith(".py") else None


def check_trust(found: str | Path, methods: Iterable[str], task_file: str | None = None, *, trust: bool) -> None:
    """Raise an error if a folder or database names code that nobody has said may run.

    Args:
        found: where the names come from, for the message.
        methods, task_file: the names.
        trust: whether --trust was given. Without it, somebody at a terminal is asked.

    torch's own optimizers need no trust: to build one runs no code that is not running already.
    """
    places = {place for method in methods for spec in read(method) for place in spec.places}
    code = [*([task_file] if task_file else []), *sorted(p for p in places if not _of_torch(p))]
    if trust or not code:
        return
    names = ", ".join(printable(name) for name in code)
    told = f"{printable(str(found))} names code that would run here: {names}."
    if sys.stdin.isatty() and "RANK" not in os.environ and typer.confirm(f"{told} Run it?"):
        return
    raise ValueError(f"{told} If you trust whoever wrote it, add --trust")


def _of_torch(place: str) -> bool:
    module, _, name = place.replace(":", ".").rpartition(".")
    found = getattr(torch.optim, name, None) if module == "torch.optim" else None
    return isinstance(found, type) and issubclass(found, torch.optim.Optimizer)


def sources(methods: Iterable[str]) -> dict[str, str]:
    """The files and packages that methods come from, each with its version and a digest of its content."""
    places = [place for method in methods for spec in read(method) for place in spec.places]
    return {name: described(name) for name in sorted(set(map(_source, places)) - set(NAMED))}


def _source(place: str) -> str:
    file = file_of(place)
    return str(file) if file is not None else place.replace(":", ".").partition(".")[0]


def described(source: str) -> str:
    """A file by its digest, a package by its version and the digest of its Python files."""
    if source.endswith(".py"):
        return f"sha256 {_digest([Path(source)])}"
    found = importlib.util.find_spec(source)
    if found is None:
        raise ValueError(f"There is no package {source!r}: pip install it, or correct its name")
    folders = [Path(p) for p in found.submodule_search_locations or ()]
    files = sorted(f for folder in folders for f in folder.rglob("*.py")) or [Path(found.origin or "")]
    names = _distributions().get(source, [])
    return " ".join([*(f"{version(name)}" for name in names[:1]), f"sha256 {_digest(files)}"])


def own_code() -> str:
    """Return the version and the digest of superadam and of the lab together: what every run depends on."""
    folders = (Path(importlib.import_module(name).__file__ or "").parent for name in ("superadam", "superadam_lab"))
    return f"{version('superadam')} sha256 {_digest([f for folder in folders for f in sorted(folder.rglob('*.py'))])}"


_distributions = functools.cache(packages_distributions)  # which reads a quarter of a second in what is installed


def _digest(files: list[Path]) -> str:
    found = hashlib.sha256()
    for file in files:
        found.update(file.read_bytes())
    return found.hexdigest()[:16]

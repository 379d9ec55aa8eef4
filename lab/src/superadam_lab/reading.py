"""Reads untrusted JSON and checks it against a dataclass."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["json_file", "json_of", "path", "typed"]

T = TypeVar("T")
DEEPEST = 40  # levels: what copies or prints plain data recurses
DIGITS = 18  # of an integer; one of more is a float, which no arithmetic overflows


def path(text: str | Path) -> Path:
    """Return the path of an option that is written to.

    Empty texts and names that are not UTF-8 are refused: the first would be the working folder, the second cannot be
    written into a file.
    """
    if not str(text).strip():
        raise ValueError("The path is empty: expected the name of a folder or file; for the working folder, write .")
    try:
        str(text).encode()
    except UnicodeEncodeError:
        raise ValueError(f"The path {str(text)!a} is not UTF-8: expected another name") from None
    return Path(text)


def json_file(path: Path) -> Any:
    """The content of a JSON file."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not JSON: it is not UTF-8 text ({error.reason} at byte {error.start})") from error
    return json_of(text, str(path))


def json_of(text: str, where: str) -> Any:
    """The content of a JSON text; `where` names it in errors."""
    try:
        found = json.loads(text, parse_int=lambda digits: (int if len(digits) <= DIGITS else float)(digits))
    except RecursionError:
        raise ValueError(f"{where} is nested too deeply (expected at most {DEEPEST} levels)") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not JSON: {error}") from error
    layer = [found]
    for _ in range(DEEPEST):
        layer = [v for c in layer for v in (c.values() if isinstance(c, dict) else c if isinstance(c, list) else ())]
    if layer:
        raise ValueError(f"{where} is nested too deeply (expected at most {DEEPEST} levels)")
    return found


def typed(cls: type[T], content: Any, where: str) -> T:
    """The dataclass of plain data, whose keys and types are those of its fields."""
    if not isinstance(content, dict):
        raise ValueError(f"{where}: expected an object, found {_shown(content)}")
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    for name in content.keys() - fields.keys():
        raise ValueError(f"{where} has an unknown entry {name!r} (known: {', '.join(fields)})")
    for name, field in fields.items():
        if name in content:
            if not _fits(content[name], hints[name]):
                raise ValueError(f"{where}: {name} is {_shown(content[name])} (expected {_words(hints[name])})")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{where} lacks the entry {name!r}")
    return cls(**content)


def _fits(value: Any, kind: Any) -> bool:
    """Whether plain data has an annotated type. A list counts as a tuple, as in JSON; true is not a number."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, arg) for arg in args)
    if origin is typing.Literal:
        return isinstance(value, str) and value in args
    if origin is list:
        return isinstance(value, list) and all(_fits(v, args[0]) for v in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(k, args[0]) and _fits(v, args[1]) for k, v in value.items())
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            return False
        wanted = [args[0]] * len(value) if args[-1] is ... else list(args)
        return len(value) == len(wanted) and all(map(_fits, value, wanted))
    if kind in (int, float):
        return isinstance(value, (int, kind)) and not isinstance(value, bool)
    return isinstance(value, type(None) if kind is None else kind)


def _words(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind).replace("typing.", "")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"

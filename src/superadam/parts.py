"""`Part`: the base of matrices, estimators, schedules, iterates, sets and penalties.

A part is a choice for one line of Algorithm 1: a frozen record of numbers, or tensors such as bounds. It has no state:
what changes during training lives in the optimizer's state. A checkpoint keeps it as a *spec*,
`{"type": "SecondMoment", "beta": 0.999, …}`, from which `find` makes it again.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from typing_extensions import Self, dataclass_transform

__all__ = ["Part", "check", "nearest"]


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message about an unknown name: the most similar known name, or all of them."""
    known = sorted(known)
    by_lower = {k.lower(): k for k in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f"did you mean {by_lower[close[0]]!r}?" if close else f"known: {', '.join(known)}"


def check(holds: object, name: str, value: object, expected: str) -> None:
    """Raise an error in torch.optim's form unless a condition on a hyper-parameter holds."""
    if not holds:
        raise ValueError(f"Invalid {name} parameter: {value} (expected {expected})")


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _plain(value: Any) -> Any:
    """Return an option as plain data: parts, and parts in a tuple, as their specs."""
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return value.spec() if isinstance(value, Part) else value


def _equal(a: object, b: object) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return (a.dtype, a.device) == (b.dtype, b.device) and torch.equal(a, b)
    if isinstance(a, dict | tuple) and isinstance(b, dict | tuple) and type(a) is type(b) and len(a) == len(b):
        if isinstance(a, dict) and isinstance(b, dict):
            return a.keys() == b.keys() and all(_equal(a[name], b[name]) for name in a)
        return all(map(_equal, a, b))
    return not isinstance(a, Tensor) and not isinstance(b, Tensor) and a == b


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
class Part:
    """Base class of all parts. Defining a subclass makes it a frozen dataclass, and makes its name known to `find`.

    `kind` begins a family (matrix, schedule, …) with names of its own; `abstract` keeps a base class out of it.
    """

    on_host: ClassVar[bool] = False
    """Whether it needs the step count as a Python number: `capturable` is refused then, and no kernel is compiled."""
    waits: ClassVar[bool] = False
    """Whether a step looks at numbers that a device has computed, and waits for them, which `capturable` forbids. Sets
    and penalties do, unless they are `separable` or say otherwise. Subclasses do not inherit it."""
    elementwise: ClassVar[bool] = False
    """Whether it treats every coordinate by itself (except for sums in `measure`), so that tensors may be cut into
    pieces. Subclasses do not inherit it, because their own methods may not."""

    _kind: ClassVar[str]
    _instead: ClassVar[dict[str, str]] = {}
    """What to write instead of names that people look for, in lower case."""
    _if_missing: ClassVar[str] = "one of your own is known once its class is defined"
    _names: ClassVar[dict[str, type[Part]]]

    def __init_subclass__(cls, kind: str | None = None, abstract: bool = False) -> None:
        dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)
        cls.__setattr__ = Part._refuse_change  # type: ignore[method-assign, assignment]
        if "elementwise" not in cls.__dict__:
            cls.elementwise = False
        if "waits" not in cls.__dict__:
            cls.waits = getattr(cls, "separable", True) is not True
        if kind is not None:
            cls._kind, cls._names = kind, {}
        elif not abstract:
            cls._names[cls.__name__] = cls

    def __new__(cls, *args: Any, **options: Any) -> Self:
        cls._refuse_unknown(options, TypeError)
        return super().__new__(cls)

    def _refuse_change(self, name: str, value: object) -> None:
        made = any(f.name == name and name in self.__dict__ for f in dataclasses.fields(cast(Any, self)))
        instead = (
            f"make another part: dataclasses.replace(part, {name}=...)"
            if made
            else f"options are annotated fields of the class, such as `{name}: float = 1.0`; write no __init__"
        )
        raise dataclasses.FrozenInstanceError(f"{type(self).__name__} is immutable, {name!r} was assigned; {instead}")

    @classmethod
    def _refuse_unknown(cls, options: dict[str, Any], error: type[Exception]) -> None:
        fields = {f.name for f in dataclasses.fields(cast(Any, cls))}
        for option in options.keys() - fields:
            raise error(f"{cls.__name__} has no option {option!r}: {nearest(option, fields)}")

    def __repr__(self) -> str:
        """Return the options, without options with `repr=False` that are at their defaults."""
        fields = dataclasses.fields(cast(Any, self))
        shown = [f.name for f in fields if f.repr or getattr(self, f.name) != f.default]
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        mine, theirs = self.spec(), other.spec()
        return all(_equal(mine[name], theirs[name]) for name in mine)

    def __hash__(self) -> int:
        if "_hash" not in self.__dict__:  # a step looks parts up many times
            # Tensors hash by identity, though they may be equal: leave them out.
            values = (getattr(self, f.name) for f in dataclasses.fields(cast(Any, self)))
            own = hash((type(self).__name__, *(v for v in values if not isinstance(v, Tensor))))
            object.__setattr__(self, "_hash", own)
        return cast(int, self.__dict__["_hash"])

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_hash"}  # it differs between processes

    def spec(self) -> dict[str, Any]:
        """Return this part as plain data."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(cast(Any, self))}
        return {"type": type(self).__name__, **{name: _plain(value) for name, value in values.items()}}

    def objection(self, others: Any, options: dict[str, Any]) -> str | None:
        """Return why this part does not go with the other parts and options, or None."""
        return None

    @classmethod
    def find(cls, choice: object) -> Self:
        """Return the part that `choice` is or names: a part, a name ("SecondMoment", "second_moment"), or a spec."""
        if isinstance(choice, cls):
            return choice
        if isinstance(choice, str):
            choice = {"type": choice}
        if not isinstance(choice, dict) or "type" not in choice:
            hint = " (an instance is expected, not the class)" if isinstance(choice, type) else ""
            raise TypeError(f"Invalid {cls._kind}: {choice!r}{hint}; expected one of {', '.join(sorted(cls._names))}")
        name, options = choice["type"], {k: v for k, v in choice.items() if k != "type"}
        known = {_snake(k): v for k, v in cls._names.items()} | cls._names
        if name not in known:
            instead = cls._instead.get(str(name).lower())
            found = f"write {instead}" if instead else f"{nearest(name, cls._names)} ({cls._if_missing})"
            raise ValueError(f"Unknown {cls._kind} {name!r}: {found}")
        known[name]._refuse_unknown(options, ValueError)
        return cast(Self, known[name](**{k: cls._made(v) for k, v in options.items()}))

    @classmethod
    def _made(cls, option: Any) -> Any:
        """Return an option of a spec: parts instead of their specs, and tuples, which can be hashed.

        torch.distributed.checkpoint makes lists of the tuples of a whole state.
        """
        if isinstance(option, list | tuple):
            return tuple(map(cls._made, option))
        return cls.find(option) if isinstance(option, dict) else option

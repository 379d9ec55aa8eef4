"""What matrices, estimators, schedules, sets and penalties have in common: a choice for one line of Algorithm 1.

A part is a frozen record of plain numbers (or tensors, such as bounds) without state of its own, so it can be written
into a checkpoint as a *spec*, `{"type": "SecondMoment", "beta": 0.999, …}`, and found again from one. What changes
during training lives in the optimizer's state.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable
from typing import Any, ClassVar, Self, cast, dataclass_transform

import torch
from torch import Tensor

__all__ = ["Part", "check", "nearest"]


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error message about an unknown name: the known one that was probably meant, or all of them."""
    known = sorted(known)
    by_lower = {k.lower(): k for k in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f"did you mean {by_lower[close[0]]!r}?" if close else f"known: {', '.join(known)}"


def check(holds: object, name: str, value: object, expected: str) -> None:
    """Raise torch.optim's kind of error unless a condition on a hyper-parameter holds."""
    if not holds:
        raise ValueError(f"Invalid {name} parameter: {value} (expected {expected})")


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _equal(a: object, b: object) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return (a.dtype, a.device) == (b.dtype, b.device) and torch.equal(a, b)
    return not isinstance(a, Tensor) and not isinstance(b, Tensor) and a == b


@dataclass_transform(frozen_default=True)
class Part:
    """Base of every choice. A subclass is made a frozen dataclass, and known by its name, by being defined.

    `kind` opens a family (matrix, schedule, …) with its own names; `abstract` keeps a base class out of it.
    """

    on_host: ClassVar[bool] = False
    """Whether it decides by the step count on the host, which `capturable` and `compile` forbid."""
    elementwise: ClassVar[bool] = False
    """Whether it treats every coordinate by itself (sums in `measure` apart), so that tensors may be cut up. A subclass
    does not inherit it: it may have methods of which this is not true."""

    _kind: ClassVar[str]
    _names: ClassVar[dict[str, type[Part]]]

    def __init_subclass__(cls, kind: str | None = None, abstract: bool = False) -> None:
        dataclasses.dataclass(frozen=True, eq=False)(cls)
        if "elementwise" not in cls.__dict__:
            cls.elementwise = False
        if kind is not None:
            cls._kind, cls._names = kind, {}
        elif not abstract:
            cls._names[cls.__name__] = cls

    def __new__(cls, *args: Any, **options: Any) -> Self:
        cls._refuse_unknown(options, TypeError)
        return super().__new__(cls)

    @classmethod
    def _refuse_unknown(cls, options: dict[str, Any], error: type[Exception]) -> None:
        fields = {f.name for f in dataclasses.fields(cast(Any, cls))}
        for option in options.keys() - fields:
            raise error(f"{cls.__name__} has no option {option!r}: {nearest(option, fields)}")

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        mine, theirs = self.spec(), other.spec()
        return all(_equal(mine[name], theirs[name]) for name in mine)

    def __hash__(self) -> int:
        if "_hash" not in self.__dict__:  # a part is looked up many times in a step
            # Tensors hash by identity, though they may be equal: leave them out.
            values = (getattr(self, f.name) for f in dataclasses.fields(cast(Any, self)))
            own = hash((type(self).__name__, *(v for v in values if not isinstance(v, Tensor))))
            object.__setattr__(self, "_hash", own)
        return cast(int, self.__dict__["_hash"])

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_hash"}  # which is another one in another process

    def spec(self) -> dict[str, Any]:
        """This part as plain data."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(cast(Any, self))}
        plain = {name: value.spec() if isinstance(value, Part) else value for name, value in values.items()}
        return {"type": type(self).__name__, **plain}

    def objection(self, others: Any, options: dict[str, Any]) -> str | None:
        """Why this part makes no sense beside the other parts and options, if it makes none."""
        return None

    @classmethod
    def find(cls, choice: object) -> Self:
        """The part that `choice` names: a part already, a name ("SecondMoment", "second_moment"), or a spec."""
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
            raise ValueError(
                f"Unknown {cls._kind} {name!r}: {nearest(name, cls._names)} "
                f"(one of your own is known once its class is defined)"
            )
        known[name]._refuse_unknown(options, ValueError)
        nested = {k: cls.find(v) if isinstance(v, dict) else v for k, v in options.items()}
        return cast(Self, known[name](**nested))

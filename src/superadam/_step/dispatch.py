"""Which way a step runs, decided once for each composition and layout.

A way runs the lines of Algorithm 1 on a view. To add one, subclass `Way`: ways are asked in the order of `rank`, and
the first without an objection takes the view.
"""

from __future__ import annotations

from typing import Any, ClassVar

from superadam._step import lines, tiles
from superadam._step.tensors import Scalar
from superadam._step.view import Line, Sums, View

__all__ = ["Lists", "Tiles", "Way", "choose", "explain"]


class Way:
    """Base class. A way overrides what it does better than line by line."""

    name: ClassVar[str]
    rank: ClassVar[int]
    """The least is asked first."""
    known: ClassVar[list[Way]] = []

    def __init_subclass__(cls, abstract: bool = False) -> None:
        if not abstract:
            Way.known.append(cls())
            Way.known.sort(key=lambda way: way.rank)

    def objection(self, view: View) -> str | None:
        """Why it cannot run this view, if it cannot."""
        raise NotImplementedError

    def run(self, line: Line, view: View, gamma: Scalar, *, line_9: bool = True, reading: bool = False) -> list[Sums]:
        """A line on all of the view; `line_9` and `reading` as for `tiles.pieces`."""
        raise NotImplementedError

    def absorb_and_move(self, view: View, gamma: Scalar) -> None:
        """All lines, where nothing is summed over all of x."""
        self.run(lines.absorb_and_move, view, gamma)

    def absorb(self, view: View, gamma: Scalar) -> list[Sums]:
        """Lines 11 and 4; the sums that the matrix asks for."""
        return self.run(lines.absorb, view, gamma, line_9=False)

    def move(self, view: View, gamma: Scalar) -> None:
        """Lines 9 and 10."""
        self.run(lines.move, view, gamma)


class Lists(Way):
    """Whole tensors, as lists where they are alike; one after the other for a matrix of each tensor."""

    name, rank = "lists", 100

    def objection(self, view: View) -> str | None:
        return None

    def run(self, line: Line, view: View, gamma: Scalar, *, line_9: bool = True, reading: bool = False) -> list[Sums]:
        if view.matrix.scope == "tensor":
            return [line(view.part([i]).bound(), gamma) for i in range(len(view.params))]
        return [line(view.bound(), gamma)]


class Tiles(Way):
    """Pieces that stay in the cache of a CPU."""

    name, rank = "tiles", 90

    def objection(self, view: View) -> str | None:
        if view.params[0].device.type != "cpu":
            return "for CPUs"
        for option in ("capturable", "differentiable", "foreach"):
            if view.group[option]:
                return f"{option}=True asks for whole tensors"
        if view.matrix.scope == "tensor":
            return f"{type(view.matrix).__name__} has a matrix for each tensor, which is taken whole"
        return None

    def run(self, line: Line, view: View, gamma: Scalar, *, line_9: bool = True, reading: bool = False) -> list[Sums]:
        return [line(piece.bound(), gamma) for piece in tiles.pieces(view, line_9=line_9, reading=reading)]


def choose(view: View) -> Way:
    """The way for a view: that of the last step, if it looks the same."""
    grads = view.grads
    alike = grads[0] is not None and view.layout.lies_alike(grads)
    key = (view.moves, view.restarted, view.paired, alike)
    ways: dict[Any, Way] = view.layout.ways
    if key not in ways:
        view.alike = alike
        ways[key] = next(way for way in Way.known if way.objection(view) is None)
    return ways[key]


def explain(view: View) -> tuple[str, dict[str, str]]:
    """The name of the way that a view takes, and what keeps it from each faster one."""
    view.alike = view.grads[0] is None or view.layout.lies_alike(view.grads)
    reasons: dict[str, str] = {}
    for way in Way.known:
        reason = way.objection(view)
        if reason is None:
            return way.name, reasons
        reasons[way.name] = reason
    raise AssertionError("the last way takes every view")

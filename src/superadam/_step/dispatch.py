"""The ways to run the lines of Algorithm 1 on a view, and the choice of one: once for each layout.

To add a way, subclass `Way`. `choose` asks the ways in the order of `rank`. The first without an objection takes the
view.
"""

from __future__ import annotations

from typing import ClassVar

from superadam._state.precision import round_after
from superadam._step import stages, tiles
from superadam._step.tensors import Scalar, compiled_step
from superadam._step.view import Line, Sums, View

__all__ = ["LISTS", "TILES", "Lists", "Tiles", "Way", "Widened", "choose", "explain"]

NARROW = "the state is in bfloat16"


class Way:
    """Base class. A way defines `objection` and `run`, and overrides the other methods where it has a faster one."""

    name: ClassVar[str]
    rank: ClassVar[int]
    """The lowest is asked first."""
    known: ClassVar[list[Way]] = []

    def __init_subclass__(cls, abstract: bool = False) -> None:
        if not abstract:
            Way.known.append(cls())
            Way.known.sort(key=lambda way: way.rank)

    def objection(self, view: View) -> str | None:
        """Why it cannot run this view, or None. It may look at what stays in a layout, and at `choose`'s keys."""
        raise NotImplementedError

    def remark(self, view: View) -> str | None:
        """What `opt.ways()` adds: which of the tensors it leaves to another way."""
        return None

    def run(self, line: Line, view: View, gamma: Scalar, *, line_9: bool = True, reading: bool = False) -> list[Sums]:
        """Run a line on all of the view, piece by piece; `line_9` and `reading` as for `tiles.pieces`."""
        raise NotImplementedError

    def absorb_and_move(self, view: View, gamma: Scalar) -> None:
        """All lines, where nothing is summed over all of x."""
        self.run(stages.absorb_and_move, view, gamma)

    def absorb(self, view: View, gamma: Scalar) -> list[Sums]:
        """Lines 11 and 4. Return the sums that the matrix asks for."""
        return self.run(stages.absorb, view, gamma, line_9=False)

    def move(self, view: View, gamma: Scalar) -> None:
        """Lines 9 and 10."""
        self.run(stages.move, view, gamma)


class Lists(Way):
    """Whole tensors, all in one list."""

    name, rank = "lists", 100

    def objection(self, view: View) -> str | None:
        return NARROW if view.narrow else None

    def run(self, line: Line, view: View, gamma: Scalar, *, line_9: bool = True, reading: bool = False) -> list[Sums]:
        return [line(view.bound(), gamma)]


class Tiles(Way):
    """Pieces that stay in the cache of a CPU."""

    name, rank = "tiles", 90
    devices: ClassVar[set[str]] = {"cpu"}
    whole: ClassVar[tuple[str, ...]] = ("capturable", "differentiable", "foreach")
    """The options that ask for another way."""

    def objection(self, view: View) -> str | None:
        if view.narrow:
            return NARROW
        if view.params[0].device.type not in self.devices:
            return f"used on {', '.join(sorted(self.devices))} only"
        for option in self.whole:
            if view.group[option]:
                return f"{option}=True asks for whole tensors"
        if view.matrix.scope == "tensor":
            return f"{type(view.matrix).__name__} has a matrix for each tensor, which takes tensors whole"
        return None

    def run(self, line: Line, view: View, gamma: Scalar, *, line_9: bool = True, reading: bool = False) -> list[Sums]:
        if view.layout.in_one_piece:
            return [line(view.bound(), gamma)]
        return [line(piece.bound(), gamma) for piece in tiles.pieces(view, line_9=line_9, reading=reading)]


class Widened(Way):
    """State in bfloat16: pieces of it in float32 for as long as their lines run, and then rounded."""

    name, rank = "widened", 110

    def objection(self, view: View) -> str | None:
        return None

    def run(self, line: Line, view: View, gamma: Scalar, *, line_9: bool = True, reading: bool = False) -> list[Sums]:
        large = reading or view.params[0].device.type != "cpu"  # other devices want fewer calls
        whole = view.matrix.scope == "tensor"
        views = [view] if whole else tiles.pieces(view, line_9=line_9, reading=large)
        return [round_after(line, piece.bound(), gamma) for piece in views]


LISTS, TILES = (next(way for way in Way.known if type(way) is kind) for kind in (Lists, Tiles))


def choose(view: View) -> Way:
    """The way for a view. The layout remembers it."""
    ways: dict[tuple[bool, ...], Way] = view.layout.ways
    key = (view.moves, view.layout.aligned_with(view.grads), compiled_step.get())
    if key not in ways:
        ways[key] = next(way for way in Way.known if way.objection(view) is None)
    return ways[key]


def explain(view: View) -> list[str]:
    """The name of the way that a view takes, what is to be said of it, and the objection of each faster one."""
    reasons: list[str] = []
    for way in Way.known:
        reason = way.objection(view)
        if reason is None:
            remark = way.remark(view)
            return [way.name, *(() if remark is None else (remark,)), *reasons]
        reasons.append(f"not {way.name}: {reason}")
    raise AssertionError("the last way takes every view")

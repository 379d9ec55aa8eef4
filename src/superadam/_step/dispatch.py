"""The lines of Algorithm 1 on a view, the ways to run them, and the choice of a way: once for each layout.

A line is a function of a bound view, which may be a piece of x that is in the cache, and γ. It works in place, and
returns the sums over the view that the matrix asks for. To add a way, subclass `Way`. `choose` asks the ways in the
order of `rank`. The first without an objection takes the view.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor
from torch._compile import _disable_dynamo

from superadam._state.precision import precisely, round_after
from superadam._state.refusals import WATCHED_STEPS, check_matrix
from superadam._step import line_4, line_9, tiles
from superadam._step.view import Line, Sums, View
from superadam.iterates import Plain
from superadam.lists import Scalar, add_scaled, compiled_step

__all__ = [
    *("absorb", "absorb_and_move", "measure", "move", "move_and_prepare", "observe", "prepare"),
    *("LISTS", "TILES", "Lists", "Tiles", "Way", "Widened", "aligned", "choose", "compiles", "eagerly", "explain"),
]

NARROW = "the state is in bfloat16"

Method = TypeVar("Method", bound=Callable[..., Any])


# ---------------------------------------------------------------------------------------- lines


def prepare(s: View, gamma: Scalar) -> Sums:
    """The first half of line 11. The gradients are q = ∇f(x_{t-1}; ξ_t)."""
    _before(s, s.grad)
    return ()


def move(s: View, gamma: Scalar, y: Tensor | None = None) -> Sums:
    """Lines 9 and 10. `y` is x_t - γ H_t⁻¹ g_t, if a kernel has made it already; it is overwritten."""
    if isinstance(gamma, Tensor):
        gamma = gamma.to(s.params[0].device)
    step = s.states[0]["step"]
    if type(step) is int and step <= WATCHED_STEPS:
        check_matrix(s, line_9.direction)
    if s.group["rounding"] == "nearest":
        _move(s, gamma, y)
    else:
        precisely(s, lambda: _move(s, gamma, y))
    return ()


def _move(s: View, gamma: Scalar, y: Tensor | None) -> None:
    if s.stepsize is not None:
        gamma = gamma * s.stepsize.factor(s)
    if type(s.iterate) is not Plain:
        s.iterate.rebase(s)
        gamma = gamma * s.iterate.rate(s)
        if s.free and s.decay != 0:
            s.iterate.before_decay(s, gamma * s.mu * s.decay)
    _free_move(s, gamma) if s.free else line_9.move_on_set(s, gamma, y)
    if type(s.iterate) is not Plain:
        s.iterate.moved(s)


def _free_move(s: View, gamma: Scalar) -> None:
    """X = R^d and h = 0: lines 9 and 10 are x_{t+1} = x_t - γ μ_t H_t⁻¹ g_t."""
    eta = gamma * s.mu
    g = s.estimate if s.estimator.blends else s.g
    if s.group["differentiable"]:
        g = g.clone()  # autograd saves it, and line 11 will write into it
    if s.decay != 0:
        s.x.mul_(1 - eta * s.decay)
    watched = s.matrix.watches_steps or s.estimator.watches_steps
    if s.direction is None and not watched and s.matrix.scope == "coordinate":
        s.descend(s.x, g, eta)
    else:
        step = line_9.direction(s, g)
        add_scaled(s.x, step, -eta)
        s.matrix.moved(s, step)
        s.estimator.moved(s, step)


def move_and_prepare(s: View, gamma: Scalar) -> Sums:
    """The pending move (lines 9 and 10), and the first half of line 11."""
    q = s.grad  # before x changes: weight decay may be part of it
    move(s, gamma)
    _before(s, q)
    return ()


def _before(s: View, q: Tensor) -> None:
    s.__dict__["late"] = 1  # this batch is not counted yet
    s.estimator.before(s, q)
    s.__dict__["late"] = 0


def absorb(s: View, gamma: Scalar) -> Sums:
    """Lines 11 and 4. The gradients are ∇f(x_t; ξ_t)."""
    newest = s.grad
    if type(s.iterate) is not Plain:
        s.iterate.begin(s)
    estimated = s.estimator.after(s, newest)
    # A two-point matrix compares ∇f(x_t; ξ_t) with ∇f(x_{t-1}; ξ_t), whatever the estimator made of them.
    sums = _line_4(s, newest if s.matrix.two_point else estimated)
    return sums if s.stepsize is None else (*sums, *s.stepsize.measure(s, newest))


def absorb_and_move(s: View, gamma: Scalar) -> Sums:
    """All lines, where nothing is summed over all of x."""
    absorb(s, gamma)
    return move(s, gamma)


def measure(s: View, gamma: Scalar) -> Sums:
    """Line 4 alone, for torch's fused SGD, which does the rest."""
    return _line_4(s, s.grad)


def observe(s: View, gamma: Scalar) -> Sums:
    """Gradients that were taken for H_t alone."""
    s.matrix.observe(s, s.grad)
    return ()


def _line_4(s: View, grad: Tensor) -> Sums:
    if s.matrix.scope == "tensor":
        grad = s.estimate if s.matrix.of_estimate else grad
        line_4.update(s, grad)
    else:
        s.matrix.update(s, grad)
    return s.matrix.measure(s, grad) if s.matrix.scalars else ()


# ---------------------------------------------------------------------------------------- ways


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
        self.run(absorb_and_move, view, gamma)

    def absorb(self, view: View, gamma: Scalar) -> list[Sums]:
        """Lines 11 and 4. Return the sums that the matrix asks for."""
        return self.run(absorb, view, gamma, line_9=False)

    def move(self, view: View, gamma: Scalar) -> None:
        """Lines 9 and 10."""
        self.run(move, view, gamma)


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
    key = (view.moves, aligned(view), compiled_step.get())
    if key not in ways:
        ways[key] = next(way for way in Way.known if way.objection(view) is None)
    return ways[key]


def aligned(view: View) -> bool:
    """Whether the gradients, if there are any, have their coordinates in the order of parameters and state."""
    layout, grads = view.layout, cast(list[Tensor], view.grads)
    if not layout.aligned or grads[0] is None:
        return layout.aligned
    if any([g.dtype is not layout.dtype for g in grads]):
        return False
    if layout.contiguous and all([g.is_contiguous() for g in grads]):
        return True
    return all(tiles.alike([p, g]) for p, g in zip(view.params, grads, strict=True))


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


def compiles(view: View) -> bool:
    """Whether kernels of our own are wanted: compile=True, or torch.compile(opt.step)."""
    return view.group["compile"] or compiled_step.get()


def eagerly(method: Method) -> Method:
    """Where torch.compile compiles this method, or a function that calls it, take our own kernels.

    A step chooses kernels itself, and torch's fused kernels cannot be traced. So the compiler leaves the method out,
    and its lines run as with compile=True.
    """

    @functools.wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling():
            return _by_kernels(method, *args, **options)
        return method(*args, **options)

    return cast(Method, call)


@_disable_dynamo  # as torch.compiler.disable, which would import the compiler, a second, at once
def _by_kernels(method: Callable[..., Any], *args: Any, **options: Any) -> Any:
    token = compiled_step.set(True)
    try:
        return method(*args, **options)
    finally:
        compiled_step.reset(token)

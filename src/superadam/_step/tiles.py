"""A view cut into pieces that stay in the processor's cache from line to line.

On a CPU a step is bound by memory. Written for whole tensors, every operation reads and writes them all, and makes new
ones; on a few megabytes at a time the same operations run from the cache, and memory is read and written once. Small
tensors go together, which saves calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from superadam._step.tensors import flattened
from superadam._step.view import View, state_dtype
from superadam._step.workspace import keep_small_blocks

__all__ = ["SMALL", "TILE", "aligned", "cut", "elementwise", "pieces"]

# Coordinates. Four megabytes of float32: half a dozen tensors fit into the last cache of a server. Smaller pieces take
# longer, for every operation has to be called, and its threads to meet at its end, for each of them.
TILE = 1 << 20
SMALL = 1 << 16  # tensors with fewer coordinates are updated together


def elementwise(view: View, *, line_9: bool = True) -> bool:
    """Whether all parts treat every coordinate by itself, with or without the set and the penalty."""
    known = view.layout is not None
    return bool(view.layout.elementwise[line_9]) if known else view.parts.elementwise(line_9=line_9)


def pieces(view: View, *, line_9: bool = True, reading: bool = False) -> Iterator[View]:
    """The view in pieces, for lines that include the step or not. Their tensors are views: write, do not rebind.

    `reading` is for lines that make no tensors, and need not be in the cache: their pieces are so small only that a sum
    over them in float32 is a good one.
    """
    keep_small_blocks()  # temporaries
    tile, limit = (16 * TILE, 16 * TILE) if reading else (TILE, SMALL)
    small = [i for i, p in enumerate(view.params) if p.numel() <= limit]
    if len(small) == len(view.params) and sum([p.numel() for p in view.params]) <= tile:
        yield view  # most often
        return
    by_coordinate, by_row = elementwise(view, line_9=line_9), elementwise(view, line_9=False)
    if len(small) > 1:
        yield from (view.part(lot) for lot in _lots(view, small, tile))
    else:
        small = []
    for i in sorted(set(range(len(view.params))) - set(small)):
        x = view.params[i]
        large = x.numel() >= 1.5 * tile and aligned(view, [i])
        if large and by_coordinate:
            yield from cut(view, i, -(-x.numel() // round(x.numel() / tile)))  # of equal size
        elif large and by_row and _in_rows(view, x):
            yield from cut(view, i, max(1, tile // x[0].numel()), flat=False)
        else:
            yield view.part([i])


def _lots(view: View, small: list[int], tile: int) -> Iterable[list[int]]:
    """Small tensors by about `tile` coordinates: the temporaries of thousands of them would be as large as x."""
    lots: dict[int, list[int]] = {}
    start = 0
    for i in small:
        lots.setdefault(start // tile, []).append(i)
        start += view.params[i].numel()
    return lots.values()


def _in_rows(view: View, x: Tensor) -> bool:
    """Whether line 9 treats every x[i] by itself."""
    return x.is_contiguous() and all(part is None or part.in_rows(x) for part in (view.constraint, view.penalty))


def cut(view: View, i: int, size: int, *, flat: bool = True) -> Iterator[View]:
    """Parameter i in pieces, of so many coordinates or rows, bound to their names."""
    state, grad = view.states[i], view.grads[i]
    held = [name for name in (*view.names, *(() if flat else ("root",))) if name in state]
    other = {name: value for name, value in state.items() if name not in held}

    def split(t: Tensor) -> tuple[Tensor, ...]:
        return torch.split(flattened(t) if flat else t, size)

    x, *buffers = (split(t) for t in (view.params[i], *(state[name] for name in held)))
    grads = [None] * len(x) if grad is None else split(grad)
    for k, tile in enumerate(x):
        views = {name: buffer[k] for name, buffer in zip(held, buffers, strict=True)}
        yield view.replaced([tile], [grads[k]], [{**other, **views}]).bound()


def aligned(view: View, which: list[int] | None = None) -> bool:
    """Whether the parameters, their gradients and their state lie in memory alike, coordinate by coordinate."""
    names = view.names
    return all(
        _alike([view.params[i], view.grads[i], *(view.states[i].get(name) for name in names)])
        for i in (range(len(view.params)) if which is None else which)
    )


def _alike(tensors: list[Tensor | None]) -> bool:
    there = [t for t in tensors if t is not None]
    first = there[0]
    # complex or short numbers, a gradient of another precision (`grad_dtype`), or a DTensor
    if any(t.dtype != state_dtype(first) or t.shape != first.shape or hasattr(t, "device_mesh") for t in there):
        return False
    if all(t.is_contiguous() for t in there):
        return True
    return all(t.dim() == 4 and t.is_contiguous(memory_format=torch.channels_last) for t in there)

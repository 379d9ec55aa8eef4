"""Where the lines of Algorithm 1 run: a chunk cut into pieces that stay in the processor's cache from line to line.

On a CPU a step is bound by memory. Written for whole tensors, every operation reads and writes them all, and makes new
ones; on a few megabytes at a time the same operations run from the cache, and memory is read and written once. Small
tensors go together, which saves calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from superadam._step import compiled
from superadam._step.tensors import Scalar, flattened
from superadam._step.view import Chunk, Line, Sums, state_dtype
from superadam._step.workspace import keep_small_blocks

__all__ = ["TILE", "aligned", "elementwise", "pieces", "run", "tiles"]

# Coordinates. Four megabytes of float32: half a dozen tensors fit into the last cache of a server. Smaller pieces take
# longer, for every operation has to be called, and its threads to meet at its end, for each of them.
TILE = 1 << 20
SMALL = 1 << 16  # tensors with fewer coordinates are updated together


def elementwise(c: Chunk, *, line_9: bool = True) -> bool:
    """Whether all parts treat every coordinate by itself, with or without the set and the penalty."""
    parts = (c.estimator, c.matrix, *((c.constraint, c.penalty) if line_9 else ()))
    return all(part is None or part.elementwise for part in parts) and not c.matrix.two_point


def pieces(c: Chunk, *, line_9: bool = True, reading: bool = False) -> Iterator[Chunk]:
    """The chunk in pieces, for lines that include the step or not. Their buffers are views: write, do not rebind.

    `reading` is for lines that make no tensors, and need not be in the cache: their pieces are so small only that a sum
    over them in float32 is a good one.
    """
    if not _divisible(c):
        yield c
        return
    keep_small_blocks()  # temporaries
    by_coordinate, by_row = elementwise(c, line_9=line_9), elementwise(c, line_9=False)
    tile, limit = (16 * TILE, 16 * TILE) if reading else (TILE, SMALL)
    small = [i for i, p in enumerate(c.params) if p.numel() <= limit]
    if len(small) > 1:
        yield from map(c.part, _lots(c, small, tile))
    else:
        small = []
    for i in sorted(set(range(len(c.params))) - set(small)):
        x = c.params[i]
        large = x.numel() >= 1.5 * tile and aligned(c, [i])
        if large and by_coordinate:
            yield from tiles(c, i, -(-x.numel() // round(x.numel() / tile)))  # of equal size
        elif large and by_row and _in_rows(c, x):
            yield from tiles(c, i, max(1, tile // x[0].numel()), flat=False)
        else:
            yield c if len(c.params) == 1 else c.part([i])


def _divisible(c: Chunk) -> bool:
    """Whether the parameters need not be worked on as one list."""
    on_device = c.params[0].device.type != "cpu" or isinstance(c.states[0]["step"], Tensor)
    return not (on_device or c.group["differentiable"] or c.group["foreach"])


def _lots(c: Chunk, small: list[int], tile: int) -> Iterable[list[int]]:
    """Small tensors by about `tile` coordinates: the temporaries of thousands of them would be as large as x."""
    lots: dict[int, list[int]] = {}
    start = 0
    for i in small:
        lots.setdefault(start // tile, []).append(i)
        start += c.params[i].numel()
    return lots.values()


def run(line: Line, c: Chunk, gamma: Scalar, *, line_9: bool = True, reading: bool = False) -> list[Sums]:
    """A line over all pieces of a chunk; `reading` as for `pieces`."""
    measured = c.matrix.scalars and not line_9  # torch's own sums are faster than those of the kernels
    if c.group["compile"] and not measured and elementwise(c, line_9=line_9) and c.in_full_swing:
        left = set(range(len(c.params)))
        if len(left) == 1 or _divisible(c):
            large = [i for i, x in enumerate(c.params) if x.numel() > SMALL and aligned(c, [i])]
            left -= set(compiled.call(line, c, large, gamma))
        c = c.part(sorted(left))
    return [line(piece, gamma) for piece in pieces(c, line_9=line_9, reading=reading)] if c.params else []


def _in_rows(c: Chunk, x: Tensor) -> bool:
    """Whether line 9 treats every x[i] by itself."""
    return x.is_contiguous() and all(part is None or part.in_rows(x) for part in (c.constraint, c.penalty))


def tiles(c: Chunk, i: int, size: int, *, flat: bool = True) -> Iterator[Chunk]:
    """Parameter i in pieces, of so many coordinates or rows."""
    state, grad = c.states[i], c.grads[i]
    held = [name for name in (*c.names, *(() if flat else ("root",))) if name in state]
    other = {name: value for name, value in state.items() if name not in held}

    def cut(t: Tensor) -> tuple[Tensor, ...]:
        return torch.split(flattened(t) if flat else t, size)

    x, *buffers = (cut(t) for t in (c.params[i], *(state[name] for name in held)))
    grads = [None] * len(x) if grad is None else cut(grad)
    for k, tile in enumerate(x):
        views = {name: buffer[k] for name, buffer in zip(held, buffers, strict=True)}
        yield c.replaced(params=[tile], grads=[grads[k]], states=[{**other, **views}])


def aligned(c: Chunk, which: list[int] | None = None) -> bool:
    """Whether the parameters, their gradients and their buffers lie in memory alike, coordinate by coordinate."""
    return all(
        _alike([c.params[i], c.grads[i], *(c.states[i].get(name) for name in c.names)])
        for i in (range(len(c.params)) if which is None else which)
    )


def _alike(tensors: list[Tensor | None]) -> bool:
    there = [t for t in tensors if t is not None]
    first = there[0]
    # complex or short numbers, a gradient of another precision (`grad_dtype`), or a DTensor
    if any(t.dtype != state_dtype(first) or hasattr(t, "device_mesh") for t in there):
        return False
    if all(t.is_contiguous() for t in there):
        return True
    return all(t.dim() == 4 and t.is_contiguous(memory_format=torch.channels_last) for t in there)

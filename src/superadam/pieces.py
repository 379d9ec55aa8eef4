"""Where the lines of Algorithm 1 run: a chunk cut into pieces that stay in the processor's cache from line to line.

On a CPU a step is bound by memory. Written for whole tensors, every operation reads and writes them all, and makes new
ones; on a megabyte at a time the same operations run from the cache, and memory is read and written once. Small tensors
go together, which saves calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from superadam import compiled
from superadam.chunks import Chunk, Line, Sums, state_dtype
from superadam.tensors import Scalar

__all__ = ["TILE", "aligned", "elementwise", "pieces", "run", "tiles"]

TILE = 1 << 19  # coordinates: two megabytes of float32, so that half a dozen tensors fit into a usual last cache
SMALL = 1 << 13  # tensors with fewer coordinates are updated together


def elementwise(c: Chunk, *, line_9: bool = True) -> bool:
    """Whether all parts treat every coordinate by itself, with or without the set and the penalty."""
    parts = (c.estimator, c.matrix, *((c.constraint, c.penalty) if line_9 else ()))
    return all(part is None or part.elementwise for part in parts) and not c.matrix.two_point


def pieces(c: Chunk, *, line_9: bool = True, cut: bool = True) -> Iterator[Chunk]:
    """The chunk in pieces, for lines that include the step or not. Their buffers are views: write, do not rebind."""
    on_device = c.params[0].device.type != "cpu" or isinstance(c.states[0]["step"], Tensor)
    if on_device or c.group["differentiable"] or c.group["foreach"]:
        yield c
        return
    by_coordinate, by_row = elementwise(c, line_9=line_9), elementwise(c, line_9=False)
    small = [i for i, p in enumerate(c.params) if p.numel() <= SMALL]
    if len(small) > 1:
        yield from map(c.part, _lots(c, small))
    else:
        small = []
    for i in sorted(set(range(len(c.params))) - set(small)):
        large = cut and c.params[i].numel() > TILE and aligned(c, [i])
        if large and by_coordinate:
            yield from tiles(c, i, TILE)
        elif large and by_row and _in_rows(c, c.params[i]):
            yield from tiles(c, i, max(1, TILE // c.params[i][0].numel()), flat=False)
        else:
            yield c if len(c.params) == 1 else c.part([i])


def _lots(c: Chunk, small: list[int]) -> Iterable[list[int]]:
    """Small tensors by about TILE coordinates: the temporaries of thousands of them would be as large as x."""
    lots: dict[int, list[int]] = {}
    start = 0
    for i in small:
        lots.setdefault(start // TILE, []).append(i)
        start += c.params[i].numel()
    return lots.values()


def run(line: Line, c: Chunk, gamma: Scalar, *, line_9: bool = True) -> list[Sums]:
    """A line over all pieces of a chunk."""
    measured = c.matrix.scalars and not line_9  # torch's own sums are faster than those of the kernels
    if not c.group["compile"] or measured or not elementwise(c, line_9=line_9) or not c.in_full_swing:
        return [line(piece, gamma) for piece in pieces(c, line_9=line_9)]
    for whole in pieces(c, line_9=line_9, cut=False):
        n = whole.params[0].numel()
        if len(whole.params) == 1 and n > SMALL and aligned(whole):
            compiled.call(line, next(tiles(whole, 0, n)), gamma)
        else:
            line(whole, gamma)
    return []


def _in_rows(c: Chunk, x: Tensor) -> bool:
    """Whether line 9 treats every x[i] by itself."""
    return x.is_contiguous() and all(part is None or part.in_rows(x) for part in (c.constraint, c.penalty))


def tiles(c: Chunk, i: int, size: int, *, flat: bool = True) -> Iterator[Chunk]:
    """Parameter i in pieces, of so many coordinates or rows."""
    state, grad = c.states[i], c.grads[i]
    held = [name for name in (*c.names, *(() if flat else ("root",))) if name in state]
    other = {name: value for name, value in state.items() if name not in held}

    def cut(t: Tensor) -> tuple[Tensor, ...]:
        return torch.split(_flat(t) if flat else t, size)

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


def _flat(x: Tensor) -> Tensor:
    """The coordinates in the order of memory."""
    return x.view(-1) if x.is_contiguous() else x.as_strided((x.numel(),), (1,))

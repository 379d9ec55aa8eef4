"""Views cut into pieces that stay in the processor's cache from line to line.

On a CPU a step is bound by memory. On whole tensors, every operation reads and writes all of them, and makes new ones.
On a few megabytes at a time, the same operations run in the cache, and memory is read and written once. Small tensors
go together, which saves calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from superadam._step.view import View
from superadam._step.workspace import keep_small_blocks
from superadam.lists import flattened, state_dtype

__all__ = ["MULTIPLE", "SMALL", "TILE", "aligned", "alike", "cut", "in_one_piece", "large", "lots_of_small", "pieces"]

# Coordinates of a piece. Four megabytes of float32: half a dozen tensors fit into the last cache of a server. Smaller
# pieces take longer: more calls, and more waiting for threads.
TILE = 1 << 20
SMALL = 1 << 16  # tensors with at most so many coordinates are updated together
MULTIPLE = 16  # a GPU's kernels are for lengths that are multiples of it: then they load four numbers at once


def in_one_piece(params: Sequence[Tensor]) -> bool:
    """Whether `pieces` leaves views of these parameters whole."""
    keep_small_blocks()  # temporaries
    sizes = [p.numel() for p in params]
    return max(sizes) <= SMALL and sum(sizes) <= TILE


def pieces(view: View, *, line_9: bool = True, reading: bool = False) -> Iterator[View]:
    """The view in pieces, for lines with or without line 9. Their tensors are views: write into them.

    `reading` is for lines that only sum. They gain nothing from the cache, so their pieces are larger: small enough for
    an accurate sum in float32.
    """
    tile, limit = (16 * TILE, 16 * TILE) if reading else (TILE, SMALL)
    small = [i for i, p in enumerate(view.params) if p.numel() <= limit]
    by_row, in_line_9 = view.layout.elementwise
    by_coordinate = in_line_9 if line_9 else by_row
    if len(small) > 1:
        yield from (view.some(lot) for lot in _lots(view, small, tile))
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
            yield view.some([i])


def _lots(view: View, small: list[int], tile: int) -> Iterable[list[int]]:
    """Small tensors in lots of about `tile` coordinates: all at once, temporaries could be as large as x."""
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
    """Bound views of parameter i in pieces of `size` coordinates, or rows if not `flat`."""
    state, grad = view.states[i], view.grads[i]
    held = [name for name in (*view.names, *(() if flat else ("root",))) if name in state]
    other = {name: value for name, value in state.items() if name not in held}

    def split(t: Tensor) -> tuple[Tensor, ...]:
        return torch.split(flattened(t) if flat else t, size)

    x, *buffers = (split(t) for t in (view.params[i], *(state[name] for name in held)))
    grads = [None] * len(x) if grad is None else split(grad)
    for k, tile in enumerate(x):
        views = {name: buffer[k] for name, buffer in zip(held, buffers, strict=True)}
        offset = k * x[0].numel()  # the place of its first coordinate, for random bits
        yield view.replaced([tile], [grads[k]], [{**other, **views, "offset": offset}]).bound()


def aligned(view: View, which: list[int] | None = None) -> bool:
    """Whether parameters, gradients and state have their coordinates in memory in one order, and the state's dtype."""
    narrow = view.narrow
    wide = [name for name in view.names if name not in narrow]
    return all(
        alike([view.params[i], view.grads[i], *map(view.states[i].get, wide)], [*map(view.states[i].get, narrow)])
        for i in (range(len(view.params)) if which is None else which)
    )


def large(view: View) -> list[int]:
    """The parameters for which a kernel of our own is made: those that are not small, with a state like them."""
    sizes = [(i, x.numel(), x.device.type == "cpu") for i, x in enumerate(view.params)]
    return [i for i, n, cpu in sizes if n > SMALL and (cpu or n % MULTIPLE == 0) and aligned(view, [i])]


def lots_of_small(view: View) -> list[list[int]]:
    """The small parameters with a state like them, in lots of about `TILE` coordinates."""
    return [*_lots(view, [i for i, x in enumerate(view.params) if x.numel() <= SMALL and aligned(view, [i])], TILE)]


def alike(tensors: Sequence[Tensor | None], narrow: Sequence[Tensor | None] = ()) -> bool:
    """`aligned`, for the tensors of one parameter. Those of a `narrow` state may have another dtype."""
    there = [t for t in tensors if t is not None]
    first = there[0]
    # not so: complex or low-precision parameters, a gradient of another precision (`grad_dtype`)
    if any(t.dtype != state_dtype(first) for t in there):
        return False
    there += [t for t in narrow if t is not None]
    if any(t.shape != first.shape or hasattr(t, "device_mesh") for t in there):  # a DTensor
        return False
    if all(t.is_contiguous() for t in there):
        return True
    return all(t.dim() == 4 and t.is_contiguous(memory_format=torch.channels_last) for t in there)

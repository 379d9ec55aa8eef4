"""Parameters of which every process holds a part: `DTensor`s, as FSDP2's `fully_shard` makes them.

What works coordinate by coordinate runs on the part of this process as if it were the whole. Sums over all of x are
taken over this part first, and then once over the processes.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor

from superadam.parts import Part

__all__ = [
    "Sharding",
    "gathered",
    "is_dtensor",
    "joined",
    "like",
    "local",
    "objection",
    "over_ranks",
    "positions",
    "sharding",
    "share",
    "sums_over_ranks",
]

Key = TypeVar("Key", bound=Hashable)
# A device mesh and the dimensions of it that a tensor is cut along; None for a tensor that is here in full.
Sharding = tuple[Any, tuple[int, ...]] | None


def is_dtensor(x: Tensor) -> bool:
    if type(x) in (Tensor, torch.nn.Parameter):
        return False
    module = sys.modules.get("torch.distributed.tensor")  # whoever has a DTensor has imported it
    return module is not None and isinstance(x, module.DTensor)


def local(x: Tensor) -> Tensor:
    """What this process holds of x."""
    part: Tensor = x.to_local() if is_dtensor(x) else x  # type: ignore[attr-defined]
    return part


def sharding(x: Tensor) -> Sharding:
    """How x is cut into parts, if it is."""
    if not is_dtensor(x):
        return None
    mesh, placements = x.device_mesh, x.placements  # type: ignore[attr-defined]
    cut = tuple(i for i, place in enumerate(placements) if not place.is_replicate() and mesh.size(i) > 1)
    return (mesh, cut) if cut else None


def like(x: Tensor, p: Tensor) -> Tensor:
    """x, sharded as p is."""
    if not is_dtensor(p) or is_dtensor(x):
        return x
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(x, p.device_mesh, p.placements)  # type: ignore[attr-defined]


def joined(part: Tensor, shape: torch.Size, p: Tensor) -> Tensor:
    """A tensor of `shape`, sharded as p is, of which this process holds `part`."""
    if not is_dtensor(p):
        return part
    from torch.distributed.tensor import DTensor

    stride = torch.empty(shape, device="meta").stride()
    where = (p.device_mesh, p.placements)  # type: ignore[attr-defined]
    return DTensor.from_local(part, *where, run_check=False, shape=shape, stride=stride)


def gathered(part: Tensor, p: Tensor) -> Tensor:
    """The whole of a tensor like p, of which this process holds `part`."""
    if sharding(p) is None:
        return part
    whole: Tensor = joined(part, p.shape, p).full_tensor()  # type: ignore[attr-defined]
    return whole


def share(whole: Tensor, p: Tensor) -> Tensor:
    """What this process holds of a tensor like p."""
    if sharding(p) is None:
        return whole
    from torch.distributed.tensor import DTensor, Replicate

    mesh, placements = p.device_mesh, p.placements  # type: ignore[attr-defined]
    return (
        DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
        .redistribute(placements=placements)
        .to_local()
    )


def positions(x: Tensor) -> Tensor:
    """The index, in all of x as a vector, of every coordinate that this process holds."""
    shape, offset = tuple(local(x).shape), (0,) * x.dim()
    if is_dtensor(x):
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        mesh, placements = x.device_mesh, x.placements  # type: ignore[attr-defined]
        _, offset = compute_local_shape_and_global_offset(x.shape, mesh, placements)
    places = torch.zeros((), dtype=torch.int64, device=x.device)
    for whole, size, start in zip(x.shape, shape, offset, strict=True):
        places = places.unsqueeze(-1) * whole + torch.arange(start, start + size, device=x.device)
    return places


def over_ranks(value: Tensor, how: Sharding, op: str = "sum") -> Tensor:
    """Sum `value`, in place, over the processes that hold the parts of a tensor; or reduce it by another `op`."""
    if how is not None:
        mesh, cut = how
        for i in cut:
            op_ = getattr(torch.distributed.ReduceOp, op.upper())
            torch.distributed.all_reduce(value, op_, group=mesh.get_group(i))
    return value


def sums_over_ranks(sums: dict[tuple[Key, Sharding], list[tuple[Tensor, ...]]]) -> dict[Key, tuple[Tensor, ...]]:
    """Add up sums over pieces of what this process holds, then over processes and shardings: a message for each."""
    totals: dict[Key, tuple[Tensor, ...]] = {}
    for how in dict.fromkeys(how for _, how in sums):
        parts = {
            key: tuple(torch.stack(column).sum() for column in zip(*pieces, strict=True))
            for (key, of), pieces in sums.items()
            if of == how
        }
        if how is not None:
            wide = max((v.dtype for values in parts.values() for v in values), key=lambda dtype: dtype.itemsize)
            flat = [v for values in parts.values() for v in values]
            message = over_ranks(torch.stack([v.to(flat[0].device, wide) for v in flat]), how)
            arrived = iter(message.unbind())
            parts = {key: tuple(next(arrived).to(v) for v in values) for key, values in parts.items()}
        for key, values in parts.items():
            totals[key] = tuple(map(torch.add, totals[key], values)) if key in totals else values
    return totals


def objection(parts: Any, options: dict[str, Any], p: Tensor) -> str | None:
    """Why a sharded parameter cannot have these parts and options, or None."""
    how = sharding(p)
    if how is None:
        return None
    if options["differentiable"]:
        return "autograd does not follow a step on parts: use differentiable=False"
    if parts.matrix.scope == "all":
        return f"{type(parts.matrix).__name__} solves for all coordinates at once: use a diagonal or a scalar matrix"
    placements = p.placements  # type: ignore[attr-defined]
    cut = {placements[i].dim % max(p.dim(), 1) for i in how[1]}
    for part in filter(None, (parts.constraint, parts.penalty)):
        if not part.separable and cut & _coupled(part, p.dim()):
            return (
                f"{part} couples coordinates along dimension {min(cut)}, which the processes have divided: give it a "
                "dim= that each holds in full, shard along another dimension (the shard_placement_fn of fully_shard), "
                "or leave the parameter unsharded (its ignored_params)"
            )
        if any(_spans(value, p.dim(), dim) for value in part.spec().values() for dim in cut):
            name = type(part).__name__
            return f"{name} has an option with an element for each slice of what the processes divide: use a number"
    return None


def _coupled(part: Part, ndim: int) -> set[int]:
    """The dimensions along which a set or a penalty couples coordinates."""
    dim = getattr(part, "dim", None)
    if dim is None:
        return set(range(ndim))
    along: Iterable[int] = dim if isinstance(dim, tuple) else (dim,)
    return {d % ndim for d in along}


def _spans(value: object, ndim: int, dim: int) -> bool:
    """Whether an option of a set, broadcast to `ndim` dimensions, differs along `dim`."""
    return isinstance(value, Tensor) and value.dim() >= ndim - dim and value.shape[dim - ndim] != 1

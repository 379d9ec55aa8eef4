"""Several processes: parts of tensors (DTensor), sums over ranks, and owners of matrices.

FSDP2 divides a parameter among processes, as a DTensor. A step works on the part that is here, as if it were the whole;
sums over all of x are taken over this part first, and then once over the processes.

A matrix of each tensor needs its tensor whole. All processes do the same work, unless

- FSDP2 has cut the parameter between its matrices (experts): each process works on the matrices that it holds, and
  nothing is sent;
- FSDP2 has cut it elsewhere: one process owns the parameter. The others send it their parts, and get their parts of the
  step;
- `opt.divide_matrices()` was called for parameters that every process holds (DDP): one process owns each, and sends the
  step to the others.

Only the process that works on a matrix has its factors: for the others the batch of matrices has length 0. Owners
depend on the shapes and the order of the parameters alone, so that all processes agree on them without a message.
"""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from superadam.lists import state_dtype
from superadam.parts import Part

__all__ = [
    "Place",
    "Sharding",
    "everywhere",
    "from_owners",
    "gathered",
    "have_gradients",
    "is_dtensor",
    "joined",
    "like",
    "local",
    "objection",
    "over_ranks",
    "places",
    "positions",
    "restored",
    "saved",
    "sharding",
    "share",
    "sums_over_ranks",
    "to_owners",
]  # fmt: skip

Key = TypeVar("Key", bound=Hashable)
# A device mesh and the dimensions of it that a tensor is cut along; None for a tensor that is here in full.
Sharding = tuple[Any, tuple[int, ...]] | None


def is_dtensor(x: Tensor) -> bool:
    if type(x) in (Tensor, torch.nn.Parameter):
        return False
    module = sys.modules.get("torch.distributed.tensor")  # whoever has a DTensor has imported it
    return module is not None and isinstance(x, module.DTensor)


def local(x: Tensor) -> Tensor:
    """Return the part of x that this process holds."""
    part: Tensor = x.to_local() if is_dtensor(x) else x  # type: ignore[attr-defined]
    return part


def sharding(x: Tensor) -> Sharding:
    """Return how x is cut into parts, if it is."""
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
    """Return a tensor of `shape`, sharded as p is, of which this process holds `part`."""
    if not is_dtensor(p):
        return part
    from torch.distributed.tensor import DTensor

    stride = torch.empty(shape, device="meta").stride()
    where = (p.device_mesh, p.placements)  # type: ignore[attr-defined]
    return DTensor.from_local(part, *where, run_check=False, shape=shape, stride=stride)


def gathered(part: Tensor, p: Tensor) -> Tensor:
    """Return the whole of a tensor like p, of which this process holds `part`."""
    if sharding(p) is None:
        return part
    whole: Tensor = joined(part, p.shape, p).full_tensor()  # type: ignore[attr-defined]
    return whole


def share(whole: Tensor, p: Tensor) -> Tensor:
    """Return the part of a tensor like p that this process holds."""
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
    """Return the index, in all of x as a vector, of every coordinate that this process holds."""
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
    """Add up sums over the pieces of this process, then over processes and shardings: a message for each."""
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


def objection(parts: Any, p: Tensor) -> str | None:
    """Return why a sharded parameter cannot have these parts and options, or None."""
    how = sharding(p)
    if how is None:
        return None
    if parts.matrix.joint:
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
    """Return the dimensions along which a set or a penalty couples coordinates."""
    dim = getattr(part, "dim", None)
    if dim is None:
        return set(range(ndim))
    along: Iterable[int] = dim if isinstance(dim, tuple) else (dim,)
    return {d % ndim for d in along}


def _spans(value: object, ndim: int, dim: int) -> bool:
    """Return whether an option of a set, broadcast to `ndim` dimensions, differs along `dim`."""
    return isinstance(value, Tensor) and value.dim() >= ndim - dim and value.shape[dim - ndim] != 1


# ---------------------------------------------------------------------------------- owners


class Place(NamedTuple):
    """Where the matrices of a parameter are worked on."""

    shape: tuple[int, ...]
    """Of the batch of all its matrices."""
    here: int
    """How many of them this process works on."""
    within: bool = False
    """Whether these are the ones that its part of the parameter consists of."""
    group: Any = None
    """The processes of which one is the owner."""
    owner: int = 0
    """Its rank among them."""
    dim: int | None = None
    """The dimension along which they have cut the parameter; None if each has all of it."""

    @property
    def cost(self) -> int:
        """The time of a step, up to a factor: products with both sides."""
        _, m, n = self.shape
        return math.prod(self.shape) * (m + n)


def everywhere(p: Tensor, matrix: Any) -> Place:
    """Return the place where all processes do the same work."""
    shape = tuple(matrix.matrices(torch.empty(_real(p), device="meta")).shape)
    return Place(shape, shape[0])


def _place(p: Tensor, matrix: Any, processes: Any) -> Place:
    """Return the place of a parameter, whose owner is not known yet."""
    place, how = everywhere(p, matrix), sharding(p)
    if matrix.is_diagonal:
        return place  # which costs little
    if how is None:
        return place if processes is None or is_dtensor(p) else place._replace(group=processes)
    from torch.distributed.tensor import Shard

    mesh, cut = how
    placement, size = p.placements[cut[0]], mesh.size(cut[0])  # type: ignore[attr-defined]
    if len(cut) > 1 or type(placement) is not Shard:
        return place  # the parts of a parameter that is cut twice go to all
    dim = placement.dim % p.dim()
    if dim == 0 and getattr(matrix, "batch_dims", 0) > 0 and p.shape[0] % size == 0:
        return place._replace(here=place.here // size, within=True)
    return place._replace(group=mesh.get_group(cut[0]), dim=dim)


def places(matrices: dict[Tensor, Any], processes: Any, known: dict[Tensor, Place]) -> dict[Tensor, Place]:
    """Return the places of the parameters with a matrix of each tensor. A `known` place keeps its owner.

    The costliest comes first, and each goes to the process that has the least to do.
    """
    found = {p: _place(p, matrix, processes) for p, matrix in matrices.items()}
    owned = [p for p, place in found.items() if place.group is not None]
    loads = {found[p].group: [0] * found[p].group.size() for p in owned}
    for place in known.values():
        if place.group in loads:
            loads[place.group][place.owner] += place.cost
    for p in sorted(owned, key=lambda p: -found[p].cost):
        place, load = found[p], loads[found[p].group]
        if p in known and known[p].group is place.group:
            owner = known[p].owner
        else:
            owner = load.index(min(load))
            load[owner] += place.cost
        found[p] = place._replace(owner=owner, here=place.shape[0] if owner == place.group.rank() else 0)
    return found


# ------------------------------------------------------------------------------------------ the messages of a step

_HOSTS: Any = weakref.WeakKeyDictionary()


def _on_host(group: Any) -> Any:
    """Return the same processes as a group that sends from the host, so that nobody waits for the device."""
    if "cpu:" in dist.get_backend_config(group):
        return group
    if group not in _HOSTS:
        ranks = dist.get_process_group_ranks(group)
        _HOSTS[group] = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
    return _HOSTS[group]


def have_gradients(where: dict[Tensor, Place]) -> dict[Tensor, int]:
    """Return how many processes have a gradient, for each parameter that has an owner among them."""
    found: dict[Tensor, int] = {}
    for group in dict.fromkeys(place.group for place in where.values() if place.group is not None):
        params = [p for p, place in where.items() if place.group is group]
        there = torch.tensor([p.grad is not None for p in params], dtype=torch.int32)
        dist.all_reduce(there, group=_on_host(group))
        found.update(zip(params, there.tolist(), strict=True))
    return found


def check_agreement(places: dict[Tensor, Any], name: Callable[[Tensor], str]) -> None:
    """Refuse, on all processes, a gradient that only some have, where a process owns the parameter's matrix.

    The length of the messages to the owner depends on the gradients. Without this check the processes would wait for
    each other for ever, or mix up gradients.
    """
    for p, have in have_gradients(places).items():
        if 0 < have < (size := places[p].group.size()):
            here = "has none" if p.grad is None else "has one"
            raise RuntimeError(
                f"Parameter {name(p)} has a gradient on {have} of {size} processes (this one {here}), but one process "
                "computes its matrix for all. Give it a gradient on every process or on none. (DDP with "
                "find_unused_parameters=True does: zeros where the parameter was not used.)"
            )


def to_owners(parts: list[Tensor], params: list[Tensor], where: list[Place]) -> list[Tensor | None]:
    """Return the tensors of which the processes hold `parts`, whole where they are worked on; None elsewhere.

    One message for each group of processes.
    """
    found: list[Tensor | None] = [None] * len(parts)
    for i, (part, p, place) in enumerate(zip(parts, params, where, strict=True)):
        if place.group is None:
            found[i] = part if place.within else gathered(part, p)
        elif place.dim is None and place.here:
            found[i] = part
    for group, which, like in _messages(params, where, cut=True):
        ranks, mine = range(group.size()), [i for i in which if where[i].here]
        sent = [[parts[i] for i in which if where[i].owner == r] for r in ranks]
        shapes = [[_shape(parts[i].shape, params[i], where[i], r) for i in mine] for r in ranks]
        arrived = _all_to_all(sent, shapes, like, group)
        for i, pieces in zip(mine, zip(*arrived, strict=True), strict=True):
            found[i] = torch.cat(pieces, where[i].dim)  # type: ignore[arg-type]
    return found


def from_owners(wholes: list[Tensor | None], params: list[Tensor], where: list[Place]) -> list[Tensor]:
    """Return the inverse of `to_owners`: the parts of this process."""
    found: list[Any] = list(wholes)
    for i, (whole, p, place) in enumerate(zip(wholes, params, where, strict=True)):
        if place.group is None and not place.within and whole is not None:
            found[i] = share(whole, p)
    for group, which, like in _messages(params, where, cut=True):
        ranks, mine = range(group.size()), [i for i in which if where[i].here]
        sent = [[found[i].narrow(where[i].dim, *_cut(params[i], where[i], r)) for i in mine] for r in ranks]
        of = [[i for i in which if where[i].owner == r] for r in ranks]
        shapes = [[_real(local(params[i])) for i in indices] for indices in of]
        arrived = _all_to_all(sent, shapes, like, group)
        for i, piece in zip((i for indices in of for i in indices), (t for ts in arrived for t in ts), strict=True):
            found[i] = piece
    for group, which, like in _messages(params, where, cut=False):
        of = [[i for i in which if where[i].owner == r] for r in range(group.size())]
        shapes = [[_real(params[i]) for i in indices] for indices in of]
        own = [wholes[i] for i in of[group.rank()]]
        for indices, tensors in zip(of, _all_gather(own, shapes, like, group), strict=True):
            for i, tensor in zip(indices, tensors, strict=True):
                found[i] = tensor
    return found


def _messages(params: list[Tensor], where: list[Place], *, cut: bool) -> Iterator[tuple[Any, list[int], Tensor]]:
    """Groups of processes; which parameters have an owner among them, and are cut or are not; a tensor of the kind that
    is sent."""
    groups: dict[Any, list[int]] = {}
    for i, (p, place) in enumerate(zip(params, where, strict=True)):
        if place.group is not None and (place.dim is not None) == cut:
            groups.setdefault((place.group, state_dtype(p), p.device), []).append(i)
    for (group, dtype, device), which in groups.items():
        yield group, which, torch.empty(0, dtype=dtype, device=device)


def _real(p: Tensor) -> tuple[int, ...]:
    return (*p.shape, 2) if p.is_complex() else tuple(p.shape)


def _cut(p: Tensor, place: Place, rank: int) -> tuple[int, int]:
    """Return where the part of a process begins in the dimension that is cut, and its length, as FSDP2 cuts."""
    return _chunk(p.shape[place.dim or 0], place.group.size(), rank)


def _chunk(n: int, size: int, rank: int) -> tuple[int, int]:
    length = math.ceil(n / size)
    start = min(n, rank * length)
    return start, min(n - start, length)


def _shape(part: Sequence[int], p: Tensor, place: Place, rank: int) -> tuple[int, ...]:
    dim = place.dim or 0
    return (*part[:dim], _cut(p, place, rank)[1], *part[dim + 1 :])


def _flat(tensors: Iterable[Tensor], like: Tensor) -> Tensor:
    return torch.cat([like.new_empty(0), *(tensor.reshape(-1).to(like) for tensor in tensors)])


def _unpacked(message: Tensor, shapes: list[Any]) -> list[Tensor]:
    pieces = torch.split(message, [math.prod(shape) for shape in shapes])
    return [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]


def _all_to_all(sent: list[list[Tensor]], shapes: list[list[Any]], like: Tensor, group: Any) -> list[list[Tensor]]:
    """Send `sent[r]` to process r; tensors of the shapes `shapes[r]` come back."""
    message = _flat((tensor for tensors in sent for tensor in tensors), like)
    sizes = [sum(tensor.numel() for tensor in tensors) for tensors in sent]
    expected = [sum(map(math.prod, of)) for of in shapes]
    arrived = message.new_empty(sum(expected))
    dist.all_to_all_single(arrived, message, expected, sizes, group=group)
    return [_unpacked(part, of) for part, of in zip(torch.split(arrived, expected), shapes, strict=True)]


def _all_gather(mine: list[Any], shapes: list[list[Any]], like: Tensor, group: Any) -> list[list[Tensor]]:
    """Return the tensors of every process, of shapes that all know."""
    sizes = [sum(map(math.prod, of)) for of in shapes]
    message = like.new_zeros(max(sizes))
    flat = _flat(mine, like)
    message[: flat.numel()] = flat
    arrived = [torch.empty_like(message) for _ in sizes]
    dist.all_gather(arrived, message, group=group)
    return [_unpacked(part[:size], of) for part, size, of in zip(arrived, sizes, shapes, strict=True)]


# ---------------------------------------------------------------------------------------------------------- checkpoints


def saved(factor: Tensor, p: Tensor, place: Place) -> Tensor:
    """Return a factor as it is saved: whole, or a DTensor as p is. All processes of the group ask together."""
    shape = torch.Size((place.shape[0], *factor.shape[1:]))
    if place.within:
        return joined(factor, shape, p)
    if place.group is None:
        return factor
    whole = factor.contiguous() if place.here else factor.new_empty(shape)
    dist.broadcast(whole, dist.get_global_rank(place.group, place.owner), group=place.group)
    if place.dim is None:
        return whole
    from torch.distributed.tensor import DTensor, Replicate, Shard

    mesh, cut = sharding(p)  # type: ignore[misc]
    dim = _dimension_to_cut(shape, place.group.size())
    part = whole.narrow(dim, *_chunk(shape[dim], place.group.size(), place.group.rank())).clone()
    placements = [Shard(dim) if i in cut else Replicate() for i in range(mesh.ndim)]
    return DTensor.from_local(part, mesh, placements, run_check=False, shape=shape, stride=whole.stride())


def restored(factor: Tensor, p: Tensor, place: Place) -> Tensor:
    """Return the part of a saved factor that this process works on."""
    if place.within and is_dtensor(factor):
        return local(factor.redistribute(placements=p.placements))  # type: ignore[attr-defined]
    whole: Tensor = factor.full_tensor() if is_dtensor(factor) else factor  # type: ignore[attr-defined]
    if place.within:
        mesh, cut = sharding(p)  # type: ignore[misc]
        return whole.narrow(0, mesh.get_local_rank(cut[0]) * place.here, place.here).clone()
    return whole if place.here else whole[:0].clone()


def _dimension_to_cut(shape: torch.Size, parts: int) -> int:
    """Return the dimension along which a tensor is saved as a DTensor: the longest that the parts divide evenly.

    full_tensor() cuts off what was added to parts of unequal size, which leaves gaps, unless by the first dimension.
    torch 2.9 sends such a tensor from rank 0 with its gaps.
    """
    even = [d for d, size in enumerate(shape) if size % parts == 0]
    return max(even, key=shape.__getitem__) if even else next((d for d, size in enumerate(shape) if size > 1), 0)

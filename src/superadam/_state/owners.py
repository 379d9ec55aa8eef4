"""Which process works on the matrices of a parameter, where a matrix of each tensor needs them whole.

All processes do the same work, unless

- FSDP2 has cut the parameter between its matrices (experts): each process works on those it holds, and nothing is sent;
- FSDP2 has cut it elsewhere: one process owns the parameter. The others send it their parts, and get their parts of the
  step;
- `opt.divide_matrices()` was called for parameters that every process holds (DDP): one process owns each, and sends the
  step to the others.

Only the process that works on a matrix has its factors: for the others the batch of matrices has length 0. Owners
depend on the shapes and the order of the parameters alone, so that all processes agree on them without a message.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from superadam._state.sharding import gathered, is_dtensor, joined, local, sharding, share
from superadam._state.torch_versions import dimension_to_cut
from superadam.lists import each, join, real, state_dtype

if TYPE_CHECKING:
    from superadam._state.plans import GroupPlan
    from superadam._step.view import View
    from superadam.matrices import Matrix

__all__ = ["Place", "batches", "everywhere", "have_gradients", "places", "restored", "saved", "unbatched"]


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
        """What a step takes, up to a factor: products with both sides."""
        _, m, n = self.shape
        return math.prod(self.shape) * (m + n)


def everywhere(p: Tensor, matrix: Matrix) -> Place:
    """All processes do the same work."""
    shape = tuple(matrix.matrices(torch.empty(_real(p), device="meta")).shape)
    return Place(shape, shape[0])


def _place(p: Tensor, matrix: Matrix, processes: Any) -> Place:
    """The place of a parameter, whose owner is not known yet."""
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


def places(plan: GroupPlan, processes: Any, known: dict[Tensor, Place]) -> dict[Tensor, Place]:
    """The places of the parameters of a plan that have matrices of their own. What is `known` keeps its owner.

    The costliest comes first, and each goes to the process that has the least to do.
    """
    matrices = {p: plan.of(p).matrix for p in plan.group["params"]}
    found = {
        p: _place(p, matrix, processes)
        for p, matrix in matrices.items()
        if matrix.scope == "tensor" and matrix.accepts(real(p))
    }
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
    """The same processes, as a group that can send what is not on a device: nobody waits for the device then."""
    if "cpu:" in dist.get_backend_config(group):
        return group
    if group not in _HOSTS:
        ranks = dist.get_process_group_ranks(group)
        _HOSTS[group] = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
    return _HOSTS[group]


def have_gradients(where: dict[Tensor, Place]) -> dict[Tensor, int]:
    """For each parameter that has an owner in a group of processes: how many of these have a gradient."""
    found: dict[Tensor, int] = {}
    for group in dict.fromkeys(place.group for place in where.values() if place.group is not None):
        params = [p for p, place in where.items() if place.group is group]
        there = torch.tensor([p.grad is not None for p in params], dtype=torch.int32)
        dist.all_reduce(there, group=_on_host(group))
        found.update(zip(params, there.tolist(), strict=True))
    return found


def to_owners(parts: list[Tensor], params: list[Tensor], where: list[Place]) -> list[Tensor | None]:
    """The tensors of which the processes hold `parts`, whole where they are worked on; None elsewhere.

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
    """The inverse of `to_owners`: what this process holds of each."""
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
    """Where the part of a process begins in the dimension that is cut, and its length, as FSDP2 cuts."""
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
    """Send `sent[r]` to process r; what comes from process r has the shapes `shapes[r]`."""
    message = _flat((tensor for tensors in sent for tensor in tensors), like)
    sizes = [sum(tensor.numel() for tensor in tensors) for tensors in sent]
    expected = [sum(map(math.prod, of)) for of in shapes]
    arrived = message.new_empty(sum(expected))
    dist.all_to_all_single(arrived, message, expected, sizes, group=group)
    return [_unpacked(part, of) for part, of in zip(torch.split(arrived, expected), shapes, strict=True)]


def _all_gather(mine: list[Any], shapes: list[list[Any]], like: Tensor, group: Any) -> list[list[Tensor]]:
    """The tensors of every process, of shapes that all know."""
    sizes = [sum(map(math.prod, of)) for of in shapes]
    message = like.new_zeros(max(sizes))
    flat = _flat(mine, like)
    message[: flat.numel()] = flat
    arrived = [torch.empty_like(message) for _ in sizes]
    dist.all_gather(arrived, message, group=group)
    return [_unpacked(part[:size], of) for part, size, of in zip(arrived, sizes, shapes, strict=True)]


# ---------------------------------------------------------------------------------------------------------- checkpoints


def saved(factor: Tensor, p: Tensor, place: Place) -> Tensor:
    """A factor as it is saved: whole, or a DTensor where p is one. All processes of the group ask together."""
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
    dim = dimension_to_cut(shape, place.group.size())
    part = whole.narrow(dim, *_chunk(shape[dim], place.group.size(), place.group.rank())).clone()
    placements = [Shard(dim) if i in cut else Replicate() for i in range(mesh.ndim)]
    return DTensor.from_local(part, mesh, placements, run_check=False, shape=shape, stride=whole.stride())


def restored(factor: Tensor, p: Tensor, place: Place) -> Tensor:
    """Of a factor that was saved, by any number of processes, what this one works on."""
    if place.within and is_dtensor(factor):
        return local(factor.redistribute(placements=p.placements))  # type: ignore[attr-defined]
    whole: Tensor = factor.full_tensor() if is_dtensor(factor) else factor  # type: ignore[attr-defined]
    if place.within:
        mesh, cut = sharding(p)  # type: ignore[misc]
        return whole.narrow(0, mesh.get_local_rank(cut[0]) * place.here, place.here).clone()
    return whole if place.here else whole[:0].clone()


def batches(views: list[View], tensors: list[Tensor]) -> list[Tensor]:
    """`View.matrices` of several views, with one message for all."""
    parts = [part for tensor in tensors for part in each(tensor)]
    params, places = [p for v in views for p in v.params], [place for v in views for place in v.places]
    wholes = iter(to_owners(parts, params, places))
    return [view.batch_of([next(wholes) for _ in view.params]) for view in views]


def unbatched(views: list[View], matrices: list[Tensor]) -> list[Tensor]:
    """`View.tensors` of several views, with one message for all."""
    wholes = [whole for v, batch in zip(views, matrices, strict=True) for whole in v.wholes_of(batch)]
    params, places = [p for v in views for p in v.params], [place for v in views for place in v.places]
    parts = iter(from_owners(wholes, params, places))
    return [join([next(parts) for _ in view.params]) for view in views]

"""`Bucket`: the parameters of a group that are alike, with their gradients and state, as lines and parts see them.

Buckets are made in each step, as torch.optim makes its lists.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from superadam import distributed
from superadam.lists import Scalar, TensorList, real, state_dtype

__all__ = ["BETWEEN", "PENDING", "READY", "RESTARTED", "START", "UNESTIMATED", "Bucket", "State", "buckets", "single"]

State = dict[str, Any]
"""What the optimizer keeps for a parameter."""

# Where the algorithm stands for a parameter: "phase" in its state. Numbers, because torch.distributed.checkpoint saves
# no strings.
#
# START ──gradient──▶ READY ◀──flush── PENDING ──q──▶ BETWEEN ──gradient──▶ PENDING
#                       │                                  │
#                       └──────────── restart ─────────────┴──▶ RESTARTED ──gradient──▶ READY or PENDING
START = 0
"""The state exists, and no gradient has been taken in."""
READY = 1
"""g_t and H_t are there, and x is where the next gradient is taken."""
PENDING = 2
"""g_t and H_t are there; the move along them, with the learning rate `gamma`, waits for the next batch (τ > 0)."""
BETWEEN = 3
"""The move has been taken, and g holds half of line 11: the batch's gradient at x_t is still to come."""
RESTARTED = 4
"""g has been forgotten: the next gradient is g."""

UNESTIMATED = (START, RESTARTED)
"""The phases without a g."""


class Bucket:
    """Parameters that are updated together. Parts see it as `s`.

    `s.x`, `s.grad`, `s.g` and the state by its names (`s.v`) are lists of tensors; the state of a matrix of each tensor
    is batches of matrices. `s.t`, `s.mu`, `s.alpha`, `s.gamma` are numbers (tensors where a step is compiled or
    captured). An assignment to a name of the state, `s.v = …`, writes into the state.

    Complex parameters appear as their real views, and of sharded parameters the part that is here. The state of
    low-precision parameters is float32.
    """

    group: dict[str, Any]
    matrix: Any
    estimator: Any
    schedule: Any
    iterate: Any
    stepsize: Any
    constraint: Any
    penalty: Any
    rate: float
    """γ of these parameters over the γ of their group."""
    free: bool
    """Whether X = R^d and h = 0."""
    decay: float
    """w of the decoupled weight decay, else 0."""
    decay_in_gradient: float
    """w of the weight decay that is part of the gradient, else 0."""
    names: tuple[str, ...]
    """The tensors of the state that are here as attributes."""
    shared: dict[str, Tensor]
    """The 0-d tensors that all parameters of a matrix or a step size share."""
    params: list[Tensor]
    states: list[State]
    grads: list[Tensor] | None
    sharding: distributed.Sharding
    """How the processes divide these parameters."""
    places: Any
    """Where the matrices of each tensor are worked on, for a matrix of each."""
    turns: Sequence[int]
    """When it is the turn of each tensor to have its matrix refreshed."""

    x: Any
    g: Any
    grad: Any
    """The newest gradient of what is minimised, in the dtype of the state, with the weight decay that is in it."""
    step: Any
    """How many gradients these parameters have had."""
    t: Any
    """The step count that the matrix sees: that of the stage, with `iterates.SAdaGrad`."""
    mu: Any
    alpha: Any
    gamma: Any
    phase: int
    moves = False
    """Whether this step ends with lines 9 and 10 (τ = 0), rather than with a pending move."""
    paired = False
    """Whether the estimator has seen this batch at the previous point."""
    restarted = False
    """Whether this gradient is the first after a restart, so that it is g."""
    wide = False
    """Whether gradients and x must be widened to the dtype of the state."""
    offset = 0
    """The place of the first coordinate in its tensor, where this is a piece of it."""
    factor: Tensor | None = None
    """What `clip` has multiplied g by, for an estimator that makes g_t of more than its buffer."""
    direction: Any = None
    """H⁻¹g, where it was solved for several buckets together."""
    arrived: Tensor | None = None
    """`estimates`, where they came from other processes."""
    q: Any
    r"""$\nabla f(x_{t-1}; \xi_t)$, for a matrix that compares it with $\nabla f(x_t; \xi_t)$."""
    dx: Any
    r"""$x_t - x_{t-1}$, for the same."""

    def __init__(self, **facts: Any) -> None:
        self.__dict__.update(facts)

    def like(self, **changes: Any) -> Bucket:
        """Return the same bucket with some attributes replaced."""
        other = Bucket.__new__(Bucket)
        other.__dict__.update(self.__dict__)
        other.__dict__.update(changes)
        return other

    def some(self, which: list[int]) -> Bucket:
        """Return a bucket of some of the parameters; with a matrix of each tensor, of some that follow each other."""
        if len(which) == len(self.params):
            return self
        own = self.__dict__
        found: dict[str, Any] = {}
        for name in ("params", "states", "grads", "places", "turns"):
            if own.get(name):
                found[name] = [own[name][i] for i in which]
        for name in ("x", "grad", "q", "dx", "direction", *self.names):
            if isinstance(own.get(name), TensorList):
                found[name] = TensorList([own[name].tensors[i] for i in which])
        if self.matrix.per_tensor:  # a part of the batch, without a copy
            first = sum([place.here for place in self.places[: which[0]]])
            here = slice(first, first + sum([place.here for place in found["places"]]))
            found |= {name: own[name][here] for name in self.slots}
        return self.like(**found)

    def __setattr__(self, name: str, value: Any) -> None:
        held = self.__dict__.get(name)
        if held is None or (name != "x" and name not in self.names and name not in self.shared):
            self.__dict__[name] = value
        elif value is not held:
            held.copy_(value)

    def __getattr__(self, name: str) -> Any:
        if hasattr(type(self), name):  # a property raised the AttributeError that led here: let it be seen
            return object.__getattribute__(self, name)
        matrix = type(self.__dict__.get("matrix")).__name__
        raise AttributeError(f"{matrix} has no buffer or scalar named {name!r}, nor has the estimator or the iterate")

    # ------------------------------------------------------------------------------------ for parts

    @property
    def one(self) -> Tensor:
        """1, in the dtype and on the device of the state."""
        return torch.ones((), dtype=state_dtype(self.params[0]), device=self.params[0].device)

    @property
    def estimate(self) -> Any:
        """g_t, as line 9 takes it."""
        return self.estimator.estimate(self) if self.estimator.blends and self.grads is not None else self.g

    def number(self, name: str) -> Scalar:
        """Return a number of the iterate, as `Iterate.count` has left it."""
        found: Scalar = self.states[0][name]
        return found

    def whole_norm(self, tensor: Tensor) -> Tensor:
        """Return the norm of a tensor over all processes, of which this process holds the part `tensor`."""
        norm: Tensor = torch.linalg.vector_norm(tensor)
        return norm if self.sharding is None else distributed.over_ranks(norm.square(), self.sharding).sqrt()

    # ------------------------------------------------------------------------------------ a matrix of each tensor

    @property
    def estimates(self) -> Tensor:
        """g_t, as the batch of matrices that a matrix of each tensor works on."""
        return self.matrices(self.estimate) if self.arrived is None else self.arrived

    def matrices(self, like_x: TensorList) -> Tensor:
        """Return tensors like x as the batch of matrices that a matrix of each tensor works on."""
        if self.sharding is None and not self.apart and self.reshapes:
            wholes = like_x.tensors
            return (torch.stack(wholes) if len(wholes) > 1 else wholes[0]).reshape(-1, *self.places[0].shape[1:])
        if self.sharding is None and not self.apart:
            return self.batch_of(like_x.tensors)
        return self.batch_of(distributed.to_owners(like_x.tensors, self.params, self.places))

    def tensors(self, matrices: Tensor) -> TensorList:
        """Return the inverse of `matrices`: a list like x, with the parts of this process."""
        if self.sharding is None and self.reshapes and not self.apart:
            return TensorList(list(matrices.reshape(len(self.params), *self.x.tensors[0].shape).unbind()))
        wholes = self.wholes_of(matrices)
        if self.sharding is None and not self.apart:
            return TensorList(wholes)
        return TensorList(distributed.from_owners(wholes, self.params, self.places))

    def batch_of(self, wholes: Sequence[Tensor | None]) -> Tensor:
        """Return the matrices of the tensors that are here."""
        here = [whole for whole in wholes if whole is not None]
        shape = self.places[0].shape[1:]
        if not here:
            return self.one.new_empty((0, *shape))
        if self.reshapes:
            return (torch.stack(here) if len(here) > 1 else here[0]).reshape(-1, *shape)
        cut = [self.matrix.matrices(whole) for whole in here]
        return cut[0] if len(cut) == 1 else torch.cat(cut)

    def wholes_of(self, matrices: Tensor) -> list[Any]:
        """Return the inverse of `batch_of`, with None for tensors that are not here."""
        if self.reshapes and all([place.here == place.shape[0] for place in self.places]):
            return list(matrices.reshape(len(self.params), *real(self.params[0]).shape).unbind())
        shards = torch.split(matrices, [place.here for place in self.places])
        return [
            self.matrix.tensor(shard, real(distributed.local(p) if place.within else p).shape)
            if place.here or not place.group
            else None
            for shard, p, place in zip(shards, self.params, self.places, strict=True)
        ]


# ---------------------------------------------------------------------------------------- buckets of an optimizer

PLAIN = (Tensor, nn.Parameter)
SMALL = 1 << 16  # coordinates from which a bucket is worked on in pieces
BATCH = 1 << 22  # coordinates of the tensors of one shape that go together
ALONE = 1 << 17  # coordinates from which a tensor goes alone, on a CPU


def buckets(opt: Any, *, with_grad: bool = True, idle: bool = False, moves: bool = False) -> list[Bucket]:
    """Return the parameters with a gradient in buckets; without `with_grad`, the parameters with a state.

    Parameters of a bucket have one device, dtype, step count, phase and matrix.

    Args:
        opt: the optimizer, whose plans are current.
        with_grad: take the parameters with a gradient, and give those that are new a state.
        idle: take only parameters without a gradient, if not `with_grad`.
        moves: whether the step that they are for ends with a move (τ = 0).
    """
    found: list[Bucket] = []
    for plan in opt._plans:
        alike: dict[Hashable, list[Tensor]] = {}
        for p in plan.group["params"]:
            state = opt.state.get(p)
            if with_grad and p.grad is not None:
                if p.grad.shape != p.shape or p.grad.layout is not torch.strided:
                    _check_gradient(p, opt._name(p))
                if not state:
                    opt._complete(plan, p)
                    state = opt.state[p]
            elif with_grad or not state or (idle and p.grad is not None):
                continue
            g = state["g"]
            key: tuple[Any, ...] = (state["step"], state["phase"], p.dtype, p.device)
            if g.shape != p.shape or g.dtype is not p.dtype:
                opt._check_state(plan, p, state)
            if plan.mixed:
                key += plan.kind(p, state)
            elif state["phase"] == PENDING:
                key += (state["gamma"] if isinstance(state["gamma"], float) else id(state["gamma"]),)
            alike.setdefault(key, []).append(p)
        for params in alike.values():
            lots = _lots(opt, plan, params) if plan.per_tensor else [params]
            found += [_bucket(opt, plan, lot, with_grad, moves) for lot in lots]
    if opt._divided and with_grad:
        distributed.check_agreement(opt._places, opt._name)
    return found


def single(opt: Any, plan: Any, p: Tensor, x: Tensor, grad: Tensor | None) -> Bucket:
    """Return a bucket of one parameter as if it had this value and this gradient."""
    s = _bucket(opt, plan, [p], with_grad=False, moves=False)
    grads = None if grad is None else [real(distributed.local(grad).resolve_conj())]
    return s.like(x=TensorList([real(distributed.local(x))]), grads=grads)


def _bucket(opt: Any, plan: Any, params: list[Tensor], with_grad: bool, moves: bool) -> Bucket:
    """Make a bucket of parameters that are alike."""
    first, states = params[0], [opt.state[p] for p in params]
    phase = states[0]["phase"]
    if moves and phase == PENDING:
        raise RuntimeError("A move is pending from when tau was larger: call opt.flush() before lowering it.")
    own = dict(plan.facts[first], params=params, states=states, phase=phase, moves=moves)
    own["paired"], own["restarted"] = phase == BETWEEN, phase == RESTARTED
    matrix, names, dtype = own["matrix"], own["names"], own["dtype"]
    plain = type(first) in PLAIN and not first.is_complex()
    own["sharding"] = None if plain else distributed.sharding(first)
    own["wide"] = first.dtype is not dtype and not first.is_complex()
    own["x"] = TensorList(params if plain else [real(distributed.local(p)) for p in params])
    grads: list[Any] = [p.grad for p in params] if with_grad else []
    own["grads"] = grads if plain else [real(distributed.local(g).resolve_conj()) for g in grads]
    own["wide"] |= any([g.dtype is not first.dtype for g in grads])
    if not with_grad:
        own["grads"] = None
    if plain and any([s[name].shape != p.shape for p, s in zip(params, states, strict=True) for name in names]):
        for p, state in zip(params, states, strict=True):
            opt._check_state(plan, p, state)
    for name in names:
        own[name] = TensorList([s[name] for s in states] if plain else [distributed.local(s[name]) for s in states])
    if matrix.per_tensor or matrix.joint:
        own.update(_stacked(own["slots"], states, joint=matrix.joint), names=(*names, *own["slots"]))
    if matrix.per_tensor:
        own["places"], own["turns"] = [opt._places[p] for p in params], [opt._turns[p] for p in params]
        own["apart"] = opt._divided and any([place.group is not None for place in own["places"]])
        own["at_once"] = own["at_once"] and not own["apart"]
    for part in own["sharing"]:
        held = {name: t.to(first.device) for name, t in opt._shared[part].items()}
        own.update(held, shared={**own["shared"], **held})
    own["long"] = own["may_cut"] and first.device.type == "cpu" and sum([x.numel() for x in own["x"].tensors]) > SMALL
    gamma = states[0]["gamma"] if phase == PENDING else plan.group["lr"]
    if isinstance(gamma, Tensor):
        read = phase != PENDING and gamma.device.type == "cpu"
        gamma = float(gamma) if read else gamma.reshape(()).to(first.device)
    own["gamma"] = gamma if phase == PENDING or own["rate"] == 1 else gamma * own["rate"]
    return Bucket(**own)


def _lots(opt: Any, plan: Any, params: list[Tensor]) -> list[list[Tensor]]:
    """Divide tensors of one shape with matrices of their own into batches that bound the memory of a step.

    Large ones are alone on a CPU: their products take as long in one call as in several, without the copies.
    """
    matrix = plan.facts[params[0]]["matrix"]
    if not matrix.per_tensor or len(params) == 1:
        return [params]
    # those that are refreshed in the same step are neighbours, so that this can be done in place
    params = sorted(params, key=lambda p: opt._turns[p] % getattr(matrix, "every", 1))
    n = max(1, params[0].numel())
    size = 1 if n >= ALONE and params[0].device.type == "cpu" else max(1, BATCH // n)
    return [params[i : i + size] for i in range(0, len(params), size)]


def _stacked(names: tuple[str, ...], states: list[State], *, joint: bool) -> dict[str, Any]:
    """Return the slots of a matrix: lists if it is joint; of a matrix of each tensor, batches over all tensors.

    A batch is made once, when the tensors first come together, and the states then hold its parts; from then on it is
    found under its parts.
    """
    slots: dict[str, Any] = {}
    for name in names:
        tensors = [state[name] for state in states]
        if joint:
            slots[name] = TensorList(tensors)
            continue
        batch = tensors[0] if len(tensors) == 1 else _whole(tensors)
        if batch is None:
            batch = torch.cat(tensors)
            for state, part in zip(states, torch.split(batch, [len(t) for t in tensors]), strict=True):
                state[name] = part
        slots[name] = batch
    return slots


def _whole(tensors: list[Tensor]) -> Tensor | None:
    """Return the tensor of which these are parts, one after the other; None if there is none."""
    first = tensors[0]
    base, place = first._base, first.storage_offset()
    for t in tensors:
        if base is None or t._base is not base or t.storage_offset() != place or not t.is_contiguous():
            return None
        place += t.numel()
    return first.as_strided((sum([len(t) for t in tensors]), *first.shape[1:]), first.stride())


def _check_gradient(p: Tensor, name: str) -> None:
    """Refuse a gradient that is sparse, or of another shape."""
    grad: Any = p.grad
    if grad.layout is not torch.strided:
        raise RuntimeError(
            f"SuperAdam does not support sparse gradients (parameter {name}): use dense ones, e.g. "
            "nn.Embedding(..., sparse=False)"
        )
    if grad.shape != p.shape:
        raise RuntimeError(
            f"Parameter {name} has shape {tuple(p.shape)}, but its gradient has shape {tuple(grad.shape)}: clear the "
            "gradients after a parameter is resized."
        )

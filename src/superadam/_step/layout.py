"""`Layout`: parameters that are updated together, with what does not change from step to step."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Parameter

from superadam._state import refusals
from superadam._state.owners import Place, everywhere
from superadam._state.sharding import sharding
from superadam._step import tiles
from superadam._step.view import State, View
from superadam.lists import flattened, real, state_dtype

if TYPE_CHECKING:
    from superadam._state.options import Composition
    from superadam._state.plans import GroupPlan
    from superadam._step.dispatch import Way
    from superadam.matrices import Matrix

__all__ = ["Layout", "facts", "grouped"]

BATCH = 1 << 22  # coordinates of the tensors of one shape that go together
ALONE = 1 << 17  # coordinates from which a tensor goes alone, on a CPU


def facts(
    group: dict[str, Any],
    parts: Composition,
    params: Sequence[Tensor] = (),
    *,
    places: Sequence[Place] | None = None,
    rate: float = 1.0,
    layout: Layout | None = None,
) -> dict[str, Any]:
    """What holds for these parameters in every step, by the names of the attributes of their views."""
    first = params[0] if params else torch.empty(0)
    if places is None:
        places = [everywhere(p, parts.matrix) for p in params] if parts.matrix.scope == "tensor" else []
    how, decay = sharding(first), float(group["weight_decay"])
    decoupled = group["decoupled_weight_decay"]
    return {
        **{"group": group, "parts": parts, **parts._asdict(), "places": places, "rate": rate, "layout": layout},
        "names": parts.names(first) if params else (),
        "narrow": parts.narrow(group, first),
        "plain": bool(params) and all(type(p) in (Tensor, Parameter) and p.dtype == state_dtype(p) for p in params),
        "sharding": how,
        "apart": any(place.group is not None for place in places),
        "_alone": how is None and all(place.group is None and not place.within for place in places),
        "free": parts.constraint is None and parts.penalty is None,
        "decay": decay if decoupled else 0.0,
        "decay_in_gradient": 0.0 if decoupled else decay,
    }


class Layout:
    """Parameters of a group with one device, dtype, sharding, matrix, step count and phase.

    It is made again when one of these changes, except that step counts and phases may change together.
    """

    def __init__(self, plan: GroupPlan, params: list[Tensor], states: list[State], turns: dict[Tensor, int]) -> None:
        group, parts = plan.group, plan.of(params[0])
        self.group, self.parts, self.params, self.states = group, parts, params, states
        self.plan = plan
        self.left_out: Any = 0  # matrices whose gradient was not finite, counted on the device
        # whether a step refuses gradients that are not finite, because the host sees them without waiting
        self.refuses = parts.matrix.has_factors and not refusals.waits(params[0])
        self.turns = [turns.get(p, 0) for p in params]
        self.places = [plan.places[p] for p in params] if parts.matrix.scope == "tensor" else []
        self.facts = facts(group, parts, params, places=self.places, rate=plan.rate(params[0]), layout=self)
        self.names, self.plain, self.sharding = (self.facts[name] for name in ("names", "plain", "sharding"))
        self.stacks = _stacked(parts.matrix, params, states, self.places)
        self.bound: State = {}  # x and the tensors of the state, by their names, once a view has asked for them
        self._keeps = self.plain and not self.facts["narrow"] and not group["differentiable"]
        self.sharing, last = parts.sharing, 0 if parts.stepsize is None else parts.stepsize.sums
        # Which of the sums that `dispatch.absorb` returns belong to which part.
        self.summed = [
            (part, slice(-last, None) if part is parts.stepsize else slice(-last or None)) for part in self.sharing
        ]
        self.at_once = parts.at_once and group["clip"] is None and not self.facts["apart"]
        # what a step compares with, to tell whether the layout is still right
        self.geometry = [(p.shape, p.stride(), p.dtype, p.device) for p in params]
        self.tensors = [s.get(name) for s in states for name in self.names]
        self.views: list[Tensor] = []  # of the vectors of `end_to_end`
        self.pointers: list[int] = []
        self.ways: dict[tuple[bool, ...], Way] = {}  # what `dispatch.choose` has chosen
        self.in_one_piece = tiles.in_one_piece(params)
        self.elementwise = tuple(parts.elementwise(line_9=line_9) for line_9 in (False, True))
        bare = View(self.facts, params, [None] * len(params), states, {})
        self.aligned, self.large = tiles.aligned(bare), tiles.large(bare)
        self.dtype, self.contiguous = params[0].dtype, all(p.is_contiguous() for p in params)

    def keep(self, tensors: State) -> State:
        """Keep the tensors of a view of the whole layout for later steps, unless each step has others."""
        if self._keeps:
            self.bound = tensors
        return tensors

    @cached_property
    def end_to_end(self) -> list[tuple[list[int], list[int], State]]:
        """The small parameters in lots: which, their sizes, and each tensor of their state as one vector for all.

        The states hold views of these vectors from then on.
        """
        lots = []
        for which in tiles.lots_of_small(View(self.facts, self.params, [None] * len(self.params), self.states, {})):
            sizes, vectors = [self.params[i].numel() for i in which], {}
            for name in self.names:
                vectors[name] = torch.cat([flattened(self.states[i][name]) for i in which])
                for i, part in zip(which, torch.split(vectors[name], sizes), strict=True):
                    self.states[i][name] = part.as_strided(self.params[i].shape, self.params[i].stride())
            lots.append((which, sizes, vectors))
        self.tensors, self.bound = [s.get(name) for s in self.states for name in self.names], {}
        self.views = [self.states[i][name] for which, _, _ in lots for i in which for name in self.names]
        self.pointers = [view.data_ptr() for view in self.views]
        return lots


def _stacked(matrix: Matrix, params: list[Tensor], states: list[State], places: list[Place]) -> State:
    """The slots of a matrix of each tensor, those of all tensors as one batch; the states then hold views of it."""
    slots = matrix.slots(real(params[0])) if matrix.scope == "tensor" and len(params) > 1 else {}
    if any(name not in state for name in slots for state in states):  # before the first step
        return {}
    stacks = {}
    for name in slots:
        stacks[name] = torch.cat([state[name] for state in states])
        for state, part in zip(states, torch.split(stacks[name], [place.here for place in places]), strict=True):
            state[name] = part
    return stacks


def _lots(matrix: Matrix, params: list[Tensor], turns: dict[Tensor, int]) -> list[list[Tensor]]:
    """Tensors with matrices of their own in batches that bound the memory of a step; all others together.

    Large ones are alone on a CPU: their products take as long in one call as in several, without the copies.
    """
    if matrix.scope != "tensor":
        return [params]
    # those that are refreshed in the same step are neighbours, so that this can be done in place
    params = sorted(params, key=lambda p: turns.get(p, 0) % getattr(matrix, "every", 1))
    n = max(1, params[0].numel())
    size = 1 if n >= ALONE and params[0].device.type == "cpu" else max(1, BATCH // n)
    return [params[i : i + size] for i in range(0, len(params), size)]


def _hashable(numbers: tuple[Any, ...]) -> tuple[Any, ...]:
    """Numbers on the device stay there: each parameter has its own."""
    return tuple(None if isinstance(number, Tensor) else number for number in numbers)


def grouped(
    plan: GroupPlan,
    states: dict[Tensor, State],
    key: Callable[[Tensor, State], Hashable],
    turns: dict[Tensor, int] | None = None,
) -> list[Layout]:
    """The layouts of a group. Parameters are left out where `key` is None, and apart where it differs.

    `turns` says when it is the turn of each parameter to have its matrix refreshed.
    """
    group = plan.group
    alike: dict[Hashable, list[Tensor]] = {}
    together = group["foreach"] is not False and not group["differentiable"]
    for p in group["params"]:
        state = states.get(p, {})
        own = key(p, state)
        if own is None:
            continue
        if together:
            step, matrix = None if group["capturable"] else state["step"], plan.of(p).matrix
            shape = p.shape if matrix.scope == "tensor" else None
            numbers = tuple(state.get(name) for name in plan.parts.iterate.numbers)
            alike.setdefault(
                (p.device, p.dtype, sharding(p), step, own, matrix, plan.rate(p), shape, _hashable(numbers)), []
            ).append(p)
        else:
            alike[p] = [p]
    turns = turns or {}
    lots = [lot for params in alike.values() for lot in _lots(plan.of(params[0]).matrix, params, turns)]
    return [Layout(plan, lot, [states[p] for p in lot], turns) for lot in lots]

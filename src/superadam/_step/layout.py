"""Which parameters are updated together, and what of them does not change from step to step."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Parameter

from superadam._state.phases import BETWEEN, RESTARTED
from superadam._state.sharding import sharding
from superadam._step import tiles
from superadam._step.view import View, state_dtype

if TYPE_CHECKING:
    from superadam._state.options import Composition
    from superadam._state.plans import Plan
    from superadam._step.dispatch import Way

__all__ = ["Layout", "grouped"]

State = dict[str, Any]


class Layout:
    """Parameters that are alike: one device, dtype, step count and phase. Made again when one of them changes."""

    def __init__(self, group: dict[str, Any], parts: Composition, params: list[Tensor], states: list[State]) -> None:
        self.group, self.parts, self.params, self.states = group, parts, params, states
        self.at_once = parts.at_once and group["clip"] is None
        self.plain = all(type(p) in (Tensor, Parameter) and p.dtype == state_dtype(p) for p in params)
        self.names = parts.names(params[0])
        self.facts, self.held = self._facts(), [s.get(name) for s in states for name in self.names]
        self.ways: dict[Hashable, Way] = {}  # what `dispatch.choose` has chosen
        self.elementwise = {line_9: parts.elementwise(line_9=line_9) for line_9 in (False, True)}
        self.aligned = tiles.aligned(self.view({}, grads=[None] * len(params)))
        self.dtype, self.contiguous = params[0].dtype, all(p.is_contiguous() for p in params)

    def _facts(self) -> list[Any]:
        return [(p.shape, p.stride(), p.dtype, p.device) for p in self.params]

    def holds(self, states: dict[Tensor, State]) -> bool:
        """Whether its parameters have the states that it was made for, and nothing but numbers has changed."""
        return (
            not any(map(operator.is_not, map(states.get, self.params), self.states))
            and not any(map(operator.is_not, [s.get(name) for s in self.states for name in self.names], self.held))
            and self._facts() == self.facts
        )

    def view(self, scalars: dict[str, Tensor], grads: list[Tensor | None] | None = None, moves: bool = False) -> View:
        """The parameters with their gradients of now."""
        if grads is None:
            grads = [p.grad for p in self.params]
        phase = self.states[0].get("phase")
        more = {"moves": moves, "paired": phase == BETWEEN, "restarted": phase == RESTARTED, "plain": self.plain}
        own = {"layout": self, "names": self.names, **more}
        return View(self.group, self.parts, self.params, grads, self.states, scalars, **own)

    def lies_alike(self, grads: list[Tensor]) -> bool:
        """Whether parameters, state and these gradients lie in memory alike, coordinate by coordinate."""
        if not self.aligned or any([g.dtype is not self.dtype for g in grads]):
            return False
        if self.contiguous and all([g.is_contiguous() for g in grads]):
            return True
        return all(
            p.dim() == 4 and all(t.is_contiguous(memory_format=torch.channels_last) for t in (p, g))
            for p, g in zip(self.params, grads, strict=True)
        )


def grouped(plan: Plan, states: dict[Tensor, State], kind: Callable[[Tensor, State], Hashable]) -> list[Layout]:
    """The parameters of a group that are of some kind (not None), together where they are alike."""
    group = plan.group
    alike: dict[Hashable, list[Tensor]] = {}
    together = group["foreach"] is not False and not group["differentiable"]
    for p in group["params"]:
        state = states.get(p, {})
        of_kind = kind(p, state)
        if of_kind is None:
            continue
        if together:
            step = None if group["capturable"] else state["step"]
            alike.setdefault((p.device, p.dtype, sharding(p), step, of_kind, plan.of(p).matrix), []).append(p)
        else:
            alike[p] = [p]
    return [Layout(group, plan.of(params[0]), params, [states[p] for p in params]) for params in alike.values()]

"""Where x is besides its place in a step: the end of training, x̃, a start anew."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from superadam._state import refusals
from superadam._state.composed import State
from superadam._state.phases import PENDING, READY, START, UNESTIMATED
from superadam._state.precision import precisely
from superadam._state.replay import put_back
from superadam._state.sharding import local, over_ranks, sharding
from superadam._step import dispatch, line_9, lines
from superadam._step.algorithm import AlgorithmOne, eagerly, key_of
from superadam._step.layout import grouped
from superadam._step.view import real
from superadam.iterates import Iterate

__all__ = ["Points"]


class Points(AlgorithmOne):
    """What ends or restarts the algorithm, and has the parameters hold another point for a while."""

    @eagerly
    def flush(self) -> None:
        """Take the moves that are still pending, at the end of training with τ > 0.

        Training can go on afterwards. The point before the move is gone, so the next batch is evaluated once, and
        enters g by momentum. A batch that a `twice` loop has left between its two half-steps is dropped, with a
        warning; then the next gradient is g, as after `restart()`.
        """
        if self._open_batch is not None:
            warnings.warn(
                "flush() after the first of the two half-steps of a batch: the batch is dropped, and g with it. To "
                "keep g, leave a `twice` loop after the second turn of a batch; opt.restart() drops it on purpose.",
                stacklevel=3,
            )
            self._void()
        refusals.check_shapes(self)
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            pending = list(self._grouped(lambda p, s: key_of(s) if s["phase"] == PENDING else None))
            lines.solve_jointly(pending)
            for view in pending:
                dispatch.choose(view).move(view, view.states[0]["gamma"])
                for state in view.states:
                    state["phase"] = READY
            self._settle()
        self._regroup()

    def _settle(self) -> None:
        for view in self._grouped(lambda p, s: True if s["phase"] not in UNESTIMATED else None):
            if type(view.iterate).settle is not Iterate.settle:
                s = view.bound()
                precisely(s, lambda s=s: s.iterate.settle(s))  # type: ignore[misc]

    @torch.no_grad()
    def feasibility(self) -> float:
        """How far the parameters are from their sets, at the most: 0 where all constraints hold."""
        worst = [
            over_ranks(constraint.violation(local(p)), sharding(p), "max").item()
            for group in self.param_groups
            if (constraint := self._parts(group).constraint) is not None
            for p in group["params"]
        ]
        return max(worst, default=0.0)

    @contextmanager
    def at_x_tilde(self) -> Iterator[None]:
        """Have the parameters hold x̃ inside the `with`, and what they held before after it.

        x_t is a mixture of many x̃: it comes close to being sparse, or to the border of a set, where x̃ is there
        exactly. x̃ is the solution of line 9 from the parameters as they are, with the newest g and H. A copy of the
        parameters is kept meanwhile.
        """
        estimated = self._grouped(lambda p, s: None if s["phase"] in UNESTIMATED else key_of(s))
        views = [view for view in estimated if not view.free]
        with put_back(p for view in views for p in view.params):
            with torch.no_grad():
                for view in views:
                    state = view.states[0]
                    gamma = state["gamma"] if state["phase"] == PENDING else view.gamma
                    s = view.bound()
                    s.x.copy_(line_9.x_tilde(s, gamma))
            yield

    @contextmanager
    def at_x(self) -> Iterator[None]:
        """Have the parameters hold x_t inside the `with`, and what they held before after it: to measure, or to export.

        With `iterates.Ahead` (NIGT, Adam⁺, SUPER-ADAM⁺) they are ahead of x_t while gradients are taken; with
        `iterates.Plain` they hold x_t anyway. A copy of them and of the iterate's tensors is kept meanwhile. Save a
        checkpoint that training shall go on from outside, where parameters and state belong together.
        """
        held = [
            tensor
            for plan, p, state in self._everything()
            if type(plan.parts.iterate).settle is not Iterate.settle
            for tensor in (p, *(state[name] for name in (*plan.parts.iterate.buffers, "master") if name in state))
        ]
        with put_back(held):
            with torch.no_grad():
                self._settle()
            yield

    def ways(self) -> list[str]:
        """How a step runs for each group of parameters that are alike, and what keeps it from a faster way.

        >>> import superadam
        >>> opt = superadam.SuperAdam(torch.nn.Linear(2, 1), matrix=superadam.matrices.Yogi())
        >>> print(*opt.ways(), sep="\\n")
        group 0, 2 tensors: tiles
          not torch's fused Adam: Yogi is not Adam's matrix
          not torch's fused Adagrad: Yogi is not AdaGrad's matrix
          not torch's fused SGD: Yogi is not a multiple of the identity from gradients
          not compiled: compile=False
        """
        told = []
        for i, plan in enumerate(self._plans_of_now()):
            empty = {p: self.state.get(p) or {"step": 0} for p in plan.group["params"]}
            for layout in grouped(plan, empty, lambda p, state: p.requires_grad or None):
                scalars = dict.fromkeys(layout.parts.matrix.scalars, layout.params[0])
                view = layout.view(scalars, moves=not self.two_point)
                name, reasons = dispatch.explain(view)
                n = len(layout.params)
                told.append(f"group {i}, {n} tensor{'s' if n != 1 else ''}: {name}")
                told += [f"  not {other}: {reason}" for other, reason in reasons.items()]
        return told

    # ------------------------------------------------------------------------------------ starting anew

    @eagerly
    def restart(self) -> None:
        """Forget g: the next gradient of every parameter is its g, as at the start. H and the step counts stay.

        Drops a batch that was left between its two half-steps. Pending moves are taken. Numbers that are not finite are
        healed: a move along such a g is not taken, and a parameter whose H has them starts anew, from step 1.
        """
        self._void()
        self._drop_what_is_not_finite()
        self.flush()
        for _, _, state in self._everything():
            if state["phase"] != START:
                self._clear(state)

    @torch.no_grad()
    def _drop_what_is_not_finite(self) -> None:
        shared = {
            matrix
            for matrix, scalars in self._scalars.items()
            if not all(bool(value.isfinite().all()) for value in scalars.values())
        }
        for plan, p, state in self._everything():
            matrix, slots = plan.of(p).matrix, plan.of(p).slots(real(p))
            others = {*plan.parts.estimator.buffers, *plan.parts.iterate.buffers}
            if matrix in shared or not _finite(state, [name for name in slots if name not in others], p):
                for name in state.keys() - {"master", "number", "root"}:
                    del state[name]
            elif not _finite(state, others, p):
                self._clear(state)
        for matrix in shared:
            del self._scalars[matrix]
        for plan in self._plans:
            for p in plan.group["params"]:
                if p in self.state:
                    self._complete(plan, p)


def _finite(state: State, names: Any, p: Tensor) -> bool:
    """Whether the tensors of a state are finite, on all processes."""
    sums = [local(state[name]).sum(dtype=torch.float64) for name in names if name in state]
    if not sums:
        return True
    spoilt = torch.stack([~total.isfinite() for total in sums]).any()
    return not bool(over_ranks(spoilt.float(), sharding(p), "max"))

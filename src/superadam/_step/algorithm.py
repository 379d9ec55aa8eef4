"""The stages of a step, over all views: `_to_next_point` with the gradients at x_{t-1}, `_absorb` with those at x_t.

How a batch is evaluated, once or twice, is decided in `evaluations.py`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch
from torch import Tensor

from superadam._state import refusals
from superadam._state.composed import ComposedOptimizer
from superadam._state.owners import restored
from superadam._state.phases import BETWEEN, PENDING, READY, UNESTIMATED, forget
from superadam._state.plans import GroupPlan
from superadam._state.precision import round_state
from superadam._state.sharding import Sharding, sums_over_ranks
from superadam._step import dispatch, fused, line_4, line_9
from superadam._step.compiled import Compiled
from superadam._step.layout import Layout, grouped
from superadam._step.view import State, Sums, View
from superadam.lists import each, join, norm2, state_dtype
from superadam.matrices import Matrix
from superadam.stepsizes import Stepsize

__all__ = ["AlgorithmOne", "move_key"]

WAYS = (fused.Fused, Compiled)  # the import makes them known to `dispatch`


class Scalars:
    """The 0-d tensors that all parameters of a matrix share, as `reduce` sees them: an assignment writes into them."""

    def __init__(self, tensors: dict[str, Tensor], *, rebind: bool = False) -> None:
        self.__dict__.update(tensors)
        self.__dict__["_shared"] = tensors
        self.__dict__["_rebind"] = rebind  # replace the tensor instead, which autograd may have saved

    def __setattr__(self, name: str, value: Tensor) -> None:
        own = self.__dict__
        if own["_rebind"]:
            own["_shared"][name] = own[name] = value.clone()
        elif value is not own[name]:
            own[name].copy_(value)


class AlgorithmOne(ComposedOptimizer):
    """A torch optimizer whose steps are the lines of Algorithm 1."""

    _some_idle = False  # whether a parameter has no gradient in this batch

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, with any option of its own."""
        super().add_param_group(param_group)
        fused.warn_if_none(self._plans[-1].parts, self.param_groups[-1])

    # ------------------------------------------------------------------------------------ views

    def _grouped(self, key: Callable[[Tensor, State], Hashable]) -> Iterator[View]:
        """Views of the parameters that have a state and a `key` (not None)."""
        for plan in self._current_plans():
            for layout in grouped(plan, self.state, lambda p, s: key(p, s) if s else None):
                yield self._view(layout)

    def _view(self, layout: Layout, *, moves: bool = False) -> View:
        if layout.group["differentiable"]:  # autograd may have saved these tensors: do not write into them
            shared = layout.parts.scalars
            for state in layout.states:
                state.update({k: v.clone() for k, v in state.items() if isinstance(v, Tensor) and k not in shared})
        scalars = {name: value for part in layout.sharing for name, value in self._scalars[part].items()}
        return View.of(layout, scalars, moves=moves)

    def _with_gradients(self, *, moves: bool) -> list[View]:
        """Views of the parameters that have a gradient. Gradients that cannot be used are refused first."""
        views: list[View] = []
        self._some_idle = False
        if self._divided:
            refusals.check_agreement(self)
        for plan in self._plans:
            params = [p for p in plan.group["params"] if p.grad is not None]
            self._some_idle |= len(params) < len(plan.group["params"])
            if plan.layouts is None or not self._is_current(plan, params):
                refusals.check_gradients(self)
                if moves and self._pending():
                    raise RuntimeError(
                        "A move is pending from when tau was larger: call opt.flush() before lowering it."
                    )
                plan.layouts, plan.params = self._layouts(plan), params
            views += [self._view(layout, moves=moves) for layout in plan.layouts]
        return views

    def _is_current(self, plan: GroupPlan, params: list[Tensor]) -> bool:
        """Whether the layouts of the last step are right for these parameters, and for their gradients."""
        return (
            len(params) == len(plan.params)
            and not any(map(operator.is_not, params, plan.params))
            and not any([self._has_changed(layout) for layout in plan.layouts or ()])
            and all([g.shape == p.shape and g.layout is torch.strided for p in params for g in (p.grad,)])  # type: ignore[union-attr]
        )

    def _has_changed(self, layout: Layout) -> bool:
        """Whether its parameters, or the tensors of their state, have changed since it was made."""
        states, names = layout.states, layout.names
        return (
            any(map(operator.is_not, map(self.state.get, layout.params), states))
            or any(map(operator.is_not, [s.get(name) for s in states for name in names], layout.tensors))
            or [(p.shape, p.stride(), p.dtype, p.device) for p in layout.params] != layout.geometry
            or [tensor.data_ptr() for tensor in layout.views] != layout.pointers  # `tensor.data = …` leads elsewhere
        )

    def _layouts(self, plan: GroupPlan) -> list[Layout]:
        for p in plan.group["params"]:
            if p.grad is not None:
                self._complete(plan, p)

        kind = lambda p, state: None if p.grad is None else move_key(state)  # noqa: E731
        return grouped(plan, self.state, kind, self._turns())

    def _turns(self) -> dict[Tensor, int]:
        """When it is each tensor's turn to have its matrix refreshed: those that take long are spread over the steps.

        By size and name, so that neither the order of the parameters nor their groups matter.
        """
        keys: dict[Tensor, tuple[int, str]] = {}
        for plan in self._plans:
            names = plan.group.get("param_names") or [""] * len(plan.group["params"])
            for p, name in zip(plan.group["params"], names, strict=True):
                if plan.of(p).matrix.scope == "tensor":
                    keys[p] = (-p.numel(), f"{name} {tuple(p.shape)}")
        turn = {key: i for i, key in enumerate(sorted(set(keys.values())))}
        return {p: turn[key] for p, key in keys.items()}

    def _regroup(self) -> None:
        """Have the next step make its layouts again: phases or step counts have changed for some parameters only."""
        for plan in self._plans:
            plan.layouts = None

    def divide_matrices(self, process_group: Any = None) -> None:
        """With DDP, divide the work of a matrix of each tensor (Muon, SOAP, …), and its factors, among the processes.

        By default every process does all of it, which sends nothing. After this call each tensor has an owner, which
        alone keeps the factors and solves, and one message per step gives the steps to all: the results are the same.
        It is a method and no option, as it belongs to a run and not to a composition: a checkpoint of any number of
        processes is loaded by any other, divided or not. All processes must call it, and then `state_dict()` too. They
        must have gradients for the same parameters: a step refuses others on all of them. Parameters that FSDP2 has cut
        are divided without it.

        Args:
            process_group: those that hold the same parameters; all processes if None.
        """
        group = torch.distributed.group.WORLD if process_group is None else process_group
        if group is None:
            raise RuntimeError(
                "divide_matrices() before torch.distributed.init_process_group(): there are no processes"
            )
        self._processes = group if group.size() > 1 else None
        for plan in self._current_plans():
            self._place(plan)
            for p in plan.group["params"]:
                for name in plan.factors(p) & self.state.get(p, {}).keys():
                    self.state[p][name] = restored(self.state[p][name], p, self._places[p])
            plan.layouts = None

    # ------------------------------------------------------------------------------------ the lines

    def _to_next_point(self, views: list[View]) -> None:
        """The gradients are q = ∇f(x_{t-1}; ξ_t). Move to x_t (lines 9, 10) and take q into the estimator (line 11)."""
        if self._some_idle:  # a pending move does not wait for a gradient
            idle = self._grouped(lambda p, s: move_key(s) if p.grad is None and s["phase"] == PENDING else None)
            views = [*views, *idle]
        if any([view.matrix.scope == "all" or view.apart for view in views]):
            line_9.solve_jointly([view for view in views if view.states[0]["phase"] == PENDING])
        for view in views:
            phase, has_grad = view.states[0]["phase"], view.grads[0] is not None
            if phase in UNESTIMATED:
                continue
            compared = view.matrix.two_point and has_grad
            if compared:
                start, q = view.bound().x.clone(), view.grad.clone()
            way = dispatch.choose(view)
            if phase == PENDING:
                way.run(dispatch.move_and_prepare if has_grad else dispatch.move, view, view.states[0]["gamma"])
            else:
                way.run(dispatch.prepare, view, 0.0, line_9=False)
            if compared:
                dx = (view.bound().x - start).to(state_dtype(view.params[0]))
                self._within.update(zip(view.params, zip(each(q), each(dx), strict=True), strict=True))
            for state in view.states:
                state["phase"] = BETWEEN if has_grad else READY
                if has_grad:
                    state["step"] += 1

    def _absorb(self, views: list[View]) -> None:
        """The gradients are ∇f(x_t; ξ_t). Form g_t (line 11) and H_t (line 4), and move to x_{t+1} now or later."""
        if self._some_idle:
            self._without_gradients(views)
        waiting: list[tuple[View, dispatch.Way]] = []
        sums: dict[tuple[Matrix | Stepsize, Sharding], list[Sums]] = {}
        for view in views:
            if not view.paired:
                for state in view.states:
                    state["step"] += 1
            elif view.matrix.two_point:
                within = [self._within[p] for p in view.params]
                view.q, view.dx = join([q for q, _ in within]), join([dx for _, dx in within])
            if view.iterate.numbers:
                view.iterate.count(view)
            gamma, way = view.gamma, dispatch.choose(view)
            if view.moves and view.layout.at_once:
                way.absorb_and_move(view, gamma)  # all lines on a piece, while it is in the cache
            else:
                waiting.append((view, way))
                of_pieces = way.absorb(view, gamma)
                for part, which in view.layout.summed:
                    sums.setdefault((part, view.sharding), []).extend([of_piece[which] for of_piece in of_pieces])
        self._within = {}
        if waiting:
            self._all_together(waiting, sums)
        for view in views:
            self._set_phase(view)

    def _all_together(
        self,
        waiting: list[tuple[View, dispatch.Way]],
        sums: dict[tuple[Matrix | Stepsize, Sharding], list[Sums]],
    ) -> None:
        """What takes more than a piece: matrices that have owners, sums over all of x, `clip`; then the move."""
        views = [view for view, _ in waiting]
        if any([view.apart for view in views]):
            line_4.update_at_owners(views)
        if sums:
            self._reduce(sums, views)
        if any([view.group["clip"] is not None for view in views]):
            self._clip(views)
        if views[0].moves:
            if any([view.matrix.scope == "all" or view.apart for view in views]):
                line_9.solve_jointly(views)
            for view, way in waiting:
                way.move(view, view.gamma)

    def _set_phase(self, view: View) -> None:
        """g_t and H_t are there: the move along them has been taken, or is pending."""
        if not view.moves:
            gamma = view.gamma
            if isinstance(gamma, Tensor):  # schedulers write into a tensor lr
                gamma = gamma.to(state_dtype(view.params[0]), copy=True)
            for state in view.states:
                state["gamma"], state["phase"] = gamma, PENDING
        elif view.states[0]["phase"] != READY:
            for state in view.states:
                state["phase"] = READY

    def _without_gradients(self, views: list[View]) -> None:
        """Tell the matrices of this step which parameters had no gradient, and drop their half of line 11."""
        in_use = {view.matrix for view in views}
        for plan, p, state in self._with_state():
            if p.grad is None:
                matrix = plan.of(p).matrix
                if matrix in in_use:
                    matrix.absent(state)
                if state["phase"] == BETWEEN:
                    self._drop_half(state)

    def _reduce(self, sums: dict[tuple[Matrix | Stepsize, Sharding], list[Sums]], views: list[View]) -> None:
        """Add up the sums over all pieces and processes, and let matrices and step sizes make their scalars of them."""
        for (part, how), of_pieces in sums.items():
            home = self._scalars[part][part.scalars[0]]
            sums[part, how] = [tuple(s.to(home) for s in of_piece) for of_piece in of_pieces]
        differentiable = self.defaults["differentiable"]
        for part, total in sums_over_ranks(sums).items():
            part.reduce(Scalars(self._scalars[part], rebind=differentiable), total)
        if differentiable:
            for plan, p, state in self._with_state():
                for part in plan.of(p).sharing:
                    state.update(self._scalars.get(part, {}))
            for view in views:
                for part in view.layout.sharing:
                    view.scalars.update(self._scalars[part])

    def _clip(self, views: list[View]) -> None:
        """Bound the norm of g_t, over all parameters with an equal bound."""
        for bound in {view.group["clip"] for view in views} - {None}:
            clipped = [view.bound() for view in views if view.group["clip"] == bound]
            squares = [norm2(v.g.clone() if v.group["differentiable"] else v.estimate) for v in clipped]
            sums: dict[tuple[None, Sharding], list[Sums]] = {}
            for v, square in zip(clipped, squares, strict=True):
                sums.setdefault((None, v.sharding), []).append((square.to(squares[0]),))
            (total,) = sums_over_ranks(sums)[None]
            factor = (bound / total.sqrt()).clamp(max=1.0)
            for v in clipped:
                v.factor = factor.to(v.params[0].device)
                v.g.mul_(v.factor)
                round_state(v, "clip")

    def _void(self) -> None:
        """Drop the batch whose second evaluation failed. x_t stays: the move to it does not depend on this batch."""
        if self._open_batch is not None:
            self._dropped_batch, self._open_batch, self._last_half = self._open_batch, None, None
        self._within = {}
        for _, _, state in self._with_state():
            if state["phase"] == BETWEEN:
                self._drop_half(state)

    def _drop_half(self, state: State) -> None:
        """g holds the first half of line 11, which is no estimate: the next gradient is g."""
        state["step"] -= 1
        forget(state)
        self._regroup()


def move_key(state: State) -> Hashable:
    """What parameters must have in common to move together: the phase, and the γ of a pending move."""
    gamma = state["gamma"] if state["phase"] == PENDING else None
    return state["phase"], id(gamma) if isinstance(gamma, Tensor) else gamma

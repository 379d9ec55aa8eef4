"""Algorithm 1, line by line, on the gradients that are there. How they come to be there is the optimizer's affair."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from superadam._state import refusals
from superadam._state.composed import ComposedOptimizer, State
from superadam._state.phases import BETWEEN, PENDING, READY, UNESTIMATED, forget
from superadam._state.plans import Plan
from superadam._state.sharding import Sharding, sums_over_ranks
from superadam._step import dispatch, lines
from superadam._step.compiled import Compiled
from superadam._step.fused import Fused
from superadam._step.layout import Layout, grouped
from superadam._step.tensors import norm2
from superadam._step.view import Scalars, Sums, View, each, join, state_dtype
from superadam.matrices import Matrix

__all__ = ["AlgorithmOne", "eagerly", "key_of"]

WAYS = (Fused, Compiled)  # known to the dispatch by being imported


Method = TypeVar("Method", bound=Callable[..., Any])


def eagerly(method: Method) -> Method:
    """Let torch.compile, of a method or of a function that calls it, leave the method as it is.

    A step chooses kernels itself, and torch's fused ones cannot be traced.
    """

    @functools.wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(method)(*args, **options)  # type: ignore[no-untyped-call]
        return method(*args, **options)

    return cast(Method, call)


class AlgorithmOne(ComposedOptimizer):
    """The lines of Algorithm 1."""

    _some_idle = False  # whether a parameter has no gradient of this batch

    # ------------------------------------------------------------------------------------ views

    def _grouped(self, kind: Callable[[Tensor, State], Hashable]) -> Iterator[View]:
        """The parameters that have a state and are of some kind (not None), as views."""
        for plan in self._plans_of_now():
            for layout in grouped(plan, self.state, lambda p, s: kind(p, s) if s else None):
                yield self._view(layout)

    def _view(self, layout: Layout, *, moves: bool = False) -> View:
        if layout.group["differentiable"]:  # what autograd has saved must not be written into
            shared = layout.parts.matrix.scalars
            for state in layout.states:
                state.update({k: v.clone() for k, v in state.items() if isinstance(v, Tensor) and k not in shared})
        return layout.view(self._scalars[layout.parts.matrix] if layout.parts.matrix.scalars else {}, moves=moves)

    def _with_gradients(self, *, moves: bool) -> list[View]:
        """The parameters that have a gradient, as views; refused, before anything changes, where one cannot be used."""
        views: list[View] = []
        self._some_idle = False
        for plan in self._plans:
            params = [p for p in plan.group["params"] if p.grad is not None]
            self._some_idle |= len(params) < len(plan.group["params"])
            if plan.layouts is None or not self._same(plan, params):
                refusals.check_gradients(self)
                if moves and self._pending():
                    raise RuntimeError(
                        "A move is pending from when tau was larger: call opt.flush() before lowering it."
                    )
                plan.layouts, plan.params = self._layouts(plan), params
            views += [self._view(layout, moves=moves) for layout in plan.layouts]
        return views

    def _same(self, plan: Plan, params: list[Tensor]) -> bool:
        """Whether the last step's layouts are those of these parameters, and still hold."""
        return (
            len(params) == len(plan.params)
            and not any(map(operator.is_not, params, plan.params))
            and all([layout.holds(self.state) for layout in plan.layouts or ()])
            and all([p.grad.shape == p.shape and p.grad.layout is torch.strided for p in params])  # type: ignore[union-attr]
        )

    def _layouts(self, plan: Plan) -> list[Layout]:
        for p in plan.group["params"]:
            if p.grad is not None:
                self._complete(plan, p)

        return grouped(plan, self.state, lambda p, state: None if p.grad is None else key_of(state))

    def _regroup(self) -> None:
        """Phases or step counts have changed for some parameters only."""
        for plan in self._plans:
            plan.layouts = None

    # ------------------------------------------------------------------------------------ the lines

    def _to_next_point(self, views: list[View]) -> None:
        """The gradients are q = ∇f(x_{t-1}; ξ_t). Move to x_t (lines 9, 10) and take q into the estimator (line 11)."""
        if self._some_idle:  # moves are taken with or without a gradient
            idle = self._grouped(lambda p, s: key_of(s) if p.grad is None and s["phase"] == PENDING else None)
            views = [*views, *idle]
        if any([view.matrix.scope == "all" for view in views]):
            lines.solve_jointly([view for view in views if view.states[0]["phase"] == PENDING])
        for view in views:
            phase, has_grad = view.states[0]["phase"], view.grads[0] is not None
            if phase in UNESTIMATED:
                continue
            compared = view.matrix.two_point and has_grad
            if compared:
                start, q = view.bound().x.clone(), view.grad.clone()
            way = dispatch.choose(view)
            if phase == PENDING:
                way.run(lines.move_and_prepare if has_grad else lines.move, view, view.states[0]["gamma"])
            else:
                way.run(lines.prepare, view, 0.0, line_9=False)
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
        sums: dict[tuple[Matrix, Sharding], list[Sums]] = {}
        for view in views:
            if not view.paired:
                for state in view.states:
                    state["step"] += 1
            elif view.matrix.two_point:
                within = [self._within[p] for p in view.params]
                view.q, view.dx = join([q for q, _ in within]), join([dx for _, dx in within])
            gamma, way = view.gamma, dispatch.choose(view)
            # Where nothing is summed over all of x, a piece goes through all lines while it is in the cache.
            if view.moves and view.layout.at_once:
                way.absorb_and_move(view, gamma)
            else:
                waiting.append((view, way))
                of_pieces = way.absorb(view, gamma)
                if view.matrix.scalars:
                    sums.setdefault((view.matrix, view.sharding), []).extend(of_pieces)
        self._within = {}
        if sums:
            self._reduce(sums)
        if any([view.group["clip"] is not None for view, _ in waiting]):
            self._clip([view for view, _ in waiting])
        if waiting and views[0].moves:
            self._move(waiting)
        for view in views:
            self._end(view)

    def _move(self, moving: list[tuple[View, dispatch.Way]]) -> None:
        """Lines 9 and 10, where H_t was not known before."""
        if any([view.matrix.scope == "all" for view, _ in moving]):
            lines.solve_jointly([view for view, _ in moving])
        for view, way in moving:
            way.move(view, view.gamma)

    def _end(self, view: View) -> None:
        if not view.moves:
            gamma = view.gamma
            gamma = gamma.clone() if isinstance(gamma, Tensor) else gamma  # schedulers write into a tensor lr
            for state in view.states:
                state["gamma"], state["phase"] = gamma, PENDING
        elif view.states[0]["phase"] != READY:
            for state in view.states:
                state["phase"] = READY

    def _without_gradients(self, views: list[View]) -> None:
        """Tell the matrices at work of the parameters that this batch had no gradient for, and forget their q."""
        at_work = {view.matrix for view in views}
        for plan, p, state in self._everything():
            if p.grad is None:
                matrix = plan.of(p).matrix
                if matrix in at_work:
                    matrix.absent(state)
                if state["phase"] == BETWEEN:
                    self._forget(state)  # q without its counterpart: half of line 11 is no estimate

    def _reduce(self, sums: dict[tuple[Matrix, Sharding], list[Sums]]) -> None:
        """The sums over all pieces and processes, for the matrices that ask for them."""
        totals: dict[tuple[Matrix, Sharding], Sums] = {}
        for (matrix, how), of_pieces in sums.items():
            home = self._scalars[matrix][matrix.scalars[0]]
            columns = zip(*of_pieces, strict=True)
            totals[matrix, how] = tuple(torch.stack([s.to(home) for s in column]).sum() for column in columns)
        differentiable = self.defaults["differentiable"]
        for matrix, total in sums_over_ranks(totals).items():
            matrix.reduce(Scalars(self._scalars[matrix], rebind=differentiable), total)
        if differentiable:
            for plan, p, state in self._everything():
                state.update(self._scalars.get(plan.of(p).matrix, {}))

    def _clip(self, views: list[View]) -> None:
        """Bound the norm of g_t, over all parameters with an equal bound."""
        for bound in {view.group["clip"] for view in views} - {None}:
            clipped = [view.bound() for view in views if view.group["clip"] == bound]
            squares = [norm2(v.g.clone() if v.group["differentiable"] else v.g) for v in clipped]
            sums: dict[tuple[None, Sharding], tuple[Tensor, ...]] = {}
            for how in dict.fromkeys(v.sharding for v in clipped):
                alike = [s.to(squares[0]) for v, s in zip(clipped, squares, strict=True) if v.sharding == how]
                sums[None, how] = (torch.stack(alike).sum(),)
            (norm2_,) = sums_over_ranks(sums)[None]
            factor = (bound / norm2_.sqrt()).clamp(max=1.0)
            for v in clipped:
                v.g.mul_(factor.to(v.params[0].device))

    def _void(self) -> None:
        """The second evaluation of a batch failed, after the move to x_t: keep x_t, which is as it should be, and drop
        the batch, of which g holds one half."""
        if self._open_batch is not None:
            self._dropped_batch, self._open_batch, self._last_half = self._open_batch, None, None
        self._within = {}
        for _, _, state in self._everything():
            if state["phase"] == BETWEEN:
                self._forget(state)

    def _forget(self, state: State) -> None:
        state["step"] -= 1
        self._clear(state)

    def _clear(self, state: State) -> None:
        forget(state)
        self._regroup()


def key_of(state: State) -> Hashable:
    """What parameters must agree on for their moves to be taken together: the phase, and the γ of a pending move."""
    gamma = state["gamma"] if state["phase"] == PENDING else None
    return state["phase"], id(gamma) if isinstance(gamma, Tensor) else gamma

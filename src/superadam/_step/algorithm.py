"""Algorithm 1, line by line, on the gradients that are there. How they come to be there is the optimizer's affair."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from superadam._state import refusals
from superadam._state.composed import ComposedOptimizer, State
from superadam._state.phases import BETWEEN, PENDING, READY, START, UNESTIMATED, forget
from superadam._state.plans import Plan
from superadam._state.precision import precisely
from superadam._state.replay import put_back
from superadam._state.sharding import Sharding, local, over_ranks, sharding, sums_over_ranks
from superadam._step import dispatch, line_9, lines
from superadam._step.compiled import Compiled
from superadam._step.fused import Fused
from superadam._step.layout import Layout, grouped
from superadam._step.tensors import norm2
from superadam._step.view import Scalars, Sums, View, each, join, real, state_dtype
from superadam.iterates import Iterate
from superadam.matrices import Matrix

__all__ = ["AlgorithmOne", "eagerly"]

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
    """The lines of Algorithm 1, and what ends or restarts it."""

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
            if plan.layouts is None or not self._same(plan.layouts, params):
                refusals.check_gradients(self)
                if moves and self._pending():
                    raise RuntimeError(
                        "A move is pending from when tau was larger: call opt.flush() before lowering it."
                    )
                plan.layouts = self._layouts(plan)
            views += [self._view(layout, moves=moves) for layout in plan.layouts]
        return views

    def _same(self, layouts: list[Layout], params: list[Tensor]) -> bool:
        """Whether the last step's layouts still hold, as they do while nothing but numbers changes."""
        start = 0
        for layout in layouts:
            own = params[start : start + len(layout.params)]
            start += len(layout.params)
            if not layout.holds(own, list(map(self.state.get, own))):
                return False
            if not all([p.grad.shape == p.shape and p.grad.layout is torch.strided for p in own]):  # type: ignore[union-attr]
                return False
        return start == len(params)

    def _layouts(self, plan: Plan) -> list[Layout]:
        for p in plan.group["params"]:
            if p.grad is not None:
                self._complete(plan, p)

        return grouped(plan, self.state, lambda p, state: None if p.grad is None else _key(state))

    def _regroup(self) -> None:
        """Phases or step counts have changed for some parameters only."""
        for plan in self._plans:
            plan.layouts = None

    # ------------------------------------------------------------------------------------ the lines

    def _to_next_point(self, views: list[View]) -> None:
        """The gradients are q = ∇f(x_{t-1}; ξ_t). Move to x_t (lines 9, 10) and take q into the estimator (line 11)."""
        if self._some_idle:  # moves are taken with or without a gradient
            idle = self._grouped(lambda p, s: _key(s) if p.grad is None and s["phase"] == PENDING else None)
            views = [*views, *idle]
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
                sums.setdefault((view.matrix, view.sharding), []).extend(way.absorb(view, gamma))
        self._within = {}
        if waiting:
            self._reduce(sums)
            self._clip([view for view, _ in waiting])
            moving = [(view, way) for view, way in waiting if view.moves]
            lines.solve_jointly([view for view, _ in moving])
            for view, way in moving:
                way.move(view, view.gamma)
        for view in views:
            self._end(view)

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
            if matrix.scalars:
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

    # ------------------------------------------------------------------------------------ ends and points

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
            pending = list(self._grouped(lambda p, s: _key(s) if s["phase"] == PENDING else None))
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
        estimated = self._grouped(lambda p, s: None if s["phase"] in UNESTIMATED else _key(s))
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
                told.append(f"group {i}, {len(layout.params)} tensors: {name}")
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


def _key(state: State) -> Hashable:
    """What parameters must agree on for their moves to be taken together: the phase, and the γ of a pending move."""
    gamma = state["gamma"] if state["phase"] == PENDING else None
    return state["phase"], id(gamma) if isinstance(gamma, Tensor) else gamma


def _finite(state: State, names: Any, p: Tensor) -> bool:
    """Whether the tensors of a state are finite, on all processes."""
    sums = [local(state[name]).sum(dtype=torch.float64) for name in names if name in state]
    if not sums:
        return True
    spoilt = torch.stack([~total.isfinite() for total in sums]).any()
    return not bool(over_ranks(spoilt.float(), sharding(p), "max"))

"""What users call between steps: `flush`, `restart`, `at_x`, `at_x_tilde`, `feasibility`, `ways`."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from superadam._state import refusals
from superadam._state.aside import aside
from superadam._state.owners import Place
from superadam._state.phases import PENDING, READY, START, UNESTIMATED, forget
from superadam._state.plans import GroupPlan
from superadam._state.precision import precisely
from superadam._state.replay import put_back
from superadam._state.sharding import local, over_ranks, sharding
from superadam._step import dispatch, line_9
from superadam._step.algorithm import AlgorithmOne, move_key
from superadam._step.dispatch import eagerly
from superadam._step.layout import grouped
from superadam._step.view import State, View
from superadam.iterates import Iterate
from superadam.lists import real
from superadam.matrices import Matrix
from superadam.messages import warn

__all__ = ["Points"]


class Points(AlgorithmOne):
    """Ends or restarts the algorithm, and puts the parameters at other points for a while."""

    _evaluating = False  # between eval() and train()
    _at_x = False  # inside of at_x()
    _told = False  # that the parameters do not hold x_t

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for module in self._modules:
            self._watch(module)

    def protect(self, module: nn.Module) -> None:
        """Give both evaluations of a batch the same buffers of `module`, as is done for a module given as `params`.

        With an iterate whose parameters do not hold the result while training (`ScheduleFree`, `Averaged`, `Lookahead`,
        `Ahead`), evaluating `module` at the wrong point also gives a warning.
        """
        super().protect(module)
        self._watch(module)

    def _watch(self, module: nn.Module) -> None:
        """Warn if `module` is evaluated where gradients are taken, for as long as this optimizer lives."""
        if any(_settles(plan) for plan in self._plans):
            hook = module.register_forward_pre_hook(_Notice(self))
            weakref.finalize(self, hook.remove).atexit = False

    @eagerly
    def flush(self) -> None:
        """Take the pending moves, at the end of training with τ > 0.

        Training can continue afterwards. The point before the move is gone, so the next batch enters g by momentum.
        If a batch is between its two half-steps, `flush` drops it with a warning, and the next gradient becomes g, as
        after `restart()`.
        """
        if self._open_batch is not None:
            warn(
                "flush() after the first of the two half-steps of a batch: the batch is dropped, and g with it. To "
                "keep g, leave a `twice` loop after the second turn of a batch; opt.restart() drops it on purpose."
            )
            self._void()
        self.train()
        refusals.check_shapes(self)
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            pending = list(self._grouped(lambda p, s: move_key(s) if s["phase"] == PENDING else None))
            line_9.solve_jointly(pending)
            for view in pending:
                dispatch.choose(view).move(view, view.states[0]["gamma"])
                for state in view.states:
                    state["phase"] = READY
            self._settle()
        self._regroup()

    def _settle(self) -> None:
        for view in self._grouped(lambda p, s: True):
            if type(view.iterate).settle is not Iterate.settle:
                s = view.bound()
                precisely(s, lambda s=s: s.iterate.settle(s))  # type: ignore[misc]

    @torch.no_grad()
    def feasibility(self) -> float:
        """The largest distance of a coordinate from its set: 0 where all constraints hold."""
        worst = [
            over_ranks(constraint.violation(local(p)), sharding(p), "max").item()
            for group in self.param_groups
            if (constraint := self._parts(group).constraint) is not None
            for p in group["params"]
        ]
        return max(worst, default=0.0)

    @contextmanager
    def at_x_tilde(self) -> Iterator[None]:
        """A context manager: inside it the parameters hold x̃, afterwards what they held before.

        x̃ is the solution of line 9 from the parameters as they are, with the newest g and H. It can be exactly sparse,
        or exactly on the border of a set. x_t, a mixture of many x̃, only comes close to that. The `with` keeps a copy
        of the parameters.
        """
        estimated = list(self._grouped(lambda p, s: None if s["phase"] in UNESTIMATED else move_key(s)))
        views = [view for view in estimated if not view.free]
        with put_back(t for view in views for i, p in enumerate(view.params) for t in _held(view, p, view.states[i])):
            with torch.no_grad():
                line_9.solve_jointly(estimated)
                for view in views:
                    s = view.bound()
                    gamma = line_9.gamma_of_move(s)
                    s.iterate.rebase(s)
                    s.x.copy_(line_9.x_tilde(s, gamma))
            yield

    @contextmanager
    def at_x(self, batches: Iterable[Any] | None = None) -> Iterator[None]:
        """A context manager to evaluate or export: inside it the parameters hold x_t, afterwards what they held before.

        With `iterates.Ahead` (NIGT, Adam⁺) they are ahead of x_t while gradients are taken, with
        `ScheduleFree` between x_t and z_t. With `Averaged` and `Lookahead` x_t is the average or the slow point. With
        `iterates.Plain` they hold x_t anyway. The `with` keeps a copy of the parameters and of the iterate's tensors.
        Save checkpoints to resume from outside of it: inside, parameters and state do not belong together.

        Args:
            batches: inputs, or tuples that begin with one, for BatchNorm: its statistics are those of the points where
                gradients are taken. Inside the `with` they are those of x_t over these batches.
        """
        if batches is not None and not self._modules:
            raise ValueError("at_x(batches) needs the model: give it to the optimizer, or to opt.protect(model)")
        with put_back(
            [t for plan, p, state in self._with_state() if _settles(plan) for t in _held(plan.parts, p, state)]
        ):
            with torch.no_grad():
                self._settle()
            before, self._at_x = self._at_x, True
            try:
                with nullcontext() if batches is None else aside(self._buffered(), batches):
                    if batches is not None:
                        for module in self._modules:
                            torch.optim.swa_utils.update_bn(batches, module)
                    yield
            finally:
                self._at_x = before

    @torch.no_grad()
    def eval(self) -> None:
        """Move the parameters to x_t until `train()`: like `at_x()`, for programs that call `opt.eval()`.

        The state keeps what they held before, so a checkpoint saved in between resumes normally.
        """
        if not self._evaluating:
            for plan, p, state in self._with_state():
                if _settles(plan):
                    held = zip(_names(plan.parts, state), _held(plan.parts, p, state), strict=True)
                    state.update({f"aside_{name}": tensor.detach().clone() for name, tensor in held})
                    self._evaluating = True
            self._settle()

    @torch.no_grad()
    def train(self, mode: bool = True) -> None:
        """Undo `eval()`, bit for bit. Without one it does nothing."""
        if not mode:
            return self.eval()
        for plan, p, state in self._with_state() if self._evaluating else ():
            for name, tensor in zip(_names(plan.parts, state), _held(plan.parts, p, state), strict=True):
                if f"aside_{name}" in state:
                    tensor.copy_(state.pop(f"aside_{name}"))
        self._evaluating = False
        return None

    def _reset(self) -> None:
        super()._reset()
        self._evaluating = any("aside_x" in state for state in self.state.values())

    def _is_elsewhere(self) -> bool:
        """Whether the parameters hold another point than x_t: after `flush()`, and in the first steps, they do not."""
        return any(
            bool(local(state[name]).any())
            for plan, _, state in self._with_state()
            if _settles(plan)
            for name in plan.parts.iterate.buffers
        )

    def divisions(self) -> list[str]:
        """Which parameters have which matrix, where a `ByShape` chooses; a line for each."""
        return [line for plan in self._current_plans() for line in plan.divisions()]

    @eagerly
    @torch.no_grad()
    def observe(self) -> None:
        """Give the current gradients to matrices that need gradients of their own (`matrices.Sophia`), without a step.

        They come from another loss than f, such as `matrices.sampled_label_loss`. Clear them afterwards.
        """
        seen = self._with_gradients(moves=False)
        if not seen:
            raise RuntimeError("opt.observe() found no gradient: call backward() of the loss for H_t before")
        views = [v for v in seen if type(v.matrix).observe is not Matrix.observe]
        if not views:
            raise RuntimeError(
                f"opt.observe() is for matrices that ask for a gradient of their own, such as Sophia, and "
                f"{type(seen[0].matrix).__name__} does not: leave the call out"
            )
        for view in views:
            dispatch.choose(view).run(dispatch.observe, view, 0.0, line_9=False)

    def ways(self) -> list[str]:
        """The way in which each group's step runs, and the reason against each faster way.

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
        for i, plan in enumerate(self._current_plans()):
            states = {p: {"step": 0, **self.state.get(p, {})} for p in plan.group["params"]}  # copies: layouts write
            for layout in grouped(plan, states, lambda p, state: (p.requires_grad and (p.grad is None,)) or None):
                scalars = dict.fromkeys(layout.parts.scalars, layout.params[0])
                view = View.of(layout, scalars, moves=not self.two_point)
                name, *more = dispatch.explain(view)
                n = len(layout.params)
                told.append(f"group {i}, {n} tensor{'s' if n != 1 else ''}: {name}")
                told += [f"  {line}" for line in more]
        return told

    # ------------------------------------------------------------------------------------ restart

    @eagerly
    def restart(self) -> None:
        """Drop g: the next gradient of every parameter becomes its g, as at the start. H and the step counts stay.

        A batch between its two half-steps is dropped. Pending moves are taken, except along a g that is not finite. A
        parameter with an H that is not finite starts again from step 1.
        """
        self._void()
        self._drop_what_is_not_finite()
        self.flush()
        for _, _, state in self._with_state():
            if state["phase"] != START:
                forget(state)
        self._regroup()

    @torch.no_grad()
    def _drop_what_is_not_finite(self) -> None:
        shared = {
            part
            for part, scalars in self._scalars.items()
            if not all(bool(value.isfinite().all()) for value in scalars.values())
        }
        for plan, p, state in self._with_state():
            parts, slots = plan.of(p), plan.of(p).slots(real(p))
            others = {*parts.estimator.buffers, *parts.iterate.buffers}
            of_matrix, place = [name for name in slots if name not in others], self._places.get(p)
            if shared.intersection(parts.sharing) or not _finite(state, of_matrix, p, place):
                for name in state.keys() - {"master", "number", "root"}:
                    del state[name]
            elif not _finite(state, others, p):
                forget(state)
        for part in shared:
            del self._scalars[part]
        for plan in self._plans:
            for p in plan.group["params"]:
                if p in self.state:
                    self._complete(plan, p)


def _settles(plan: GroupPlan) -> bool:
    """Whether the parameters may hold another point than x_t while training."""
    return type(plan.parts.iterate).settle is not Iterate.settle


def _names(parts: Any, state: State) -> list[str]:
    return ["x", *(name for name in (*parts.iterate.buffers, "master") if name in state)]


def _held(parts: Any, p: Tensor, state: State) -> list[Tensor]:
    """A parameter, and what of its state changes when it is put elsewhere."""
    return [p, *(state[name] for name in _names(parts, state)[1:])]


class _Notice:
    """A hook of a module whose parameters do not hold x_t while it is trained: to evaluate it then is a mistake."""

    def __init__(self, opt: Points | None = None) -> None:
        self.opt = (lambda: None) if opt is None else weakref.ref(opt)

    def __reduce__(self) -> Any:  # a copy of the module is not the module that is trained
        return _Notice, ()

    def __call__(self, module: nn.Module, args: Any) -> None:
        if module.training or torch.compiler.is_compiling():
            return
        opt = self.opt()
        if opt is None or opt._evaluating or opt._told or opt._at_x or not opt._is_elsewhere():
            return
        opt._told = True
        iterate = next(plan.parts.iterate for plan in opt._plans if _settles(plan))
        warn(
            f"The model is in eval mode, but its parameters hold the point where {iterate} takes gradients, not the "
            "result: evaluate inside `with opt.at_x():`, or call opt.eval() before and opt.train() afterwards."
        )


def _finite(state: State, names: Any, p: Tensor, place: Place | None = None) -> bool:
    """Whether the tensors of a state are finite, on all processes."""
    sums = [local(state[name]).sum(dtype=torch.float64) for name in names if name in state]
    if not sums:
        return True
    spoilt = torch.stack([~total.isfinite() for total in sums]).any()
    spoilt = over_ranks(spoilt.float(), sharding(p), "max")
    if place is not None and place.group is not None and place.dim is None:
        torch.distributed.all_reduce(spoilt, torch.distributed.ReduceOp.MAX, group=place.group)
    return not bool(spoilt)

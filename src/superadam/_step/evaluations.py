"""`step`: the evaluations of a batch, once or twice; what each starts from, and what is checked about it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import TypeVar, overload

import torch
from torch import Tensor

from superadam import methods
from superadam._state import refusals, twice
from superadam._state import scaler as scaling
from superadam._state.pairing import WATCHED
from superadam._state.replay import Replay, is_due
from superadam._state.sharding import local, over_ranks, sharding
from superadam._state.torch_versions import check_capture
from superadam._step.dispatch import eagerly
from superadam._step.points import Points
from superadam._step.view import View
from superadam.messages import warn

__all__ = ["Evaluations", "Loss", "UsedGradients"]

Loss = TypeVar("Loss", bound="float | Tensor | None")  # what a closure returns; None leaves its batch out


class UsedGradients:
    """The gradients that the last step has used, so that the next step can tell newer ones from them."""

    def __init__(self, params: Iterable[Tensor] = ()) -> None:
        grads = [p.grad for p in params if p.grad is not None]
        # A WeakIdKeyDictionary does the same, but takes six times as long for each parameter.
        self._versions = {id(grad): (weakref.ref(grad), grad._version) for grad in grads}

    def newer(self, params: Iterable[Tensor]) -> Tensor | None:
        """A parameter with a gradient that was not used yet, if there is one."""
        for p in params:
            grad = p.grad
            if grad is not None:
                ref, version = self._versions.get(id(grad), (None, 0))
                if ref is None or ref() is not grad or version != grad._version:
                    return p
        return None


class Evaluations(Points):
    """Steps. It gets the gradients of a batch from a closure, or from a turn of a `twice` loop."""

    _batches = 0  # how many have begun, of those that are evaluated twice
    _used = UsedGradients()

    def _reset(self) -> None:
        super()._reset()
        self._batches, self._used = 0, UsedGradients()

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], Loss]) -> Loss: ...
    @eagerly
    def step(self, closure: Callable[[], Loss] | None = None) -> Loss | None:
        """Use one batch. With a closure, return the loss of its first evaluation.

        Args:
            closure: clears the gradients, computes the loss, calls `backward` and returns the loss. `step` calls it
                once if τ = 0 and twice if τ > 0. (In the first batch both calls are at the same point, to check that
                they give the same gradient.) If it leaves no gradient, and returns None or a loss without a graph,
                the batch is skipped. Without a closure, `step` uses the gradients in `p.grad`.
        """
        check_capture(self)
        if self._evaluating:
            raise RuntimeError(
                "step() after opt.eval(): the parameters hold x_t, and the gradients are not those of the point where "
                "training stands. Call opt.train() before the gradients are computed."
            )
        if closure is not None and self.found_inf is not None:
            raise RuntimeError(
                "GradScaler inspects the gradients before step(closure) computes them. Call scaler.step(opt) without a "
                "closure; with tau > 0, in a loop over `superadam.twice(loader)`."
            )
        if closure is None and not self.state and twice.current() is None and self._nothing_to_learn():
            self.init_state()
            return None
        if any(["method" in group for group in self.param_groups]):
            methods.follow(self)
        plans = self._current_plans()
        two_point = any([plan.two_point for plan in plans])
        if any([plan.parts.constraint is not inside for plan, inside in zip(plans, self._inside, strict=True)]):
            self._enter_changed_sets()
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            if closure is None:
                self._half_step() if two_point else self._full_step(None)
                return None
            return self._both_halves(closure) if two_point else self._full_step(closure)

    def _full_step(self, closure: Callable[[], Loss] | None) -> Loss | None:
        """τ = 0: x_n to x_{n+1}."""
        if twice.here.halves:
            warn(
                "step() was called in a `twice` loop, but this optimizer uses one gradient per batch, so it takes two "
                "steps with each batch. Loop over the loader itself."
            )
        loss = None if closure is None else self._evaluate(closure)
        views = self._with_gradients(moves=True)
        if closure is None:
            self.gradient_evaluations += 1
        overflow = None if self.found_inf is None else scaling.unscale(self)
        if overflow is not None and self.defaults["capturable"] and all([plan.free for plan in self._plans]):
            with scaling.undone(self, where=overflow):
                self._absorb(views)
        elif not overflow:
            if not all([plan.takes_any for plan in self._plans]):
                refusals.check_finite(self)
            self._absorb(views)
        return loss

    def _both_halves(self, closure: Callable[[], Loss]) -> Loss:
        """τ > 0 with a closure: x_{n-1} to x_n."""
        if self._open_batch is not None:
            raise RuntimeError(
                "step(closure) was called between the two half-steps of a batch. Finish the batch with step() in the "
                "`twice` loop, or call opt.restart() to drop it."
            )
        loss, again = self._first_evaluation(closure)
        if self._left_out(loss):
            return loss
        if self._pending():
            self._to_next_point(self._usable_gradients())
            try:
                again.restore()
                self.zero_grad()
                if self._left_out(self._evaluate(closure)):
                    self._void()
                    return loss
                views = self._usable_gradients()
                again.check()
            except BaseException:
                self._void()
                raise
        else:
            refusals.check_gradients(self)
            refusals.check_finite(self)
            if not self._evaluate_again(closure, again):
                return loss
            views = self._usable_gradients()
        self._absorb(views)
        self._used = UsedGradients(self._parameters())
        self._end()
        return loss

    def _usable_gradients(self) -> list[View]:
        """The gradients of one of the two evaluations; refused if there are none, or if one cannot be used."""
        views = self._with_gradients(moves=False)
        if not views:
            refusals.check_gradients(self)
        if not all([plan.takes_any for plan in self._plans]):
            refusals.check_finite(self)
        return views

    def _half_step(self) -> None:
        """τ > 0 without a closure: one of the two half-steps of a batch."""
        half = self._this_half()
        views = self._with_gradients(moves=False)
        if not views:
            refusals.check_gradients(self)
        self._turn_evaluated(half)
        self.gradient_evaluations += 1
        overflow = bool(scaling.unscale(self))
        self._last_half = half
        dropped = self._dropped_batch is half.batch
        refused: ValueError | None = None
        if not overflow and not dropped:
            try:
                refusals.check_finite(self)
            except ValueError as error:  # the batch is dropped, as after an overflow, and the loop can go on
                overflow, refused = True, error
        if not half.second:
            if overflow:  # the pending move waits for the next batch
                self._dropped_batch = half.batch
            else:
                if not (self._pairing.compared or self._pending()):  # both turns evaluate at the same point
                    self._pairing.keep(self._parameters())
                self._to_next_point(views)
            self._open_batch = half.batch
        else:
            if overflow and not dropped:
                self._void()
            elif not dropped:
                self._pairing.compare()
                self._absorb(views)
            self._open_batch = None
        if refused is not None:
            raise refused
        if half.second:
            self._end()

    # ------------------------------------------------------------------------------------ evaluations

    def _evaluate(self, closure: Callable[[], Loss]) -> Loss:
        with torch.enable_grad():
            loss = closure()
        self.gradient_evaluations += 1
        if self._pairing.watching:
            self._pairing.arrived(self._parameters())
        return loss

    def _begin(self) -> None:
        """A batch begins. Pairs are not watched where a step must not wait for the device, or is differentiated."""
        self._batches += 1
        if self._batches <= WATCHED:
            self._pairing.begin(watched=not (self.defaults["capturable"] or self.defaults["differentiable"]))
        else:
            self._pairing.watching = False

    def _end(self) -> None:
        """A batch is done. Last, as warnings may be errors."""
        if self._pairing.watching:
            self._pairing.end()

    def _first_evaluation(self, closure: Callable[[], Loss]) -> tuple[Loss, Replay]:
        """The loss, and what the second evaluation is to start from."""
        self._begin()
        again, due = Replay(self._buffered()), is_due(self._batches)
        with again.buffers.watch(due):
            loss = self._cleared(closure)
        if due:
            self._met.update(again.buffers.owners())
        return loss, again

    def _cleared(self, closure: Callable[[], Loss]) -> Loss:
        """Clear the gradients and evaluate. Otherwise a closure that does not clear them would add to old ones.

        If gradients came since the last step, they may be of other micro-batches, which must not be lost. Then a NaN in
        one of them tells whether the closure adds to them: it is still there afterwards. Such a closure is refused.
        """
        if self.defaults["differentiable"]:  # the parameters are no leaves: the closure sets their gradients
            return self._evaluate(closure)
        newer = self._used.newer(self._parameters())
        self.zero_grad()
        if newer is None:
            return self._evaluate(closure)
        if newer.grad is None:
            newer.grad = torch.zeros_like(newer)
        newer.grad.fill_(torch.nan)
        loss = self._evaluate(closure)
        if newer.grad is not None and bool(local(newer.grad).isnan().any()):
            self.zero_grad()
            raise RuntimeError(
                "step(closure) found gradients, and the closure does not clear them but adds to them. With tau > 0 "
                "micro-batches must be evaluated at two points, all of them inside the closure. (In Lightning: "
                "accumulate_grad_batches=1 and larger batches, or manual optimization with such a closure.) If they "
                "are not meant to count, clear the gradients in the closure."
            )
        return loss

    def _evaluate_again(self, closure: Callable[[], Loss], again: Replay) -> bool:
        """Evaluate the first batch again at the same point: the gradients must be the same. False if it is left out.

        A `twice` loop does so anyway. Line 11 does not need this evaluation, so it is not counted.
        """
        if not self._pairing.keep(self._parameters()):
            return True
        again.restore()
        self.zero_grad()
        if self._left_out(self._evaluate(closure)):
            return False
        self.gradient_evaluations -= 1
        refusals.check_gradients(self)
        refusals.check_finite(self)
        self._pairing.compare()
        again.check()
        return True

    def _left_out(self, loss: object) -> bool:
        """Whether the closure left this batch out on purpose: no gradient, and no loss to take one of.

        Lightning does so in the last pass of its SWA, and where `training_step` returns None. A closure that forgets
        `backward` is another case: it leaves no gradient in the first step, or returns a loss that has a graph.
        """
        if any([p.grad is not None for p in self._parameters()]):
            return False
        if loss is not None and (not self.state or (isinstance(loss, Tensor) and loss.requires_grad)):
            return False
        self.gradient_evaluations -= 1
        return True

    def _turn_evaluated(self, half: twice.Half) -> None:
        """A turn of a `twice` loop has left its gradients."""
        if not half.second:
            self._begin()
        elif half.replay is not None:
            half.replay.check()
        if self._pairing.watching:
            self._pairing.arrived(self._parameters())

    @torch.no_grad()
    def _nothing_to_learn(self) -> bool:
        """Whether γ = 0 and all gradients are zero: torch.distributed.checkpoint creates the state by such a step."""
        for lr in (group["lr"] for group in self.param_groups):
            if (isinstance(lr, Tensor) and lr.device.type != "cpu") or lr != 0:
                return False
        seen = [(p, p.grad) for p in self._parameters() if p.grad is not None]
        if not seen or any(grad.layout is not torch.strided for _, grad in seen):
            return False
        return not any(over_ranks(local(grad).count_nonzero(), sharding(p)) for p, grad in seen)

    def _this_half(self) -> twice.Half:
        """The half-step that is due; refused if there is none, or if it is out of order."""
        half = twice.current()
        if half is None:
            raise RuntimeError(
                "SuperAdam needs two gradients of every batch here (tau > 0, or a matrix such as BarzilaiBorwein), so "
                "step() must know which one this is. Write opt.step(closure), with a closure that clears the "
                "gradients, computes the loss and calls backward; or loop, in the thread that calls step(), "
                "`for batch in superadam.twice(loader):`, where each batch comes twice. In Hugging Face's Trainer "
                "mix in superadam.trainers.TwoPoint: `class MyTrainer(TwoPoint, Trainer): pass`."
            )
        if half == self._last_half:
            raise RuntimeError("Half-steps out of order: step() was called twice in one turn of the `twice` loop.")
        if half.done < half.size:
            raise RuntimeError(
                f"step() after micro-batch {half.done} of {half.size}: with `twice(loader, accumulate=...)` call it "
                "when all of them have been added up, `if turns.complete:`, where turns is what twice() returned. "
                f"(With accelerator.accumulate(): Accelerator(gradient_accumulation_steps={half.size}).)"
            )
        if half.batch is self._dropped_batch and self._open_batch is None:
            raise RuntimeError(
                "This batch was dropped by opt.restart() or opt.flush(): go on with the next one of the `twice` loop."
            )
        if self._open_batch is not (half.batch if half.second else None):
            missed = "this batch's first turn" if half.second else "the last batch's second turn"
            raise RuntimeError(
                f"Half-steps out of order: {missed} had no step(). Call opt.step() in both turns of every batch of the "
                "`twice` loop, or opt.restart() to drop a batch that was left half done. (To accumulate gradients, "
                "loop over `twice(loader, accumulate=n)`, or use step(closure) with a closure that goes over the "
                "micro-batches.)"
            )
        return half

"""The evaluations of a batch, once or twice: what each starts from, and what is checked about it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from torch import Tensor

from superadam._state import refusals, twice
from superadam._state.pairing import WATCHED
from superadam._state.replay import Replay, is_due
from superadam._state.sharding import local, over_ranks, sharding
from superadam._step.points import Points

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
    """Gets the gradients of a batch from a closure, or from a turn of a `twice` loop."""

    _batches = 0  # how many have begun, of those that are evaluated twice
    _used = UsedGradients()

    def _reset(self) -> None:
        super()._reset()
        self._batches, self._used = 0, UsedGradients()

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

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
            self._met.add(again.buffers.owners())
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
        if any(p.grad is not None for group in self.param_groups for p in group["params"]):
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
        seen = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        if not seen or any(p.grad.layout is not torch.strided for p in seen):
            return False
        return not any(over_ranks(local(p.grad).count_nonzero(), sharding(p)) for p in seen)

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

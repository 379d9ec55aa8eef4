"""Support for τ > 0 in trainers that own the training loop and call `step()` without a closure."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn

from superadam.evaluations import Turns, twice

__all__ = ["TwoPoint"]


class TwoPoint:
    """Mixin for Hugging Face's `Trainer` that evaluates every batch at two points, as τ > 0 needs.

    >>> class Trainer:  # that of transformers
    ...     pass
    >>> class MyTrainer(TwoPoint, Trainer):
    ...     pass

    The Trainer's `training_step` computes the gradient of a batch, and then the Trainer calls `step()`. This class
    evaluates the batch at x_{t-1} and, after a half-step, at x_t. The Trainer's call is then the second half-step. So
    the Trainer, its LR scheduler, its log and its checkpoints still count batches, and it resumes as usual. With
    gradient accumulation, all micro-batches are evaluated at one point, then all at the other. With τ = 0 nothing
    changes.

    The logged loss is that of the first evaluation. The Trainer does not call `flush()`, so the model ends at x_T.
    """

    accelerator: Any
    args: Any
    optimizer: Any
    _turns: Turns[None] | None = None
    _micro_batches: list[Any]
    _hooked: Any = None

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        evaluate = cast(Any, super()).training_step
        opt = getattr(self.optimizer, "optimizer", self.optimizer)  # Accelerate wraps it
        if not getattr(opt, "two_point", False):
            return cast(Tensor, evaluate(model, inputs, num_items_in_batch))
        try:
            if self._turns is None:
                self._begin(opt)
            self._micro_batches.append(inputs)
            loss = evaluate(model, inputs, num_items_in_batch)
            if self.accelerator.sync_gradients:
                self.optimizer.step()
                model.zero_grad()
                next(self._turns)  # type: ignore[arg-type]
                for again in self._micro_batches:
                    evaluate(model, again, num_items_in_batch)
        except BaseException:
            self._end()
            raise
        return cast(Tensor, loss)

    def _begin(self, opt: Any) -> None:
        if self.args.max_grad_norm:
            raise ValueError(
                f"max_grad_norm={self.args.max_grad_norm} would clip the two gradients of a batch separately, and "
                "their difference would be wrong. Set max_grad_norm=0 and use the optimizer's clip=, which bounds g_t."
            )
        if getattr(self.accelerator, "scaler", None) is not None:
            raise ValueError("fp16=True scales the two gradients of a batch by different factors. Use bf16=True.")
        if self._hooked is not opt:
            opt.register_step_post_hook(self._stepped)
            self._hooked = opt
        self._turns, self._micro_batches = twice([None]), []
        next(self._turns)

    def _stepped(self, opt: Any, *_: Any) -> None:
        """Called after either half-step. The second ends the batch."""
        if opt._batch.open is None:
            self._end()

    def _end(self) -> None:
        if self._turns is not None:
            self._turns.close()
        self._turns = None

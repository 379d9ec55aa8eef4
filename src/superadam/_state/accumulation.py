"""`accelerator.accumulate(model)` in a `twice` loop.

Accelerate counts micro-batches, and lets the optimizer step after every n-th and where the data loader ends. A `twice`
loop reads n micro-batches ahead, so the loader ends long before the turns do. Each turn therefore takes the loader's
place: for Accelerate a loader ends with every evaluation of a batch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

__all__ = ["seen_by_accelerate"]


@dataclass(frozen=True, eq=False)
class Turn:
    """A turn of a `twice` loop, with what Accelerate asks of a data loader."""

    loader: Any
    complete: bool
    accumulate: int
    steps: int  # Accelerate's own number of micro-batches

    @property
    def end_of_dataloader(self) -> bool:
        """Whether `step()` is due."""
        if self.steps not in (1, self.accumulate):  # 1 for those who add up micro-batches without Accelerate
            raise RuntimeError(
                f"Accelerator(gradient_accumulation_steps={self.steps}) divides every loss by {self.steps}, but "
                f"twice(loader, accumulate={self.accumulate}) makes a batch of {self.accumulate} micro-batches. Give "
                "both the same number."
            )
        return self.complete

    @property
    def remainder(self) -> int:
        """How many samples of the loader's last micro-batch are not padding; 0 means all."""
        return getattr(self.loader, "remainder", -1) if getattr(self.loader, "end_of_dataloader", True) else 0


@contextmanager
def seen_by_accelerate(loader: object, complete: bool, accumulate: int) -> Iterator[None]:
    """One turn of a `twice` loop. Without accumulation, Accelerate is right about the loader itself."""
    accelerate = sys.modules.get("accelerate.state")
    if accelerate is None or accumulate == 1:
        yield
        return
    state = accelerate.GradientState()
    turn = Turn(loader, complete, accumulate, state.num_steps)
    state._add_dataloader(turn)
    try:
        yield
    finally:
        state._remove_dataloader(turn)

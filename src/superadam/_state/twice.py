"""`twice`: every batch in two turns, for loops that call `step()` without a closure while τ > 0.

A loop tells the optimizers of its thread, by a `Half`, which evaluation of which batch is current.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakSet

from superadam._state.replay import Buffers, Replay, is_due

__all__ = ["Batch", "Half", "Turns", "current", "register", "twice"]

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Batch:
    """One batch of a `twice` loop. Only its identity matters."""


@dataclass(frozen=True)
class Half:
    """What `twice` tells an optimizer's `step()`: which batch, which of its two evaluations, and how far that is."""

    batch: Batch
    second: bool
    done: int = 1  # micro-batches of this evaluation that have been yielded
    size: int = 1  # micro-batches that make up the batch
    replay: Replay | None = field(default=None, compare=False)


class _Thread(threading.local):
    """What belongs to one thread."""

    def __init__(self) -> None:
        self.halves: list[Half] = []  # where its `twice` loops are, the innermost last
        self.batches = 0  # of its `twice` loops, since an optimizer was made
        self.registered = 0  # the number of optimizers when it last looked


here = _Thread()
_lock = threading.Lock()
_registered = 0
_optimizers: WeakSet[Any] = WeakSet()  # a loop restores the buffers of their modules


def register(optimizer: Any) -> None:
    """Let `twice` loops know of an optimizer."""
    global _registered
    with _lock:
        _optimizers.add(optimizer)
        _registered += 1


def current() -> Half | None:
    """The half-step that is due in the innermost `twice` loop of this thread."""
    return here.halves[-1] if here.halves else None


class Turns(Iterator[T]):
    """The turns of a `twice` loop."""

    def __init__(self, loader: Iterable[T], accumulate: int) -> None:
        self._loader = loader
        self._place: list[Half] = []  # shared with the generator, which must not refer to this object
        self._turns = _turns(loader, accumulate, self._place)

    def __len__(self) -> int:
        """The number of turns: two for every batch or micro-batch of the loader."""
        return 2 * len(self._loader)  # type: ignore[arg-type]

    def __next__(self) -> T:
        return next(self._turns)

    def close(self) -> None:
        """End the loop here, for those who take its turns by `next`."""
        self._turns.close()

    def _half(self) -> Half:
        if not self._place:
            raise RuntimeError("`complete` and `size` are only available inside the `twice` loop.")
        return self._place[0]

    @property
    def complete(self) -> bool:
        """Whether this is the last micro-batch of an evaluation, after which `step()` is to be called."""
        return self._half().done == self._half().size

    @property
    def size(self) -> int:
        """The number of micro-batches that make up this batch: `accumulate`, or what the loader had left."""
        return self._half().size


def twice(loader: Iterable[T], accumulate: int = 1) -> Turns[T]:
    """Yield every batch of `loader` twice. The second turn draws the same random numbers as the first.

    For training loops that call `step()` without a closure while τ > 0. Each turn is a half-step: the first evaluates
    the gradient at x_{t-1} and moves to x_t, the second evaluates it at x_t.

    >>> import torch
    >>> from superadam import SuperAdam
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Dropout(0.5))
    >>> opt = SuperAdam(model, tau=1.0)
    >>> for batch in twice([torch.ones(2, 3), torch.zeros(2, 3)]):
    ...     model(batch).square().mean().backward()
    ...     opt.step()
    ...     opt.zero_grad()
    >>> opt.flush()
    >>> opt.gradient_evaluations
    4

    With `accumulate` = n, n micro-batches of the loader make up a batch: they come one after the other at one point,
    and then again at the other. `complete` says when `step()` is due, and `size` how many there are (less than n if the
    loader ends). All n stay in memory until then.

    >>> micro_batches = [torch.full((1, 3), float(i)) for i in range(5)]
    >>> turns = twice(micro_batches, accumulate=3)
    >>> for batch in turns:
    ...     (model(batch).square().mean() / turns.size).backward()
    ...     if turns.complete:
    ...         opt.step()
    ...         opt.zero_grad()
    >>> opt.gradient_evaluations
    8

    Args:
        loader: batches, or micro-batches.
        accumulate: number of micro-batches in a batch.
    """
    if isinstance(accumulate, bool) or not isinstance(accumulate, int) or accumulate < 1:
        raise ValueError(f"Invalid accumulate: {accumulate!r} (expected a whole number of micro-batches, at least 1)")
    return Turns(loader, accumulate)


def _turns(loader: Iterable[T], accumulate: int, place: list[Half]) -> Generator[T, None, None]:
    samples = iter(loader)
    while micro_batches := list(itertools.islice(samples, accumulate)):
        batch, replay, met, due = Batch(), Replay(), Buffers(), _is_due()
        with _lock:
            optimizers = list(_optimizers)
        kept = [(opt, Buffers(opt._buffered())) for opt in optimizers if opt.two_point]
        for second in (False, True):
            if second:
                replay.restore()
                inside = [(opt, buffers) for opt, buffers in kept if opt._open_batch is batch]  # stepped in this loop
                for opt, buffers in inside:
                    buffers.restore()
                    opt._met.update(met.owners())
                if inside:
                    met.restore()
            with met.watch(due and not second):
                for i, micro_batch in enumerate(micro_batches):
                    half = Half(batch, second, i + 1, len(micro_batches), replay)
                    place[:] = [half]
                    halves = here.halves  # another thread may end the loop: keep those of this one
                    halves.append(half)
                    try:
                        with _seen_by_accelerate(loader, half.done == half.size, accumulate):
                            yield micro_batch
                    finally:
                        halves.remove(half)
                        place.clear()


def _is_due() -> bool:
    """Whether to look which modules the next batch of this thread's `twice` loops runs."""
    if here.registered != _registered:
        here.registered, here.batches = _registered, 0
    here.batches += 1
    return is_due(here.batches)


@dataclass(frozen=True, eq=False)
class _LoaderOfATurn:
    """What Accelerate asks of a data loader, for one turn of a `twice` loop.

    Accelerate counts micro-batches, and lets the optimizer step after every n-th and where the data loader ends. A
    `twice` loop reads n micro-batches ahead, so the loader ends long before the turns do. Each turn therefore takes the
    loader's place: for Accelerate a loader ends with every evaluation of a batch.
    """

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
                f"twice(loader, accumulate={self.accumulate}) makes a batch of {self.accumulate} micro-batches. Use "
                "the same number in both."
            )
        return self.complete

    @property
    def remainder(self) -> int:
        """How many samples of the loader's last micro-batch are not padding; 0 means all."""
        return getattr(self.loader, "remainder", -1) if getattr(self.loader, "end_of_dataloader", True) else 0


@contextmanager
def _seen_by_accelerate(loader: object, complete: bool, accumulate: int) -> Iterator[None]:
    """Make `accelerator.accumulate(model)` work in one turn. Without accumulation it does anyway."""
    accelerate = sys.modules.get("accelerate.state")
    if accelerate is None or accumulate == 1:
        yield
        return
    state = accelerate.GradientState()
    turn = _LoaderOfATurn(loader, complete, accumulate, state.num_steps)
    state._add_dataloader(turn)
    try:
        yield
    finally:
        state._remove_dataloader(turn)

"""The position of a run in its data, and the states of the random generators that draw the data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from torch import Generator

from superadam._state.replay import Replay, generators_of

__all__ = ["Resumable", "default_generators", "set_default_generators"]

T = TypeVar("T", covariant=True)
_NOTHING = object()


def default_generators() -> dict[str, Any]:
    """The states of the default generators, as plain data."""
    return Replay().plain()


def set_default_generators(saved: dict[str, Any]) -> None:
    """Set the states of the default generators that exist here."""
    Replay.of(saved).restore()


class Resumable(Generic[T]):
    """A data loader that tracks its position: `epoch`, and `batch`, the number of batches handed out in it.

    Iterate over it as over the loader, one epoch at a time, and pass it to `save_checkpoint` and `load_checkpoint`.
    After loading, the first loop covers the rest of its epoch. It restarts the epoch with the same order, fetches the
    finished batches again and drops them, so that random augmentation continues where it was. This does not work with
    `persistent_workers`, whose generators are not accessible.

    Save after the step on a batch, not before: a batch counts as done once it is handed out. For the same reason, the
    training loop (or `twice`) must iterate over this object directly, not over a wrapper that prefetches.

    Args:
        loader: a `DataLoader`, or any iterable that restarts each time. Its order must be fixed, or drawn from its
            `generator`, its samplers' `generator`, or the default ones.
        generators: your own generators that the dataset draws from in this process.

    >>> import torch
    >>> from torch.utils.data import DataLoader
    >>> def batches():
    ...     generator = torch.Generator().manual_seed(0)
    ...     return Resumable(DataLoader(range(6), batch_size=2, shuffle=True, generator=generator))
    >>> data = batches()
    >>> for batch in data:
    ...     if data.batch == 1:
    ...         saved = data.state_dict()
    ...     else:
    ...         print(batch.tolist())
    [0, 3]
    [2, 4]
    >>> data = batches()
    >>> data.load_state_dict(saved)
    >>> for batch in data:
    ...     print(batch.tolist())
    [0, 3]
    [2, 4]
    """

    def __init__(self, loader: Iterable[T], *generators: Generator) -> None:
        self.loader = loader
        self.epoch = self.batch = 0
        self._generators = list(dict.fromkeys((*generators_of(loader), *generators)))
        self._start: dict[str, Any] | None = None  # the generators as the epoch began
        self._skip = False

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[T]:
        if self._skip:
            batches = self._where_it_was()
        else:
            self.batch = 0
            self._start = {"default": default_generators(), "own": [g.get_state() for g in self._generators]}
            batches = iter(self.loader)
        for batch in batches:
            self.batch += 1
            yield batch
        self.epoch += 1
        self.batch, self._start = 0, None

    def _where_it_was(self) -> Iterator[T]:
        assert self._start is not None
        now = default_generators()
        set_default_generators(self._start["default"])
        for generator, state in zip(self._generators, self._start["own"], strict=True):
            generator.set_state(state)
        batches = iter(self.loader)
        for done in range(self.batch):
            if next(batches, _NOTHING) is _NOTHING:
                raise RuntimeError(
                    f"The data has changed: {self.batch} batches were finished, but the loader has only {done}."
                )
        set_default_generators(now)
        self._skip = False
        return batches

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "batch": self.batch, "length": self._length(), "start": self._start}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        length, start = state_dict["length"], state_dict["start"]
        if length != self._length():
            raise ValueError(f"The data has changed: an epoch had {length} batches, and has {self._length()} now.")
        if start is not None and len(start["own"]) != len(self._generators):
            raise ValueError(
                f"The loader had {len(start['own'])} generators of its own, and has {len(self._generators)} now."
            )
        self.epoch, self.batch, self._start = state_dict["epoch"], state_dict["batch"], start
        self._skip = start is not None

    def _length(self) -> int | None:
        try:
            return len(self)
        except TypeError:  # an iterable without an end that is known
            return None

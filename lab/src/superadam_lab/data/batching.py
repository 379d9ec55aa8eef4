"""Batches whose content depends only on seed, epoch and number."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import torch
from torch import Tensor

from superadam_lab.data.records import Batch, DataError, Tokens

__all__ = ["ALL", "Share", "batches", "share", "streams"]

Share = tuple[int, int]
"""Which share of every batch, from 0 on, and of how many."""
ALL: Share = (0, 1)


class Source(Protocol):
    """`Images`, `ImageFiles`, `Rows`, or a class of your own."""

    def __len__(self) -> int: ...
    def batch(self, rows: Tensor, key: int | None = None, part: slice = slice(None), /) -> Batch: ...


def batches(
    data: Source,
    size: int,
    *,
    seed: int | None = None,
    epoch: int = 0,
    augment: bool = False,
    skip: int = 0,
    workers: int = 0,
    part: Share = ALL,
) -> Iterator[Batch]:
    """One epoch of (x, y), on the CPU. The last batch may be smaller.

    Args:
        data: `Images`, `ImageFiles` or `Rows`.
        size: number of rows in a batch.
        seed, epoch: the random order depends only on these two. Without a seed: the order of the data.
        augment: crop and flip at random, which also depends only on seed and epoch.
        skip: number of batches to leave out at the beginning, for a resumed run. The others stay the same.
        workers: number of threads that prepare batches ahead. They pay for `ImageFiles`, whose decoding releases the
            GIL. Batches are the same, and in the same order, with any number.
        part: the number of this process and of all processes: take this process's share of the rows of every batch,
            augmented as in the whole batch.

    >>> from superadam_lab.data import Rows
    >>> data = Rows(torch.arange(5.0).view(5, 1), torch.ones(5))
    >>> [x.flatten().tolist() for x, y in batches(data, 2, seed=0, epoch=1)]
    [[2.0, 1.0], [4.0, 3.0], [0.0]]
    >>> [x.flatten().tolist() for x, y in batches(data, 2, seed=0, epoch=1, skip=2, workers=2)]
    [[0.0]]
    """
    if size < 1 or skip < 0 or workers < 0:
        raise ValueError(f"size={size}, skip={skip}, workers={workers}: expected at least 1, 0 and 0.")
    if len(data) == 0:
        raise DataError("the data has no rows.")
    if augment and seed is None:
        raise ValueError("augment=True needs a seed, so that the same call gives the same images again.")
    rows = torch.split(_order(len(data), seed, epoch), size)

    def make(i: int) -> Batch:
        key = _key(seed, epoch, i) if augment else None
        return data.batch(rows[i], key, *([] if part == ALL else [share(len(rows[i]), part)]))

    numbers = range(skip, len(rows))
    return _ahead(make, numbers, workers) if workers else map(make, numbers)


def share(n: int, part: Share) -> slice:
    """The share of n rows for one of several processes: as equal as possible, the first processes have more.

    >>> [share(5, (rank, 2)) for rank in range(2)]
    [slice(0, 3, None), slice(3, 5, None)]
    """
    rank, size = part
    return slice(-(-n * rank // size), -(-n * (rank + 1) // size))


def streams(tokens: Tokens, batch: int, bptt: int) -> list[Batch]:
    """A text for truncated backpropagation through time: `batch` equal, contiguous parts side by side, as columns, cut
    into stretches of `bptt` words. Returns (inputs [T, B], targets [T, B]), in order: targets are the next words.
    The last stretch may be shorter; up to `batch` words at the end of the text are left out.

    >>> text = Tokens(torch.arange(11), [])
    >>> for inputs, targets in streams(text, batch=2, bptt=3):
    ...     print(inputs.tolist(), targets.tolist())
    [[0, 5], [1, 6], [2, 7]] [[1, 6], [2, 7], [3, 8]]
    [[3, 8]] [[4, 9]]
    """
    if batch < 1 or bptt < 1:
        raise ValueError(f"batch={batch}, bptt={bptt}: both are at least 1.")
    length = len(tokens) // batch
    if length < 2:
        raise DataError(f"a text of {len(tokens)} words is too short for {batch} streams of two words: use fewer.")
    columns = tokens.ids[: length * batch].view(batch, length).t().contiguous()
    return list(zip(torch.split(columns[:-1], bptt), torch.split(columns[1:], bptt), strict=True))


def _order(n: int, seed: int | None, epoch: int) -> Tensor:
    if seed is None:
        return torch.arange(n)
    return torch.randperm(n, generator=torch.Generator().manual_seed(_key(seed, epoch, -1)))


def _key(*numbers: int | None) -> int:
    """A hash of all the numbers to 32 bits, the seed size of torch's CPU generator."""
    return int.from_bytes(hashlib.blake2b(repr(numbers).encode(), digest_size=4).digest(), "big")


def _ahead(make: Callable[[int], Batch], numbers: range, workers: int) -> Iterator[Batch]:
    """map(make, numbers), with up to 2 · workers results waiting."""
    pool = ThreadPoolExecutor(workers, thread_name_prefix="batches")
    waiting: deque[Future[Batch]] = deque()
    try:
        for i in numbers:
            waiting.append(pool.submit(make, i))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:  # also when the loop over the batches is left early
        pool.shutdown(cancel_futures=True)

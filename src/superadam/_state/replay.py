"""Two gradients of one batch: the same ξ, in full.

∇f(x_t; ξ) - ∇f(x_{t-1}; ξ) has little variance only if both gradients see the same samples, the same dropout masks,
the same augmentation. `Replay` remembers what a batch is besides its samples: the states of the random generators and
the buffers of modules (BatchNorm's statistics, spectral norm's vectors), so that the second evaluation starts where
the first did.
"""

from __future__ import annotations

import itertools
import random
import sys
import threading
import warnings
from collections.abc import Generator, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from superadam._state.accumulation import seen_by_accelerate
from superadam._state.buffers import Buffers, is_due
from superadam._state.sharding import local

__all__ = ["Half", "Replay", "Used", "put_back", "twice"]

T = TypeVar("T")


class _Thread(threading.local):
    """What is of one thread alone."""

    def __init__(self) -> None:
        self.halves: list[Half] = []  # that its `twice` loops are in, innermost last
        self.batches = 0  # of its `twice` loops, since an optimizer was made
        self.optimizers = 0  # that there were when it last looked
        self.acts = 0


here = _Thread()
_lock = threading.Lock()
_acts = _registered = 0
_told = False  # of threads that draw from the same generators
# The optimizers that may be in a `twice` loop, so that it can restore the buffers of their modules.
_optimizers: WeakSet[Any] = WeakSet()


def _act() -> int:
    """This thread takes or sets the states of the generators. How often have others, so far?"""
    global _acts
    with _lock:
        _acts += 1
        here.acts += 1
        return _acts - here.acts


@contextmanager
def put_back(params: Iterable[Tensor]) -> Iterator[None]:
    """Parameters may be moved inside the `with`: after it they hold what they held before."""
    before = [(local(p), local(p).detach().clone()) for p in params]
    try:
        yield
    finally:
        with torch.no_grad():
            for p, x in before:
                p.copy_(x)


class Replay:
    """What the first evaluation of a batch starts from; `restore` brings it back for the second.

    Covers torch's default generators (the CPU's and, once a device is in use, every device's), Python's `random`,
    NumPy's global generator, and the buffers of `modules`. A `torch.Generator` of your own is yours to reset.

    These generators are those of all threads. Where another thread has taken or set their states in the meantime, and
    random numbers were drawn, `restore` and `check` warn.
    """

    def __init__(self, modules: Iterable[nn.Module] = ()) -> None:
        self._others = _act()
        self._cpu = torch.get_rng_state()
        self._devices: list[Tensor] = []
        if torch.accelerator.is_available() and getattr(_accelerator(), "is_initialized", lambda: True)():
            self._devices = [_accelerator().get_rng_state(i) for i in range(torch.accelerator.device_count())]
        self._python = random.getstate()
        self._numpy = sys.modules["numpy"].random.get_state() if "numpy" in sys.modules else None
        self.buffers = Buffers(modules)

    def restore(self) -> None:
        self.check()
        torch.set_rng_state(self._cpu)
        for i, state in enumerate(self._devices):
            _accelerator().set_rng_state(state, i)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
        self.buffers.restore()

    def plain(self) -> dict[str, Any]:
        """The generators as plain data, for a checkpoint."""
        numpy = None if self._numpy is None else [self._numpy[0], self._numpy[1].tolist(), *self._numpy[2:]]
        return {"cpu": self._cpu, "devices": self._devices, "python": self._python, "numpy": numpy}

    @classmethod
    def of(cls, saved: dict[str, Any]) -> Self:
        """From plain data. Only generators that exist here: a run from a GPU can be looked at without one."""
        then = cls()
        then._cpu, then._python = saved["cpu"], saved["python"]
        then._devices = saved["devices"][: len(then._devices)]
        then._numpy = tuple(saved["numpy"]) if saved["numpy"] is not None and "numpy" in sys.modules else None
        return then

    def check(self) -> None:
        """Warn, once in a process, if other threads have had to do with the numbers drawn since the last call.

        Whose numbers they were cannot be known: it may be that no evaluation draws any.
        """
        global _told
        others = _act()
        crowded, self._others = others != self._others, others
        if crowded and not _told and self._drawn():
            with _lock:
                if _told:
                    return
                _told = True
            warnings.warn(
                "Two threads evaluate batches at two points at the same time, and random numbers were drawn meanwhile. "
                "All threads draw from the same generators: where an evaluation draws (dropout), the second of a batch "
                "does not see the masks of the first. Run each training in a process of its own, or use "
                "step(closure), and hold one lock, the same in all threads, around it and whatever else draws.",
                RuntimeWarning,
                stacklevel=5,
            )

    def _drawn(self) -> bool:
        """Whether a generator is no longer where it was."""
        now = Replay()
        pairs = zip([self._cpu, *self._devices], [now._cpu, *now._devices], strict=False)  # a device may be new
        numpy = self._numpy is not None and any(map(_differ, self._numpy, now._numpy or ()))
        return numpy or self._python != now._python or not all(torch.equal(a, b) for a, b in pairs)


def _differ(a: Any, b: Any) -> bool:
    """Parts of the state of NumPy's generator: a name, an array, numbers."""
    return bool((a != b).any()) if hasattr(a, "any") else bool(a != b)


def generators_of(loader: object) -> list[torch.Generator]:
    """The generators of its own that a DataLoader draws from."""
    owners = (loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None))
    drawn = (getattr(owner, "generator", None) for owner in (*owners, getattr(owners[-1], "sampler", None)))
    return list(dict.fromkeys(g for g in drawn if isinstance(g, torch.Generator)))


def _accelerator() -> Any:
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None
    return torch.get_device_module(accelerator)


class Used:
    """The gradients that the last step has used, so that the next can tell what has been added up since."""

    def __init__(self, params: Iterable[Tensor] = ()) -> None:
        grads = [p.grad for p in params if p.grad is not None]
        self._versions: MutableMapping[Tensor, int] = WeakIdKeyDictionary({grad: grad._version for grad in grads})

    def newer(self, params: Iterable[Tensor]) -> Tensor | None:
        """A parameter whose gradient has come since, if there is one."""
        return next((p for p in params if p.grad is not None and self._versions.get(p.grad) != p.grad._version), None)


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
    replay: Replay | None = field(default=None, compare=False)  # of this batch


def register(optimizer: Any) -> None:
    global _registered
    with _lock:
        _optimizers.add(optimizer)
        _registered += 1


def current() -> Half | None:
    """The half-step that the innermost `twice` loop of this thread is in."""
    return here.halves[-1] if here.halves else None


class Turns(Iterator[T]):
    """The turns of a `twice` loop."""

    def __init__(self, loader: Iterable[T], accumulate: int) -> None:
        self._place: list[Half] = []  # shared with the generator, which must not hold this object itself
        self._turns = _turns(loader, accumulate, self._place)

    def __next__(self) -> T:
        return next(self._turns)

    def close(self) -> None:
        """End the loop here, for those who take its turns by `next`."""
        self._turns.close()

    def _half(self) -> Half:
        if not self._place:
            raise RuntimeError("A `twice` loop knows where it is only while it runs: ask inside of it.")
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
    """Every batch of `loader` two times, the second time with the generators where they were the first time.

    For training loops that call `step()` without a closure while τ > 0. Each turn is a half-step: the first evaluates
    the gradient at x_{t-1} and moves to x_t, the second evaluates it at x_t.

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
    loader ends). All n are kept meanwhile.

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
        accumulate: how many micro-batches make up a batch.
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
                inside = [(opt, buffers) for opt, buffers in kept if opt._open_batch is batch]  # that are in this loop
                for opt, buffers in inside:
                    buffers.restore()
                    opt._met.add(met.owners())
                if inside:
                    met.restore()
            with met.watch(due and not second):
                for i, micro_batch in enumerate(micro_batches):
                    half = Half(batch, second, i + 1, len(micro_batches), replay)
                    place[:] = [half]
                    halves = here.halves  # those of this thread, whichever it is that ends the loop
                    halves.append(half)
                    try:
                        with seen_by_accelerate(loader, half.done == half.size, accumulate):
                            yield micro_batch
                    finally:
                        halves.remove(half)
                        place.clear()


def _is_due() -> bool:
    """Whether to look which modules the next batch of this thread's `twice` loops runs."""
    if here.optimizers != _registered:
        here.optimizers, here.batches = _registered, 0
    here.batches += 1
    return is_due(here.batches)

"""The two gradients of a batch: the same ξ in full, evaluated twice.

∇f(x_t; ξ) - ∇f(x_{t-1}; ξ) has little variance only if both gradients see the same samples, dropout masks and
augmentation. So the second evaluation starts from the same states of the random generators, and from the same buffers
of all modules that it runs (BatchNorm's statistics, spectral norm's vectors).

`twice` is for loops that call `step()` without a closure while τ > 0: every batch in two turns. A loop tells the
optimizers of its thread, by a `Half`, which evaluation of which batch is current.
"""

from __future__ import annotations

import itertools
import random
import re
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle
from typing_extensions import Self

from superadam.distributed import local
from superadam.messages import warn

__all__ = [
    "Batch", "Buffers", "Half", "Replay", "Turns", "UsedGradients", "anchored", "aside", "current", "generators_of",
    "is_due", "put_back", "register", "twice",
]  # fmt: skip


class Replay:
    """The state from which an evaluation of a batch starts; `restore` brings it back for the second evaluation.

    It covers torch's default generators (the CPU's and, once a device is in use, every device's), Python's `random`,
    NumPy's global generator, and the buffers of `modules`. A `torch.Generator` of your own is yours to reset.

    All threads share these generators: two threads that train with τ > 0 at the same time need a lock around each
    `step(closure)`, or a process each.
    """

    def __init__(self, modules: Iterable[nn.Module] = ()) -> None:
        self._cpu = torch.get_rng_state()
        self._devices: list[Tensor] = []
        if torch.accelerator.is_available() and getattr(_accelerator(), "is_initialized", lambda: True)():
            self._devices = [_accelerator().get_rng_state(i) for i in range(torch.accelerator.device_count())]
        self._python = random.getstate()
        self._numpy = sys.modules["numpy"].random.get_state() if "numpy" in sys.modules else None
        self.buffers = Buffers(modules)

    def restore(self) -> None:
        torch.set_rng_state(self._cpu)
        for i, state in enumerate(self._devices):
            _accelerator().set_rng_state(state, i)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
        self.buffers.restore()

    def plain(self) -> dict[str, Any]:
        """Return the states of the generators as plain data, for a checkpoint."""
        numpy = None if self._numpy is None else [self._numpy[0], self._numpy[1].tolist(), *self._numpy[2:]]
        return {"cpu": self._cpu, "devices": self._devices, "python": self._python, "numpy": numpy}

    @classmethod
    def of(cls, saved: dict[str, Any]) -> Self:
        """Make it from plain data. Generators that this machine lacks are left out: a CPU can read a run of a GPU."""
        then = cls()
        then._cpu, then._python = saved["cpu"], saved["python"]
        then._devices = saved["devices"][: len(then._devices)]
        then._numpy = tuple(saved["numpy"]) if saved["numpy"] is not None and "numpy" in sys.modules else None
        return then


def generators_of(loader: object) -> list[torch.Generator]:
    """Return the `torch.Generator`s that a DataLoader and its samplers were given."""
    owners = (loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None))
    drawn = (getattr(owner, "generator", None) for owner in (*owners, getattr(owners[-1], "sampler", None)))
    return list(dict.fromkeys(g for g in drawn if isinstance(g, torch.Generator)))


def _accelerator() -> Any:
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None
    return torch.get_device_module(accelerator)


@contextmanager
def put_back(params: Iterable[Tensor]) -> Iterator[None]:
    """Give the parameters their values back after the `with`."""
    before = [(local(p), local(p).detach().clone()) for p in params]
    try:
        yield
    finally:
        with torch.no_grad():
            for p, x in before:
                p.copy_(x)


# A warning of torch.compile about hooks on all modules. Ours is removed before the compiled code runs.
_OF_COMPILE = ("ignore", re.compile("Using `torch.compile"), UserWarning, None, 0)


def is_due(batch: int) -> bool:
    """Return whether to look for new modules in this batch (from 1): in batches 1, 2, 4, 8, …"""
    return batch & (batch - 1) == 0


class Buffers:
    """Copies of the buffers of modules.

    An optimizer knows the module that it was given. A closure may run others: a generator through a discriminator, a
    model of which only the parameters were given. `watch` finds them by a hook on all modules, and copies their
    buffers before they run first.
    """

    def __init__(self, modules: Iterable[nn.Module] = ()) -> None:
        self._kept: list[tuple[nn.Module, str, Tensor, Tensor]] = []
        self._seen: dict[int, nn.Module] = {}
        self._left: dict[tuple[int, str], Tensor | None] = {}
        for module in modules:
            self.keep(module)

    def keep(self, module: nn.Module) -> bool:
        """Copy the buffers of a module and of its submodules. Return whether it is new here."""
        if id(module) in self._seen:
            return False
        with torch.no_grad():
            for owner in module.modules():
                if id(owner) not in self._seen:
                    self._seen[id(owner)] = owner
                    for name, buffer in owner._buffers.items():
                        if buffer is not None:
                            self._kept.append((owner, name, buffer, buffer.clone()))
        return True

    def ran(self, module: nn.Module) -> None:
        """Note which tensors are the buffers of a module after it has run."""
        for owner in module.modules():
            self._left.update({(id(owner), name): buffer for name, buffer in owner._buffers.items()})

    def owners(self) -> dict[nn.Module, None]:
        """Return the modules with buffers, in their order."""
        return dict.fromkeys(owner for owner, *_ in self._kept)

    def restore(self) -> None:
        with torch.no_grad():
            for owner, name, buffer, value in self._kept:
                if isinstance(owner, torch.jit.ScriptModule):  # it cannot have been given other tensors
                    buffer.copy_(value)
                    continue
                now = owner._buffers.get(name)
                if now is not buffer and now is not self._left.get((id(owner), name), now):
                    continue  # torch.func.functional_call lent it this buffer while it ran
                buffer.copy_(value)
                owner._buffers[name] = buffer  # some modules assign a new tensor instead of writing into the old

    @contextmanager
    def watch(self, wanted: bool = True) -> Iterator[None]:
        """Copy the buffers of all modules that this thread runs inside the `with`, if `wanted`."""
        if not wanted:
            yield
            return
        hook = _Hook(self)
        warnings.filters.insert(0, _OF_COMPILE)  # type: ignore[attr-defined]
        try:
            yield
        finally:
            hook.remove()
            if _OF_COMPILE in warnings.filters:
                warnings.filters.remove(_OF_COMPILE)  # type: ignore[attr-defined]


class _Hook:
    """Calls `keep` before the first run of every module of this thread, and `ran` after each run."""

    def __init__(self, buffers: Buffers) -> None:
        self.buffers, self.thread = buffers, threading.get_ident()
        self.on_all = register_module_forward_pre_hook(self.before)
        self.on_one: list[RemovableHandle] = []

    def before(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling() or threading.get_ident() != self.thread:
            return
        if self.buffers.keep(module) and not isinstance(module, torch.jit.ScriptModule):  # it takes no hook
            self.on_one.append(module.register_forward_hook(self.after, always_call=True))
        if "_orig_mod" in module._modules:  # of torch.compile: it would compile the hook too, and again without it
            self.on_all.remove()

    def after(self, module: nn.Module, args: Any, output: Any) -> None:
        if threading.get_ident() == self.thread:
            self.buffers.ran(module)
            if "_orig_mod" in module._modules:
                self.on_all = register_module_forward_pre_hook(self.before)

    def remove(self) -> None:
        for handle in (self.on_all, *self.on_one):
            handle.remove()


@contextmanager
def aside(modules: Iterable[nn.Module], loader: object) -> Iterator[Replay]:
    """Restore the default generators, the generators of a loader, and the buffers of modules after the `with`."""
    start = Replay(modules)
    own = [(generator, generator.get_state()) for generator in generators_of(loader)]
    try:
        yield start
    finally:
        start.restore()
        for generator, state in own:
            generator.set_state(state)


@dataclass
class Progress:
    """Where an optimizer stands in a batch of a `twice` loop."""

    open: Batch | None = None
    """The batch, between its two half-steps."""
    last: Half | None = None
    """The last half-step."""
    dropped: Batch | None = None
    """The batch that restart(), flush(), or an overflow in its first half-step has dropped."""
    within: dict[Tensor, Any] = field(default_factory=dict)
    """q and x_t - x_{t-1} of the parameters whose matrix asks for them."""
    rates: list[float] = field(default_factory=list)
    """The learning rates in its first half-step."""
    told: bool = False
    """Whether the user was told that they changed within a batch."""


class UsedGradients:
    """The gradients that the last step has used, so that the next step can tell newer ones from them."""

    def __init__(self, params: Iterable[Tensor] = ()) -> None:
        grads = [p.grad for p in params if p.grad is not None]
        # A WeakIdKeyDictionary does the same, but takes six times as long for each parameter.
        self._versions = {id(grad): (weakref.ref(grad), grad._version) for grad in grads}

    def newer(self, params: Iterable[Tensor]) -> Tensor | None:
        """Return a parameter with a gradient that was not used yet, or None."""
        for p in params:
            grad = p.grad
            if grad is not None:
                ref, version = self._versions.get(id(grad), (None, 0))
                if ref is None or ref() is not grad or version != grad._version:
                    return p
        return None


# ---------------------------------------------------------------------------------------- twice


T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Batch:
    """One batch of a `twice` loop. Only its identity matters."""


@dataclass(frozen=True)
class Half:
    """A message of `twice` to an optimizer's `step()`: which batch, which of its two evaluations, and how far it is."""

    batch: Batch
    second: bool
    done: int = 1  # micro-batches of this evaluation that have been yielded
    size: int = 1  # micro-batches that make up the batch
    replay: Replay | None = field(default=None, compare=False)
    anchor: bool = False  # a large batch, evaluated once
    share: float = 1.0  # of the micro-batch in its batch, by samples


class _Thread(threading.local):
    """The loops of a thread."""

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
    """Return the half-step that is due in the innermost `twice` loop of this thread."""
    return here.halves[-1] if here.halves else None


class Turns(Iterator[T]):
    """The turns of a `twice` loop."""

    def __init__(self, loader: Iterable[T], turns: Callable[..., Generator[T, None, None]], *of: Any) -> None:
        self._loader = loader
        self._place: list[Half] = []  # shared with the generator, which must not refer to this object
        self._turns = turns(loader, *of, self._place)

    def __len__(self) -> int:
        """Return the number of turns: two for every batch or micro-batch of the loader."""
        return 2 * len(self._loader)  # type: ignore[arg-type]

    def __next__(self) -> T:
        return next(self._turns)

    def close(self) -> None:
        """End the loop here, for a program that takes its turns by `next`."""
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
        """The number of micro-batches that make up this batch: `accumulate`, or the rest of the loader."""
        return self._half().size

    @property
    def share(self) -> float:
        """The share of this micro-batch in its batch, by samples: 1, except in the large batches of `anchored`."""
        return self._half().share

    @property
    def anchor(self) -> bool:
        """Whether this is a part of a large batch of `anchored`."""
        return self._half().anchor


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
    return Turns(loader, _turns, accumulate)


def anchored(loader: Iterable[T], opt: Any, data: Iterable[T] | None = None, *, n: int | None = None) -> Turns[T]:
    """Yield every batch of `loader` twice, and a large batch in micro-batches where an anchor is due.

    For `estimator=estimators.Page(…)` in loops that call `step()` without a closure. The micro-batches of a large batch
    are evaluated at one point: add up their gradients, each weighed by its `share` of the samples, and call `step()`
    where `complete` says so. `opt.sample_gradients` counts the gradients of samples.

    >>> import torch
    >>> from superadam import SuperAdam, estimators
    >>> model = torch.nn.Linear(3, 1)
    >>> opt = SuperAdam(model, lr=0.1, matrix="Identity", estimator=estimators.Page(every=3))
    >>> turns = anchored([torch.randn(4, 3) for _ in range(8)], opt)
    >>> for batch in turns:
    ...     (model(batch).square().mean() * turns.share).backward()
    ...     if turns.complete:
    ...         opt.step()
    ...         opt.zero_grad()
    >>> opt.flush()
    >>> opt.sample_gradients  # 4 anchors of 32, and 8 batches of 4 twice
    192

    Args:
        loader: batches.
        opt: the optimizer.
        data: the micro-batches of a large batch. None: a pass through `loader`.
        n: number of samples in a large batch, where `data` does not tell.
    """
    return Turns(loader, _anchored, opt, loader if data is None else data, n)


def _anchored(
    loader: Iterable[T], opt: Any, data: Iterable[T], n: int | None, place: list[Half]
) -> Generator[T, None, None]:
    total = _total(data) if n is None else n
    if data is loader and (getattr(loader, "persistent_workers", False) or iter(loader) is loader):
        raise ValueError(
            "anchored() cannot go through this loader while it is in use (persistent workers, or an iterator): give "
            "the samples of a large batch as data=, such as another DataLoader"
        )
    for batch in loader:
        b = _samples(batch)
        if total < b:
            raise ValueError(
                f"anchored() got batches of {b} samples and a large batch of {total}: give data= more samples than a "
                "batch has"
            )
        if opt.anchor_due(b / (b + total)):
            opt.arrive()
            large, rest = Batch(), iter(data)
            micro_batch, done, seen = next(rest), 0, 0
            while True:
                following, done, seen = next(rest, None), done + 1, seen + _samples(micro_batch)
                last = following is None
                if last and seen != total:
                    raise ValueError(
                        f"anchored() expected {total} samples in a large batch and got {seen} (drop_last, a sampler of "
                        "a part?): write anchored(loader, opt, data, n=…) with the number that the data yield"
                    )
                share = _samples(micro_batch) / total
                half = Half(large, False, done, done if last else done + 1, None, anchor=True, share=share)
                yield from _turn(micro_batch, half, place, loader, 1)
                opt.sample_gradients += _samples(micro_batch)
                if last:
                    break
                micro_batch = cast(T, following)
        for again in _turns([batch], 1, place):
            yield again
            opt.sample_gradients += b


def _samples(batch: Any) -> int:
    """Return the number of samples in a batch: the length of its first tensor."""
    while not isinstance(batch, Tensor):
        if isinstance(batch, dict):
            batch = list(batch.values())
        if not isinstance(batch, list | tuple) or not batch:
            raise TypeError(
                f"anchored() cannot count the samples of a batch of type {type(batch).__name__}: use tensors"
            )
        batch = batch[0]
    return len(batch) if batch.dim() > 0 else 1


def _total(data: Any) -> int:
    """Return the number of samples in the data of a large batch."""
    if isinstance(data, list | tuple):
        return sum(map(_samples, data))
    if isinstance(data, Tensor):
        return sum(map(_samples, data))
    try:
        return len(data.dataset)
    except (AttributeError, TypeError):
        raise ValueError(
            "anchored() does not know how many samples the large batch has: write anchored(loader, opt, data, n=…)"
        ) from None


def _turns(loader: Iterable[T], accumulate: int, place: list[Half]) -> Generator[T, None, None]:
    samples, before = iter(loader), _standing()
    while micro_batches := list(itertools.islice(samples, accumulate)):
        batch, replay, met, due = Batch(), Replay(), Buffers(), _is_due()
        with _lock:
            optimizers = list(_optimizers)
        kept = [(opt, Buffers(opt._buffered())) for opt in optimizers if opt.two_point]
        for second in (False, True):
            if second:
                replay.restore()
                inside = [(opt, buffers) for opt, buffers in kept if opt._batch.open is batch]  # stepped in this loop
                for opt, buffers in inside:
                    buffers.restore()
                    opt._met.update(met.owners())
                if inside:
                    met.restore()
            with met.watch(due and not second):
                for i, micro_batch in enumerate(micro_batches):
                    half = Half(batch, second, i + 1, len(micro_batches), replay)
                    yield from _turn(micro_batch, half, place, loader, accumulate)
    alive = [(opt, n, used) for ref, n, used in before if (opt := ref()) is not None]
    stepped = any(opt.gradient_evaluations != n for opt, n, _ in alive)
    if not stepped and not here.halves and any(used.newer(opt._parameters()) is not None for opt, _, used in alive):
        warn(
            "A `twice` loop has ended without a step(): every batch came twice, and no optimizer has used its "
            "gradients. Call opt.step() in both turns, or loop over the loader itself."
        )


def _standing() -> list[tuple[Any, int, UsedGradients]]:
    """Return the counts and the gradients of the optimizers that take two gradients of a batch."""
    with _lock:
        optimizers = list(_optimizers)
    return [
        (weakref.ref(opt), opt.gradient_evaluations, UsedGradients(opt._parameters()))
        for opt in optimizers
        if opt.two_point
    ]


def _turn(micro_batch: T, half: Half, place: list[Half], loader: object, accumulate: int) -> Generator[T, None, None]:
    """Yield a micro-batch, while the optimizers of this thread can see where the loop is."""
    place[:] = [half]
    halves = here.halves  # another thread may end the loop: keep the list of this thread
    halves.append(half)
    try:
        with _seen_by_accelerate(loader, half.done == half.size, accumulate):
            yield micro_batch
    finally:
        halves.remove(half)
        place.clear()


def _is_due() -> bool:
    """Return whether to look for new modules in the next batch of this thread's `twice` loops."""
    if here.registered != _registered:
        here.registered, here.batches = _registered, 0
    here.batches += 1
    return is_due(here.batches)


@dataclass(frozen=True, eq=False)
class _LoaderOfATurn:
    """A data loader for Accelerate that stands for a turn of a `twice` loop.

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

"""The same ξ twice: what an evaluation of a batch depends on besides the samples, kept and brought back.

∇f(x_t; ξ) - ∇f(x_{t-1}; ξ) has little variance only if both gradients see the same samples, dropout masks and
augmentation. So the second evaluation starts from the same states of the random generators, and from the same buffers
of all modules that it runs (BatchNorm's statistics, spectral norm's vectors).
"""

from __future__ import annotations

import random
import re
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle
from typing_extensions import Self

from superadam._state.sharding import local
from superadam.messages import warn

__all__ = ["Buffers", "Replay", "generators_of", "is_due", "put_back"]


class Replay:
    """What the first evaluation of a batch starts from; `restore` brings it back for the second.

    It covers torch's default generators (the CPU's and, once a device is in use, every device's), Python's `random`,
    NumPy's global generator, and the buffers of `modules`. A `torch.Generator` of your own is yours to reset.

    All threads share these generators. `restore` and `check` warn if another thread has read or set their states in
    the meantime and random numbers were drawn.
    """

    def __init__(self, modules: Iterable[nn.Module] = ()) -> None:
        self._others = _accesses_by_others()
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
        """The states of the generators as plain data, for a checkpoint."""
        numpy = None if self._numpy is None else [self._numpy[0], self._numpy[1].tolist(), *self._numpy[2:]]
        return {"cpu": self._cpu, "devices": self._devices, "python": self._python, "numpy": numpy}

    @classmethod
    def of(cls, saved: dict[str, Any]) -> Self:
        """From plain data. Generators that this machine lacks are left out: a run on a GPU can be read without one."""
        then = cls()
        then._cpu, then._python = saved["cpu"], saved["python"]
        then._devices = saved["devices"][: len(then._devices)]
        then._numpy = tuple(saved["numpy"]) if saved["numpy"] is not None and "numpy" in sys.modules else None
        return then

    def check(self) -> None:
        """Warn, once in a process, if other threads have used the generators since the last call and some have drawn.

        Which thread has drawn is not known: perhaps no evaluation draws any number.
        """
        global _warned
        others = _accesses_by_others()
        crowded, self._others = others != self._others, others
        if crowded and not _warned and self._drawn():
            with _lock:
                if _warned:
                    return
                _warned = True
            warn(
                "Two threads evaluate batches at two points at the same time, and random numbers were drawn meanwhile. "
                "All threads share torch's generators, so the two evaluations of a batch may get different dropout "
                "masks. Run each training in its own process, or use step(closure) and hold one lock, shared by all "
                "threads, around it and around everything else that draws random numbers.",
                RuntimeWarning,
            )

    def _drawn(self) -> bool:
        """Whether the state of a generator has changed."""
        now = Replay()
        pairs = zip([self._cpu, *self._devices], [now._cpu, *now._devices], strict=False)  # a device may be new
        numpy = self._numpy is not None and any(map(_differ, self._numpy, now._numpy or ()))
        return numpy or self._python != now._python or not all(torch.equal(a, b) for a, b in pairs)


def _differ(a: Any, b: Any) -> bool:
    """Parts of the state of NumPy's generator: a name, an array, numbers."""
    return bool((a != b).any()) if hasattr(a, "any") else bool(a != b)


class _Thread(threading.local):
    accesses = 0


_lock = threading.Lock()
_own = _Thread()
_accesses = 0  # of all threads to the states of the generators
_warned = False  # of threads that draw from the same generators


def _accesses_by_others() -> int:
    """Count an access of this thread to the generators, and return how often other threads have had one so far."""
    global _accesses
    with _lock:
        _accesses += 1
        _own.accesses += 1
        return _accesses - _own.accesses


def generators_of(loader: object) -> list[torch.Generator]:
    """The `torch.Generator`s that a DataLoader and its samplers were given."""
    owners = (loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None))
    drawn = (getattr(owner, "generator", None) for owner in (*owners, getattr(owners[-1], "sampler", None)))
    return list(dict.fromkeys(g for g in drawn if isinstance(g, torch.Generator)))


def _accelerator() -> Any:
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None
    return torch.get_device_module(accelerator)


@contextmanager
def put_back(params: Iterable[Tensor]) -> Iterator[None]:
    """A `with` after which the parameters hold what they held before."""
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
    """Whether to look for new modules in this batch (from 1): in batches 1, 2, 4, 8, … The total cost vanishes."""
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
        """Copy the buffers of a module and of those in it. Return whether it is new here."""
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
        """The modules with buffers, in their order."""
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

"""The buffers that an evaluation changes: BatchNorm's statistics, spectral norm's vectors, of whatever network it runs.

An optimizer knows the module that it was given. A closure may run others: a generator through a discriminator, a model
whose parameters alone were given. They are found by a hook on all modules, which is there in few evaluations only.
"""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakIdKeyDictionary

__all__ = ["Buffers", "Modules", "is_due"]

# Said by torch.compile of any hook on all modules. Ours is gone before the compiled code begins.
_OF_COMPILE = ("ignore", re.compile("Using `torch.compile"), UserWarning, None, 0)


def is_due(batch: int) -> bool:
    """Whether to look for modules in this batch, 1, 2, 3…: what begins to run late is found late, and all the looking
    takes a share of the time that vanishes."""
    return batch & (batch - 1) == 0


class Modules:
    """Modules with buffers, held weakly."""

    def __init__(self) -> None:
        self._known: MutableMapping[nn.Module, None] = WeakIdKeyDictionary()

    def add(self, modules: Iterable[nn.Module]) -> None:
        for module in modules:
            self._known[module] = None

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(list(self._known))


class Buffers:
    """The buffers of modules, as they are now; of those that `watch` finds, as they are when they are first run."""

    def __init__(self, modules: Iterable[nn.Module] = ()) -> None:
        self._kept: list[tuple[nn.Module, str, Tensor, Tensor]] = []
        self._seen: dict[int, nn.Module] = {}
        self._left: dict[tuple[int, str], Tensor | None] = {}
        for module in modules:
            self.keep(module)

    def keep(self, module: nn.Module) -> bool:
        """Whether it is new here."""
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
        """Note which tensors a module that was found has for buffers after it has run."""
        for owner in module.modules():
            self._left.update({(id(owner), name): buffer for name, buffer in owner._buffers.items()})

    def owners(self) -> list[nn.Module]:
        return list({id(owner): owner for owner, *_ in self._kept}.values())

    def restore(self) -> None:
        with torch.no_grad():
            for owner, name, buffer, value in self._kept:
                if isinstance(owner, torch.jit.ScriptModule):  # whose buffers cannot be others
                    buffer.copy_(value)
                    continue
                now = owner._buffers.get(name)
                if now is not buffer and now is not self._left.get((id(owner), name), now):
                    continue  # lent for the time that the module ran, by torch.func.functional_call
                buffer.copy_(value)
                owner._buffers[name] = buffer  # some modules assign a new tensor instead of writing into the old

    @contextmanager
    def watch(self, wanted: bool = True) -> Iterator[None]:
        """Add the buffers of all modules that this thread runs inside the `with`, if that is wanted."""
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
    """On all modules that this thread runs: before the first run of one, and after each."""

    def __init__(self, buffers: Buffers) -> None:
        self.buffers, self.thread = buffers, threading.get_ident()
        self.on_all = register_module_forward_pre_hook(self.before)
        self.on_one: list[RemovableHandle] = []

    def before(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling() or threading.get_ident() != self.thread:
            return
        if self.buffers.keep(module) and not isinstance(module, torch.jit.ScriptModule):  # which takes no hook
            self.on_one.append(module.register_forward_hook(self.after, always_call=True))
        if "_orig_mod" in module._modules:  # of torch.compile, which would compile the hook, then all without it
            self.on_all.remove()

    def after(self, module: nn.Module, args: Any, output: Any) -> None:
        if threading.get_ident() == self.thread:
            self.buffers.ran(module)
            if "_orig_mod" in module._modules:
                self.on_all = register_module_forward_pre_hook(self.before)

    def remove(self) -> None:
        for handle in (self.on_all, *self.on_one):
            handle.remove()

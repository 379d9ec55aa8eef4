"""Two gradients of one batch: the same ξ, in full.

∇f(x_t; ξ) - ∇f(x_{t-1}; ξ) has little variance only if both gradients see the same samples, the same dropout masks,
the same augmentation. `Replay` remembers what a batch is besides its samples: the states of the random generators and
the buffers of modules (BatchNorm's statistics, spectral norm's vectors), so that the second evaluation starts where
the first did.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakSet

import torch
from torch import Tensor, nn

__all__ = ["Half", "Replay", "twice"]

T = TypeVar("T")


class Buffers:
    """The buffers of modules, as they are now."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        with torch.no_grad():
            self._kept = [
                (owner, name, buffer, buffer.clone())
                for module in modules
                for owner in module.modules()
                for name, buffer in owner._buffers.items()
                if buffer is not None
            ]

    def restore(self) -> None:
        with torch.no_grad():
            for owner, name, buffer, value in self._kept:
                buffer.copy_(value)
                owner._buffers[name] = buffer  # some modules assign a new tensor instead of writing into the old


class Replay:
    """What the first evaluation of a batch starts from; `restore` brings it back for the second.

    Covers torch's default generators (the CPU's and, once a device is in use, every device's), Python's `random`,
    NumPy's global generator, and the buffers of `modules`. A `torch.Generator` of your own is yours to reset.
    """

    def __init__(self, modules: Iterable[nn.Module] = ()) -> None:
        self._cpu = torch.get_rng_state()
        self._devices: list[Tensor] = []
        if torch.accelerator.is_available() and getattr(_accelerator(), "is_initialized", lambda: True)():
            self._devices = [_accelerator().get_rng_state(i) for i in range(torch.accelerator.device_count())]
        self._python = random.getstate()
        self._numpy = sys.modules["numpy"].random.get_state() if "numpy" in sys.modules else None
        self._buffers = Buffers(modules)

    def restore(self) -> None:
        torch.set_rng_state(self._cpu)
        for i, state in enumerate(self._devices):
            _accelerator().set_rng_state(state, i)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
        self._buffers.restore()


def _accelerator() -> Any:
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None
    return torch.get_device_module(accelerator)


@dataclass(frozen=True, eq=False)
class Batch:
    """One batch of a `twice` loop. Only its identity matters."""


@dataclass(frozen=True)
class Half:
    """What `twice` tells an optimizer's `step()`: which batch, and which of its two evaluations."""

    batch: Batch
    second: bool


# The halves that the `twice` loops under way are in, innermost last.
_under_way: list[Half] = []
# The optimizers that may be in a `twice` loop, so that it can restore the buffers of their modules.
_optimizers: WeakSet[Any] = WeakSet()


def register(optimizer: Any) -> None:
    _optimizers.add(optimizer)


def current() -> Half | None:
    """The half-step that the innermost `twice` loop is in."""
    return _under_way[-1] if _under_way else None


def twice(loader: Iterable[T]) -> Iterator[T]:
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
    """
    for samples in loader:
        batch = Batch()
        generators = Replay()
        buffers = [(opt, Buffers(opt._modules)) for opt in _optimizers if opt._modules and opt.two_point]
        for second in (False, True):
            if second:
                generators.restore()
                for opt, kept in buffers:
                    if opt._open is batch:  # it is in this loop
                        kept.restore()
            half = Half(batch, second)
            _under_way.append(half)
            try:
                yield samples
            finally:
                _under_way.remove(half)

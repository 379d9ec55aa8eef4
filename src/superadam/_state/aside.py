"""Evaluations without any effect on training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn

from superadam._state.replay import Replay, generators_of

__all__ = ["aside"]


@contextmanager
def aside(modules: Iterable[nn.Module], loader: object) -> Iterator[Replay]:
    """A context that restores the default generators, those of a loader, and the buffers of modules."""
    start = Replay(modules)
    own = [(generator, generator.get_state()) for generator in generators_of(loader)]
    try:
        yield start
    finally:
        start.restore()
        for generator, state in own:
            generator.set_state(state)

"""Gradients for `probe` and `Monitor`, without any effect on training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from superadam._state.replay import Replay, generators_of

__all__ = ["aside", "gradients"]


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


def gradients(loss: Tensor, params: Sequence[Tensor], source: str, hint: str = "") -> tuple[Tensor | None, ...]:
    """The gradients of a loss, without using `p.grad`; None for a parameter on which it does not depend.

    For errors, `source` names the user's function that has returned the loss, and `hint` says what else may be wrong.
    """
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
        raise TypeError(
            f"{source} must return the loss, a differentiable tensor with one element, and must not call backward(); "
            f"it returned {loss!r}"
        )
    found = torch.autograd.grad(loss, params, allow_unused=True)
    if all(grad is None for grad in found):
        raise ValueError(
            f"The loss of {source} depends on no parameter of the model. Is it the loss of another model?{hint}"
        )
    return found

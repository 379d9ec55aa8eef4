"""Line 4 for a matrix of each tensor: batches of matrices, refreshed in turns, on the process that owns them."""

from __future__ import annotations

import time

from torch import Tensor

from superadam._state.owners import batches
from superadam._state.refusals import check_left_out, finite
from superadam._step.view import View
from superadam.matrices import Matrix

__all__ = ["update", "update_at_owners"]


def update(s: View, grad: Tensor) -> None:
    """Bring H_t of each tensor up to date, unless the gradient must get to an owner first."""
    if s.apart:
        s.unused_grad = grad
    elif type(s.matrix).update is not Matrix.update:
        _update(s, s.matrices(grad))


def _update(s: View, grad: Tensor) -> None:
    check_left_out(s)
    grad = finite(s, grad)
    if s.matrix.refreshes_first:
        _refresh(s)
    s.matrix.update(s, grad)
    if not s.matrix.refreshes_first:
        _refresh(s)


def update_at_owners(views: list[View]) -> None:
    """Line 4 of the matrices that have owners among the processes. The gradients get there in one message."""
    apart = [view for view in views if view.apart and type(view.matrix).update is not Matrix.update]
    if not apart:
        return
    for view, grad in zip(apart, batches(apart, [view.unused_grad for view in apart]), strict=True):
        _update(view, grad)


def _refresh(s: View) -> None:
    """In the first step all tensors at once, then each in its turn (`_turns`): no step is the one that takes long."""
    every, step = getattr(s.matrix, "every", 1), s.states[0]["step"]
    all_due = every == 1 or step == 1
    due = [i for i, turn in enumerate(s.layout.turns) if all_due or (step - 1 - turn) % every == 0]
    start = time.perf_counter()
    if len(due) == len(s.params):
        s.matrix.refresh(s)
    elif due:
        s.matrix.refresh(_neighbours(s, due))
    s.layout.plan.refresh_seconds += time.perf_counter() - start


def _neighbours(s: View, which: list[int]) -> View:
    """A view of some tensors that follow each other. Its slots are a part of the batch's, without a copy."""
    some = s.some(which).bound()
    start = sum([place.here for place in s.places[: which[0]]])
    end = start + sum([place.here for place in some.places])
    some.__dict__.update({name: stack[start:end] for name, stack in s.layout.stacks.items()})
    return some

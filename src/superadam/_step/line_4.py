"""Line 4 for a matrix of each tensor: batches of matrices, refreshed in turns, on the process that owns them."""

from __future__ import annotations

import itertools
import time

import torch
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
    elif len(due) == 1:
        s.matrix.refresh(s.some(due).bound())
    elif due:
        _refresh_some(s, due)
    s.layout.refresh_seconds += time.perf_counter() - start  # for the monitor


def _refresh_some(s: View, due: list[int]) -> None:
    """All that are due in one call, on copies of their part of the batch."""
    ends = list(itertools.accumulate(place.here for place in s.places))
    rows = torch.cat([torch.arange(ends[i] - s.places[i].here, ends[i]) for i in due]).to(s.params[0].device)
    some, stacks = s.some(due).bound(), s.layout.stacks
    some.__dict__.update({name: stack[rows] for name, stack in stacks.items()})
    s.matrix.refresh(some)
    for name, stack in stacks.items():
        stack[rows] = getattr(some, name)

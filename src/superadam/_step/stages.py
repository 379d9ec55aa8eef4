"""The lines of Algorithm 1 on a view, which may be a piece of x that is in the cache.

Each function takes a bound view and γ, works in place, and returns the sums over the view that the matrix asks for.
"""

from __future__ import annotations

import itertools
import time

import torch
from torch import Tensor

from superadam._state.precision import precisely
from superadam._state.refusals import WATCHED_STEPS, check_left_out, check_matrix, finite
from superadam._step import line_9
from superadam._step.tensors import Scalar, each, join
from superadam._step.view import Sums, View, batches, unbatched
from superadam.iterates import Plain
from superadam.matrices import Matrix

__all__ = ["absorb", "absorb_and_move", "measure", "move", "move_and_prepare", "observe", "prepare", "solve_jointly"]


def prepare(s: View, gamma: Scalar) -> Sums:
    """The first half of line 11. The gradients are q = ∇f(x_{t-1}; ξ_t)."""
    _before(s, s.grad)
    return ()


def move(s: View, gamma: Scalar, y: Tensor | None = None) -> Sums:
    """Lines 9 and 10. `y` is x_t - γ H_t⁻¹ g_t, if a kernel has made it already; it is overwritten."""
    if isinstance(gamma, Tensor):
        gamma = gamma.to(s.params[0].device)
    step = s.states[0]["step"]
    if type(step) is int and step <= WATCHED_STEPS:
        check_matrix(s, line_9.direction)
    if s.group["rounding"] == "nearest":
        _move(s, gamma, y)
    else:
        precisely(s, lambda: _move(s, gamma, y))
    return ()


def _move(s: View, gamma: Scalar, y: Tensor | None) -> None:
    if s.stepsize is not None:
        gamma = gamma * s.stepsize.factor(s)
    if type(s.iterate) is not Plain:
        s.iterate.rebase(s)
        gamma = gamma * s.iterate.rate(s)
        if s.free and s.decay != 0:
            s.iterate.before_decay(s, gamma * s.mu * s.decay)
    line_9.free_move(s, gamma) if s.free else line_9.move_on_set(s, gamma, y)
    if type(s.iterate) is not Plain:
        s.iterate.moved(s)


def move_and_prepare(s: View, gamma: Scalar) -> Sums:
    """The pending move (lines 9 and 10), and the first half of line 11."""
    q = s.grad  # before x changes: weight decay may be part of it
    move(s, gamma)
    _before(s, q)
    return ()


def _before(s: View, q: Tensor) -> None:
    s.__dict__["late"] = 1  # this batch is not counted yet
    s.estimator.before(s, q)
    s.__dict__["late"] = 0


def absorb(s: View, gamma: Scalar) -> Sums:
    """Lines 11 and 4. The gradients are ∇f(x_t; ξ_t)."""
    newest = s.grad
    if type(s.iterate) is not Plain:
        s.iterate.begin(s)
    estimated = s.estimator.after(s, newest)
    # A two-point matrix compares ∇f(x_t; ξ_t) with ∇f(x_{t-1}; ξ_t), whatever the estimator made of them.
    sums = _line_4(s, newest if s.matrix.two_point else estimated)
    return sums if s.stepsize is None else (*sums, *s.stepsize.measure(s, newest))


def absorb_and_move(s: View, gamma: Scalar) -> Sums:
    """All lines, where nothing is summed over all of x."""
    absorb(s, gamma)
    return move(s, gamma)


def measure(s: View, gamma: Scalar) -> Sums:
    """Line 4 alone, for torch's fused SGD, which does the rest."""
    return _line_4(s, s.grad)


def observe(s: View, gamma: Scalar) -> Sums:
    """Gradients that were taken for H_t alone."""
    s.matrix.observe(s, s.grad)
    return ()


def _line_4(s: View, grad: Tensor) -> Sums:
    if s.matrix.scope == "tensor":
        grad = s.estimate if s.matrix.of_estimate else grad
        if s.apart:
            s.unused_grad = grad
        elif type(s.matrix).update is not Matrix.update:
            _update(s, s.matrices(grad))
    else:
        s.matrix.update(s, grad)
    return s.matrix.measure(s, grad) if s.matrix.scalars else ()


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
    s.layout.plan.refresh_seconds += time.perf_counter() - start


def _refresh_some(s: View, due: list[int]) -> None:
    """All that are due in one call, on copies of their part of the batch."""
    ends = list(itertools.accumulate(place.here for place in s.places))
    rows = torch.cat([torch.arange(ends[i] - s.places[i].here, ends[i]) for i in due]).to(s.params[0].device)
    some, stacks = s.some(due).bound(), s.layout.stacks
    some.__dict__.update({name: stack[rows] for name, stack in stacks.items()})
    s.matrix.refresh(some)
    for name, stack in stacks.items():
        stack[rows] = getattr(some, name)


def solve_jointly(views: list[View]) -> None:
    """Set `direction` = H_t⁻¹ g_t of all views with a matrix over all parameters, or with owners among the processes.

    g_t gets to the owners in one message, and the steps back in another.
    """
    apart = [view for view in views if view.apart]
    for view, g in zip(apart, batches(apart, [view.bound().estimate for view in apart]), strict=True):
        view.arrived = g
    solved = [view.matrix.solve(view, finite(view, view.estimates)) for view in apart]
    for view, step in zip(apart, unbatched(apart, solved), strict=True):
        view.direction = step
    for matrix in {view.matrix for view in views if view.matrix.scope == "all"}:
        sharing = [view for view in views if view.matrix == matrix]
        whole = View.merged(sharing).bound()
        if type(whole.states[0]["step"]) is int and whole.states[0]["step"] <= WATCHED_STEPS:
            check_matrix(whole, matrix.solve)
        steps = iter(each(matrix.solve(whole, join([g for view in sharing for g in each(view.bound().estimate)]))))
        for view in sharing:
            view.direction = join([next(steps) for _ in view.params])
        line_9.on_sets_jointly(whole, sharing)

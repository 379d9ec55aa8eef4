"""What a step does with a piece of x: the lines of Algorithm 1 that can run while it is in the cache.

Each function takes a view, bound to its names, and γ, works in place, and returns sums over the piece, for the matrices
that need them.
"""

from __future__ import annotations

from torch import Tensor

from superadam._state.precision import precisely
from superadam._state.refusals import WATCHED_STEPS, check_matrix
from superadam._state.sharding import gathered
from superadam._step import line_9
from superadam._step.tensors import Scalar
from superadam._step.view import Sums, View, each, join
from superadam.iterates import Plain

__all__ = ["absorb", "absorb_and_move", "measure", "move", "move_and_prepare", "prepare", "solve_jointly"]


def prepare(s: View, gamma: Scalar) -> Sums:
    """The first half of line 11, with the gradients q = ∇f(x_{t-1}; ξ_t) at hand."""
    _before(s, s.grad)
    return ()


def move(s: View, gamma: Scalar, y: Tensor | None = None) -> Sums:
    """Lines 9 and 10; `y` is x_t - γ H_t⁻¹ g_t, if it is there already (and may be written into)."""
    if isinstance(gamma, Tensor):
        gamma = gamma.to(s.params[0].device)

    step = s.states[0]["step"]
    if type(step) is int and step <= WATCHED_STEPS:
        check_matrix(s)
    if s.group["rounding"] == "nearest":
        _move(s, gamma, y)
    else:
        precisely(s, lambda: _move(s, gamma, y))
    return ()


def _move(s: View, gamma: Scalar, y: Tensor | None) -> None:
    if type(s.iterate) is not Plain:
        s.iterate.rebase(s)
        gamma = gamma * s.iterate.rate(s)
    line_9.free_move(s, gamma) if s.free else line_9.move_on_set(s, gamma, y)
    if type(s.iterate) is not Plain:
        s.iterate.moved(s)


def move_and_prepare(s: View, gamma: Scalar) -> Sums:
    """Lines 9 and 10 for the move that was pending, and the first half of line 11."""
    q = s.grad  # at x_{t-1}: weight decay may be part of it
    move(s, gamma)
    _before(s, q)
    return ()


def _before(s: View, q: Tensor) -> None:
    s.__dict__["late"] = 1  # the weights are those of the next step, which is not counted yet
    s.estimator.before(s, q)
    s.__dict__["late"] = 0


def absorb(s: View, gamma: Scalar) -> Sums:
    """Lines 11 and 4, with the gradients ∇f(x_t; ξ_t) at hand."""
    newest = s.grad
    if type(s.iterate) is not Plain:
        s.iterate.begin(s)
    estimated = s.estimator.after(s, newest)
    # A two-point matrix compares ∇f(x_t; ξ_t) with ∇f(x_{t-1}; ξ_t), whatever the estimator made of them.
    return _line_4(s, newest if s.matrix.two_point else estimated)


def absorb_and_move(s: View, gamma: Scalar) -> Sums:
    """All lines, where nothing is summed over all of x."""
    absorb(s, gamma)
    return move(s, gamma)


def measure(s: View, gamma: Scalar) -> Sums:
    """Line 4 alone, where torch's kernel does the rest."""
    return _line_4(s, s.grad)


def _line_4(s: View, grad: Tensor) -> Sums:
    if s.matrix.scope == "tensor":
        s.matrix.update(s, gathered(grad, s.params[0]))
        if s.matrix.due(s):
            s.matrix.refresh(s)
    else:
        s.matrix.update(s, grad)
    return s.matrix.measure(s, grad) if s.matrix.scalars else ()


def solve_jointly(views: list[View]) -> None:
    """H_t⁻¹ g_t of matrices over all parameters, left in the views."""
    for matrix in {view.matrix for view in views if view.matrix.scope == "all"}:
        sharing = [view for view in views if view.matrix == matrix]
        whole = View.merged(sharing).bound()
        if type(whole.states[0]["step"]) is int and whole.states[0]["step"] <= WATCHED_STEPS:
            check_matrix(whole)
        solved = iter(each(matrix.solve(whole, whole.g)))
        for view in sharing:
            view.direction = join([next(solved) for _ in view.params])

"""What a step does with one piece of x: the lines of Algorithm 1 that can run while it is in the cache.

Each function takes a piece and γ, works in place, and returns sums over the piece, for the matrices that need them.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor

from superadam._step import fused as kernels
from superadam._step import line_9 as steps
from superadam._step.tensors import Scalar, TensorList
from superadam._step.view import Chunk, Sums
from superadam._step.workspace import scratch

__all__ = [
    "absorb",
    "absorb_and_move",
    "fused_and_mix",
    "measure",
    "move",
    "move_and_prepare",
    "prepare",
]


def prepare(c: Chunk, gamma: Scalar) -> Sums:
    """The first half of line 11, with the gradients q = ∇f(x_{t-1}; ξ_t) at hand."""
    q = c.grad
    c.advance()
    c.estimator.before(c, q)
    return ()


def move(c: Chunk, gamma: Scalar) -> Sums:
    """Lines 9 and 10."""
    steps.move(c, gamma)
    return ()


def move_and_prepare(c: Chunk, gamma: Scalar) -> Sums:
    """Lines 9 and 10 for the move that was pending, and the first half of line 11."""
    q = c.grad  # at x_{t-1}: weight decay may be part of it
    steps.move(c, gamma)
    c.advance()
    c.estimator.before(c, q)
    return ()


def absorb(c: Chunk, gamma: Scalar) -> Sums:
    """Lines 11 and 4, with the gradients ∇f(x_t; ξ_t) at hand."""
    newest = c.grad
    estimated = c.estimator.after(c, newest)
    # A two-point matrix compares ∇f(x_t; ξ_t) with ∇f(x_{t-1}; ξ_t), whatever the estimator made of them.
    return _line_4(c, newest if c.matrix.two_point else estimated)


def absorb_and_move(c: Chunk, gamma: Scalar) -> Sums:
    """All lines, where nothing is summed over all of x."""
    absorb(c, gamma)
    steps.move(c, gamma)
    return ()


def measure(c: Chunk, gamma: Scalar) -> Sums:
    """Line 4 alone, where torch's kernel does the rest."""
    return _line_4(c, c.grad)


def _line_4(c: Chunk, grad: Tensor) -> Sums:
    c.matrix.update(c, grad)
    return c.matrix.measure(c, grad) if c.matrix.scalars else ()


def fused_and_mix(c: Chunk, gamma: Scalar) -> Sums:
    """All lines, with torch's kernel for y = x_t - γ H_t⁻¹ g_t."""
    y = [scratch("y", x).copy_(x) if len(c.params) == 1 else x.clone() for x in c.params]
    kernels.adam(c, y, gamma)
    steps.move(c, gamma, y[0] if len(y) == 1 else cast(Tensor, TensorList(y)))
    return ()

r"""Lines 9 and 10: the step.

$$\tilde x_{t+1} = \arg\min_{x \in \mathcal{X}} \langle g_t, x\rangle
    + \tfrac{1}{2\gamma}(x - x_t)^\top H_t (x - x_t) + h(x), \qquad x_{t+1} = (1 - \mu_t) x_t + \mu_t \tilde x_{t+1}$$
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from superadam._state.precision import precisely
from superadam._state.refusals import check_direction, check_positive
from superadam._state.sharding import local
from superadam._step.tensors import Scalar, TensorList, add_scaled, tracing
from superadam._step.tiles import TILE, aligned, tiles
from superadam._step.view import Chunk, decoupled_decay, state_dtype
from superadam._step.workspace import scratch
from superadam.penalties import combined_argmin
from superadam.sets import ConvexSet

__all__ = ["move", "nearest_point", "solve_jointly", "x_tilde"]

# Every mixing rounds x a little out of its set; this often it is put back.
REPROJECT_EVERY = 100


def solve_jointly(chunks: list[Chunk]) -> None:
    """H_t⁻¹ g_t where H_t is not diagonal: it takes all parameters that share the matrix at once."""
    for matrix in {c.matrix for c in chunks if c.matrix.joint}:
        whole = Chunk.merged([c for c in chunks if c.matrix == matrix])
        whole.store("direction", check_direction(whole, matrix.solve(whole)))


def move(c: Chunk, gamma: Scalar, y: Tensor | None = None) -> None:
    """From x_t to x_{t+1}; `y` is x_t - γ H_t⁻¹ g_t, if it is there already (and may be written into)."""
    precisely(c, lambda c: _move(c, gamma, y))


def _move(c: Chunk, gamma: Scalar, y: Tensor | None) -> None:
    if isinstance(gamma, Tensor):
        gamma = gamma.to(c.params[0].device)
    c.estimator.rebase(c)
    gamma = gamma * c.estimator.rate(c)
    if c.constraint is None and c.penalty is None:
        _free_move(c, gamma)
    else:
        x, mu, target = c.x, c.mu, x_tilde(c, gamma, y, roots=_roots(c))
        if c.matrix.watches_steps:
            c.matrix.moved(c, (x - target) / gamma)
        if isinstance(mu, float) and c.params[0].dtype == state_dtype(c.params[0]):
            x.lerp_(target, mu)
        else:
            add_scaled(x, target - x, mu)
        _reproject(c)
    c.estimator.moved(c)


def _roots(c: Chunk) -> list[Tensor | None]:
    """The roots of the last step, to start from."""
    return [local(state["root"]) if "root" in state else None for state in c.states]


def _free_move(c: Chunk, gamma: Scalar) -> None:
    """X = R^d and h = 0: lines 9 and 10 are x_{t+1} = x_t - γ μ_t H_t⁻¹ g_t."""
    x, eta = c.x, gamma * c.mu
    g = c.g.clone() if c.group["differentiable"] else c.g  # autograd saves it, and line 11 will write into it
    H = None if c.matrix.joint else check_positive(c, c.matrix.H(c))
    if decoupled_decay(c) != 0:
        x.mul_(1 - eta * decoupled_decay(c))
    if H is None:
        add_scaled(x, c.direction, -eta)
        c.drop("direction")
    elif c.matrix.watches_steps:
        step = g / H
        add_scaled(x, step, -eta)
        c.matrix.moved(c, step)
    elif c.matrix.scalars:
        x.addcmul_(g, eta / H, value=-1)
    elif isinstance(eta, float):
        x.addcdiv_(g, H, value=-eta)
    else:
        x.addcdiv_(g * eta, H, value=-1)


def x_tilde(c: Chunk, gamma: Scalar, y: Tensor | None = None, roots: list[Tensor | None] | None = None) -> Tensor:
    """Line 9: the exact minimiser in the metric of H_t. Decoupled weight decay w first shrinks x_t to (1 - γw) x_t.

    `y` is x_t - γ H_t⁻¹ g_t, if it is there already; it is written into. So are the roots of the last step.
    """
    indifferent = c.penalty is None and c.constraint is not None and c.constraint.separable
    H = c.one if y is not None and indifferent else _metric(c)
    if y is None:
        y = _unconstrained(c, gamma, H)
    if not isinstance(gamma, Tensor) and gamma == 0:  # the metric H/γ is infinite, and y is x_t
        return y
    tensors = y if isinstance(y, TensorList) else [y]
    d = H if c.penalty is None else H / gamma  # the size of the metric does not matter to a set
    metrics = d if isinstance(d, TensorList) else [d] * len(tensors)
    solved = []
    for a, b, state, root in zip(tensors, metrics, c.states, roots or [None] * len(tensors), strict=True):
        mine = not torch.is_grad_enabled() and all(b is not tensor for tensor in state.values())
        solved.append(combined_argmin(c.constraint, c.penalty, a, b, root=root, scratch=mine))
    return cast(Tensor, TensorList(solved)) if isinstance(y, TensorList) else solved[0]


def _metric(c: Chunk) -> Tensor:
    """H_t; by tiles, if that saves fresh memory."""
    state = c.states[0]
    tiled = len(c.params) == 1 and c.matrix.elementwise and not c.matrix.multiple_of_identity and aligned(c)
    if tracing.get() or not tiled or not c.params[0].is_contiguous() or c.params[0].numel() <= TILE:
        return check_positive(c, c.matrix.H(c))
    H = scratch("H", state["g"])
    for piece, part in zip(tiles(c, 0, TILE), torch.split(H.view(-1), TILE), strict=True):
        part.copy_(check_positive(piece, piece.matrix.H(piece)))
    return H


def _unconstrained(c: Chunk, gamma: Scalar, H: Tensor) -> Tensor:
    x = c.x.to(state_dtype(c.params[0]))
    if decoupled_decay(c) != 0:
        x = x * (1 - gamma * decoupled_decay(c))
    if c.matrix.multiple_of_identity or isinstance(gamma, Tensor):
        y: Tensor = x - c.g * (gamma / H)
        return y
    return torch.addcdiv(x, c.g, H, value=-gamma)


def nearest_point(constraint: ConvexSet, p: Tensor) -> Tensor:
    """The point of its set that a parameter is nearest to."""
    return constraint.argmin(local(p).to(state_dtype(p)), 1.0)


@torch.no_grad()
def _reproject(c: Chunk) -> None:
    step = c.states[0]["step"]
    if c.constraint is not None and (isinstance(step, Tensor) or step % REPROJECT_EVERY == 0):
        for p in c.params:
            local(p).copy_(nearest_point(c.constraint, p))

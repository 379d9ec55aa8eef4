r"""Lines 9 and 10: the step.

$$\tilde x_{t+1} = \arg\min_{x \in \mathcal{X}} \langle g_t, x\rangle
    + \tfrac{1}{2\gamma}(x - x_t)^\top H_t (x - x_t) + h(x), \qquad x_{t+1} = (1 - \mu_t) x_t + \mu_t \tilde x_{t+1}$$
"""

from __future__ import annotations

import torch
from torch import Tensor

from superadam._state.sharding import gathered, local, share
from superadam._step import tiles
from superadam._step.tensors import Scalar, TensorList, add_scaled, tracing
from superadam._step.view import View, each, join, state_dtype
from superadam._step.workspace import scratch
from superadam.penalties import combined_argmin
from superadam.sets import ConvexSet

__all__ = ["free_move", "move_on_set", "nearest_point", "x_tilde"]

# Every mixing rounds x a little out of its set; this often it is put back.
REPROJECT_EVERY = 100


def free_move(s: View, gamma: Scalar) -> None:
    """X = R^d and h = 0: lines 9 and 10 are x_{t+1} = x_t - γ μ_t H_t⁻¹ g_t."""
    eta = gamma * s.mu
    g = s.g.clone() if s.group["differentiable"] else s.g  # autograd saves it, and line 11 will write into it
    if s.decay != 0:
        s.x.mul_(1 - eta * s.decay)
    if s.direction is None and not s.matrix.watches_steps and s.matrix.scope == "coordinate":
        s.matrix.descend(s, s.x, g, eta)
    else:
        step = direction(s, g)
        add_scaled(s.x, step, -eta)
        s.matrix.moved(s, step)


def direction(s: View, g: Tensor) -> Tensor:
    """H⁻¹g."""
    if s.direction is not None:
        return s.direction
    if s.matrix.scope == "coordinate":
        return s.matrix.solve(s, g)
    return share(s.matrix.solve(s, gathered(g, s.params[0])), s.params[0])


def move_on_set(s: View, gamma: Scalar, y: Tensor | None = None) -> None:
    """The exact minimiser in the metric of H_t, and the mixture with x_t."""
    roots = [local(state["root"]) if "root" in state else None for state in s.states]
    x, mu, target = s.x, s.mu, x_tilde(s, gamma, y, roots)
    if s.matrix.watches_steps:
        s.matrix.moved(s, (x - target) / gamma)
    if isinstance(mu, float) and next(iter(each(x))).dtype == state_dtype(s.params[0]):
        x.lerp_(target, mu)
    else:
        add_scaled(x, target - x, mu)
    _reproject(s)


def x_tilde(s: View, gamma: Scalar, y: Tensor | None = None, roots: list[Tensor | None] | None = None) -> Tensor:
    """Line 9: the exact minimiser in the metric of H_t. Decoupled weight decay w first shrinks x_t to (1 - γw) x_t.

    `y` is x_t - γ H_t⁻¹ g_t, if it is there already; it is written into. So are the roots of the last step.
    """
    indifferent = s.penalty is None and s.constraint is not None and s.constraint.separable
    H = s.one if y is not None and indifferent else _metric(s)
    if y is None:
        y = _unconstrained(s, gamma, H)
    if not isinstance(gamma, Tensor) and gamma == 0:  # the metric H/γ is infinite, and y is x_t
        return y
    d = H if s.penalty is None else H / gamma  # the size of the metric does not matter to a set
    tensors = list(each(y))
    metrics = d if isinstance(d, TensorList) else [d] * len(tensors)
    solved = []
    for a, b, state, root in zip(tensors, metrics, s.states, roots or [None] * len(tensors), strict=True):
        mine = not torch.is_grad_enabled() and all(b is not tensor for tensor in state.values())
        solved.append(combined_argmin(s.constraint, s.penalty, a, b, root=root, scratch=mine))
    return join(solved)


def _metric(s: View) -> Tensor:
    """H_t; by tiles, if that saves fresh memory."""
    x, whole = s.params[0], tracing.get() or len(s.params) > 1 or s.matrix.multiple_of_identity
    if whole or not s.matrix.elementwise or x.numel() <= tiles.TILE or not x.is_contiguous() or not tiles.aligned(s):
        return s.matrix.H(s)
    H = scratch("H", s.g)
    for piece, part in zip(tiles.cut(s, 0, tiles.TILE), torch.split(H.view(-1), tiles.TILE), strict=True):
        part.copy_(piece.matrix.H(piece))
    return H


def _unconstrained(s: View, gamma: Scalar, H: Tensor) -> Tensor:
    """y = x_t - γ H_t⁻¹ g_t."""
    y = s.x.to(state_dtype(s.params[0]), copy=True)
    if s.decay != 0:
        y.mul_(1 - gamma * s.decay)
    s.matrix.descend(s, y, s.g, gamma, H)
    return y


def nearest_point(constraint: ConvexSet, p: Tensor) -> Tensor:
    """The point of its set that a parameter is nearest to."""
    return constraint.argmin(local(p).to(state_dtype(p)), 1.0)


@torch.no_grad()
def _reproject(s: View) -> None:
    step = s.states[0]["step"]
    if s.constraint is not None and (isinstance(step, Tensor) or step % REPROJECT_EVERY == 0):
        for x in each(s.x):
            x.copy_(nearest_point(s.constraint, x))

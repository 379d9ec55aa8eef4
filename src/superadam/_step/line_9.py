r"""Lines 9 and 10: the step.

$$\tilde x_{t+1} = \arg\min_{x \in \mathcal{X}} \langle g_t, x\rangle
    + \tfrac{1}{2\gamma}(x - x_t)^\top H_t (x - x_t) + h(x), \qquad x_{t+1} = (1 - \mu_t) x_t + \mu_t \tilde x_{t+1}$$
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from superadam._state.owners import batches, unbatched
from superadam._state.phases import PENDING
from superadam._state.refusals import WATCHED_STEPS, check_matrix, finite
from superadam._state.sharding import local
from superadam._step import tiles
from superadam._step.view import View
from superadam._step.workspace import scratch
from superadam.lists import Scalar, TensorList, add_scaled, each, join, real, state_dtype, tracing
from superadam.penalties import combined_argmin
from superadam.sets import ConvexSet
from superadam.sets.base import like
from superadam.sets.linear import correction

__all__ = ["direction", "gamma_of_move", "merged", "move_on_set", "solve_jointly", "x_tilde"]

# Every mixing rounds x a little out of its set; this often it is put back.
REPROJECT_EVERY = 100


def direction(s: View, g: Tensor) -> Tensor:
    """H⁻¹g."""
    if s.direction is not None:
        return s.direction
    if s.matrix.scope == "coordinate":
        return s.matrix.solve(s, g)
    return s.tensors(s.matrix.solve(s, finite(s, s.matrices(g))))


def move_on_set(s: View, gamma: Scalar, y: Tensor | None = None) -> None:
    """The exact minimiser in the metric of H_t, and the mixture with x_t."""
    roots = [local(state["root"]) if "root" in state else None for state in s.states]
    x, mu, target = s.x, s.mu, x_tilde(s, gamma, y, roots)
    if s.matrix.watches_steps or s.estimator.watches_steps:
        step = (x - target) / gamma
        s.matrix.moved(s, step)
        s.estimator.moved(s, step)
    if isinstance(mu, float) and next(iter(each(x))).dtype == state_dtype(s.params[0]):
        x.copy_(target) if mu == 1 else x.lerp_(target, mu)
    else:
        add_scaled(x, target - x, mu)
    _reproject(s)


def x_tilde(s: View, gamma: Scalar, y: Tensor | None = None, roots: list[Tensor | None] | None = None) -> Tensor:
    """Line 9: the exact minimiser in the metric of H_t. Decoupled weight decay w first shrinks x_t to (1 - γw) x_t.

    `y` is x_t - γ H_t⁻¹ g_t, if it is there already; it is written into. So are the roots of the last step.
    """
    if s.matrix.vanishes:
        return _towards_vertex(s, gamma)
    if not s.matrix.is_diagonal:
        return _in_a_matrix(s, gamma, roots)
    indifferent = s.penalty is None and s.constraint is not None and s.constraint.separable
    H = s.one if y is not None and indifferent else _metric(s)
    if y is None:
        y = _unconstrained(s, gamma, H)
    if _is_zero(gamma):  # the metric H/γ is infinite, and y is x_t
        return y
    d = H if s.penalty is None else H / gamma  # the size of the metric does not matter to a set
    tensors = list(each(y))
    metrics = d if isinstance(d, TensorList) else [d] * len(tensors)
    solved = []
    for a, b, state, root in zip(tensors, metrics, s.states, roots or [None] * len(tensors), strict=True):
        mine = not torch.is_grad_enabled() and all(b is not tensor for tensor in state.values())
        solved.append(combined_argmin(s.constraint, s.penalty, a, b, root=root, scratch=mine))
    return join(solved)


@torch.no_grad()
def _towards_vertex(s: View, gamma: Scalar) -> Tensor:
    """H → 0: x_t + γ (lmo(g_t) - x_t), where γ is at most 1."""
    vertex = join([cast(ConvexSet, s.constraint).lmo(g) for g in each(s.estimate)])
    share = min(gamma, 1.0) if isinstance(gamma, int | float) else gamma.clamp(max=1.0)
    return s.x.to(state_dtype(s.params[0]), copy=True).lerp_(vertex, share)


@torch.no_grad()
def _in_a_matrix(s: View, gamma: Scalar, roots: list[Tensor | None] | None) -> Tensor:
    """H is no diagonal: what the set or the penalty needs of it says how."""
    y = _unconstrained(s, gamma)
    if s.matrix.scope == "all" or _is_zero(gamma):
        return y  # `_on_sets_jointly` has solved for the set
    needs = {part.needs for part in (s.constraint, s.penalty) if part is not None}
    return _in_eigenvectors(s, y, gamma, roots) if needs == {"eigen"} else _by_inverse(s, y)


def _in_eigenvectors(s: View, y: Tensor, gamma: Scalar, roots: list[Tensor | None] | None) -> Tensor:
    """In the basis of the eigenvectors H is diagonal, and the set and the penalty are the same."""
    rotate, d, back = s.matrix.eigen(s)
    center, constraint = (0.0, None) if s.constraint is None else s.constraint.centered()
    Y = rotate(s.matrices(join([t - like(center, t) for t in each(y)])))
    d = (d if s.penalty is None else d / gamma).expand_as(Y)
    tensors, metrics = each(s.tensors(Y)), each(s.tensors(d))
    solved = [
        combined_argmin(constraint, s.penalty, a, b, root=root)
        for a, b, root in zip(tensors, metrics, roots or [None] * len(s.params), strict=True)
    ]
    return y + s.tensors(back(s.matrices(join(solved)) - Y))  # a feasible y comes back as it is


def _by_inverse(s: View, y: Tensor) -> Tensor:
    """Linear sets, tensor by tensor."""

    def solved(one: View, tensor: Tensor) -> Tensor:
        inverse = one.matrix.inverse(one)
        (onto,) = correction([s.constraint], [tensor], lambda v: [one.tensors(inverse(one.matrices(v[0])))])
        return tensor - onto

    return join([solved(s.some([i]).bound(), tensor) for i, tensor in enumerate(each(y))])


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
        whole = merged(sharing).bound()
        if type(whole.states[0]["step"]) is int and whole.states[0]["step"] <= WATCHED_STEPS:
            check_matrix(whole, matrix.solve)
        steps = iter(each(matrix.solve(whole, join([g for view in sharing for g in each(view.bound().estimate)]))))
        for view in sharing:
            view.direction = join([next(steps) for _ in view.params])
        _on_sets_jointly(whole, sharing)


def merged(views: list[View]) -> View:
    """One view of all parameters of some views, which share their matrix."""
    first = views[0]
    return first.replaced(
        [p for view in views for p in view.params],
        [grad for view in views for grad in view.grads],
        [state for view in views for state in view.states],
        plain=all(view.plain for view in views),
        names=("g", *first.matrix.slots(real(first.params[0]))),  # estimators may differ
    )


@torch.no_grad()
def _on_sets_jointly(whole: View, views: list[View]) -> None:
    """One H for all parameters of some views, whose `direction` is H⁻¹g: make it (x_t - x̃)/γ, for linear sets."""
    gammas = [gamma_of_move(view) for view in views]
    if all(view.constraint is None for view in views) or not all(map(float, gammas)):
        return
    if len(set(map(float, gammas))) > 1:
        raise ValueError(f"{whole.matrix} is one matrix over all parameters: on a set they need one lr for all of them")
    y = [t for view, gamma in zip(views, gammas, strict=True) for t in each(_unconstrained(view, gamma))]
    sets = [view.constraint for view in views for _ in view.params]
    onto = iter(correction(sets, y, lambda v: list(each(whole.matrix.inverse(whole)(join(v))))))
    for view, gamma in zip(views, gammas, strict=True):
        view.direction = cast(Tensor, view.direction) + join([next(onto) for _ in view.params]) / gamma


def _is_zero(gamma: Scalar) -> bool:
    """Whether γ is the number 0. Tensors, and lists of a γ for each tensor, are not looked at."""
    return isinstance(gamma, int | float) and gamma == 0


def gamma_of_move(s: View) -> Scalar:
    """γ of the move that g_t and H_t are for."""
    gamma: Scalar = s.states[0]["gamma"] if s.states[0]["phase"] == PENDING else s.gamma
    gamma = gamma if s.stepsize is None else gamma * s.stepsize.factor(s)
    return gamma * s.iterate.rate(s)


def _metric(s: View) -> Tensor:
    """H_t; by tiles, if that saves fresh memory."""
    x, whole = s.params[0], tracing.get() or len(s.params) > 1 or s.matrix.multiple_of_identity
    if s.matrix.scope == "tensor":
        return s.tensors(s.matrix.H(s).contiguous())  # sets write into it
    if whole or not s.matrix.elementwise or x.numel() <= tiles.TILE or not x.is_contiguous() or not tiles.aligned(s):
        return s.matrix.H(s)
    H = scratch("H", s.g)
    for piece, part in zip(tiles.cut(s, 0, tiles.TILE), torch.split(H.view(-1), tiles.TILE), strict=True):
        part.copy_(piece.matrix.H(piece))
    return H


def _unconstrained(s: View, gamma: Scalar, H: Tensor | None = None) -> Tensor:
    """y = x_t - γ H_t⁻¹ g_t."""
    y = s.x.to(state_dtype(s.params[0]), copy=True)
    if s.decay != 0:
        y.mul_(1 - gamma * s.decay)
    if s.matrix.scope == "coordinate":
        s.descend(y, s.estimate, gamma, H)
    else:
        add_scaled(y, direction(s, s.estimate), -gamma)
    return y


@torch.no_grad()
def _reproject(s: View) -> None:
    step = s.states[0]["step"]
    if s.constraint is None:
        return
    if isinstance(step, Tensor) or step % REPROJECT_EVERY == 0 or not s.constraint.convex:
        for x in each(s.x):
            x.copy_(s.constraint.argmin(x.to(state_dtype(x)), 1.0))

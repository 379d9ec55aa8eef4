"""Read the optimizer for the monitor. No other module of it knows the engine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from superadam.bucket import START, UNESTIMATED, Bucket, single
from superadam.distributed import Sharding, local, over_ranks, sharding
from superadam.estimators import Summed
from superadam.lists import TensorList, state_dtype
from superadam.matrices import Matrix
from superadam.matrices.per_tensor import LinAlgError
from superadam.optimizer import SuperAdam
from superadam.step import direction, gamma_of_move, newest, set_numbers, solve_jointly, x_tilde

__all__ = [
    "Gradients",
    "LinAlgError",
    "Points",
    "Reading",
    "Sharding",
    "between_halves",
    "buffered",
    "has_dropped",
    "is_pending",
    "is_watchable",
    "outside",
    "over_ranks",
    "parameters",
    "readings",
    "refresh_seconds",
]

# Parameter → a point, or the gradient there (absent: zero).
Points = dict[Tensor, Tensor]
Gradients = dict[Tensor, Tensor]


def is_watchable(opt: object) -> bool:
    """Return whether this is a `SuperAdam`."""
    return isinstance(opt, SuperAdam)


def parameters(opt: Any) -> list[Tensor]:
    """Return the parameters of all groups."""
    return [p for group in opt.param_groups for p in group["params"]]


def between_halves(opt: Any) -> bool:
    """Return whether the first of the two half-steps of a batch has been taken, and the second has not."""
    return bool(opt._batch.open is not None)


def has_dropped(opt: Any) -> bool:
    """Return whether the open batch is void, because its first gradients have overflowed."""
    return bool(opt._batch.dropped is opt._batch.open)


def is_pending(opt: Any) -> bool:
    """Return whether the next batch begins with a move, so that its two gradients are taken at two points."""
    return bool(opt.two_point and opt._is_pending())


def buffered(opt: Any) -> list[nn.Module]:
    """Return the modules whose buffers an evaluation must leave as they are."""
    modules: list[nn.Module] = opt._buffered()
    return modules


def refresh_seconds(opt: Any) -> float:
    """Return the time spent on eigenvectors so far."""
    return float(sum(plan.refresh_seconds for plan in opt._plans))


def outside(opt: Any) -> Iterator[tuple[Tensor, Sharding]]:
    """Yield how far each parameter is outside of its set."""
    for plan in opt._current_plans():
        constraint = plan.parts.constraint
        for p in plan.group["params"] if constraint is not None else ():
            try:
                far = constraint.violation(local(p.detach()))
            except ValueError:  # the set refuses what is not finite
                far = torch.full((), math.inf, device=p.device)
            yield far, sharding(p)


def readings(opt: Any, start: Points) -> list[Reading]:
    """Return a reading of every parameter that has a gradient and a g_t. `start`: the parameters before the step."""
    found = []
    for plan in opt._current_plans():
        group = plan.group
        for i, p in enumerate(group["params"]):
            if p.grad is not None and opt.state.get(p, {}).get("phase", START) not in UNESTIMATED:
                name = group["param_names"][i] if "param_names" in group else ""
                # with two gradients the step ended at x_t, and the move is still to come
                found.append(Reading(opt, plan, p, name, p if opt.two_point else start[p]))
    solve_jointly([reading.s for reading in found])
    return found


class Reading:
    """A parameter after a step: x_t, the newest gradient, g_t, H_t and the numbers of the lines."""

    def __init__(self, opt: Any, plan: Any, p: Tensor, name: str, x: Tensor) -> None:
        self._opt, self._plan, self.p, self.name, self._x = opt, plan, p, name, x
        self.s = self._bucket(x, p.grad)
        self.sharding = self.s.sharding
        self.x, self.grad, self.g = _one(self.s.x), _one(self.s.grad), _one(self.s.estimate)
        s = self.s
        self.gamma = _one(gamma_of_move(s))
        self.eta = self.gamma * s.mu
        self.numbers = {"step": s.step, "gamma": self.gamma, "mu": s.mu, "alpha": s.alpha}
        self.cap = getattr(s.schedule, "cap", None)
        self.sums_gradients = isinstance(s.estimator, Summed)

    def _bucket(self, x: Tensor, grad: Tensor | None) -> Bucket:
        """Return a bucket of the parameter as if it had this value and this gradient."""
        at = x.detach().to(state_dtype(x)) if not x.is_complex() else x.detach()
        s = single(self._opt, self._plan, self.p, at, torch.zeros_like(at) if grad is None else grad.detach())
        set_numbers(s)
        newest(s)
        return s

    def has(self, grads: Gradients) -> bool:
        """Return whether the gradients are of these parameters, all of them."""
        return self.p in grads

    def grad_of(self, grads: Gradients, at: Points | None = None) -> Any:
        """Return another gradient as line 11 would see it, taken at x_t or at another point."""
        return _one(self._bucket(self._x if at is None else at[self.p], grads.get(self.p)).grad)

    def move_from(self, at: Points) -> Any:
        """Return x_t minus another point."""
        return self.x - _one(self._bucket(at[self.p], None).x).to(self.x.dtype)

    def mapping(self) -> Any:
        """Return (x_t - x̃_{t+1})/γ, from x_t, g_t and H_t: (x_{t+1} - x_t)/(μ γ) would amplify rounding errors."""
        s, gamma = self.s, self.gamma
        if s.free:
            step = _one(direction(s, s.estimate))
            return step + self.x * s.decay if s.decay != 0 else step
        try:
            return (self.x - _one(x_tilde(s, gamma))) / gamma
        except (ValueError, ZeroDivisionError):  # not finite, or γ = 0
            return s.one * math.nan

    def spectrum(self) -> list[Tensor]:
        """Return the entries or the eigenvalues of H_t as vectors, one for each tensor; none if they are not known."""
        s = self.s
        known = getattr(s.matrix, "eigenvalues", None)  # PSGD has these, and no eigenvectors
        if self.p.numel() == 0:
            return []
        if s.matrix.is_diagonal and not s.matrix.per_tensor:
            return [_one(s.matrix.H(s)).detach().expand_as(self.g).reshape(-1)]
        if known is None and type(s.matrix).eigen is Matrix.eigen:
            return []
        (place,) = s.places
        values: Tensor = known(s) if known is not None else s.matrix.eigen(s)[1]
        values = values.detach().expand(place.here, *place.shape[1:]).reshape(-1)
        return [values if s.apart else values[: self.g.numel()]]  # all on the owner, else as many as local coordinates

    def of_tensors(self) -> Iterator[tuple[str, Tensor, dict[str, Tensor], dict[str, float]]]:
        """Yield name, g_t and factors as batches of matrices, and counts, for tensors whose matrices are here."""
        s = self.s
        if s.matrix.per_tensor and self.p.numel() > 0 and len(s.estimates) > 0:
            state = s.states[0]
            counts: dict[str, float] = {
                name: float(state[name].sum()) for name in ("retries", "failures") if name in state
            }
            yield self.name, s.estimates, s.matrix.factors(s), counts


def _one(found: Any) -> Tensor:
    """Return the only tensor of a list."""
    return found.tensors[0] if isinstance(found, TensorList) else found

"""Read the optimizer for the monitor. No other module of it knows the engine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from superadam._state.composed import ComposedOptimizer
from superadam._state.phases import START, UNESTIMATED
from superadam._state.sharding import Sharding, local, over_ranks, sharding
from superadam._step.layout import facts
from superadam._step.line_9 import direction, gamma_of_move, solve_jointly, x_tilde
from superadam._step.view import View
from superadam.estimators import Summed
from superadam.matrices import Matrix
from superadam.matrices.per_tensor import LinAlgError

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
    return isinstance(opt, ComposedOptimizer)


def parameters(opt: Any) -> list[Tensor]:
    """Return the parameters of all groups."""
    return [p for group in opt.param_groups for p in group["params"]]


def between_halves(opt: Any) -> bool:
    """Return whether the first of the two half-steps of a batch has been taken, and the second has not."""
    return opt._open_batch is not None


def has_dropped(opt: Any) -> bool:
    """Return whether the open batch is void, because its first gradients have overflowed."""
    return opt._dropped_batch is opt._open_batch


def is_pending(opt: Any) -> bool:
    """Return whether the next batch begins with a move, so that its two gradients are taken at two points."""
    return bool(opt.two_point and opt._pending())


def buffered(opt: Any) -> list[nn.Module]:
    """Return the modules whose buffers an evaluation must leave as they are."""
    modules: list[nn.Module] = opt._buffered()
    return modules


def refresh_seconds(opt: Any) -> float:
    """Return the time spent on eigenvectors so far."""
    return float(sum(plan.refresh_seconds for plan in opt._plans))


def outside(opt: Any) -> Iterator[tuple[Tensor, Sharding]]:
    """Yield how far each parameter is outside of its set."""
    for group in opt.param_groups:
        constraint = opt._parts(group).constraint
        for p in group["params"] if constraint is not None else ():
            try:
                far = constraint.violation(local(p.detach()))
            except ValueError:  # the set refuses what is not finite
                far = torch.full((), math.inf, device=p.device)
            yield far, sharding(p)


def readings(opt: Any, start: Points) -> list[Reading]:
    """Return a reading of every parameter that has a gradient and a g_t. `start`: the parameters before the step."""
    found = []
    for group in opt.param_groups:
        for i, p in enumerate(group["params"]):
            if p.grad is not None and opt.state.get(p, {}).get("phase", START) not in UNESTIMATED:
                name = group["param_names"][i] if "param_names" in group else ""
                # with two gradients the step ended at x_t, and the move is still to come
                found.append(Reading(opt, group, p, name, p if opt.two_point else start[p]))
    solve_jointly([reading.s for reading in found])
    return found


class Reading:
    """A parameter after a step: x_t, the newest gradient, g_t, H_t and the numbers of the lines."""

    def __init__(self, opt: Any, group: dict[str, Any], p: Tensor, name: str, x: Tensor) -> None:
        self._opt, self._group, self.p, self.name, self._x = opt, group, p, name, x
        self.s = self._view(x, p.grad)
        self.sharding = self.s.sharding
        self.x, self.grad, self.g = self.s.x.to(self.s.g.dtype), self.s.grad, self.s.estimate
        self.gamma, mu = gamma_of_move(self.s), self.s.mu
        self.eta = self.gamma * mu
        self.numbers = {"step": self.s.states[0]["step"], "gamma": self.gamma, "mu": mu, "alpha": self.s.alpha}
        self.cap = getattr(self.s.schedule, "cap", None)
        self.sums_gradients = isinstance(self.s.estimator, Summed)

    def _view(self, x: Tensor, grad: Tensor | None) -> Any:
        """Return a view of the parameter as if it had this value and this gradient."""
        at, opt, p = x.detach(), self._opt, self.p
        parts, state = opt._plan(self._group).of(p), opt.state[p]
        places = [opt._places[p]] if p in opt._places else None
        grads: list[Tensor | None] = [torch.zeros_like(at) if grad is None else grad.detach()]
        scalars = {name: state[name] for name in parts.scalars}
        return View(facts(self._group, parts, [at], places=places), [at], grads, [state], scalars).bound()

    def has(self, grads: Gradients) -> bool:
        """Return whether the gradients are of these parameters, all of them."""
        return self.p in grads

    def grad_of(self, grads: Gradients, at: Points | None = None) -> Any:
        """Return another gradient as line 11 would see it, taken at x_t or at another point."""
        return self._view(self._x if at is None else at[self.p], grads.get(self.p)).grad

    def move_from(self, at: Points) -> Any:
        """Return x_t minus another point."""
        return self.x - self._view(at[self.p], None).x.to(self.x.dtype)

    def mapping(self) -> Any:
        """Return (x_t - x̃_{t+1})/γ, from x_t, g_t and H_t: (x_{t+1} - x_t)/(μ γ) would amplify rounding errors."""
        s, gamma = self.s, self.gamma
        if s.free:
            step = direction(s, self.g)
            return step + self.x * s.decay if s.decay != 0 else step
        try:
            return (self.x - x_tilde(s, gamma)) / gamma
        except (ValueError, ZeroDivisionError):  # not finite, or γ = 0
            return s.one * math.nan

    def spectrum(self) -> list[Tensor]:
        """Return the entries or the eigenvalues of H_t as vectors, one for each tensor; none if they are not known."""
        s = self.s
        known = getattr(s.matrix, "eigenvalues", None)  # PSGD has these, and no eigenvectors
        if self.p.numel() == 0:
            return []
        if s.matrix.scope == "coordinate":
            H = s.matrix.H(s).detach()
            return [H.expand_as(s.g).reshape(-1)]
        if known is None and type(s.matrix).eigen is Matrix.eigen:
            return []
        (place,) = s.places
        values: Tensor = known(s) if known is not None else s.matrix.eigen(s)[1]
        values = values.detach().expand(place.here, *place.shape[1:]).reshape(-1)
        return [values if s.apart else values[: s.g.numel()]]  # all on the owner, else as many as local coordinates

    def of_tensors(self) -> Iterator[tuple[str, Tensor, dict[str, Tensor], dict[str, float]]]:
        """Yield name, g_t and factors as batches of matrices, and counts, for tensors whose matrices are here."""
        s = self.s
        if s.matrix.scope == "tensor" and self.p.numel() > 0 and len(s.estimates) > 0:
            state = s.states[0]
            counts: dict[str, float] = {
                name: float(state[name].sum()) for name in ("retries", "failures") if name in state
            }
            yield self.name, s.estimates, s.matrix.factors(s), counts

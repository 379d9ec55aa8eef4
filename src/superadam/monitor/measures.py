"""The sums over all coordinates for a report, from the state after a step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from superadam._state.phases import START, UNESTIMATED
from superadam._state.sharding import Sharding, local, over_ranks, sharding
from superadam._step import line_9
from superadam._step.layout import facts
from superadam._step.line_9 import gamma_of_move, solve_jointly
from superadam._step.view import View
from superadam.lists import Scalar, dot, norm2
from superadam.matrices import Matrix
from superadam.matrices.per_tensor import LinAlgError, spectrum
from superadam.monitor.probes import Gradients, Points

if TYPE_CHECKING:
    from superadam._state.composed import ComposedOptimizer

__all__ = ["Observed", "Tally", "factors", "quantities", "stand_in", "x_of"]

SAMPLES = 10_000  # entries of H that the quantiles are taken of
QUANTILES = {"H_q10": 0.1, "H_median": 0.5, "H_q90": 0.9}
SPECTRUM = {"min": 0.0, "q25": 0.25, "median": 0.5, "q75": 0.75, "max": 1.0}


class Observed(NamedTuple):
    """Quantities that the state after the step does not contain."""

    start: Points  # the parameters before the step: x_t, or x_{t-1} if two gradients are taken
    q: Gradients | None  # ∇f(x_{t-1}; ξ_t)
    here: tuple[Gradients, Gradients] | None  # gradients of two fresh batches at x_t
    there: tuple[Gradients, Gradients] | None  # of the same at x_{t-1}
    full: Gradients | None  # ∇f(x_t)


class Tally:
    """Numbers and 0-d tensors by name, several per name. All tensors are copied to the host at once.

    A value for one process's shard of a parameter is added with its sharding, and combined over the processes by `op`.
    """

    def __init__(self) -> None:
        self._values: dict[str, list[Any]] = {}
        self._waiting: dict[tuple[Sharding, str], list[tuple[str, int, Tensor]]] = {}

    def add(self, name: str, value: Scalar, how: Sharding = None, op: str = "sum") -> None:
        values = self._values.setdefault(name, [])
        if isinstance(value, Tensor):
            self._waiting.setdefault((how, op if how else ""), []).append((name, len(values), value))
        values.append(value)

    def read(self) -> dict[str, list[float]]:
        """Copy all values to the host: the only synchronisation with the device."""
        waiting = [entry for entries in self._waiting.values() for entry in entries]
        if waiting:
            home = waiting[0][2].device
            columns = [
                over_ranks(torch.stack([value.to(home) for _, _, value in entries]), how, op)
                for (how, op), entries in self._waiting.items()
            ]
            for (name, i, _), number in zip(waiting, torch.cat(columns).tolist(), strict=True):
                self._values[name][i] = number
        return {name: [float(v) for v in values] for name, values in self._values.items()}


@torch.no_grad()
def quantities(opt: ComposedOptimizer, seen: Observed) -> tuple[dict[str, list[float]], View] | None:
    """Sums by name, one per parameter, and the `View` of the first parameter at x_t.

    None if no parameter had a gradient, or if a gradient scaler skipped the step.
    """
    pending = opt.two_point  # the step ended at x_t, and the move is still to come
    tally, views = Tally(), []
    for group in opt.param_groups:
        for p in group["params"]:
            if p.grad is None or opt.state.get(p, {}).get("phase", START) in UNESTIMATED:
                continue
            x = p if pending else seen.start[p]
            c = stand_in(opt, group, p, x, p.grad)
            views.append(c)
            _norms(tally, c)
            if seen.q is not None and p in seen.q:
                before = stand_in(opt, group, p, seen.start[p], seen.q[p])
                tally.add("difference2", norm2(c.grad - before.grad), c.sharding)
                tally.add("dx2", norm2(x_of(c) - x_of(before)), c.sharding)
            _probes(tally, opt, group, p, x, c, seen)
        constraint = opt._parts(group).constraint
        for p in group["params"] if constraint is not None else ():
            try:
                outside = constraint.violation(local(p.detach()))  # type: ignore[union-attr]
            except ValueError:  # the set refuses what is not finite
                outside = torch.full((), math.inf, device=p.device)
            tally.add("feasibility", outside, sharding(p), "max")
    if not views:
        return None
    _line_9(tally, views)
    _spectrum(tally, [c for c in views if _has_spectrum(c)])
    if opt.found_inf is not None:
        tally.add("overflow", opt.found_inf)
    sums = tally.read()
    return None if any(sums.pop("overflow", ())) else (sums, views[0])


def stand_in(opt: ComposedOptimizer, group: dict[str, Any], p: Tensor, x: Tensor, grad: Tensor | None) -> View:
    """A stand-in for a parameter, with the value x and the gradient at x."""
    at = x.detach()
    grads: list[Tensor | None] = [torch.zeros_like(at) if grad is None else grad.detach()]
    parts, state = opt._plan(group).of(p), opt.state[p]
    scalars = {name: state[name] for name in parts.scalars}
    own = facts(group, parts, [at], places=[opt._places[p]] if p in opt._places else None)
    return View(own, [at], grads, [state], scalars).bound()


def _norms(tally: Tally, c: View) -> None:
    grad, how = c.grad, c.sharding
    tally.add("grad2", norm2(grad), how)
    tally.add("g2", norm2(c.estimate), how)
    tally.add("g_grad", dot(c.estimate, grad), how)
    tally.add("x2", norm2(x_of(c)), how)
    tally.add("step", c.states[0]["step"])
    tally.add("gamma", gamma_of_move(c))
    tally.add("mu", c.mu)
    tally.add("alpha", c.alpha)


def _probes(
    tally: Tally, opt: ComposedOptimizer, group: dict[str, Any], p: Tensor, x: Tensor, c: View, seen: Observed
) -> None:
    def at(place: Tensor, grads: Gradients) -> Tensor:
        return stand_in(opt, group, p, place, grads.get(p)).grad

    if seen.full is not None:
        tally.add("error2", norm2(at(x, seen.full) - c.estimate), c.sharding)
    if seen.here is None:
        return
    q1, q2 = (at(x, grads) for grads in seen.here)
    if seen.full is None:
        tally.add("error2", dot(c.estimate - q1, c.estimate - q2), c.sharding)
    tally.add("probe_variance", norm2(q1 - q2) / 2, c.sharding)
    tally.add("full_gradient_norm2", dot(q1, q2), c.sharding)
    if seen.there is not None and seen.q is not None and p in seen.q:
        d1, d2 = (here - at(seen.start[p], grads) for here, grads in zip((q1, q2), seen.there, strict=True))
        d = c.grad - at(seen.start[p], seen.q)
        tally.add("variance", dot(c.grad - q1, c.grad - q2), c.sharding)
        tally.add("difference_variance", dot(d - d1, d - d2), c.sharding)


def _line_9(tally: Tally, views: list[View]) -> None:
    """‖x_t - x̃_{t+1}‖²/γ², recomputed from x_t, g_t and H_t. (x_{t+1} - x_t)/(μ γ) would amplify rounding errors."""
    solve_jointly(views)
    for c in views:
        gamma = gamma_of_move(c)
        if c.free:
            direction = line_9.direction(c, c.estimate)
            if c.decay != 0:
                direction = direction + x_of(c) * c.decay
        else:
            try:
                direction = (x_of(c) - line_9.x_tilde(c, gamma)) / gamma
            except (ValueError, ZeroDivisionError):  # not finite, or γ = 0
                direction = c.one * math.nan
        tally.add("mapping2", norm2(direction), c.sharding)


def _spectrum(tally: Tally, views: list[View]) -> None:
    """The least and the largest entry of H, and quantiles of every k-th entry, which limits their number."""
    views = [c for c in views if c.params[0].numel() > 0]
    sizes = [c.g.numel() for c in views]  # 0 where other processes hold all of a parameter
    stride = max(1, math.ceil(sum(sizes) / SAMPLES))
    samples, offset = [], 0
    for c, size in zip(views, sizes, strict=True):
        try:
            H = (c.matrix.H(c) if c.matrix.scope == "coordinate" else _eigenvalues(c)).detach()
        except LinAlgError:  # of which the matrix itself has told already
            continue
        tally.add("H_min", H.min() if H.numel() > 0 else c.one * math.inf, c.sharding, "min")
        tally.add("H_max", H.max() if H.numel() > 0 else -c.one * math.inf, c.sharding, "max")
        first, offset = -offset % stride, offset + (H.numel() if H.dim() else size)
        if H.dim() == 0:
            samples.append(H.expand(len(range(first, size, stride))))
        else:
            samples.append(torch.slice_copy(H.reshape(-1), 0, first, None, stride))
    if any(map(len, samples)):
        home = samples[0]
        sample = torch.cat([sample.to(home) for sample in samples])
        for name, q in QUANTILES.items():
            tally.add(name, sample.kthvalue(1 + round(q * (len(sample) - 1))).values)


def _has_spectrum(c: View) -> bool:
    known = hasattr(c.matrix, "eigenvalues") or type(c.matrix).eigen is not Matrix.eigen
    return known or c.matrix.scope == "coordinate"


def _eigenvalues(c: View) -> Tensor:
    """The eigenvalues of one tensor's matrix: all on its owner, otherwise as many as there are local coordinates."""
    (place,) = c.places
    own: Any = getattr(c.matrix, "eigenvalues", lambda s: s.matrix.eigen(s)[1])  # PSGD has these, and no eigenvectors
    values: Tensor = own(c).expand(place.here, *place.shape[1:]).reshape(-1)
    return values if c.apart else values[: c.g.numel()]


@torch.no_grad()
def factors(opt: ComposedOptimizer) -> dict[str, dict[str, float]]:
    """For each tensor with its own matrix: statistics of its factors and of g_t."""
    found: dict[str, dict[str, float]] = {}
    for plan, p, state in opt._with_state():
        if plan.of(p).matrix.scope != "tensor" or state["phase"] in UNESTIMATED or p.numel() == 0:
            continue
        c = stand_in(opt, plan.group, p, p, p.grad)
        estimates = c.estimates
        if len(estimates) == 0:
            continue  # another process is the owner, and reports
        entry = _ranks(estimates)
        for name, factor in c.matrix.factors(c).items():
            entry |= _quartiles(name, factor)
        if "failures" in state:
            entry |= {name: float(state[name].sum()) for name in ("retries", "failures")}
        names = plan.group.get("param_names")
        found[names[_place(plan.group, p)] if names else f"{len(found)}"] = entry
    return found


def _ranks(g: Tensor) -> dict[str, float]:
    """Of g_t, the mean over its matrices: the rank up to rounding errors, and the stable rank."""
    singular = torch.linalg.svdvals(g)
    largest = singular.amax(-1, keepdim=True)
    errors = max(g.shape[-2:]) * torch.finfo(g.dtype).eps * largest
    rank = (singular > errors).sum(-1).to(g.dtype).mean()
    return {"rank": float(rank), "stable_rank": float((singular / largest).square().sum(-1).mean())}


def _quartiles(name: str, factor: Tensor) -> dict[str, float]:
    """The least, the quartiles and the largest of the eigenvalues of a factor, and its condition number."""
    try:
        values = spectrum(factor).flatten().sort().values
    except LinAlgError:  # of which the matrix itself has told already
        return {}
    places = [round(q * (len(values) - 1)) for q in SPECTRUM.values()]
    found = dict(zip((f"{name}_{which}" for which in SPECTRUM), values[places].tolist(), strict=True))
    low, high = found[f"{name}_min"], found[f"{name}_max"]
    return {**found, f"{name}_condition": high / low if low > 0 else math.inf}


def _place(group: dict[str, Any], p: Tensor) -> int:
    return next(i for i, own in enumerate(group["params"]) if own is p)


def x_of(c: View) -> Tensor:
    return c.x.to(c.g.dtype)

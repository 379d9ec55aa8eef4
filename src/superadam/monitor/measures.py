"""The sums over all coordinates that a report is made of, from the state after a step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from superadam import steps
from superadam.chunks import Chunk
from superadam.monitor.probes import Gradients, Points
from superadam.options import gamma_of as _gamma
from superadam.tensors import Scalar, TensorList, dot, norm2

if TYPE_CHECKING:
    from superadam.base import ComposedOptimizer

__all__ = ["Observed", "Tally", "local", "measure", "rate", "stand_in", "x_of"]

SAMPLES = 10_000  # entries of H that the quantiles are taken of
QUANTILES = {"H_q10": 0.1, "H_median": 0.5, "H_q90": 0.9}


class Observed(NamedTuple):
    """What the state after the step does not tell."""

    start: Points  # the parameters before the step: x_t, or x_{t-1} if two gradients are taken
    q: Gradients | None  # ∇f(x_{t-1}; ξ_t)
    here: tuple[Gradients, Gradients] | None  # gradients of two fresh batches at x_t
    there: tuple[Gradients, Gradients] | None  # of the same at x_{t-1}
    full: Gradients | None  # ∇f(x_t)


class Tally:
    """Numbers and 0-d tensors by name, several of each. All tensors come to the host at once."""

    def __init__(self) -> None:
        self._values: dict[str, list[Any]] = {}
        self._waiting: list[tuple[str, int, Tensor]] = []

    def add(self, name: str, value: Scalar) -> None:
        values = self._values.setdefault(name, [])
        if isinstance(value, Tensor):
            self._waiting.append((name, len(values), _whole(value)))
        values.append(value)

    def read(self) -> dict[str, list[float]]:
        """The one synchronisation with the device."""
        if self._waiting:
            home = self._waiting[0][2].device
            numbers = torch.stack([value.to(home) for _, _, value in self._waiting]).tolist()
            for (name, i, _), number in zip(self._waiting, numbers, strict=True):
                self._values[name][i] = number
        return {name: [float(v) for v in values] for name, values in self._values.items()}


@torch.no_grad()
def measure(opt: ComposedOptimizer, seen: Observed) -> tuple[dict[str, list[float]], Chunk] | None:
    """Sums by name, one of each for every parameter, and the first parameter as the maths sees it at x_t."""
    pending = opt.two_point  # the step ended at x_t, and the move is still to come
    tally, chunks = Tally(), []
    for group in opt.param_groups:
        for p in group["params"]:
            if p.grad is None or "g" not in opt.state.get(p, {}):
                continue
            x = p if pending else seen.start[p]
            c = stand_in(opt, group, p, x, p.grad)
            chunks.append(c)
            _norms(tally, c)
            if seen.q is not None and p in seen.q:
                before = stand_in(opt, group, p, seen.start[p], seen.q[p])
                tally.add("difference2", norm2(c.grad - before.grad))
                tally.add("dx2", norm2(x_of(c) - x_of(before)))
            _probes(tally, opt, group, p, x, c, seen)
        constraint = opt._parts(group).constraint
        for p in group["params"] if constraint is not None else ():
            try:
                tally.add("feasibility", constraint.violation(p.detach()))  # type: ignore[union-attr]
            except ValueError:  # the set refuses what is not finite
                tally.add("feasibility", math.inf)
    if not chunks:
        return None
    _line_9(tally, chunks)
    _spectrum(tally, [c for c in chunks if not c.matrix.joint])
    return tally.read(), chunks[0]


def stand_in(opt: ComposedOptimizer, group: dict[str, Any], p: Tensor, x: Tensor, grad: Tensor | None) -> Chunk:
    """A parameter at x and with a gradient there, whatever it holds itself by now."""
    at = x.detach()
    grads = [torch.zeros_like(at) if grad is None else grad.detach()]
    parts, state = opt._parts(group), opt.state[p]
    scalars = {name: state[name] for name in parts.matrix.scalars}
    return Chunk(group=group, params=[at], grads=grads, states=[state], scalars=scalars, **parts._asdict())


def _norms(tally: Tally, c: Chunk) -> None:
    grad = c.grad
    tally.add("grad2", norm2(grad))
    tally.add("g2", norm2(c.g))
    tally.add("g_grad", dot(c.g, grad))
    tally.add("x2", norm2(x_of(c)))
    tally.add("step", c.states[0]["step"])
    tally.add("gamma", rate(c))
    tally.add("mu", c.mu)
    tally.add("alpha", c.alpha)


def _probes(
    tally: Tally, opt: ComposedOptimizer, group: dict[str, Any], p: Tensor, x: Tensor, c: Chunk, seen: Observed
) -> None:
    def at(place: Tensor, grads: Gradients) -> Tensor:
        return stand_in(opt, group, p, place, grads.get(p)).grad

    if seen.full is not None:
        tally.add("error2", norm2(at(x, seen.full) - c.g))
    if seen.here is None:
        return
    q1, q2 = (at(x, grads) for grads in seen.here)
    if seen.full is None:
        tally.add("error2", dot(c.g - q1, c.g - q2))
    tally.add("probe_variance", norm2(q1 - q2) / 2)
    tally.add("full_gradient_norm2", dot(q1, q2))
    if seen.there is not None and seen.q is not None and p in seen.q:
        d1, d2 = (here - at(seen.start[p], grads) for here, grads in zip((q1, q2), seen.there, strict=True))
        d = c.grad - at(seen.start[p], seen.q)
        tally.add("variance", dot(c.grad - q1, c.grad - q2))
        tally.add("difference_variance", dot(d - d1, d - d2))


def _line_9(tally: Tally, chunks: list[Chunk]) -> None:
    """‖x_t - x̃_{t+1}‖²/γ², anew from x_t, g_t and H_t: to divide x_{t+1} - x_t by μ γ would blow rounding up."""
    for matrix in {c.matrix for c in chunks if c.matrix.joint}:
        sharing = [c for c in chunks if c.matrix == matrix]
        solved = matrix.solve(Chunk.merged(sharing))
        for c, direction in zip(sharing, solved if isinstance(solved, TensorList) else [solved], strict=True):
            c.__dict__["direction"] = direction
    for c in chunks:
        gamma = rate(c)
        if c.constraint is None and c.penalty is None:
            direction = c.direction if c.matrix.joint else c.g / c.matrix.H(c)
            if steps._decay(c) != 0:
                direction = direction + x_of(c) * steps._decay(c)
        else:
            try:
                direction = (x_of(c) - steps.x_tilde(c, gamma)) / gamma
            except (ValueError, ZeroDivisionError):  # not finite, or γ = 0
                direction = c.one * math.nan
        tally.add("mapping2", norm2(direction))


def _spectrum(tally: Tally, chunks: list[Chunk]) -> None:
    """The least and the largest entry of H, and quantiles of every k-th of all, which bounds their number."""
    sizes = [c.g.numel() for c in chunks]
    stride = max(1, math.ceil(sum(sizes) / SAMPLES))
    samples, offset = [], 0
    for c, size in zip(chunks, sizes, strict=True):
        if size == 0:
            continue
        H = c.matrix.H(c).detach()
        tally.add("H_min", H.min())
        tally.add("H_max", H.max())
        first, offset = -offset % stride, offset + size
        if H.dim() == 0:
            samples.append(H.expand(len(range(first, size, stride))))
        else:
            samples.append(torch.slice_copy(local(H).reshape(-1), 0, first, None, stride))
    if samples:
        home = samples[0]
        sample = torch.cat([sample.to(home) for sample in samples])
        for name, q in QUANTILES.items():
            tally.add(name, sample.kthvalue(1 + round(q * (len(sample) - 1))).values)


def rate(c: Chunk) -> Scalar:
    """γ of the move that g_t and H_t are for."""
    gamma: Scalar = c.states[0].get("gamma", _gamma(c.group))
    return gamma * c.estimator.rate(c)


def x_of(c: Chunk) -> Tensor:
    return c.x.to(c.g.dtype)


def local(x: Tensor) -> Tensor:
    """Of a DTensor, the part that is here."""
    part: Tensor = x.to_local() if hasattr(x, "to_local") else x
    return part


def _whole(x: Tensor) -> Tensor:
    """Of a DTensor, the value over all ranks."""
    value: Tensor = x.full_tensor() if hasattr(x, "full_tensor") else x
    return value

"""The sums over all coordinates for a report, from the state after a step."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor

from superadam.lists import Scalar, dot, norm2
from superadam.matrices.per_tensor import spectrum
from superadam.monitor import reading
from superadam.monitor.reading import Gradients, LinAlgError, Points, Reading, Sharding

__all__ = ["Observed", "Tally", "factors", "quantities"]

SAMPLES = 10_000  # entries of H that the quantiles are taken of
QUANTILES = {"H_q10": 0.1, "H_median": 0.5, "H_q90": 0.9}
SPECTRUM = {"min": 0.0, "q25": 0.25, "median": 0.5, "q75": 0.75, "max": 1.0}


class Observed(NamedTuple):
    """Quantities that the state after the step does not contain."""

    start: Points
    """The parameters before the step: x_t, or x_{t-1} if two gradients are taken."""
    q: Gradients | None
    """∇f(x_{t-1}; ξ_t)."""
    here: tuple[Gradients, Gradients] | None
    """Gradients of two fresh batches at x_t."""
    there: tuple[Gradients, Gradients] | None
    """Gradients of the same batches at x_{t-1}."""
    full: Gradients | None
    """∇f(x_t)."""
    noted: dict[str, Scalar]
    """Numbers of the user's, such as the loss."""


class Tally:
    """Collect numbers and 0-d tensors by name, several per name, and copy all tensors to the host at once.

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
                reading.over_ranks(torch.stack([value.to(home) for _, _, value in entries]), how, op)
                for (how, op), entries in self._waiting.items()
            ]
            for (name, i, _), number in zip(waiting, torch.cat(columns).tolist(), strict=True):
                self._values[name][i] = number
        return {name: [float(v) for v in values] for name, values in self._values.items()}


@torch.no_grad()
def quantities(opt: Any, seen: Observed) -> tuple[dict[str, list[float]], list[Reading]]:
    """Return sums by name, one per reading, and the readings. No reading: no gradient, or a skipped step."""
    found, tally = reading.readings(opt, seen.start), Tally()
    for r in found:
        for name, number in r.numbers.items():
            tally.add(name, number)
        products = {"grad2": (r.grad, r.grad), "g2": (r.g, r.g), "g_grad": (r.g, r.grad), "x2": (r.x, r.x)}
        for name, (a, b) in products.items():
            tally.add(name, norm2(a) if a is b else dot(a, b), r.sharding)
        mapping = r.mapping()
        tally.add("mapping2", norm2(mapping), r.sharding)
        tally.add("move2", norm2(mapping * r.eta), r.sharding)
        pair = None
        if seen.q is not None and r.has(seen.q):
            pair = r.grad - r.grad_of(seen.q, seen.start)
            tally.add("difference2", norm2(pair), r.sharding)
            tally.add("dx2", norm2(r.move_from(seen.start)), r.sharding)
        _of_fresh_batches(tally, r, seen, pair)
    for far, how in reading.outside(opt):
        tally.add("feasibility", far, how, "max")
    _spectrum(tally, found)
    for name, number in seen.noted.items():
        tally.add(f"noted {name}", number)
    if opt.found_inf is not None:
        tally.add("overflow", opt.found_inf)
    sums = tally.read() if found else {}
    return ({}, []) if any(sums.pop("overflow", ())) else (sums, found)


def _of_fresh_batches(tally: Tally, r: Reading, seen: Observed, pair: Tensor | None) -> None:
    """Add products of gradients that are independent of each other: their means have no bias."""
    if seen.full is not None:
        tally.add("error2", norm2(r.grad_of(seen.full) - r.g), r.sharding)
    if seen.here is None:
        return
    q1, q2 = (r.grad_of(grads) for grads in seen.here)
    if seen.full is None:
        tally.add("error2", dot(r.g - q1, r.g - q2), r.sharding)
    tally.add("probe_variance", norm2(q1 - q2) / 2, r.sharding)
    tally.add("full_gradient_norm2", dot(q1, q2), r.sharding)
    if seen.there is not None and pair is not None:
        d1, d2 = (here - r.grad_of(grads, seen.start) for here, grads in zip((q1, q2), seen.there, strict=True))
        tally.add("variance", dot(r.grad - q1, r.grad - q2), r.sharding)
        tally.add("difference_variance", dot(pair - d1, pair - d2), r.sharding)


def _spectrum(tally: Tally, found: list[Reading]) -> None:
    """Add the least and the largest entry of H, and quantiles of every k-th entry, which limits their number."""
    vectors: list[tuple[Tensor, Sharding]] = []
    for r in found:
        with suppress(LinAlgError):  # the matrix itself has warned already
            vectors += [(vector, r.sharding) for vector in r.spectrum()]
    stride, offset, samples = max(1, math.ceil(sum(len(vector) for vector, _ in vectors) / SAMPLES)), 0, []
    for vector, how in vectors:  # empty where other processes hold all of a parameter
        ends = vector.aminmax() if len(vector) > 0 else (vector.new_tensor(math.inf), vector.new_tensor(-math.inf))
        for name, op, end in zip(("H_min", "H_max"), ("min", "max"), ends, strict=True):
            tally.add(name, end, how, op)
        samples.append(torch.slice_copy(vector, 0, -offset % stride, None, stride))
        offset += len(vector)
    if any(map(len, samples)):
        sample = torch.cat([sample.to(samples[0]) for sample in samples])
        for name, q in QUANTILES.items():
            tally.add(name, sample.kthvalue(1 + round(q * (len(sample) - 1))).values)


@torch.no_grad()
def factors(found: list[Reading]) -> dict[str, dict[str, float]]:
    """Return statistics of g_t and of the factors, for each tensor with a matrix of its own."""
    entries: dict[str, dict[str, float]] = {}
    for name, g, sides, counts in (of_tensor for r in found for of_tensor in r.of_tensors()):
        singular = torch.linalg.svdvals(g)
        largest = singular.amax(-1, keepdim=True)
        errors = max(g.shape[-2:]) * torch.finfo(g.dtype).eps * largest  # of rounding
        entry = {"rank": float((singular > errors).sum(-1).to(g.dtype).mean())}
        entry["stable_rank"] = float((singular / largest).square().sum(-1).mean())
        for side, factor in sides.items():
            with suppress(LinAlgError):
                values = spectrum(factor).flatten().sort().values
                places = [round(q * (len(values) - 1)) for q in SPECTRUM.values()]
                entry |= zip((f"{side}_{which}" for which in SPECTRUM), values[places].tolist(), strict=True)
                low, high = entry[f"{side}_min"], entry[f"{side}_max"]
                entry[f"{side}_condition"] = high / low if low > 0 else math.inf
        entries[name or f"{len(entries)}"] = entry | counts
    return entries

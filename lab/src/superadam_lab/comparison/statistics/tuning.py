"""How a method's loss depends on the tuned options."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from superadam_lab.comparison.records import Record, final

__all__ = ["Trials", "trials_of"]

NEAR = 1.1


class Trials(NamedTuple):
    """The trials of a method: how its loss depends on the tuned options."""

    points: list[tuple[dict[str, Any], float]]
    """Options and final loss, the mean over tuning seeds; infinite if one of them did not come to its end. Of a trial
    that was stopped early, the loss of its longest runs."""
    best: int | None
    edges: dict[str, str]
    """For which options the best value is the "lowest" or "highest" that was tried, so that a better one may lie beyond
    it; or the "only" one."""
    near: int
    """The number of trials whose loss is within 10 % of the least."""


def length(record: Record) -> float:
    """The length of a trial's run; infinite for the whole budget."""
    return math.inf if record.amount is None else record.amount


def trials_of(records: list[Record], by: str, keys: Sequence[str], chosen: int | None) -> Trials:
    """The trials of a method on a task, by the criterion. `chosen` is the trial whose options the final runs use."""
    losses: dict[int, list[float]] = {}
    options = {}
    longest: dict[int, float] = {}
    for r in records:
        longest[r.trial] = max(longest.get(r.trial, 0), length(r))
    for r in sorted((r for r in records if length(r) == longest[r.trial]), key=lambda r: (r.trial, r.seed)):
        losses.setdefault(r.trial, []).append(final(r, by))
        options[r.trial] = {k: r.options[k] for k in keys if k in r.options}
    points = [(options[t], sum(values) / len(values)) for t, values in losses.items()]
    order = list(losses)
    whole = [longest[t] == max(longest.values()) for t in order]
    finite = [i for i, (_, loss) in enumerate(points) if math.isfinite(loss) and whole[i]]
    least = min(finite, key=lambda i: points[i][1], default=None)
    best = order.index(chosen) if chosen in losses else least
    if best is None or least is None:
        return Trials(points, best, {}, 0)
    edges = {}
    for k in keys:
        values = [o[k] for o, _ in points if k in o]
        ends = (
            {min(values): "lowest", max(values): "highest"} if len(set(values)) > 1 else dict.fromkeys(values, "only")
        )
        if points[best][0].get(k) in ends:
            edges[k] = ends[points[best][0][k]]
    bound = points[least][1] * (NEAR if points[least][1] > 0 else 1 / NEAR)
    return Trials(points, best, edges, sum(loss <= bound for (_, loss), w in zip(points, whole, strict=True) if w))

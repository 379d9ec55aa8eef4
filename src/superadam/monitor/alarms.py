"""Alarms: warnings about suspicious values in a report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from superadam.messages import warn
from superadam.parts import nearest

__all__ = ["LIMITS", "Alarms", "MonitorWarning"]

Report = dict[str, Any]
FINITE = {"grad_norm": "ĝ", "g_norm": "g", "x_norm": "x"}

LIMITS = {
    "variance_ratio": 1.0,
    "difference_ratio": 1.0,
    "capped_steps": 1000,
    "explosion": 10.0,
    "condition": math.inf,
    "feasibility": 1e-4,
}
"""`capped_steps`: the most steps that α may stay at its cap. With the paper's defaults it stays for 195 or 393 steps.
`explosion`: the largest ratio of ‖g‖ to ‖ĝ‖, or to ‖g‖ of more than three reports ago. `condition`: the largest
cond(H); there is none, because with a small eps it only tells that some coordinates have no gradient. Alarms that a
single batch can cause (`variance_ratio`, `difference_ratio`, ‖g‖ against ‖ĝ‖) need two consecutive reports."""

REPLAY = (
    "The noise of the difference adds up instead of cancelling: the two evaluations of a batch do not see the same "
    "dropout masks, augmentation, samples or buffers. Use opt.step(closure) or superadam.twice(loader), draw the batch "
    "outside of the closure, reset generators of your own before both evaluations, and give the optimizer the model "
    "(or opt.protect(model)) so that BatchNorm sees a batch once."
)


class MonitorWarning(UserWarning):
    """A warning about a suspicious value in a report of `superadam.Monitor`.

    To make it stop the run:

    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", MonitorWarning)
    """


class Alarms:
    """Warn once of each kind, and again only after a report without it."""

    def __init__(self, limits: dict[str, float] | None) -> None:
        self.limits = {**LIMITS, **(limits or {})}
        for name, limit in self.limits.items():
            if name not in LIMITS:
                raise ValueError(f"Unknown limit {name!r}: {nearest(name, LIMITS)}")
            if not isinstance(limit, int | float):
                raise TypeError(f"Invalid limit {name!r}: {limit!r} (expected a number)")
        self._active: set[str] = set()

    def found(self, report: Report, earlier: Iterable[Report], *, summed: bool = False) -> dict[str, str]:
        """Return a dict from kind to message. `summed`: g is a sum of gradients, not an average."""
        bad = [words for name, words in FINITE.items() if not math.isfinite(report[name])]
        if bad:
            hint = "Go back to a checkpoint, and lower lr or look for the batch."
            return {"non_finite": f"{', '.join(bad)} not finite. {hint}"}
        alarms = dict(self._look(report, list(earlier)))
        return {kind: text for kind, text in alarms.items() if not (summed and kind == "explosion")}

    def warn(self, alarms: dict[str, str], step: int) -> None:
        new = [text for kind, text in alarms.items() if kind not in self._active]
        self._active = set(alarms)
        for text in new:
            warn(f"step {step}: {text}", MonitorWarning)

    def _look(self, report: Report, earlier: list[Report]) -> Iterator[tuple[str, str]]:
        limit, before = self.limits, earlier[-1] if earlier else {}

        def twice_above(name: str) -> bool:
            return all(r.get(name, 0.0) > limit[name] for r in (before, report))

        if twice_above("variance_ratio"):
            yield "variance_ratio", f"Var(ĝ-q)/Var(ĝ) = {report['variance_ratio']:.3g}. {REPLAY}"
        elif twice_above("difference_ratio"):
            yield (
                "difference_ratio",
                f"‖ĝ-q‖²/‖ĝ‖² = {report['difference_ratio']:.3g}: the two gradients of a batch have little in common. "
                f"Either the steps are too long (lower lr), or: {REPLAY}",
            )
        cap = report.get("alpha_cap", math.inf)
        if report["alpha"] >= cap and report["step"] > limit["capped_steps"]:
            yield (
                "alpha_capped",
                f"α is still at its cap, {cap:g}: g is little more than the newest gradient. Lower c of the schedule, "
                "or raise m.",
            )
        factor, g, grad = limit["explosion"], report["g_norm"], report["grad_norm"]
        if before and all(r["g_norm"] > factor * r["grad_norm"] for r in (before, report)):
            yield "explosion", f"‖g‖ = {g:.3g}, but ‖ĝ‖ = {grad:.3g}: errors of g add up. Lower lr, or raise α (c)."
        elif len(earlier) > 3 and g > factor * (usual := max(r["g_norm"] for r in earlier[-100:-3])):
            yield "explosion", f"‖g‖ has grown from {usual:.3g} to {g:.3g} within a few reports. Lower lr."
        yield from _decompositions(report.get("factors", {}), before.get("factors", {}))
        if (condition := report.get("condition", 0.0)) > limit["condition"]:
            hint = "some coordinates move that much faster than others. Raise lam of the matrix."
            yield "condition", f"cond(H) = {condition:.3g}: {hint}"
        if (outside := report.get("feasibility", 0.0)) > limit["feasibility"]:
            yield (
                "infeasible",
                f"the parameters are {outside:.3g} outside of their set. Are they changed outside of the optimizer? "
                "Float32 parameters of many coordinates drift by less.",
            )


def _decompositions(factors: Report, before: Report) -> Iterator[tuple[str, str]]:
    def named(names: list[str]) -> str:
        return f"{len(names)} matri{'x' if len(names) == 1 else 'ces'} ({', '.join(names[:3])})"

    failed = [name for name, own in factors.items() if own.get("failures", 0) > 0]
    again = [n for n, own in factors.items() if own.get("retries", 0) > before.get(n, {}).get("retries", 0)]
    if failed:
        yield (
            "decomposition_failed",
            f"eigenvectors of {named(failed)} could not be found, and older ones are in use; a few times in a row "
            "are an error. Are the gradients extremely large or small? Raise eps or lam of the matrix.",
        )
    elif again:
        yield (
            "decomposition_retried",
            f"the decomposition of {named(again)} failed in float32 and was repeated in float64. If that happens "
            "often, raise eps or lam of the matrix.",
        )

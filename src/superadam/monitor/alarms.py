"""Alarms: warnings about suspicious values in a report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from superadam.messages import warn
from superadam.parts import nearest

__all__ = ["LIMITS", "Alarms", "MonitorWarning"]

Report = dict[str, Any]

LIMITS = {
    "variance_ratio": 1.0,
    "difference_ratio": 1.0,
    "capped_steps": 1000,
    "explosion": 10.0,
    "condition": 1e6,
    "feasibility": 1e-4,
}
"""`capped_steps`: the most steps that α may stay at its cap. With the paper's defaults it stays for 195 or 393 steps.
`explosion`: the largest ratio of ‖g‖ to ‖ĝ‖, or to ‖g‖ of more than three reports ago. Alarms that a single batch can
cause (`variance_ratio`, `difference_ratio`, ‖g‖ against ‖ĝ‖) need two consecutive reports."""

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
    """Warns once of each kind, and again only after a report without it."""

    def __init__(self, limits: dict[str, float] | None) -> None:
        for name in (limits or {}).keys() - LIMITS.keys():
            raise ValueError(f"Unknown limit {name!r}: {nearest(name, LIMITS)}")
        self.limits = {**LIMITS, **(limits or {})}
        for name, limit in self.limits.items():
            if not isinstance(limit, int | float):
                raise TypeError(f"Invalid limit {name!r}: {limit!r} (expected a number)")
        self._active: set[str] = set()

    def found(self, report: Report, earlier: Iterable[Report], *, summed: bool = False) -> dict[str, str]:
        """A dict from kind to message. `summed`: g is a sum of gradients, not an average."""
        alarms = dict(_non_finite(report) or self._look(report, list(earlier)))
        return {kind: text for kind, text in alarms.items() if not (summed and kind == "explosion")}

    def warn(self, alarms: dict[str, str], step: int) -> None:
        new = [text for kind, text in alarms.items() if kind not in self._active]
        self._active = set(alarms)
        for text in new:
            warn(f"step {step}: {text}", MonitorWarning)

    def _look(self, report: Report, earlier: list[Report]) -> Iterator[tuple[str, str]]:
        limit = self.limits
        both = (earlier[-1], report) if earlier else ()
        if both and all(r.get("variance_ratio", 0.0) > limit["variance_ratio"] for r in both):
            yield "variance_ratio", f"Var(ĝ-q)/Var(ĝ) = {report['variance_ratio']:.3g}. {REPLAY}"
        elif both and all(r.get("difference_ratio", 0.0) > limit["difference_ratio"] for r in both):
            yield (
                "difference_ratio",
                f"‖ĝ-q‖²/‖ĝ‖² = {report['difference_ratio']:.3g}: the two gradients of a batch have little in common. "
                f"Either the steps are too long (lower lr), or: {REPLAY}",
            )
        alpha, cap = report["alpha"], report.get("alpha_cap", math.inf)
        if alpha >= cap and report["step"] > limit["capped_steps"]:
            yield (
                "alpha_capped",
                f"α is still at its cap, {cap:g}: g is little more than the newest gradient. Lower c of the schedule, "
                "or raise m.",
            )
        yield from self._explosion(report, earlier)
        yield from _eigenvectors(report, earlier)
        if (condition := report.get("condition", 0.0)) > limit["condition"]:
            yield (
                "condition",
                f"cond(H) = {condition:.3g}: some coordinates move that much faster than others. Raise lam of the "
                "matrix.",
            )
        if (outside := report.get("feasibility", 0.0)) > limit["feasibility"]:
            yield (
                "infeasible",
                f"the parameters are {outside:.3g} outside of their set. Are they changed outside of the optimizer? "
                "Float32 parameters of many coordinates drift by less.",
            )

    def _explosion(self, report: Report, earlier: list[Report]) -> Iterator[tuple[str, str]]:
        factor, g = self.limits["explosion"], report["g_norm"]
        if earlier and all(r["g_norm"] > factor * r["grad_norm"] for r in (earlier[-1], report)):
            grad = report["grad_norm"]
            yield "explosion", f"‖g‖ = {g:.3g}, but ‖ĝ‖ = {grad:.3g}: errors of g add up. Lower lr, or raise α (c)."
        elif len(earlier) > 3 and g > factor * (before := max(r["g_norm"] for r in earlier[-100:-3])):
            yield "explosion", f"‖g‖ has grown from {before:.3g} to {g:.3g} within a few reports. Lower lr."


def _eigenvectors(report: Report, earlier: list[Report]) -> Iterator[tuple[str, str]]:
    before = earlier[-1].get("factors", {}) if earlier else {}
    factors: dict[str, dict[str, float]] = report.get("factors", {})
    failed = [name for name, own in factors.items() if own.get("failures", 0) > 0]
    again = [n for n, own in factors.items() if own.get("retries", 0) > before.get(n, {}).get("retries", 0)]
    if failed:
        yield (
            "decomposition_failed",
            f"eigenvectors of {_matrices(failed)} could not be found, and older ones are in use; a few times in a row "
            "are an error. Are the gradients extremely large or small? Raise eps or lam of the matrix.",
        )
    elif again:
        yield (
            "decomposition_retried",
            f"the decomposition of {_matrices(again)} failed in float32 and was repeated in float64. If that happens "
            "often, raise eps or lam of the matrix.",
        )


def _matrices(names: list[str]) -> str:
    return f"{len(names)} matri{'x' if len(names) == 1 else 'ces'} ({', '.join(names[:3])})"


def _non_finite(report: Report) -> dict[str, str]:
    bad = [name for name in ("grad_norm", "g_norm", "x_norm") if not math.isfinite(report[name])]
    if not bad:
        return {}
    names = ", ".join({"grad_norm": "ĝ", "g_norm": "g", "x_norm": "x"}[name] for name in bad)
    return {"non_finite": f"{names} not finite. Go back to a checkpoint, and lower lr or look for the batch."}

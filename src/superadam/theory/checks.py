"""Check whether a theorem applies to an optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from superadam.estimators import Recursive
from superadam.iterates import Plain
from superadam.schedules import Paper
from superadam.theory.theorems import Conditions, Problem, conditions

__all__ = ["check_optimizer"]


def check_optimizer(opt: Any, problem: Problem) -> Conditions:
    """Check γ, k, m and c of a `SuperAdam`, and list its options that the theorems do not cover."""
    groups = [(plan.group, plan.parts) for plan in opt._current_plans()]
    outside = [text for group, parts in groups for text in _outside(group, parts)]
    notes = [text for group, parts in groups for text in _notes(group, parts)]
    (group, parts), *others = groups
    for name in ("lr", "tau", "estimator", "schedule"):
        if any(other[name] != group[name] for other, _ in others):
            outside.append(f"the groups differ in {name}: a theorem has one")
    least = min(parts.matrix.lower_bound for _, parts in groups)
    if problem.rho is None and least > 0:
        problem = replace(problem, rho=least)
        notes.append(f"rho = {least:g}, from the matrix")
    elif problem.rho is None:
        outside.append("no rho > 0 with H_t ≥ rho I is known of the matrix: give Problem.rho")
    elif problem.rho > least:
        notes.append(f"rho = {problem.rho:g} is an assumption: the matrix itself has H_t ≥ {least:g} I")
    stated, estimator, schedule = Conditions("No theorem", ()), parts.estimator, parts.schedule
    line_11 = type(estimator) is Recursive and estimator.tau in (0, 1) and type(parts.iterate) is Plain
    if problem.rho is not None and group["lr"] != 0 and line_11 and type(schedule) is Paper:
        tau, k, m = estimator.tau, schedule.k, schedule.m
        given = {"tau": tau, "lr": float(group["lr"]), "k": k, "m": m, "c": schedule.constant(tau)}
        stated = conditions(problem, **given)
        if not stated or schedule.alpha_t(2, tau) >= schedule.cap:  # the cap changes α, or makes the theorem apply
            stated = conditions(problem, cap=schedule.cap, **given)
    return replace(stated, outside=tuple(dict.fromkeys(outside)), notes=tuple(dict.fromkeys(notes)))


def _outside(group: dict[str, Any], parts: Any) -> Iterator[str]:
    if type(parts.estimator) is not Recursive:
        yield f"estimator {parts.estimator}: the theorems are about line 11"
    elif parts.estimator.tau not in (0, 1):
        yield f"tau = {parts.estimator.tau:g}: the theorems are about tau = 0 and tau = 1"
    if type(parts.iterate) is not Plain:
        yield f"iterate {parts.iterate}: the theorems are about gradients at x_t"
    if type(parts.schedule) is not Paper:
        yield f"schedule {parts.schedule}: the theorems are about schedules.Paper"
    if parts.constraint is not None and not parts.constraint.convex:
        yield f"constraint {parts.constraint}: it is not convex, and the theorems are about a convex X"
    if group["lr"] == 0:
        yield "lr = 0: nothing moves"
    if group["weight_decay"] != 0 and group["decoupled_weight_decay"]:
        yield "decoupled weight decay: its step is along no gradient (decoupled_weight_decay=False makes it part of f)"
    if group["clip"] is not None:
        yield f"clip = {group['clip']:g}: the clipped g_t is biased, and line 11 goes on from it"
    if "initial_lr" in group:
        yield "a learning rate scheduler: the theorems have a constant lr, μ_t is what decreases"


def _notes(group: dict[str, Any], parts: Any) -> Iterator[str]:
    if parts.penalty is not None:
        yield f"penalty {parts.penalty}: gap must be that of f + h, and M_t bounds the gradient mapping of f + h"
    if parts.constraint is not None:
        yield f"constraint {parts.constraint}: the theorem bounds M_t; the corollary, on ‖∇f‖, is for X = R^d"
    if group["weight_decay"] != 0 and not group["decoupled_weight_decay"]:
        yield f"weight decay in the gradient: L and gap must be those of f + {group['weight_decay']:g}/2 ‖x‖²"
    if group["maximize"]:
        yield "maximize: f is minus what is maximised"

"""Lengths of runs: the rungs of tuning, and equal epochs or equal seconds besides equal gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import median
from typing import NamedTuple

from superadam_lab.comparison.records import BUDGETS, Budget, Plan, Record, known

__all__ = ["BUDGETS", "Budget", "Length", "kept", "lengths", "rungs", "same_run"]

LEAST = 20  # gradient evaluations of the first rung
FEWEST = 2  # trials that are run to the end


class Length(NamedTuple):
    """The length of a run, as in a job."""

    budget: Budget = "gradients"
    amount: int | None = None


# ------------------------------------------------------------------------------------------------ tuning


def rungs(plan: Plan, task: str) -> list[int | None]:
    """The gradient evaluations of the trials, shorter runs first; None is the whole budget.

    >>> rungs(Plan(["a"], [], trials=9, budget_evals={"a": 900}, halving=3), "a")
    [100, 300, None]
    """
    if plan.halving is None:
        return [None]
    times = int(math.log(plan.trials + 0.5, plan.halving))
    amounts = [plan.budget_evals[task] // plan.halving**i for i in range(times, 0, -1)]
    return [*(amount for amount in amounts if amount >= LEAST), None]


def kept(plan: Plan, trials: int) -> int:
    """The number of trials that continue on the next rung.

    >>> kept(Plan(["a"], [], halving=3), 9), kept(Plan(["a"], [], halving=3), 3)
    (3, 2)
    """
    return min(trials, max(FEWEST, math.ceil(trials / (plan.halving or 1))))


# ------------------------------------------------------------------------------------------------ the report


def lengths(plan: Plan, task: str, mine: Iterable[Record], theirs: Iterable[Record] | None) -> list[Length]:
    """The lengths of a method's runs on a task, from its records and those of the tuned baseline.

    A budget that would be the same run as with equal gradients is left out.
    """
    found = [Length()]
    mine = list(mine)
    if "epochs" in plan.budgets and not same_run(plan, "epochs", mine):
        found.append(Length("epochs", plan.budget_evals[task]))
    if "seconds" in plan.budgets and theirs is not None and not same_run(plan, "seconds", mine):
        ours, others = _seconds(mine), _seconds(theirs)
        if ours and others:
            found.append(Length("seconds", max(4, round(plan.budget_evals[task] * others / ours))))
    return found


def same_run(plan: Plan, budget: Budget, records: list[Record]) -> bool:
    """Whether the run with equal gradients serves for this budget too: the method takes one gradient per batch, or it
    is the baseline, whose seconds all methods get."""
    whole = _whole(records)
    if budget == "epochs":
        return all(known(r.rows[-1].get("gradient_evaluations")) <= known(r.rows[-1].get("step")) for r in whole)
    return budget == "gradients" or not whole or whole[0].method == plan.baseline


def _whole(records: Iterable[Record]) -> list[Record]:
    """The trials that finished."""
    return [r for r in records if r.phase == "tune" and r.amount is None and r.status == "finished" and r.rows]


def _seconds(records: Iterable[Record]) -> float:
    """Seconds of a gradient evaluation with the optimizer's step."""
    last = [r.rows[-1] for r in _whole(records)]
    each = [known(row.get("seconds")) / known(row.get("gradient_evaluations")) for row in last]
    return median(finite) if (finite := [s for s in each if 0 < s < math.inf]) else 0.0

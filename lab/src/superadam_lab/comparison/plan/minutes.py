"""A comparison for a given time: pilot runs measure the time of a run and the variation of losses."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable
from typing import NamedTuple

import torch

from superadam_lab.comparison.plan.budgets import kept, rungs
from superadam_lab.comparison.plan.jobs import Job, finished_seeds, judged
from superadam_lab.comparison.plan.planning import Guard, unguarded
from superadam_lab.comparison.records import Plan, Record, known
from superadam_lab.comparison.statistics.power import FEWEST, POWER, Noise, detectable, percent, spread, where
from superadam_lab.comparison.verdict.cautions import count
from superadam_lab.comparison.worker import ROWS, SPACING, run
from superadam_lab.methods.specs import read

__all__ = ["Pilot", "fitted", "forecast", "in_time", "piloted", "seconds_of"]

SEEDS = range(2000, 2006)  # of no other run
PART, LEAST = 10, 20  # a pilot run has a tenth of the evaluations, but no fewer than 20
SAFETY, STARTUP = 1.3, 15.0  # workers get in each other's way; seconds until they have begun
LATE = 1.3  # the machine may become so many times slower still: trials and the fewest seeds, which all stay, will fit
MOST = 20  # seeds
TRIALS, MOST_TRIALS = 1.8, 18  # for each seed; in all
TUNING, MOST_TUNING = 0.03, 0.25
"""What tuning on one seed adds to the variance of a method's loss, as a part of a run's own variance: for each trial,
and at most. How the loss depends on the learning rate is not known before the runs. These values are in the middle of
what simulations give (`lab/tests/comparison/test_timing.py`)."""


class Pilot(NamedTuple):
    """The results of the pilot runs of a method on a task."""

    setup: float
    """Seconds of a run beside its gradients and rows."""
    row: float
    """Seconds to measure once."""
    gradient: float
    """Seconds of a gradient evaluation, with the optimizer's step."""
    per_batch: int
    """Gradient evaluations of a batch: 2 with τ > 0, more with a line search."""
    losses: dict[int, float]
    """Final losses by seed."""


Pilots = dict[tuple[str, str], Pilot]


def piloted(plan: Plan, guard: Guard = unguarded) -> Pilots:
    """Six short runs of every method on every task, in this process and on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {(task, method): _pilot(plan, task, method, guard) for task in plan.tasks for method in plan.methods}
    finally:
        torch.set_num_threads(threads)


def _pilot(plan: Plan, task: str, method: str, guard: Guard) -> Pilot:
    amount = min(plan.budget_evals[task], max(LEAST, plan.budget_evals[task] // PART))
    taken, losses = [], {}
    for seed in SEEDS:
        begun, worked = time.perf_counter(), time.process_time()
        with guard(f"{task} with {method}, a pilot run"):
            record = run(plan, Job(task, method, "tune", 0, seed, _options(plan, method), "gradients", amount))
        taken.append((time.perf_counter() - begun, time.process_time() - worked, record))
        losses[seed] = judged(record)
    wall, cpu, record = sorted(taken, key=lambda run: run[0])[len(taken) // 2]  # the first one imports and warms up
    waited = max(1.0, wall / max(cpu, 1e-3))  # while others had the core: a run's seconds are CPU time
    training = waited * known(record.rows[-1].get("seconds")) if record.rows else 0.0
    measured = max(0.0, wall - training) / (len(record.rows) + 1)
    evaluations, steps = (_last(record, name, amount) for name in ("gradient_evaluations", "step"))
    return Pilot(measured, measured, training / evaluations, max(1, math.ceil(evaluations / steps)), losses)


def _last(record: Record, name: str, unknown: float) -> float:
    found = known(record.rows[-1].get(name)) if record.rows else math.inf
    return found if 0 < found < math.inf else unknown


def _options(plan: Plan, method: str) -> tuple[tuple[str, float], ...]:
    """The options of pilot runs: the defaults for methods of the zoo, the middle of the tuned ranges for others."""
    text = plan.compositions.get(method, method)
    space = plan.spaces.get(method, {}) if not read(text)[0].foreign else plan.space_of(method)
    return tuple((key, math.sqrt(low * high)) for key, (low, high) in space.items())


# ------------------------------------------------------------------------------------------------ what fits


def seconds_of(plan: Plan, pilots: Pilots, jobs: int) -> float:
    """The expected seconds of the comparison with this many workers."""
    found = 0.0
    for (task, method), pilot in pilots.items():
        trials = plan.trials
        for amount in rungs(plan, task):
            found += trials * len(plan.tuning_seeds) * _run(pilot, amount or plan.budget_evals[task])
            trials = trials if amount is None else kept(plan, trials)
        lengths = [plan.budget_evals[task], *_more(plan, task, method, pilots)]
        found += len(plan.report_seeds) * sum(_run(pilot, length) for length in lengths)
    return STARTUP + SAFETY * found / max(1, jobs)


def _more(plan: Plan, task: str, method: str, pilots: Pilots) -> list[int]:
    """The gradient evaluations of the final runs for other budgets than equal gradients, as in `budgets.lengths`."""
    pilot, theirs, whole = pilots[task, method], pilots[task, plan.baseline], plan.budget_evals[task]
    found = []
    if "epochs" in plan.budgets and pilot.per_batch > 1:
        found.append(pilot.per_batch * whole)
    if "seconds" in plan.budgets and method != plan.baseline and pilot.gradient > 0:
        found.append(round(whole * theirs.gradient / pilot.gradient))
    return found


def _run(pilot: Pilot, evaluations: int) -> float:
    rows = 1 + min(ROWS, max(4, evaluations // SPACING))
    return pilot.setup + rows * pilot.row + evaluations * pilot.gradient


def fitted(plan: Plan, minutes: float, jobs: int, pilots: Pilots, spent: float = 0.0) -> Plan:
    """The plan with as many seeds and trials as fit, and its forecast; `spent` are the seconds that have passed."""
    best = None
    for seeds in range(FEWEST, MOST + 1):
        first = plan.report_seeds[0]
        trials = min(MOST_TRIALS, max(5, round(TRIALS * seeds)))
        tried = dataclasses.replace(
            plan, trials=trials, report_seeds=list(range(first, first + seeds)), minutes=minutes
        )
        fewest = dataclasses.replace(tried, report_seeds=tried.report_seeds[:FEWEST])
        needed = max(seconds_of(tried, pilots, jobs), LATE * seconds_of(fewest, pilots, jobs))
        if spent + needed <= 60 * minutes:
            best = tried
        elif best is None:
            least = math.ceil((spent + needed) / 60)
            raise ValueError(
                f"--minutes {minutes:g} is too little: {count(len(plan.methods), 'method')} on "
                f"{count(len(plan.tasks), 'task')} with {count(jobs, 'worker')} would need about {least}. Give more "
                "--minutes, fewer methods, a smaller --scale or --halving 3"
            )
    assert best is not None
    known_least = forecast(best, pilots)
    said = {where(best.tasks): known_least} if math.isfinite(known_least) else {}
    return dataclasses.replace(best, forecast=said)


def in_time(plan: Plan, records: Iterable[Record]) -> Plan | None:
    """The plan without the report seeds that lack a run of some method or budget; None if fewer than three are left.

    Used when the time of a comparison is over. The choice of seeds does not depend on any loss, so the result is as
    valid as one that was planned with these seeds.
    """
    seeds = finished_seeds(plan, records)
    if len(seeds) < FEWEST:
        return None
    return dataclasses.replace(plan, report_seeds=seeds, dropped=plan.dropped + len(plan.report_seeds) - len(seeds))


def forecast(plan: Plan, pilots: Pilots) -> float:
    """Return the smallest log ratio for which the comparison will give a verdict in 4 of 5 cases."""
    noise = []
    for task in plan.tasks:
        of_seeds = spread(pilots[task, m].losses for m in plan.methods)
        tuning = of_seeds**2 * min(MOST_TUNING, TUNING * plan.trials) / max(1, len(plan.tuning_seeds))
        noise.append(Noise(of_seeds, tuning))
    return detectable(noise, len(plan.report_seeds), max(1, len(plan.methods) - 1))


def said(plan: Plan) -> str:
    """The forecast in words. If the pilot runs vary too much, it says that no difference can be detected."""
    shown = percent(plan.forecast.get(where(plan.tasks), math.inf))
    return (
        f"{plan.minutes:g} minutes allow {plan.trials} trials and {len(plan.report_seeds)} seeds of every method. By "
        f"the pilot runs, this detects differences of the final loss above {shown} on {where(plan.tasks)} "
        f"(in {round(100 * POWER)} of 100 cases)."
    )

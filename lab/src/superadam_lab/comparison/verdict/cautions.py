"""Cautions beside the verdict: failed runs, best values at the edge of a range, few seeds."""

from __future__ import annotations

import math

from superadam_lab.comparison.records import VERSIONS, Record, Results
from superadam_lab.comparison.reuse import is_reused
from superadam_lab.comparison.statistics.analysis import Statistics, TaskStatistics
from superadam_lab.comparison.statistics.power import FEWEST
from superadam_lab.comparison.verdict.judging import SIDES
from superadam_lab.methods.by_name import label

__all__ = ["cautions_of", "count", "listed"]

LEAST_TRIALS = 3
LONGEST = 300  # characters of an error that the report repeats


def listed(names: list[str]) -> str:
    """Names in a sentence.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return "".join(names) if len(names) < 2 else f"{', '.join(names[:-1])} and {names[-1]}"


def count(n: int, word: str) -> str:
    """A number of things.

    >>> count(1, "seed"), count(3, "seed")
    ('1 seed', '3 seeds')
    """
    return f"{n} {word}" + ("" if n == 1 else "s")


def cautions_of(results: Results, found: Statistics) -> list[str]:
    """The cautions, each of one or two sentences."""
    made = _failures(results)
    theirs = label(found.baseline)
    for task in found.tasks.values():
        if task.outcomes[found.baseline].runs and math.isinf(task.target):
            made.append(f"{task.name}: at least half of {theirs}'s runs did not finish, so there is no target.")
        made += _edges(results, task)
        if task.names and task.criterion != "valid_loss":
            made.append(f"{task.name} has no validation data, so its training loss decides.")
    plan, seeds = results.plan, len(results.plan.report_seeds)
    planned = len(plan.tasks) * len(plan.methods) * seeds
    there = sum(len(outcome.runs) for task in found.tasks.values() for outcome in task.outcomes.values())
    if there < planned:
        made.append(f"The comparison is unfinished: {there} of {planned} final runs are done.")
    made += _history(results)
    if reused := sum(map(is_reused, results.records)):
        made.append(
            f"{reused} of {len(results.records)} runs were taken from other comparisons, where they were the same. "
            "Their seconds are left out; --no-reuse with a new --out makes all runs."
        )
    if plan.dropped and plan.minutes:
        made.append(
            f"--minutes {plan.minutes:g} was over before all runs were made: {plan.dropped} of "
            f"{seeds + plan.dropped} planned seeds were dropped. The forecast was for all of them."
        )
    if 0 < plan.trials < LEAST_TRIALS:
        best = "the best learning rate of fewer is always the lowest or highest one tried"
        made.append(f"Most verdicts need at least {LEAST_TRIALS} trials, in a new --out: {best}.")
    if 0 < seeds < FEWEST:
        made.append(f"A verdict needs at least {FEWEST} seeds; 5 or more are usual. --seeds 5 adds the missing ones.")
    elif FEWEST <= seeds < 5:
        made.append(f"{seeds} seeds detect only large differences; 5 or more are usual.")
    return made


def _edges(results: Results, task: TaskStatistics) -> list[str]:
    """Best values that are the lowest, highest or only ones tried."""
    methods: dict[tuple[str, str], list[str]] = {}
    for m, trials in task.trials.items():
        for found in trials.edges.items():
            methods.setdefault(found, []).append(label(m))
    made = []
    for (key, side), names in methods.items():
        if side not in SIDES:
            made.append(f"{task.name}: only one {key} was tried for {listed(names)}.")
            continue
        shared = f"--tune {key}=LOW:HIGH, or for one method with " if key in results.plan.space else ""
        option = "lr" if key.endswith(".lr") else key  # AdamW.lr is the lr behind the name of the second optimizer
        widen = f"try more --trials, or widen the range with {shared}{option}=LOW:HIGH behind its name"
        best = f"the best {key} is the {side} one tried for {listed(names)}"
        made.append(f"{task.name}: {best}. A better one may lie {SIDES[side]} it; {widen}.")
    return made


def _failures(results: Results) -> list[str]:
    """Why runs failed, one line per method and task, so that a bug does not look like a worse method."""
    runs: dict[tuple[str, str], list[Record]] = {}
    for record in results.records:
        runs.setdefault((record.task, record.method), []).append(record)
    made = []
    for (task, method), all_ in runs.items():
        errors = [" ".join(record.error.split()) for record in all_ if record.status == "failed"]
        if errors:
            why = errors[0] if len(errors[0]) <= LONGEST else f"{errors[0][:LONGEST]} …"
            of_all = f"{len(errors)} of {len(all_)} runs failed (tuning trials included)"
            made.append(f"{task}, {label(method)}: {of_all}" + (f". First error: {why}" if why else "."))
    return made


def _history(results: Results) -> list[str]:
    """Cautions about a comparison that was extended, or continued with other versions."""
    earlier, seeds = results.environment.get("earlier", []), results.plan.report_seeds
    made = []
    first = [seed for seed in seeds if any(seed in stage["report_seeds"] for stage in earlier)]
    added = [seed for seed in seeds if seed not in first]
    if first and added:
        made.append(
            f"{len(added)} of the {len(seeds)} seeds were added to a comparison of the others. If its result was the "
            f"reason, p is too low: `superadam report FOLDER --first-seed {min(added)}` reports the new seeds alone."
        )
    for key in (*VERSIONS, "code"):
        used = dict.fromkeys(e[key] for e in (*earlier, results.environment) if e.get(key))
        if len(used) > 1:
            name = "the code of superadam" if key == "code" else key
            made.append(f"Runs were made with different versions of {name}: {listed(list(used))}.")
    return made

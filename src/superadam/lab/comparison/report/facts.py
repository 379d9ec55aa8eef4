"""What both forms of the report say: the numbers of the tables, how they were made, how to read them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

from superadam.lab.comparison.intervals import Estimate
from superadam.lab.comparison.records import VERSIONS, Results
from superadam.lab.comparison.statistics import Comparison, Statistics, TaskStatistics
from superadam.lab.comparison.verdict import figure, interval, label, losses, multiple, probability

__all__ = ["Cell", "Line", "column", "lines", "made", "options", "reading", "subtitle", "title"]

WORDS = {"train": "training", "valid": "validation", "test": "test"}


class Cell(NamedTuple):
    """A number and what stands below it."""

    text: str
    small: str = ""


class Line(NamedTuple):
    """A method in the table of a task: at the end of its runs, and where the loss that decides was least."""

    method: str
    chosen: Cell
    runs: str
    end: list[Cell]
    best: list[Cell]
    against: list[Cell]


SAID = (
    "tasks",
    "methods",
    "scale",
    "trials",
    "tuning_seeds",
    "report_seeds",
    "budget_evals",
    "space",
    "sampler",
    "decay",
)
"""Fields of the plan that have words of their own."""
AGAINST = ["final loss, against {}", "evaluations to target, times", "seconds to target, times", "p"]


def title(results: Results) -> str:
    return f"Optimizers on {', '.join(results.plan.tasks)}"


def subtitle(results: Results) -> str:
    plan = results.plan
    parts = [
        f"{len(plan.methods)} methods at {plan.scale} scale",
        f"each tuned with {plan.trials} trials",
        f"repeated on {len(plan.report_seeds)} other seeds",
    ]
    began = results.environment.get("began")
    return ", ".join(parts) + (f". Begun {str(began).replace('T', ' ')}" if began else "") + "."


def column(name: str) -> str:
    """valid_loss as validation loss."""
    split, _, what = name.partition("_")
    return f"{WORDS.get(split, split)} {what.replace('_', ' ')}"


def options(values: dict[str, Any]) -> str:
    return ", ".join(f"{k} = {f'{v:.3g}' if isinstance(v, float) else v}" for k, v in values.items())


def lines(found: Statistics, task: TaskStatistics) -> list[Line]:
    """The table of a task, the baseline first."""
    made = []
    for m in found.methods:
        outcome = task.outcomes[m]
        if not outcome.runs:
            continue
        ends, bests = zip(*(outcome.summary(name) for name in task.names), strict=True) if task.names else ((), ())
        runs = f"{outcome.finished} of {len(outcome.runs)}"
        against = _against(task.comparisons.get(m))
        trials = task.trials[m]
        near = f"{trials.near} of {len(trials.points)} trials within 10 %" if trials.points else ""
        made.append(Line(m, Cell(options(outcome.options), near), runs, _cells(ends), _cells(bests), against))
    return made


def _cells(estimates: tuple[Estimate, ...]) -> list[Cell]:
    return [_cell(e) for e in estimates]


def _cell(e: Estimate) -> Cell:
    if math.isnan(e.value):
        return Cell("–")
    return Cell(figure(e.value), "" if math.isnan(e.low) else f"{figure(e.low)} to {figure(e.high)}")


def _against(c: Comparison | None) -> list[Cell]:
    if c is None or c.n == 0:
        return [Cell("")] * len(AGAINST)
    value, _, ends = losses(c).partition(" (") if c.finals.n else ("–", "", "")
    cells = [Cell(value, ends.rstrip(")"))]
    for axis in ("gradient_evaluations", "seconds"):
        ratio = c.times.get(axis)
        if ratio is None:
            cells.append(Cell("–"))
            continue
        value, _, ends = interval(ratio.estimate).partition(" (")
        cells.append(Cell(f"{value} ({ratio.reached} of {ratio.runs})", ends.rstrip(")")))
    return [*cells, Cell("–" if math.isnan(c.p) else figure(c.p, 2))]


def made(results: Results) -> dict[str, str]:
    """How the numbers were made."""
    plan, environment = results.plan, dict(results.environment)
    space = "; ".join(f"{k} from {low:g} to {high:g}, logarithmic" for k, (low, high) in plan.space.items())
    for name in ("command", "began"):
        environment.pop(name, None)
    earlier = environment.pop("earlier", [])
    machine = {k: v for k, v in environment.items() if k not in VERSIONS and v not in (None, "", [])}
    return {
        "tuned": f"{space}, the same for every method: {plan.trials} trials each ({plan.sampler}), on tuning "
        f"{_seeds(plan.tuning_seeds)}",
        "repeated": f"the best trial's options on {_seeds(plan.report_seeds)}, from the same initial weights and with "
        "the same batches for all methods",
        "gradient evaluations of a run": _words(plan.budget_evals) or "the scale's",
        "learning rate": f"{plan.decay} decay",
        "versions": _versions(environment),
        **({"earlier": "; ".join(_stage(stage) for stage in earlier)} if earlier else {}),
        **{
            f.name.replace("_", " "): _words(v)
            for f in dataclasses.fields(plan)
            if f.name not in SAID and (v := getattr(plan, f.name))
        },
        **{k: _words(v) for k, v in machine.items()},
    }


def _stage(environment: dict[str, Any]) -> str:
    seeds, began = _seeds(environment["report_seeds"]), environment.get("began", "?")
    return f"{seeds}, begun {began} ({_versions(environment)})"


def _versions(environment: dict[str, Any]) -> str:
    return ", ".join(f"{k} {environment[k]}" for k in VERSIONS if environment.get(k))


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{k}: {_words(v)}" for k, v in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _seeds(seeds: list[int]) -> str:
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"


def reading(found: Statistics) -> list[str]:
    """How to read the report, sentence by sentence."""
    theirs, ranks = label(found.baseline), found.ranks
    said = [
        "What decides is the validation loss at the end of the run, where the schedule of the learning rate ends: the "
        f"ratio of a method's to that of {theirs} with the same seed, its geometric mean over seeds. Over several "
        "tasks, each seed's ratio is the geometric mean over tasks, so that every task counts the same.",
        "p and the intervals are about the options that tuning has chosen for each method. That is a matter of chance, "
        "too, above all with one tuning seed and few trials: of two methods that are equally good, one can have been "
        "given the better options, and then it is the better one here.",
        "The interval holds the truth in about 95 of 100 studies like this one: at each end it is the wider one of "
        "Student's and the paired bootstrap's. With five seeds, the bootstrap alone would be too narrow.",
        "“Better” and “worse” are said if p is below 0.05. It comes from Student's test of the logarithms (a rank test "
        "could show nothing with five seeds), and is corrected by Holm's method for the number of comparisons in this "
        f"report, {found.family}: if no method, with its options, differed from {theirs}, 19 of 20 reports would say "
        "so. “No difference that could be shown” does not mean that there is none; the interval says how large it "
        "could be. The intervals themselves are not corrected: one in twenty misses the truth.",
        "A run is lost if it diverged or failed. Ratios are of the seeds on which neither run was lost; a method that "
        f"lost more runs than {theirs} is never called better, one that lost fewer never worse.",
        f"The target is the median final loss of {theirs}, which up to half of {theirs}'s own runs miss. The first "
        "time that a run meets it counts, even if the loss rises again. "
        f"A miss of a method is infinite, and so is its mean. A miss of {theirs} counts as its whole budget, which can "
        "only make the others look slower. The lower end of the interval allows for both: it takes a miss as a success "
        f"at the end of the budget, and where {theirs} has missed, the time to the loss it did reach.",
        "Between two measurements the logarithm of the loss is taken as linear. Seconds are those of training alone, "
        "on the machine named above, with whatever else it had to do.",
        "A method that has many of its trials within 10 % of the best one is easy to tune. What was chosen at the edge "
        "of what was tried is told below the verdict.",
        "“At the least validation loss” is where early stopping would have ended, each seed by itself.",
    ]
    if not math.isnan(ranks.p):
        said.append(
            f"Ranks are among all methods for each of {ranks.blocks} pairs of a task and a seed. Two mean ranks differ "
            f"if they are {multiple(ranks.critical)} apart (Nemenyi's critical difference). Friedman's test that all "
            f"methods rank the same: p {probability(ranks.p)}. It speaks of these tasks, not of others."
        )
    return said

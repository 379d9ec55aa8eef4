"""The texts and numbers that both forms of the report share: tables, how the runs were done, how to read them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

from superadam_lab.comparison.records import VERSIONS, Plan, Results
from superadam_lab.comparison.statistics.analysis import Comparison, Statistics, TaskStatistics
from superadam_lab.comparison.statistics.intervals import Estimate
from superadam_lab.comparison.statistics.power import FEWEST
from superadam_lab.comparison.verdict.words import figure, interval, label, losses, multiple, probability
from superadam_lab.methods.specs import near_one

__all__ = ["Cell", "Line", "against", "column", "lines", "made", "options", "reading", "subtitle", "title"]

WORDS = {"train": "training", "valid": "validation", "test": "test"}


class Cell(NamedTuple):
    """A number, and the small text below it."""

    text: str
    small: str = ""


class Line(NamedTuple):
    """A method in the table of a task: at the end of its runs, and at the lowest loss of the criterion."""

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
    "spaces",
    "warmup",
    "budgets",
    "halving",
    "sizes",
    "dimensions",
    "forecast",
)
"""Fields of the plan that have a text of their own."""
EQUAL = {
    "epochs": "Separate runs in which every method sees the same number of batches, as in the paper. A method that "
    "takes two gradients per batch gets twice as many gradients. Intervals and p hold for this list.",
    "seconds": "Separate runs in which every method gets as many gradients as fit into the baseline's time, by the "
    "median time of a gradient in tuning. Other machines and other load change this number. Intervals and p hold "
    "for this list.",
}
"""What is equal, in words."""
AGAINST = ["final loss, against {}", "evaluations to target, ratio", "seconds to target, ratio"]


def title(results: Results) -> str:
    return f"Optimizers on {', '.join(results.plan.tasks)}"


def subtitle(results: Results) -> str:
    plan = results.plan
    parts = [
        f"{len(plan.methods)} methods at {plan.scale} scale",
        f"each tuned with {plan.trials} {'trial' if plan.trials == 1 else 'trials'}",
        f"final runs on {len(plan.report_seeds)} other {'seed' if len(plan.report_seeds) == 1 else 'seeds'}",
    ]
    began = results.environment.get("began")
    return ", ".join(parts) + (f". Started {str(began).replace('T', ' ')}" if began else "") + "."


def column(name: str) -> str:
    """valid_loss as validation loss."""
    split, _, what = name.partition("_")
    return f"{WORDS.get(split, split)} {what.replace('_', ' ')}"


def options(values: dict[str, Any]) -> str:
    return ", ".join(f"{k} = {f'{v:.3g}' if isinstance(v, float) else v}" for k, v in values.items())


def against(found: Statistics, task: TaskStatistics) -> list[str]:
    """The columns of a task's table that compare with the baseline."""
    heads = [head.format(label(found.baseline)) for head in AGAINST]
    return [*heads, "p"] if any(c.judged for c in task.comparisons.values()) else heads


def lines(found: Statistics, task: TaskStatistics) -> list[Line]:
    """The table of a task, the baseline first."""
    made, width = [], len(against(found, task))
    for m in found.methods:
        outcome = task.outcomes[m]
        if not outcome.runs:
            continue
        ends, bests = zip(*(outcome.summary(name) for name in task.names), strict=True) if task.names else ((), ())
        runs = f"{outcome.finished} of {len(outcome.runs)}"
        cells = _against(task.comparisons.get(m))
        cells += [Cell("")] * (width - len(cells))
        trials = task.trials[m]
        near = f"{trials.near} of {len(trials.points)} trials within 10 %" if trials.points else ""
        made.append(Line(m, Cell(options(outcome.options), near), runs, _cells(ends), _cells(bests), cells))
    return made


def _cells(estimates: tuple[Estimate, ...]) -> list[Cell]:
    return [_cell(e) for e in estimates]


def _cell(e: Estimate) -> Cell:
    if math.isnan(e.value):
        return Cell("–")
    return Cell(figure(e.value), "" if math.isnan(e.low) else f"{figure(e.low)} to {figure(e.high)}")


def _against(c: Comparison | None) -> list[Cell]:
    if c is None or c.n == 0:
        return []
    value, _, ends = losses(c).partition(" (") if c.finals.n else ("–", "", "")
    cells = [Cell(value, ends.rstrip(")"))]
    for axis in ("gradient_evaluations", "seconds"):
        ratio = c.times.get(axis)
        if ratio is None:
            cells.append(Cell("–"))
            continue
        value, _, ends = interval(ratio.estimate).partition(" (")
        cells.append(Cell(f"{value} ({ratio.reached} of {ratio.runs})", ends.rstrip(")")))
    return [*cells, Cell(figure(c.p, 2))] if c.judged else cells


def made(results: Results) -> dict[str, str]:
    """How the runs were done."""
    plan, environment = results.plan, dict(results.environment)
    space, own = space_in_words(plan.space), {m: space_in_words(s) for m, s in plan.spaces.items()}
    for name in ("command", "began"):
        environment.pop(name, None)
    earlier = environment.pop("earlier", [])
    machine = {k: v for k, v in environment.items() if k not in VERSIONS and v not in (None, "", [])}
    return {
        "tuning": f"{space}, the same for every method: {plan.trials} trials each ({plan.sampler}), on tuning "
        f"{_seeds(plan.tuning_seeds)}{_halved(plan.halving)}",
        **({"ranges of single methods": _words(own)} if own else {}),
        "final runs": f"the options of the best trial on {_seeds(plan.report_seeds)}; all methods have the same "
        "initial weights and the same batches",
        **({"sizes": sizes} if (sizes := _sizes(plan)) else {}),
        "gradient evaluations per run": _words(plan.budget_evals) or "by the scale",
        "learning rate": f"{plan.decay} decay"
        + (f" after a warm-up over {100 * plan.warmup:g} % of the run" if plan.warmup else ""),
        "versions": _versions(environment),
        **({"earlier": "; ".join(_stage(stage) for stage in earlier)} if earlier else {}),
        **{
            f.name.replace("_", " "): _words(v)
            for f in dataclasses.fields(plan)
            if f.name not in SAID and (v := getattr(plan, f.name))
        },
        **{k: _words(v) for k, v in machine.items()},
    }


def _halved(factor: int | None) -> str:
    if factor is None:
        return ""
    return (
        f"; 1 in {factor} trials, but at least two, continued with runs {factor} times as long, up to the full length"
    )


def _sizes(plan: Plan) -> str:
    """For each task: parameters, training examples, batch size, and differences from the scale."""
    made = []
    for task in plan.tasks:
        dimensions, other = plan.dimensions.get(task, {}), plan.sizes.get(task, {})
        parts = [f"batch {n}" if name == "batch" else f"{n:,} {name}" for name, n in dimensions.items()]
        parts += [f"{name} {'all' if n is None else n}" for name, n in other.items() if name not in dimensions]
        if parts:
            made.append(f"{task}: {', '.join(parts)}")
    return "; ".join(made)


def space_in_words(space: dict[str, tuple[float, float]]) -> str:
    kinds = {False: "logarithmic", True: "logarithmic in the distance to 1"}
    return "; ".join(f"{k} from {low:g} to {high:g}, {kinds[near_one(low, high)]}" for k, (low, high) in space.items())


def _stage(environment: dict[str, Any]) -> str:
    seeds, began = _seeds(environment["report_seeds"]), environment.get("began", "?")
    return f"{seeds}, started {began} ({_versions(environment)})"


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
        "The criterion is the validation loss at the end of the run, when the learning rate has decayed. The report "
        f"takes the ratio of a method's loss to {theirs}'s loss with the same seed, and the geometric mean of these "
        "ratios over the seeds. Over several tasks, the ratio of a seed is the geometric mean over the tasks, so "
        "every task has the same weight.",
        "“Better” and “worse” need an interval without 0 %, which is the same as a p below 0.05: both come from one "
        "procedure. A method's mean log ratio over tasks and seeds is divided by its standard error. Random data with "
        "the variances of these runs and half of their correlations, drawn 3,999 times, show how large the largest of "
        f"these numbers gets if no method differs. So the intervals of the verdict hold for all {found.family} "
        "comparisons at once in 95 of 100 studies. “No significant difference” does not mean that there is none; the "
        "interval says how large it could be.",
        f"“Not enough to tell” means one of two things. Either there are fewer than {FEWEST} seeds. Or the best "
        "learning rate is the lowest or highest that was tried, so a better one may lie beyond it. If it is "
        f"{theirs}'s, no method is called better or without a difference. If it is the method's own, the method is not "
        "called worse or without a difference. It can be called better: a better learning rate would only add to "
        "that. Other options at the edge of their range, such as betas.1, are noted and do not prevent a verdict, "
        "because whoever chose the method chose that range.",
        "The choice of the tuned options is noisy, too, above all with one tuning seed: of two equally good methods, "
        "one can get the better options. Intervals and p include this noise. It is simulated: the report adds noise "
        "like that of these runs to the losses of the trials, and looks at which trial is then the best, 2,000 times.",
        "Intervals of single tasks are not corrected for their number: one in twenty misses the true value. With "
        "--per-task, single tasks have verdicts, too, and their intervals hold for all of them at once. Intervals of "
        "times to the target are the wider one, at each end, of Student's interval and the paired bootstrap.",
        "A run is lost if it diverged or failed. Ratios use the seeds on which neither run was lost. A method that "
        f"lost more runs than {theirs} is never called better; one that lost fewer is never called worse.",
        f"The target is the median final loss of {theirs}. Up to half of {theirs}'s own runs miss it. The time to "
        "the target is the first time that a run reaches it, even if the loss rises again later. A method that misses "
        f"the target has an infinite time, and so an infinite mean. A run of {theirs} that misses it counts with its "
        "whole budget, which can only make the other methods look slower. The lower end of the interval allows for "
        "both: it counts a miss as a success at the end of the budget, and where "
        f"{theirs} missed, it takes the time to the loss that {theirs} did reach.",
        "Between two measurements, the logarithm of the loss is interpolated linearly. Seconds are those of training "
        "alone, on the machine named above, with its other load.",
        "A method with many trials within 10 % of its best one is easy to tune. The notes below the verdict list the "
        "best values that lie at the edge of the range.",
        "“At the lowest validation loss” is where early stopping would have ended each run.",
    ]
    if not math.isnan(ranks.p):
        said.append(
            f"Methods are ranked for each of {ranks.blocks} pairs of a task and a seed. Two mean ranks differ "
            f"significantly if they are {multiple(ranks.critical)} apart (Nemenyi's critical difference). Friedman's "
            f"test that all methods rank the same: p {probability(ranks.p)}. This holds for these tasks, not for "
            "others."
        )
    return said

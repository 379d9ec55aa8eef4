"""The numbers of a leaderboard."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from collections.abc import Iterable, Sequence

import numpy as np
from scipy import stats

from superadam_lab.comparison.records import Results
from superadam_lab.comparison.statistics import power
from superadam_lab.comparison.statistics.analysis import Statistics, TaskStatistics, analyse
from superadam_lab.comparison.statistics.outcomes import TIMES
from superadam_lab.comparison.statistics.ranking import profile, studentized
from superadam_lab.comparison.verdict.cautions import count
from superadam_lab.comparison.verdict.judging import Judgement, judged

__all__ = ["Board", "Cell", "Row", "csv_of", "score"]

FARTHEST = 4.0
"""A run that takes more than four times as long as the fastest counts as a miss, as in AlgoPerf."""


@dataclasses.dataclass
class Cell:
    """A method on a task."""

    loss: float
    """The geometric mean of final losses."""
    ratio: float
    """To the baseline's loss, paired by seed; with its interval."""
    low: float
    high: float
    outcome: str
    """As in `judging.OUTCOMES`, or "baseline"."""
    needs: tuple[str, ...]
    """What would be enough to tell, if this is not."""
    finished: int
    runs: int
    ranks: list[float]
    """By seed, among all methods that have run the task with that seed."""
    times: dict[str, list[float]]
    """Times to the target over those of the fastest, for evaluations and seconds; infinite for a miss."""


@dataclasses.dataclass
class Row:
    """A method over all tasks."""

    method: str
    rank: float
    scores: dict[str, float]
    cells: dict[str, Cell]
    """By task; a method need not have run all of them."""
    composition: str = ""
    """What the method is, where its name does not say it."""


@dataclasses.dataclass
class Board:
    """Tasks × methods. Rows are in the order of their mean ranks."""

    baseline: str
    tasks: list[str]
    rows: list[Row]
    made: dict[str, str]
    """By task, how: scale, trials, seeds, evaluations, versions."""
    when: str = ""
    """The days on which the comparisons were begun."""
    notes: list[str] = dataclasses.field(default_factory=list)
    """What a reader has to know of the merge: methods of one name, versions that differ, runs that are left out."""

    @classmethod
    def of(cls, results: Results) -> Board:
        """The board of what `merging.merged` returns."""
        found = analyse(results, per_task=True)
        said = judged(found)
        rows = [_row(found, method, said) for method in found.methods]
        kept = [dataclasses.replace(row, composition=_composition(results, row.method)) for row in rows if row.cells]
        kept.sort(key=lambda row: (row.rank, row.method))
        days, notes = results.environment["days"], [*_power(found), *results.environment["notes"]]
        when = " to ".join(dict.fromkeys([min(days), max(days)])) if days else ""
        return cls(found.baseline, list(found.tasks), kept, results.environment["made"], when, notes)


def _power(found: Statistics) -> list[str]:
    """Many comparisons on few seeds show large differences alone, which a column of dots does not say."""
    seeds = min((len(task.outcomes[found.baseline].runs) for task in found.tasks.values()), default=0)
    least = power.shown(found)
    if not math.isfinite(least):
        return []
    many = f"{count(found.family, 'other method')} and {count(seeds, 'seed')}"
    detected = f"a true difference of {power.percent(least)} on {power.where(list(found.tasks))} is detected"
    return [f"With {many}, {detected} in {round(100 * power.POWER)} of 100 cases; smaller ones less often"]


def score(times: Sequence[float]) -> float:
    """AlgoPerf's score: the area under the performance profile up to 4 times the fastest, between 0 and 1.

    >>> score([1.0, 2.5, math.inf])
    0.5
    """
    return sum(max(0.0, FARTHEST - t) / (FARTHEST - 1) for t in times) / len(times) if times else 0.0


def critical(methods: int, blocks: int) -> float:
    """Nemenyi's difference of mean ranks; NaN if there are fewer than 3 methods."""
    return studentized(methods) * math.sqrt(methods * (methods + 1) / (6 * blocks)) if methods > 2 else math.nan


def _composition(results: Results, method: str) -> str:
    text = results.plan.compositions.get(method, method)
    return "" if text == method else text


def _row(found: Statistics, method: str, said: dict[str | None, dict[str, Judgement]]) -> Row:
    cells = {}
    for name, task in found.tasks.items():
        if task.outcomes[method].runs:
            cells[name] = _cell(task, method, said[name].get(method, Judgement("baseline")))
    ranks = [float(np.mean(cell.ranks)) for cell in cells.values()]
    scores = {axis: _mean_score(cells.values(), axis) for axis in TIMES}
    return Row(method, float(np.mean(ranks)) if ranks else math.inf, scores, cells)


def _mean_score(cells: Iterable[Cell], axis: str) -> float:
    """The mean score, in which every task has the same weight."""
    scores = [score(cell.times[axis]) for cell in cells if cell.times[axis]]
    return sum(scores) / len(scores) if scores else math.nan


def _cell(task: TaskStatistics, method: str, said: Judgement) -> Cell:
    outcome, against = task.outcomes[method], task.comparisons.get(method)
    here = {m: o.finals for m, o in task.outcomes.items() if o.runs}
    ranks = []
    for seed in outcome.finals:
        names = [m for m, finals in here.items() if seed in finals]
        ranks.append(float(stats.rankdata([here[m][seed] for m in names])[names.index(method)]))
    ran = dataclasses.replace(task, outcomes={m: o for m, o in task.outcomes.items() if o.runs})
    times = {axis: profile([ran], list(ran.outcomes), axis)[method] for axis in TIMES}
    estimate = against.finals if against is not None and against.relative else None
    value, low, high = (estimate.value, estimate.low, estimate.high) if estimate else (math.nan,) * 3
    if said.outcome == "baseline":
        value, low, high = 1.0, 1.0, 1.0
    loss = outcome.summary(task.criterion)[0].value
    return Cell(loss, value, low, high, *said, outcome.finished, len(outcome.runs), ranks, times)


def csv_of(board: Board) -> str:
    """One line for each method on each task."""
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    numbers = ["final_loss", "ratio", "low", "high", "outcome", "finished", "runs", "mean_rank"]
    lines.writerow(["method", "task", *numbers, *(f"score_{axis}" for axis in TIMES), "needed"])
    for row in board.rows:
        for task, cell in row.cells.items():
            values = [cell.loss, cell.ratio, cell.low, cell.high]
            shown = [f"{v:.6g}" if math.isfinite(v) else "" for v in values]
            scores = [f"{score(times):.4f}" if (times := cell.times[axis]) else "" for axis in TIMES]
            ends = [cell.outcome, cell.finished, cell.runs, f"{np.mean(cell.ranks):.4f}"]
            lines.writerow([row.method, task, *shown, *ends, *scores, "; ".join(cell.needs)])
    return out.getvalue()

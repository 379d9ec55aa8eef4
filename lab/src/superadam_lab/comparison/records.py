"""The results of a comparison, results.json. Statistics and reports use only this file."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from typing_extensions import Self

from superadam_lab.disk import write_text
from superadam_lab.reading import json_file, typed

__all__ = [
    "BUDGETS",
    "VERSIONS",
    "Budget",
    "Plan",
    "Record",
    "Results",
    "check_environment",
    "criterion",
    "final",
    "known",
]

VERSIONS = ("superadam", "torch", "python", "optuna", "cuda")
"""What of an environment changes numbers."""
LARGEST = 1e100
"""Larger numbers count as infinite: their squares and sums could be. float32 ends at 3e38."""
NEUTRAL = ("run_seconds", "run_memory", "minutes", "forecast", "dropped", "dimensions")
"""Fields of a plan that change no number."""
Row = dict[str, Any]
Budget = Literal["gradients", "epochs", "seconds"]
BUDGETS: tuple[Budget, ...] = get_args(Budget)
"""What is equal for all methods in the runs of a report."""


class RunKey(Protocol):
    """The key of a run."""

    @property
    def task(self) -> str: ...
    @property
    def method(self) -> str: ...
    @property
    def phase(self) -> Literal["tune", "report"]: ...
    @property
    def seed(self) -> int: ...


@dataclasses.dataclass
class Plan:
    """What is compared and by which rules, which are the same for every method.

    `budget_evals` has the gradient evaluations of a run by task. `space` has the ranges to tune, as key → [low, high],
    on a logarithmic scale. Trials are run with the `tuning_seeds`, the best options then with the `report_seeds`.
    """

    tasks: list[str]
    methods: list[str]
    baseline: str = "adamw"
    scale: str = "laptop"
    trials: int = 9
    tuning_seeds: list[int] = dataclasses.field(default_factory=lambda: [1000])
    report_seeds: list[int] = dataclasses.field(default_factory=lambda: [0, 1, 2, 3, 4])
    budget_evals: dict[str, int] = dataclasses.field(default_factory=dict)
    space: dict[str, tuple[float, float]] = dataclasses.field(default_factory=lambda: {"lr": (3e-4, 10.0)})
    sampler: str = "qmc"
    decay: str = "cosine"
    data_dir: str | None = None
    task_file: str | None = None
    task_digest: str | None = None
    """Of the file's content: a file that has changed is another comparison."""
    compositions: dict[str, str] = dataclasses.field(default_factory=dict)
    """What a method is, where its name does not say it."""
    sizes: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    """By task: what differs from the sizes of the scale, such as the batch."""
    device: str = "cpu"
    spaces: dict[str, dict[str, tuple[float, float]]] = dataclasses.field(default_factory=dict)
    """By method: what it tunes beside `space`, or within other bounds."""
    packages: dict[str, str] = dataclasses.field(default_factory=dict)
    """Files and packages that methods come from, with their versions and digests."""
    warmup: float = 0.0
    """The part of a run in which the learning rate grows to its value."""
    budgets: list[Budget] = dataclasses.field(default_factory=lambda: ["gradients"])
    """What is equal in the runs of the report; those of tuning have equal gradients."""
    halving: int | None = None
    """Of the trials, one in so many goes on to runs that are so many times longer; None for all."""

    run_seconds: float | None = None
    run_memory: float | None = None
    """Limits of a run: seconds, and gigabytes of its process."""
    minutes: float | None = None
    """The time that trials and seeds were chosen for. When it is over, seeds that not all methods have are dropped."""
    forecast: dict[str, float] = dataclasses.field(default_factory=dict)
    """By place, the task or all tasks: the least logarithm of a ratio that pilot runs said the comparison would detect,
    in 4 of 5 cases."""
    dropped: int = 0
    """Report seeds for which the minutes were not enough."""
    dimensions: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)
    """By task: its parameters, training examples (or words) and batch, for the report."""

    def __post_init__(self) -> None:
        every = [(k, v) for space in (self.space, *self.spaces.values()) for k, v in space.items()]
        for name, (low, high) in every:
            if not 0 < low < high < math.inf:
                raise ValueError(f"Invalid bounds of {name}: {low}:{high} (expected 0 < low < high)")

    def space_of(self, method: str) -> dict[str, tuple[float, float]]:
        """The ranges that are tuned for a method."""
        return {**self.space, **self.spaces.get(method, {})}

    def needs(self, run: RunKey) -> bool:
        """Whether a run is part of the plan."""
        seeds = self.report_seeds if run.phase == "report" else self.tuning_seeds
        return run.task in self.tasks and run.method in self.methods and run.seed in seeds

    def unlike(self, other: Plan) -> list[str]:
        """The fields in which this is not the other plan, or that plan with more tasks, methods or report seeds.

        >>> Plan(["a", "b"], ["adamw"]).unlike(Plan(["a"], ["adamw"])), Plan(["a"], []).unlike(Plan(["a"], ["adamw"]))
        ([], ['methods'])
        """
        mine, others = dataclasses.asdict(self), dataclasses.asdict(other)
        found = []
        for name, value in others.items():
            if name in ("tasks", "methods", "report_seeds", "budgets"):
                holds = set(value) <= set(mine[name])
            elif name in ("budget_evals", "compositions", "sizes", "spaces", "packages"):
                holds = all(mine[name].get(k) == v for k, v in value.items())
            else:
                holds = mine[name] == value or name in NEUTRAL
            if not holds:
                found.append(name)
        return found


@dataclasses.dataclass
class Record:
    """One run: of a tuning trial, or with the best options on a report seed.

    `rows` are those of metrics.jsonl without the monitor: epoch, step, gradient_evaluations, seconds, lr, train_loss,
    valid_loss, test_loss, test_accuracy and so on. A run that diverged or failed has the rows up to that point.
    """

    task: str
    method: str
    phase: Literal["tune", "report"]
    trial: int
    options: dict[str, float]
    """What was tuned."""
    seed: int
    status: Literal["finished", "diverged", "failed"]
    rows: list[Row]
    error: str = ""
    """Why it failed."""
    budget: Budget = "gradients"
    amount: int | None = None
    """Of the budget, where it is not the task's: gradient evaluations, or batches with equal epochs."""


@dataclasses.dataclass
class Results:
    """The plan, the environment and all records."""

    plan: Plan
    environment: dict[str, Any]
    """Versions, machine, threads, the exact command, and when. "earlier" has those before the plan was extended, or the
    versions changed, with the `report_seeds` of then."""
    records: list[Record]

    def only(self, *, seeds: Iterable[int] | None = None, tasks: Iterable[str] | None = None) -> Self:
        """The results on some of the tasks with some of the report seeds, with all of their tuning."""
        plan = self.plan
        kept = set(plan.report_seeds if seeds is None else seeds)
        chosen = set(plan.tasks if tasks is None else tasks)
        part = dataclasses.replace(
            plan,
            report_seeds=[seed for seed in plan.report_seeds if seed in kept],
            tasks=[task for task in plan.tasks if task in chosen],
        )
        records = [r for r in self.records if r.task in chosen and (r.phase == "tune" or r.seed in kept)]
        return dataclasses.replace(self, plan=part, records=records)

    @property
    def budgets(self) -> list[Budget]:
        """The budgets of the final runs."""
        return [b for b in BUDGETS if any(r.phase == "report" and r.budget == b for r in self.records)]

    def under(self, budget: Budget) -> Self:
        """The results with the runs of another budget instead of those with equal gradients, where the two differ."""
        there = {(r.task, r.method) for r in self.records if r.budget == budget}
        kept = [
            dataclasses.replace(r, budget="gradients")
            for r in self.records
            if r.phase == "tune" or r.budget == (budget if (r.task, r.method) in there else "gradients")
        ]
        return dataclasses.replace(self, records=kept)

    def lacks(self, other: Results) -> list[Record]:
        """The runs of the other results that are missing here."""
        mine = {_key(r) for r in self.records}
        return [r for r in other.records if _key(r) not in mine]

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file. An unfinished comparison can be written too; it has fewer records."""
        write_text(path, json.dumps(dataclasses.asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        return cls.of(json_file(Path(path)), str(path))

    @classmethod
    def of(cls, found: dict[str, Any], where: str = "results") -> Self:
        """From plain data, which is checked."""
        if not isinstance(found, dict) or not {"plan", "environment", "records"} <= found.keys():
            raise ValueError(f"{where} does not hold a comparison: expected an object of plan, environment and records")
        environment, records = found["environment"], found["records"]
        if not isinstance(records, list):
            raise ValueError(f"{where}: records is not a list")
        check_environment(environment, where)
        plan = typed(Plan, found["plan"], f"{where}, plan")
        return cls(plan, environment, [typed(Record, r, f"{where}, record {i}") for i, r in enumerate(records)])


def check_environment(environment: Any, where: str) -> None:
    """Raise an error if plain data is not a valid environment."""
    earlier = environment.get("earlier", []) if isinstance(environment, dict) else None
    if not isinstance(earlier, list) or not all(isinstance(e, dict) for e in earlier):
        raise ValueError(f"{where}: expected environment to be an object, and its entry 'earlier' a list of them")
    for one in (environment, *earlier):
        if wrong := [name for name in VERSIONS if not isinstance(one.get(name), str | None)]:
            raise ValueError(f"{where}, environment: {wrong[0]} is {one[wrong[0]]!r} (expected a version)")
    for one in earlier:
        seeds = one.get("report_seeds")
        if not isinstance(seeds, list) or not all(type(seed) is int for seed in seeds):
            raise ValueError(f"{where}, environment: an entry of 'earlier' has no report_seeds")


def _key(r: Record) -> tuple[Any, ...]:
    return r.task, r.method, r.phase, r.trial, r.seed, r.budget, r.amount


def known(value: Any) -> float:
    """A number; infinity if it is above `LARGEST`, NaN or missing.

    >>> known(0.5), known(None), known(math.nan), known(-1e300)
    (0.5, inf, inf, inf)
    """
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if number and abs(value) <= LARGEST else math.inf


def criterion(names: Iterable[str]) -> str:
    """The criterion: the validation loss or, for a task without validation data, the training loss."""
    return "valid_loss" if "valid_loss" in set(names) else "train_loss"


def final(record: Record, name: str) -> float:
    """The criterion at the end of the run; infinite if the run did not finish."""
    if record.status != "finished" or not record.rows:
        return math.inf
    return known(record.rows[-1].get(name))

"""The tasks by name, each in three sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from superadam.zoo.presets import PRESETS
from superadam_lab.data import DataError
from superadam_lab.errors import nearest
from superadam_lab.tasks.settings import LAPTOP
from superadam_lab.tasks.workloads import Settings, Workload

__all__ = ["SCALES", "TASKS", "Sizes", "Task", "add", "find"]

SCALES = ("tiny", "laptop", "paper")

Sizes = dict[str, Any]
TASKS: dict[str, Task] = {}
"""Every task by name."""


@dataclasses.dataclass(frozen=True)
class Task:
    """A workload in several sizes.

    `scales` has the sizes that `build` takes, and `epochs`. `preset` is the paper's experiment for the task, or the
    most similar one. `fetched` is the name of the data for `data.fetch`, unless they are embedded.
    """

    name: str
    description: str
    data: str
    build: Callable[..., Workload]
    scales: dict[str, Sizes]
    preset: str | None = None
    fetched: str | None = None
    needs_data: bool = False
    compared: dict[str, Sizes] = dataclasses.field(default_factory=dict)
    """What differs where `superadam compare` takes the task at a scale: numbers that are to mean something."""

    def sizes(self, scale: str, other: Sizes | None = None) -> Sizes:
        """The sizes of the scale, with those in `other` replaced."""
        if scale not in self.scales:
            raise ValueError(f"Unknown scale {scale!r}: {nearest(scale, self.scales)}")
        for name in (other or {}).keys() - self.scales[scale].keys():
            raise ValueError(f"{self.name} has no size {name!r}: {nearest(name, self.scales[scale])}")
        for name, n in (other or {}).items():
            whole = any(sizes.get(name, 1) is None for sizes in self.scales.values())  # null: all there are
            if n is None and whole:
                continue
            if type(n) is not int or n < 1:
                raise ValueError(f"Invalid {name}: {n!r} (expected a number from 1 on{', or null' if whole else ''})")
        return {**self.scales[scale], **(other or {})}

    def settings(self, scale: str) -> Settings:
        """The default options of methods: those of the paper at the paper's scale, and where none were chosen for a
        laptop."""
        paper = PRESETS.get(self.preset or "", {})
        tuned = LAPTOP.get(self.name, {})
        return (paper or tuned) if scale == "paper" else (tuned or paper)

    def workload(
        self, scale: str, seed: int, data_dir: str | Path | None = None, sizes: Sizes | None = None
    ) -> Workload:
        """The model with the initial weights of a seed, and the data."""
        sizes = self.sizes(scale, sizes)
        del sizes["epochs"]
        if self.needs_data and data_dir is None:
            how = " (`superadam train` gets them, with --download; so does data.fetch)" if self.fetched else ""
            raise DataError(f"{self.name} needs {self.data}: give --data-dir, the folder that holds them{how}.")
        torch.manual_seed(seed)
        workload = self.build(None if data_dir is None else Path(data_dir), seed, **sizes)
        workload.settings = self.settings(scale)
        return workload


def find(name: str) -> Task:
    """A task by name.

    >>> find("digits-mpl")
    Traceback (most recent call last):
    ValueError: Unknown task 'digits-mpl': did you mean 'digits-mlp'?
    """
    if name not in TASKS:
        raise ValueError(f"Unknown task {name!r}: {nearest(name, TASKS)}")
    return TASKS[name]


def add(
    name: str,
    description: str,
    source: str,
    build: Callable[..., Workload],
    *,
    tiny: Sizes,
    laptop: Sizes,
    paper: Sizes,
    preset: str | None = None,
    fetched: str | None = None,
    needs_data: bool = False,
    compared: dict[str, Sizes] | None = None,
) -> None:
    """Register a task."""
    needs_data = needs_data or fetched is not None
    scales = {"tiny": tiny, "laptop": laptop, "paper": paper}
    more = (preset, fetched, needs_data, compared or {})
    TASKS[name] = Task(name, description, source, build, scales, *more)

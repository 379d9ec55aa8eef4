"""A task of your own: a model, data and a loss."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from superadam_lab.methods.own import OWN
from superadam_lab.tasks.registry import SCALES, TASKS, Task
from superadam_lab.tasks.supervised import Data, Supervised
from superadam_lab.tasks.workloads import Workload
from superadam_lab.user_code import executed, executing

__all__ = ["check_known", "load", "task"]

_defined_in: dict[str, str | None] = {}
"""By task, the task file that called `lab.task`; None for any other code."""


def task(
    name: str,
    *,
    model: Callable[[], nn.Module],
    data: Data | Callable[[], Data],
    loss: Callable[..., Tensor],
    score: Callable[..., Tensor] | None = None,
    batch: int = 32,
    epochs: int = 20,
    description: str = "",
    **options: Any,
) -> Task:
    """Define a task by name, for `compare` and, in this process, for `runs.Run`.

    Args:
        name: the name of the task.
        model: a function that returns the model. It is called once per run, with torch's generator set to the run's
            seed.
        data: a dict with the splits "train" and, optionally, "valid" and "test"; or a function that returns the dict,
            called once per process. A split is a tuple of tensors with one row per example, a torch `Dataset`, a
            Hugging Face dataset with the format "torch", or a `DataLoader`. Of a loader, only the dataset and the
            `collate_fn` are used: the run makes the batches and their order.
        loss: a function of model, *tensors that returns the mean loss over the given rows. If a batch is a dict, a
            function of model and batch.
        score: a function of the same arguments, such as the accuracy. A training set of more than 1,000 rows is
            measured on as many rows as the validation set has, but at least 1,000.
        batch: number of rows in a batch.
        epochs: default length of a run. A comparison uses its number of gradient evaluations as the budget.
        description: one line for `superadam tasks`.
        **options: options that every optimizer of the task gets, such as `constraint=sets.Simplex()`.

    >>> x = torch.linspace(-1, 1, 90).view(-1, 1)
    >>> line = task(
    ...     "line",
    ...     model=lambda: nn.Linear(1, 1),
    ...     data={"train": (x[::3], 2 * x[::3]), "valid": (x[1::3], 2 * x[1::3])},
    ...     loss=lambda model, x, y: (model(x) - y).square().mean(),
    ... )
    >>> line.workload("laptop", seed=0).length
    1
    """

    @functools.cache
    def read() -> Data:
        if not callable(data):
            return data
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # the same data, whichever run of a process comes first
            return data()

    def build(folder: Path | None, seed: int, batch: int) -> Workload:
        return Supervised(model(), read(), loss, score, seed, batch, **options)

    sizes = {"batch": batch, "epochs": epochs}
    made = Task(name, description or "a task of your own", "its own", build, dict.fromkeys(SCALES, sizes))
    if not executing or executing[-1].declares:
        TASKS[name], _defined_in[name] = made, executing[-1].path if executing else None
    return made


def check_known(names: Iterable[str]) -> None:
    """Raise an error for tasks that only this process knows, if other processes must run them."""
    for name in names:
        if name in TASKS and _defined_in.get(name, "embedded") is None:
            raise ValueError(
                f"Worker processes do not know the task {name!r}, which lab.task has defined in this process: call "
                "lab.task in a file, and pass that as task_file="
            )


def digest(path: str | Path) -> str:
    """A digest of a task file."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


def load(path: str | Path) -> list[str]:
    """Run a file that defines tasks, methods or both, and return the names of the tasks."""
    before, methods = dict(TASKS), dict(OWN)
    executed(Path(path), "task file that calls superadam_lab.task(…)", declares=True)
    names = [name for name, found in TASKS.items() if before.get(name) is not found]
    if not names and methods == OWN:
        raise ValueError(f"{path} defines no task: it should call superadam_lab.task(…)")
    return names

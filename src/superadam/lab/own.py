"""A task of one's own: a model, data and a loss."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from superadam._state.parts import nearest
from superadam.lab.errors import place_and, task_files
from superadam.lab.tasks import SCALES, TASKS, Task
from superadam.lab.workloads import CHUNK, Evaluated, Metrics, Workload

__all__ = ["load", "task"]

SPLITS = ("train", "valid", "test")
Data = Mapping[str, tuple[Tensor, ...]]


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
    """A task for `compare` and, in this process, for `runs.Run`, known by its name from here on.

    Args:
        name: what it is called.
        model: makes the model. It is called once for each run, with torch's generator set to the run's seed.
        data: tensors by split: "train" and, if there are any, "valid" and "test". What has one row for each example in
            each of its tensors; or what returns it, called once in a process.
        loss: of model, *tensors: the mean over the rows at hand.
        score: of the same, measured beside the loss, such as the accuracy.
        batch: rows in a batch.
        epochs: what a run takes, if nothing else is said; a comparison counts its gradient evaluations.
        description: for lists.
        **options: what the optimizer has to be told, such as `constraint=sets.Simplex()`.

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
    TASKS[name] = Task(name, description or "a task of your own", "its own", build, dict.fromkeys(SCALES, sizes))
    return TASKS[name]


def digest(path: str | Path) -> str:
    """What a task file holds, in short."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


def load(path: str | Path) -> list[str]:
    """Run a file that defines tasks, and return their names."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"There is no task file {path}")
    before = dict(TASKS)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is no Python file: expected one that calls superadam.lab.task(…)")
    module = importlib.util.module_from_spec(spec)
    task_files.add(str(path))
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise ValueError(f"{error.filename}, line {error.lineno}: {error.msg}") from error
    except (Exception, SystemExit) as error:
        raise ValueError(place_and(error) or f"{path} cannot be run: {type(error).__name__}: {error}") from error
    names = [name for name, found in TASKS.items() if before.get(name) is not found]
    if not names:
        raise ValueError(f"{path} defines no task: it should call superadam.lab.task(…)")
    return names


class Tensors:
    """Rows of several tensors, for `data.batches`."""

    def __init__(self, tensors: tuple[Tensor, ...]) -> None:
        self.tensors = tensors
        lengths = {len(t) for t in tensors}
        if len(lengths) != 1:
            raise ValueError(f"The tensors of a split must have one row for each example, but they have {lengths}")

    def __len__(self) -> int:
        return len(self.tensors[0])

    def batch(self, rows: Tensor, key: int | None = None, part: slice = slice(None)) -> Any:
        return tuple(t[rows[part]] for t in self.tensors)


class Supervised(Workload):
    """A loss that is a mean over rows."""

    score = "score"

    def __init__(
        self, model: nn.Module, data: Data, loss: Any, score: Any, seed: int, batch: int, **options: Any
    ) -> None:
        for split in set(data) - set(SPLITS):
            raise ValueError(f"Unknown split {split!r}: {nearest(split, SPLITS)}")
        super().__init__(model, Tensors(data["train"]), seed, batch, **options)
        self.splits = tuple(data)
        self.rows, self._loss, self._score = dict(data), loss, score

    def loss(self, batch: Any, memory: Any = None) -> Evaluated:
        return self._loss(self.model, *(t.to(self.device) for t in batch)), None

    @torch.no_grad()
    def evaluate(self, split: str) -> Metrics:
        wanted = {"loss": self._loss} | ({} if self._score is None else {self.score: self._score})
        with self.evaluating():
            return {name: float(sum(self._means(split, of))) for name, of in wanted.items()}

    def full(self) -> Iterator[Tensor]:
        return self._means("train", self._loss)

    def _means(self, split: str, of: Any) -> Iterator[Tensor]:
        """Values on parts of the rows, that add up to the mean over all."""
        n = len(self.rows[split][0])
        for part in zip(*(torch.split(t, CHUNK) for t in self.rows[split]), strict=True):
            yield of(self.model, *(t.to(self.device) for t in part)) * (len(part[0]) / n)

"""A model, examples and a loss: the workload of your own task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from superadam_lab.errors import nearest
from superadam_lab.tasks.workloads import CHUNK, Evaluated, Metrics, Workload

__all__ = ["Data", "Supervised"]

SPLITS = ("train", "valid", "test")
Split = tuple[Tensor, ...] | Dataset[Any] | DataLoader[Any]
Data = Mapping[str, Split]


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


LEAST = 1_000  # examples of a training set that are measured, whatever there is for validation


class Examples:
    """A dataset of torch or Hugging Face; `collate` makes batches of its examples."""

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any]) -> None:
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            raise ValueError(
                f"{type(dataset).__name__} has no length, so runs could not see its examples in the same order: "
                "expected a dataset with len() and indices"
            )
        self.dataset, self.collate = dataset, collate

    def __len__(self) -> int:
        return len(self.dataset)

    def batch(self, rows: Tensor, key: int | None = None, part: slice = slice(None)) -> Any:
        return self.collate([self.dataset[i] for i in rows[part].tolist()])


def source_of(split: Split) -> Tensors | Examples:
    """The dataset and the `collate_fn` of a loader. The run decides the order."""
    if isinstance(split, DataLoader):
        return Examples(split.dataset, split.collate_fn)
    return Tensors(split) if isinstance(split, (tuple, list)) else Examples(split, default_collate)


class Supervised(Workload):
    """A loss that is a mean over rows."""

    score = "score"

    def __init__(
        self, model: nn.Module, data: Data, loss: Any, score: Any, seed: int, batch: int, **options: Any
    ) -> None:
        for split in set(data) - set(SPLITS):
            raise ValueError(f"Unknown split {split!r}: {nearest(split, SPLITS)}")
        self.rows = {split: source_of(of) for split, of in data.items()}
        super().__init__(model, self.rows["train"], seed, batch, **options)
        self.splits = tuple(data)
        self._loss, self._score = loss, score

    def loss(self, batch: Any, memory: Any = None) -> Evaluated:
        return self._of(self._loss, batch), None

    def _of(self, what: Any, batch: Any) -> Tensor:
        """Call a function with the model and the tensors of a batch, or with the whole batch if it is a dict or the
        function has `whole_batch`."""
        there = tree_map(lambda x: x.to(self.device) if isinstance(x, Tensor) else x, batch)
        several = isinstance(there, (tuple, list)) and not getattr(what, "whole_batch", False)
        found: Tensor = what(self.model, *there) if several else what(self.model, there)
        return found

    @torch.no_grad()
    def evaluate(self, split: str) -> Metrics:
        wanted = {"loss": self._loss} | ({} if self._score is None else {self.score: self._score})
        with self.evaluating():
            return {name: float(sum(self._means(split, of, self._measured(split)))) for name, of in wanted.items()}

    def full(self) -> Iterator[Tensor]:
        return self._means("train", self._loss, torch.arange(len(self.rows["train"])))

    def _measured(self, split: str) -> Tensor:
        """The rows that are measured: all of them, except for a large training set, where as many as for validation."""
        n = len(self.rows[split])
        most = max(LEAST, len(self.rows.get("valid", ())))
        return torch.linspace(0, n - 1, most).long() if split == "train" and n > most else torch.arange(n)

    def _means(self, split: str, of: Any, rows: Tensor) -> Iterator[Tensor]:
        """Values on parts of the rows that add up to the mean over all rows."""
        for part in torch.split(rows, CHUNK):
            yield self._of(of, self.rows[split].batch(part)) * (len(part) / len(rows))

"""The tasks by name, each in three sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from superadam.lab import _stand_in as data
from superadam.lab import _stand_in as models
from superadam.lab._stand_in import Images, Rows, Tokens
from superadam.lab.problems import NMF, Classification, LanguageModel, Logistic, Problem, SimplexRegression
from superadam.parts import nearest

__all__ = ["SCALES", "TASKS", "Task", "find"]

SCALES = ("tiny", "laptop", "paper")

Sizes = dict[str, Any]
Settings = dict[str, dict[str, Any]]
TASKS: dict[str, Task] = {}
"""Every task by name."""


@dataclasses.dataclass(frozen=True)
class Task:
    """A problem to train, in several sizes.

    `scales` has the sizes that `build` takes, and `epochs`. `settings` are the options of methods that do well at
    `laptop` scale; `preset` is the experiment of the paper that has the same shape.
    """

    name: str
    description: str
    data: str
    build: Callable[..., Problem]
    scales: dict[str, Sizes]
    preset: str | None = None
    settings: Settings = dataclasses.field(default_factory=dict)

    def sizes(self, scale: str) -> Sizes:
        """What is built, in numbers."""
        if scale not in self.scales:
            raise ValueError(f"Unknown scale {scale!r}: {nearest(scale, self.scales)}")
        return dict(self.scales[scale])

    def problem(self, scale: str, seed: int, data_dir: str | Path | None = None) -> Problem:
        """The model with the initial weights of a seed, and the data."""
        sizes = self.sizes(scale)
        del sizes["epochs"]
        torch.manual_seed(seed)
        return self.build(None if data_dir is None else Path(data_dir), seed, **sizes)


def find(name: str) -> Task:
    """A task by name.

    >>> find("digits-mpl")
    Traceback (most recent call last):
    ValueError: Unknown task 'digits-mpl': did you mean 'digits-mlp'?
    """
    if name not in TASKS:
        raise ValueError(f"Unknown task {name!r}: {nearest(name, TASKS)}")
    return TASKS[name]


def _task(name: str, description: str, data: str, **more: Any) -> Callable[[Callable[..., Problem]], Any]:
    def known(build: Callable[..., Problem]) -> Callable[..., Problem]:
        scales = {scale: more.pop(scale) for scale in SCALES}
        TASKS[name] = Task(name, description, data, build, scales, **more)
        return build

    return known


# ------------------------------------------------------------------------------------------------ images


def _first(images: dict[str, Images], rows: int | None) -> dict[str, Images]:
    """The first rows of every split."""
    return {split: Images(i.x[:rows], i.y[:rows], i.mean, i.std) for split, i in images.items()}


@_task(
    "digits-mlp",
    "a perceptron with one hidden layer and dropout on 8×8 digits",
    "scikit-learn's digits",
    tiny={"hidden": 16, "rows": 64, "batch": 32, "epochs": 2},
    laptop={"hidden": 128, "rows": None, "batch": 32, "epochs": 20},
    paper={"hidden": 1000, "rows": None, "batch": 128, "epochs": 200},
    preset="cifar10",
)
def digits_mlp(data_dir: Path | None, seed: int, *, hidden: int, rows: int | None, batch: int) -> Problem:
    return Classification(models.mlp(64, hidden, 10, 0.2), _first(data.digits(), rows), seed, batch=batch)


@_task(
    "digits-cnn",
    "a convolutional network with BatchNorm on 8×8 digits",
    "scikit-learn's digits",
    tiny={"width": 4, "rows": 64, "batch": 32, "epochs": 2},
    laptop={"width": 16, "rows": None, "batch": 32, "epochs": 10},
    paper={"width": 64, "rows": None, "batch": 128, "epochs": 200},
    preset="cifar10",
)
def digits_cnn(data_dir: Path | None, seed: int, *, width: int, rows: int | None, batch: int) -> Problem:
    return Classification(models.small_cnn(10, width), _first(data.digits(), rows), seed, batch=batch)


# ------------------------------------------------------------------------------------------------ text


def _start(tokens: dict[str, Tokens], words: int | None) -> dict[str, Tokens]:
    """The first words of every split."""
    return {split: Tokens(t.ids[:words], t.vocabulary) for split, t in tokens.items()}


def _lstm(
    tokens: dict[str, Tokens], seed: int, *, size: int, words: int | None, batch: int, bptt: int
) -> LanguageModel:
    model = models.LSTM(len(tokens["train"].vocabulary), size)
    return LanguageModel(model, _start(tokens, words), seed, batch=batch, bptt=bptt, recurrent=True)


def _transformer(
    tokens: dict[str, Tokens], seed: int, *, size: int, words: int | None, batch: int, bptt: int
) -> LanguageModel:
    model = models.Transformer(len(tokens["train"].vocabulary), size, hidden=size)
    return LanguageModel(model, _start(tokens, words), seed, batch=batch, bptt=bptt, recurrent=False)


@_task(
    "pydoc-lstm",
    "a word-level LSTM of two layers with dropout on Python's documentation",
    "pydoc_data.topics of Python",
    tiny={"size": 8, "words": 600, "batch": 10, "bptt": 10, "epochs": 2},
    laptop={"size": 64, "words": None, "batch": 20, "bptt": 35, "epochs": 6},
    paper={"size": 650, "words": None, "batch": 20, "bptt": 35, "epochs": 40},
    preset="wikitext2-lstm",
)
def pydoc_lstm(data_dir: Path | None, seed: int, **sizes: Any) -> Problem:
    return _lstm(data.pydoc(), seed, **sizes)


@_task(
    "pydoc-transformer",
    "a word-level Transformer of two layers with dropout on Python's documentation",
    "pydoc_data.topics of Python",
    tiny={"size": 8, "words": 600, "batch": 10, "bptt": 10, "epochs": 2},
    laptop={"size": 64, "words": None, "batch": 20, "bptt": 35, "epochs": 6},
    paper={"size": 200, "words": None, "batch": 20, "bptt": 35, "epochs": 40},
    preset="wikitext2-transformer",
)
def pydoc_transformer(data_dir: Path | None, seed: int, **sizes: Any) -> Problem:
    return _transformer(data.pydoc(), seed, **sizes)


# ------------------------------------------------------------------------------------------------ without a network


def _breast_cancer() -> Rows:
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    x = torch.tensor(x, dtype=torch.float32)
    return Rows((x - x.mean(0)) / x.std(0), torch.tensor(y, dtype=torch.float32) * 2 - 1)


@_task(
    "logistic-nonconvex",
    "logistic regression with a nonconvex penalty, full gradient exact",
    "scikit-learn's breast cancer data; --data-dir: a LIBSVM file, such as a9a or w8a",
    tiny={"rows": 100, "batch": 16, "epochs": 2},
    laptop={"rows": None, "batch": 16, "epochs": 20},
    paper={"rows": None, "batch": 16, "epochs": 200},
)
def logistic_nonconvex(data_dir: Path | None, seed: int, *, rows: int | None, batch: int) -> Problem:
    found = _breast_cancer() if data_dir is None else data.libsvm(data_dir)
    order = torch.randperm(len(found.y), generator=torch.Generator().manual_seed(0))[:rows]  # the same for every seed
    cut = [int(part * len(order)) for part in (0.0, 0.7, 0.85, 1.0)]
    parts = {
        split: Rows(found.x[order[a:b]], found.y[order[a:b]])
        for split, a, b in zip(("train", "valid", "test"), cut, cut[1:], strict=False)
    }
    return Logistic(parts, seed, batch=batch)


@_task(
    "simplex-regression",
    "least squares for weights on the simplex, most of them zero",
    "drawn",
    tiny={"n": 64, "d": 10, "batch": 16, "epochs": 2},
    laptop={"n": 2000, "d": 100, "batch": 20, "epochs": 10},
    paper={"n": 50_000, "d": 1000, "batch": 100, "epochs": 20},
)
def simplex_regression(data_dir: Path | None, seed: int, **sizes: Any) -> Problem:
    return SimplexRegression(seed, **sizes)


@_task(
    "nmf",
    "non-negative matrix factorisation of the digits",
    "scikit-learn's digits",
    tiny={"rows": 64, "rank": 4, "batch": 32, "epochs": 2},
    laptop={"rows": 500, "rank": 16, "batch": 50, "epochs": 100},
    paper={"rows": None, "rank": 16, "batch": 50, "epochs": 500},
)
def nmf(data_dir: Path | None, seed: int, *, rows: int | None, rank: int, batch: int) -> Problem:
    return NMF(data.digits()["train"].x[:rows], seed, rank=rank, batch=batch)

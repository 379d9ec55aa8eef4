"""The tasks by name, each in three sizes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from superadam._state.parts import nearest
from superadam.lab import data, models
from superadam.lab.data import DataError, Rows, Tokens
from superadam.lab.formulas import NMF, Logistic, SimplexRegression
from superadam.lab.settings import LAPTOP
from superadam.lab.workloads import Classification, LanguageModel, Settings, Workload, shuffled, some
from superadam.zoo.presets import PRESETS

__all__ = ["SCALES", "TASKS", "Task", "find"]

SCALES = ("tiny", "laptop", "paper")

Sizes = dict[str, Any]
TASKS: dict[str, Task] = {}
"""Every task by name."""


@dataclasses.dataclass(frozen=True)
class Task:
    """A workload in several sizes.

    `scales` has the sizes that `build` takes, and `epochs`. `preset` is the experiment of the paper that the task is,
    or has the shape of. `fetched` is the name by which `data.fetch` knows its data, where they are not embedded.
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
        """What is built, in numbers; with those of `other` in place of the scale's."""
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
        """The options of methods that a run takes where none are given: the paper's at the paper's scale, and where
        none have been chosen for a laptop's."""
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


def _add(
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
    needs_data = needs_data or fetched is not None
    scales = {"tiny": tiny, "laptop": laptop, "paper": paper}
    more = (preset, fetched, needs_data, compared or {})
    TASKS[name] = Task(name, description, source, build, scales, *more)


# ------------------------------------------------------------------------------------------------ embedded data


def _perceptron(folder: Path | None, seed: int, *, hidden: int, rows: int | None, batch: int) -> Workload:
    return Classification(models.mlp(64, hidden, 10, 0.2), _digits(rows), seed, batch)


def _network(folder: Path | None, seed: int, *, width: int, rows: int | None, batch: int) -> Workload:
    return Classification(models.small_cnn(10, width), _digits(rows), seed, batch)


def _digits(rows: int | None) -> dict[str, data.Images]:
    return {split: some(images, rows) for split, images in _once(data.digits).items()}


@functools.lru_cache(maxsize=2)
def _once(read: Callable[..., Any], *args: Any) -> Any:
    """Data as they were read last: a comparison makes runs by the hundred in one process."""
    return read(*args)


def _lstm(tokens: dict[str, Tokens], seed: int, *, size: int, words: int | None, **sizes: Any) -> Workload:
    model = models.LSTM(len(tokens["train"].vocabulary), size)
    return LanguageModel(model, _start(tokens, words), seed, recurrent=True, **sizes)


def _transformer(tokens: dict[str, Tokens], seed: int, *, size: int, words: int | None, **sizes: Any) -> Workload:
    model = models.Transformer(len(tokens["train"].vocabulary), size, hidden=size)
    return LanguageModel(model, _start(tokens, words), seed, recurrent=False, **sizes)


def _start(tokens: dict[str, Tokens], words: int | None) -> dict[str, Tokens]:
    """The first words of every text."""
    return {split: t.take(slice(words)) for split, t in tokens.items()}


def _wikitext2(build: Callable[..., Workload]) -> Callable[..., Workload]:
    """With its most common words: time grows with their number."""
    return lambda folder, seed, vocabulary=None, **sizes: build(
        data.common(_once(data.wikitext2, folder), vocabulary), seed, **sizes
    )


def _logistic(path: Path | None, seed: int, *, rows: int | None, batch: int) -> Workload:
    if path is not None and path.is_dir():
        path /= "a9a"
    found = some(_once(_breast_cancer) if path is None else _once(data.libsvm, path), rows)
    order = shuffled(len(found))
    a, b = int(0.7 * len(order)), int(0.85 * len(order))
    parts = {"train": order[:a], "valid": order[a:b], "test": order[b:]}
    return Logistic({split: found.take(part) for split, part in parts.items()}, seed, batch)


def _breast_cancer() -> Rows:
    from sklearn.datasets import load_breast_cancer  # type: ignore[import-untyped]

    x, y = load_breast_cancer(return_X_y=True)
    x = torch.tensor(x, dtype=torch.float32)
    return Rows((x - x.mean(0)) / x.std(0), torch.tensor(y, dtype=torch.float32) * 2 - 1)


_add(
    "digits-mlp",
    "a perceptron with one hidden layer and dropout on 8×8 digits",
    "scikit-learn's digits",
    _perceptron,
    tiny={"hidden": 16, "rows": 64, "batch": 32, "epochs": 2},
    laptop={"hidden": 128, "rows": None, "batch": 32, "epochs": 20},
    paper={"hidden": 1000, "rows": None, "batch": 128, "epochs": 200},
    preset="cifar10",
    compared={"tiny": {"hidden": 32, "rows": None, "epochs": 15}},
)
_add(
    "digits-cnn",
    "a convolutional network with BatchNorm on 8×8 digits",
    "scikit-learn's digits",
    _network,
    tiny={"width": 4, "rows": 64, "batch": 32, "epochs": 2},
    laptop={"width": 16, "rows": None, "batch": 32, "epochs": 10},
    paper={"width": 64, "rows": None, "batch": 128, "epochs": 200},
    preset="cifar10",
    compared={"tiny": {"width": 8, "rows": None, "epochs": 10}},
)
_add(
    "pydoc-lstm",
    "a word-level LSTM of two layers with dropout on Python's documentation",
    "pydoc_data.topics of Python",
    lambda folder, seed, **sizes: _lstm(_once(data.pydoc), seed, **sizes),
    tiny={"size": 8, "words": 600, "batch": 10, "bptt": 10, "epochs": 2},
    laptop={"size": 64, "words": None, "batch": 20, "bptt": 35, "epochs": 6},
    paper={"size": 650, "words": None, "batch": 20, "bptt": 35, "epochs": 40},
    preset="wikitext2-lstm",
)
_add(
    "pydoc-transformer",
    "a word-level Transformer of two layers with dropout on Python's documentation",
    "pydoc_data.topics of Python",
    lambda folder, seed, **sizes: _transformer(_once(data.pydoc), seed, **sizes),
    tiny={"size": 8, "words": 600, "batch": 10, "bptt": 10, "epochs": 2},
    laptop={"size": 64, "words": None, "batch": 20, "bptt": 35, "epochs": 6},
    paper={"size": 200, "words": None, "batch": 20, "bptt": 35, "epochs": 40},
    preset="wikitext2-transformer",
)
_add(
    "logistic-nonconvex",
    "logistic regression with a nonconvex penalty, full gradient exact",
    "scikit-learn's breast cancer data; or a LIBSVM file by --data-dir; of a folder, a9a",
    _logistic,
    tiny={"rows": 100, "batch": 16, "epochs": 2},
    laptop={"rows": 10_000, "batch": 16, "epochs": 20},
    paper={"rows": None, "batch": 16, "epochs": 200},
)
_add(
    "simplex-regression",
    "least squares for weights on the simplex, most of them zero",
    "drawn at random",
    lambda folder, seed, **sizes: SimplexRegression(seed, **sizes),
    tiny={"n": 64, "d": 10, "batch": 16, "epochs": 2},
    laptop={"n": 2000, "d": 100, "batch": 20, "epochs": 10},
    paper={"n": 50_000, "d": 1000, "batch": 100, "epochs": 20},
)
_add(
    "nmf",
    "non-negative matrix factorisation of the digits",
    "scikit-learn's digits",
    lambda folder, seed, rows, **sizes: NMF(some(_once(data.digits)["train"], rows).x, seed, **sizes),
    tiny={"rows": 64, "rank": 4, "batch": 32, "epochs": 2},
    laptop={"rows": 500, "rank": 16, "batch": 50, "epochs": 100},
    paper={"rows": None, "rank": 16, "batch": 50, "epochs": 500},
)


# ------------------------------------------------------------------------------------------------ the paper's tasks


def _images(model: Callable[..., Any], read: Callable[..., dict[str, Any]]) -> Callable[..., Workload]:
    """Of `rows` images of the training set, with `measured` others of it for validation and as many for testing; or of
    all, as published, without validation."""

    def build(
        folder: Path, seed: int, *, width: int, rows: int | None, batch: int, measured: int | None = None, **sizes: int
    ) -> Workload:
        images = read(folder, **sizes)
        network = model(classes=len(images["train"].names), width=width)
        if rows is not None and measured is not None:
            train, order = images["train"], shuffled(len(images["train"]))[: rows + measured]
            a = len(order) * rows // (rows + measured)  # where there are not as many images
            images = {
                "train": train.take(order[:a]),
                "valid": train.take(order[a:]),
                "test": some(images["test"], measured),
            }
        return Classification(network, images, seed, batch, augment=True, measured=measured)

    return build


_add(
    "cifar10-resnet18",
    "ResNet-18 on CIFAR-10, cropped and flipped",
    "CIFAR-10, python version",
    _images(lambda **sizes: models.cifar_resnet(18, **sizes), lambda folder: _once(data.cifar, folder, 10)),
    tiny={"width": 4, "rows": 64, "measured": 32, "batch": 32, "epochs": 2},
    laptop={"width": 8, "rows": 3200, "measured": 1000, "batch": 64, "epochs": 4},
    paper={"width": 64, "rows": None, "batch": 128, "epochs": 200},
    preset="cifar10",
    fetched="cifar10",
)
_add(
    "cifar100-vgg19",
    "VGG-19 with BatchNorm on CIFAR-100, cropped and flipped",
    "CIFAR-100, python version",
    _images(lambda **sizes: models.vgg19_bn(**sizes), lambda folder: _once(data.cifar, folder, 100)),
    tiny={"width": 4, "rows": 64, "measured": 32, "batch": 32, "epochs": 2},
    laptop={"width": 8, "rows": 3200, "measured": 1000, "batch": 64, "epochs": 4},
    paper={"width": 64, "rows": None, "batch": 128, "epochs": 200},
    preset="cifar100",
    fetched="cifar100",
)
_add(
    "imagenet-resnet34",
    "ResNet-34 on ImageNet, or on any folders train/class and val/class of images",
    "ImageNet's folders of JPEG files",
    _images(lambda **sizes: models.imagenet_resnet(34, **sizes), data.image_folder),
    tiny={"width": 4, "size": 32, "rows": 24, "measured": 8, "batch": 16, "epochs": 2},
    laptop={"width": 16, "size": 64, "rows": 3200, "measured": 1000, "batch": 64, "epochs": 4},
    paper={"width": 64, "size": 224, "rows": None, "batch": 256, "epochs": 60},
    preset="imagenet",
    needs_data=True,
)
_add(
    "wikitext2-lstm",
    "a word-level LSTM of two layers with dropout on WikiText-2",
    "WikiText-2",
    _wikitext2(_lstm),
    tiny={"size": 8, "words": 600, "vocabulary": 100, "batch": 10, "bptt": 10, "epochs": 2},
    laptop={"size": 64, "words": 50_000, "vocabulary": 2000, "measured": 10_000, "batch": 10, "bptt": 20, "epochs": 6},
    paper={"size": 650, "words": None, "batch": 20, "bptt": 35, "epochs": 40},
    preset="wikitext2-lstm",
    fetched="wikitext2",
)
_add(
    "wikitext2-transformer",
    "a word-level Transformer of two layers with dropout on WikiText-2",
    "WikiText-2",
    _wikitext2(_transformer),
    tiny={"size": 8, "words": 600, "vocabulary": 100, "batch": 10, "bptt": 10, "epochs": 2},
    laptop={"size": 64, "words": 50_000, "vocabulary": 2000, "measured": 10_000, "batch": 10, "bptt": 20, "epochs": 6},
    paper={"size": 200, "words": None, "batch": 20, "bptt": 35, "epochs": 40},
    preset="wikitext2-transformer",
    fetched="wikitext2",
)

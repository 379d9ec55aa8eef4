"""The tasks of the paper, and tasks of the same kinds on embedded data."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from superadam_lab import data
from superadam_lab.data import Rows, Tokens
from superadam_lab.tasks import models
from superadam_lab.tasks.formulas import NMF, Logistic, SimplexRegression
from superadam_lab.tasks.registry import add
from superadam_lab.tasks.workloads import Classification, LanguageModel, Workload, shuffled, some

# ------------------------------------------------------------------------------------------------ embedded data


def _perceptron(folder: Path | None, seed: int, *, hidden: int, rows: int | None, batch: int) -> Workload:
    return Classification(models.mlp(64, hidden, 10, 0.2), _digits(rows), seed, batch)


def _network(folder: Path | None, seed: int, *, width: int, rows: int | None, batch: int) -> Workload:
    return Classification(models.small_cnn(10, width), _digits(rows), seed, batch)


def _digits(rows: int | None) -> dict[str, data.Images]:
    return {split: some(images, rows) for split, images in _once(data.digits).items()}


@functools.lru_cache(maxsize=2)
def _once(read: Callable[..., Any], *args: Any) -> Any:
    """Cache the data that were read last, because a comparison makes hundreds of runs in one process."""
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
    """WikiText-2 with its most common words only, because the time of a step grows with the vocabulary."""
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


add(
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
add(
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
add(
    "pydoc-lstm",
    "a word-level LSTM of two layers with dropout on Python's documentation",
    "pydoc_data.topics of Python",
    lambda folder, seed, **sizes: _lstm(_once(data.pydoc), seed, **sizes),
    tiny={"size": 8, "words": 600, "batch": 10, "bptt": 10, "epochs": 2},
    laptop={"size": 64, "words": None, "batch": 20, "bptt": 35, "epochs": 6},
    paper={"size": 650, "words": None, "batch": 20, "bptt": 35, "epochs": 40},
    preset="wikitext2-lstm",
)
add(
    "pydoc-transformer",
    "a word-level Transformer of two layers with dropout on Python's documentation",
    "pydoc_data.topics of Python",
    lambda folder, seed, **sizes: _transformer(_once(data.pydoc), seed, **sizes),
    tiny={"size": 8, "words": 600, "batch": 10, "bptt": 10, "epochs": 2},
    laptop={"size": 64, "words": None, "batch": 20, "bptt": 35, "epochs": 6},
    paper={"size": 200, "words": None, "batch": 20, "bptt": 35, "epochs": 40},
    preset="wikitext2-transformer",
)
add(
    "logistic-nonconvex",
    "logistic regression with a nonconvex penalty, full gradient exact",
    "scikit-learn's breast cancer data; or a LIBSVM file by --data-dir; of a folder, a9a",
    _logistic,
    tiny={"rows": 100, "batch": 16, "epochs": 2},
    laptop={"rows": 10_000, "batch": 16, "epochs": 20},
    paper={"rows": None, "batch": 16, "epochs": 200},
)
add(
    "simplex-regression",
    "least squares for weights on the simplex, most of them zero",
    "drawn at random",
    lambda folder, seed, **sizes: SimplexRegression(seed, **sizes),
    tiny={"n": 64, "d": 10, "batch": 16, "epochs": 2},
    laptop={"n": 2000, "d": 100, "batch": 20, "epochs": 10},
    paper={"n": 50_000, "d": 1000, "batch": 100, "epochs": 20},
)
add(
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
    """A task with `rows` images of the training set, `measured` others of it for validation, and as many for testing;
    or with all images, as published, without validation."""

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


add(
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
add(
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
add(
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
add(
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
add(
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

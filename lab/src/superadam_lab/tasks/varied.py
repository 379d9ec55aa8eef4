"""Embedded tasks of other kinds than the paper's, on which optimizers differ: depth, attention, embeddings, derivatives
in the loss, rare features. Nothing is downloaded. The random data are the same for every seed."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from superadam_lab import data
from superadam_lab.data import Rows
from superadam_lab.tasks import models
from superadam_lab.tasks.formulas import Logistic
from superadam_lab.tasks.registry import add
from superadam_lab.tasks.supervised import Supervised
from superadam_lab.tasks.workloads import Classification, Workload, some

__all__: list[str] = []

PARTS = {"train": (0.0, 0.7), "valid": (0.7, 0.85), "test": (0.85, 1.0)}


def _parted(*tensors: Tensor) -> dict[str, tuple[Tensor, ...]]:
    """Training, validation and test rows, of tensors in random order."""
    n = len(tensors[0])
    return {s: tuple(t[int(a * n) : int(b * n)] for t in tensors) for s, (a, b) in PARTS.items()}


def _draw() -> torch.Generator:
    return torch.Generator().manual_seed(0)


# ------------------------------------------------------------------------------------------------ digits


@functools.lru_cache(maxsize=1)
def _digits() -> dict[str, data.Images]:
    return data.digits()


def _autoencoder(folder: Path | None, seed: int, *, width: int, rows: int | None, batch: int) -> Workload:
    images = {split: (some(i, rows).x.flatten(1).float() / 255,) for split, i in _digits().items()}
    model = models.autoencoder([64, 2 * width, width, width // 2, max(2, width // 8)])
    return Supervised(model, images, _reconstruction, _pixel_error, seed, batch)


def _reconstruction(model: nn.Module, x: Tensor) -> Tensor:
    return binary_cross_entropy_with_logits(model(x), x)


def _pixel_error(model: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = model(x).sigmoid()
    return (out - x).square().mean()


def _vision_transformer(
    folder: Path | None, seed: int, *, size: int, layers: int, rows: int | None, batch: int
) -> Workload:
    images = {split: some(i, rows) for split, i in _digits().items()}
    return Classification(models.VisionTransformer(10, size, layers), images, seed, batch)


# ------------------------------------------------------------------------------------------------ drawn


def _common(n: int, count: int, generator: torch.Generator) -> Tensor:
    """`count` numbers below n, where i has probability proportional to 1/(i+1): a few are common, most are rare."""
    weights = 1 / torch.arange(1.0, n + 1)
    return torch.multinomial(weights, count, replacement=True, generator=generator)


@functools.lru_cache(maxsize=2)
def _rated(users: int, items: int, ratings: int) -> dict[str, tuple[Tensor, ...]]:
    """A few tastes, biases and noise; popular users and items have most of the ratings."""
    draw = _draw()
    pairs = torch.stack([_common(users, ratings, draw), _common(items, ratings, draw)], 1)
    u, i = (torch.randn(n, 5, generator=draw) / 5**0.25 for n in (users, items))
    bias = 0.5 * torch.randn(items, generator=draw)
    noise = 0.5 * torch.randn(ratings, generator=draw)
    return _parted(pairs, (u[pairs[:, 0]] * i[pairs[:, 1]]).sum(1) + bias[pairs[:, 1]] + noise)


def _ratings(
    folder: Path | None, seed: int, *, users: int, items: int, ratings: int, size: int, batch: int
) -> Workload:
    model = models.Ratings(users, items, size)
    return Supervised(model, _rated(users, items, ratings), _squared_error, _absolute_error, seed, batch)


def _squared_error(model: nn.Module, pairs: Tensor, y: Tensor) -> Tensor:
    out: Tensor = model(pairs)
    return (out - y).square().mean()


def _absolute_error(model: nn.Module, pairs: Tensor, y: Tensor) -> Tensor:
    out: Tensor = model(pairs)
    return (out - y).abs().mean()


def _poisson(folder: Path | None, seed: int, *, hidden: int, points: int, batch: int) -> Workload:
    draw = _draw()
    places = {"train": torch.rand(points, 2, generator=draw), "valid": torch.rand(500, 2, generator=draw)}
    model = nn.Sequential(nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1))
    splits = {split: (p,) for split, p in places.items()}
    return Supervised(model, splits, _residual, _distance, seed, batch)


def _solution(p: Tensor) -> Tensor:
    """u, which is 0 on the border of the unit square: a wide wave and a narrow one."""
    return (math.pi * p).sin().prod(1) + 0.1 * (3 * math.pi * p).sin().prod(1)


def _at(model: nn.Module, p: Tensor) -> Tensor:
    """The network's u, which is 0 on the border by construction."""
    out: Tensor = model(p).squeeze(1)
    return 16 * (p * (1 - p)).prod(1) * out


def _residual(model: nn.Module, p: Tensor) -> Tensor:
    r"""The mean of $(\Delta u + f)^2$, divided by $\pi^4$; f is that of the solution."""
    with torch.enable_grad():
        p = p.detach().requires_grad_()
        slope = torch.autograd.grad(_at(model, p).sum(), p, create_graph=True)[0]
        bend = sum(torch.autograd.grad(slope[:, i].sum(), p, create_graph=True)[0][:, i] for i in range(2))
        wide, narrow = ((k * math.pi * p.detach()).sin().prod(1) for k in (1, 3))
        return (bend / math.pi**2 + 2 * wide + 1.8 * narrow).square().mean()


def _distance(model: nn.Module, p: Tensor) -> Tensor:
    """The mean squared distance to the solution."""
    return (_at(model, p) - _solution(p)).square().mean()


@functools.lru_cache(maxsize=2)
def _worded(n: int, d: int) -> dict[str, tuple[Tensor, ...]]:
    """Rows with 20 of d features. Features with higher numbers are rarer, and rare features are more informative."""
    draw = _draw()
    x = torch.zeros(n, d)
    x.scatter_(1, _common(d, 20 * n, draw).view(n, 20), 1.0)
    weights = torch.randn(d, generator=draw) * torch.linspace(0.5, 3.0, d)
    chance = torch.sigmoid(x @ weights)
    return _parted(x, 2 * (torch.rand(n, generator=draw) < chance).float() - 1)


def _sparse_logistic(folder: Path | None, seed: int, *, rows: int, features: int, batch: int) -> Workload:
    parts = {split: Rows(*tensors) for split, tensors in _worded(rows, features).items()}
    return Logistic(parts, seed, batch, lam=1e-5)


add(
    "digits-autoencoder",
    "a deep autoencoder on 8×8 digits",
    "scikit-learn's digits",
    _autoencoder,
    tiny={"width": 16, "rows": 64, "batch": 32, "epochs": 2},
    laptop={"width": 64, "rows": None, "batch": 32, "epochs": 30},
    paper={"width": 250, "rows": None, "batch": 128, "epochs": 500},
    compared={"tiny": {"width": 32, "rows": None, "epochs": 15}},
)
add(
    "digits-vit",
    "a small Vision Transformer on 8×8 digits",
    "scikit-learn's digits",
    _vision_transformer,
    tiny={"size": 8, "layers": 1, "rows": 64, "batch": 32, "epochs": 2},
    laptop={"size": 32, "layers": 2, "rows": None, "batch": 32, "epochs": 20},
    paper={"size": 128, "layers": 6, "rows": None, "batch": 128, "epochs": 200},
    compared={"tiny": {"size": 16, "rows": None, "epochs": 10}},
)
add(
    "ratings",
    "ratings of items by users: embeddings and a small network",
    "drawn at random, some users and items much more often than others",
    _ratings,
    tiny={"users": 50, "items": 40, "ratings": 300, "size": 4, "batch": 32, "epochs": 2},
    laptop={"users": 1000, "items": 500, "ratings": 20_000, "size": 16, "batch": 100, "epochs": 10},
    paper={"users": 10_000, "items": 5000, "ratings": 200_000, "size": 64, "batch": 200, "epochs": 20},
    compared={"tiny": {"users": 200, "items": 100, "ratings": 3000, "epochs": 6}},
)
add(
    "pinn-poisson",
    "a physics-informed network for Poisson's equation on a square",
    "points drawn at random; the solution is known",
    _poisson,
    tiny={"hidden": 8, "points": 64, "batch": 32, "epochs": 2},
    laptop={"hidden": 32, "points": 1000, "batch": 50, "epochs": 50},
    paper={"hidden": 64, "points": 10_000, "batch": 100, "epochs": 200},
    compared={"tiny": {"hidden": 16, "points": 500, "epochs": 20}},
)
add(
    "logistic-sparse",
    "logistic regression on features most of which are rare",
    "drawn at random",
    _sparse_logistic,
    tiny={"rows": 300, "features": 50, "batch": 16, "epochs": 2},
    laptop={"rows": 10_000, "features": 1000, "batch": 50, "epochs": 10},
    paper={"rows": 20_000, "features": 2000, "batch": 100, "epochs": 50},
    compared={"tiny": {"rows": 3000, "features": 200, "epochs": 6}},
)

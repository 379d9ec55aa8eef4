"""Four more tasks that no search has seen: the second test, after the first had shown what to change.

Written down before the first run on them, and unchanged since. (The history of these days was squashed: `git log`
cannot show it.) Data, networks and losses are others than those of the search and of locked_tasks.py. In the
first test, one task trained six epochs on 9,600 images, so that the fastest methods overfitted most. Here the data are
large enough, or a run short enough, that validation follows training; this was decided by counting epochs, not by
trying. CIFAR-10 is read from the folder that SUPERADAM_DATA names; all else ships with Python, or is drawn at random.

    superadam compare --task-file research/locked/locked_again_tasks.py --methods soap
"""

import importlib.util
import itertools
import os
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import superadam_lab as lab
from superadam_lab import data

MODULES = ("ast", "asyncio.base_events", "decimal", "difflib", "imaplib", "inspect", "optparse", "pickletools", "ssl")


def split(x: Tensor, y: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Of ten rows, drawn at random, eight train, one validates and one tests."""
    tenth = torch.randint(10, (len(x),))
    which = {"train": tenth > 1, "valid": tenth == 0, "test": tenth == 1}
    return {name: (x[rows], y[rows]) for name, rows in which.items()}


def labels(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of one class for each row, or for each place of each row."""
    return cross_entropy(model(x).flatten(0, -2), y.flatten())


def distance(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x) - y).square().mean()


# ---------------------------------------------------------------------------------------- bytes, by an LSTM


def bytes_of_modules() -> dict[str, tuple[Tensor, Tensor]]:
    """Other modules of Python's library, in pieces of 48 bytes and the one that follows each."""
    text = b"".join(Path(importlib.util.find_spec(module).origin or "").read_bytes() for module in MODULES)
    codes = torch.tensor([min(c, 127) for c in text])
    pieces = codes[: len(codes) // 49 * 49].view(-1, 49)
    return split(pieces[:, :-1], pieces[:, 1:])


class Reader(nn.Module):
    """An LSTM of one layer, whose last layer is apart from the embedding."""

    def __init__(self, size: int = 80) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Embedding(128, 32), nn.LSTM(32, size, batch_first=True)
        self.head = nn.Linear(size, 128)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(x))[0])


lab.task(
    "locked-bytes",
    model=Reader,
    data=bytes_of_modules,
    loss=labels,
    batch=20,
    epochs=1,
    description="an LSTM on the bytes of other modules of Python's library",
)

# ---------------------------------------------------------------------------------------- images, by an MLP-Mixer


def images() -> dict[str, tuple[Tensor, Tensor]]:
    """All of CIFAR-10's training images but the last 20,000, as 16 patches of 8 × 8."""
    part = data.cifar(Path(os.environ["SUPERADAM_DATA"]), 10)["train"].take(torch.arange(30_000))
    x = part.x.float().div(255).sub(0.5).div(0.25)
    x = x if x.shape[1] == 3 else x.movedim(-1, 1)
    return split(x.unfold(2, 8, 8).unfold(3, 8, 8).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2), part.y)


class Mixer(nn.Module):
    """An MLP-Mixer of two layers: places are mixed, then channels."""

    def __init__(self, size: int = 64, places: int = 16) -> None:
        super().__init__()
        self.first = nn.Linear(192, size)
        self.places = nn.ModuleList(self.mlp(places, 32) for _ in range(2))
        self.channels = nn.ModuleList(self.mlp(size, 128) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(5))
        self.head = nn.Linear(size, 10)

    @staticmethod
    def mlp(size: int, hidden: int) -> nn.Module:
        return nn.Sequential(nn.Linear(size, hidden), nn.GELU(), nn.Linear(hidden, size))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for i, (places, channels) in enumerate(zip(self.places, self.channels, strict=True)):
            x = x + places(self.norms[2 * i](x).mT).mT
            x = x + channels(self.norms[2 * i + 1](x))
        return self.head(self.norms[4](x).mean(1))


lab.task(
    "locked-mixer",
    model=Mixer,
    data=images,
    loss=labels,
    batch=50,
    epochs=1,
    description="an MLP-Mixer on 24,000 images of CIFAR-10, each seen once",
)

# ---------------------------------------------------------------------------------------- a pendulum, by a perceptron


def pendulum() -> dict[str, tuple[Tensor, Tensor]]:
    """States of a double pendulum, and how far they are a second later (Runge and Kutta, 100 steps)."""
    angles = 2 * torch.rand(30_000, 2, dtype=torch.float64) - 1
    start = state = torch.cat([angles, torch.randn(len(angles), 2, dtype=torch.float64)], 1)

    def slope(s: Tensor) -> Tensor:
        a, b, p, q = s.unbind(1)
        d = a - b
        below = 2 - (d.cos() ** 2)
        u = (-9.8 * (2 * a.sin() - b.sin() * d.cos()) - d.sin() * (q**2 + p**2 * d.cos())) / below
        v = (2 * d.sin() * p**2 - 2 * 9.8 * b.sin() + 2 * 9.8 * a.sin() * d.cos() + q**2 * d.sin() * d.cos()) / below
        return torch.stack([p, q, u, v], 1)

    for _ in range(100):
        k1 = slope(state)
        k2 = slope(state + 0.005 * k1)
        k3 = slope(state + 0.005 * k2)
        k4 = slope(state + 0.01 * k3)
        state = state + 0.01 / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return split(start.float(), (state - start)[:, :2].float())


def perceptron(width: int = 96) -> nn.Module:
    sizes = [4, width, width, width]
    layers = [part for a, b in itertools.pairwise(sizes) for part in (nn.Linear(a, b), nn.SiLU())]
    return nn.Sequential(*layers, nn.Linear(width, 2))


lab.task(
    "locked-pendulum",
    model=perceptron,
    data=pendulum,
    loss=distance,
    batch=64,
    epochs=2,
    description="a perceptron that foretells a double pendulum",
)

# ---------------------------------------------------------------------------------------- sorting, by a Transformer


def sequences() -> dict[str, tuple[Tensor, Tensor]]:
    """Sequences of 12 numbers below 32, and the same sorted."""
    x = torch.randint(32, (24_000, 12))
    return split(x, x.sort(1).values)


class Sorter(nn.Module):
    """A Transformer without a mask, normalised after each part, with ReLU."""

    def __init__(self, size: int = 48) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(32, size), nn.Parameter(0.1 * torch.randn(12, size))
        layer = nn.TransformerEncoderLayer(size, 4, 2 * size, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(size, 32)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(x) + self.place))


lab.task(
    "locked-sorting",
    model=Sorter,
    data=sequences,
    loss=labels,
    batch=32,
    epochs=1,
    description="a Transformer that sorts twelve numbers",
)

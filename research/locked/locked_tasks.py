"""Four tasks that the search of ../search/search.py has not seen: they are run once, when it has ended.

Written down before the search began, and unchanged. (The history of these days was squashed: `git log` cannot show it.)
Data, networks and losses are others than those of the search, and no method has been tried on them. CIFAR-10 is read
from the folder that SUPERADAM_DATA names; all else ships with Python and scikit-learn.

    superadam compare --task-file research/locked/locked_tasks.py --methods soap
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

MODULES = ("argparse", "doctest", "tarfile", "turtle", "typing", "unittest.mock", "zipfile")


def split(*tensors: Tensor) -> dict[str, tuple[Tensor, ...]]:
    """Rows in a random order: 80 % to train, 10 % to validate, 10 % to test."""
    order = torch.randperm(len(tensors[0]))
    parts = order.tensor_split([int(0.8 * len(order)), int(0.9 * len(order))])
    return {name: tuple(t[part] for t in tensors) for name, part in zip(("train", "valid", "test"), parts, strict=True)}


# ---------------------------------------------------------------------------------------- characters of a program


def characters() -> dict[str, tuple[Tensor, ...]]:
    """Python's own library, in pieces of 64 characters and the one that follows each."""
    paths = [importlib.util.find_spec(module).origin for module in MODULES]
    text = "".join(Path(path).read_text(encoding="utf-8") for path in paths)
    codes = torch.tensor([min(ord(c), 127) for c in text])
    pieces = codes[: len(codes) // 65 * 65].view(-1, 65)
    return split(pieces[:, :-1], pieces[:, 1:])


class Decoder(nn.Module):
    """A causal Transformer, normalised before each part, with GELU and learned places."""

    def __init__(self, size: int = 64, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(128, size), nn.Parameter(0.02 * torch.randn(64, size))
        layer = nn.TransformerEncoderLayer(size, heads, 4 * size, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(size), enable_nested_tensor=False)
        self.head = nn.Linear(size, 128)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.layers(self.embed(x) + self.place, mask=mask, is_causal=True))


def next_character(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x).flatten(0, 1), y.flatten())


lab.task(
    "locked-characters",
    model=Decoder,
    data=characters,
    loss=next_character,
    batch=16,
    epochs=2,
    description="a causal Transformer on the characters of Python's library",
)

# ---------------------------------------------------------------------------------------- photographs with noise


def patches() -> dict[str, tuple[Tensor, ...]]:
    """Pieces of 16 × 16 of scikit-learn's two photographs, with and without noise."""
    from sklearn.datasets import load_sample_images

    found = []
    for image in load_sample_images().images:
        x = torch.tensor(image).permute(2, 0, 1) / 255
        found.append(x.unfold(1, 16, 16).unfold(2, 16, 16).permute(1, 2, 0, 3, 4).flatten(0, 1))
    clean = torch.cat(found)
    return split(clean + 0.2 * torch.randn(clean.shape), clean)


def denoiser(width: int = 24) -> nn.Module:
    """Four convolutions, without normalisation."""
    sizes = [3, width, width, width, 3]
    layers = [nn.Conv2d(a, b, 3, padding=1) for a, b in itertools.pairwise(sizes)]
    return nn.Sequential(*(part for layer in layers[:-1] for part in (layer, nn.ReLU())), layers[-1])


def distance(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x) - y).square().mean()


lab.task(
    "locked-denoising",
    model=denoiser,
    data=patches,
    loss=distance,
    batch=32,
    epochs=15,
    description="a convolutional network that takes noise from photographs",
)

# ---------------------------------------------------------------------------------------- small photographs


def small_photographs() -> dict[str, tuple[Tensor, ...]]:
    """12,000 of CIFAR-10's images."""
    images = data.cifar(Path(os.environ["SUPERADAM_DATA"]), 10)["train"]
    chosen = torch.randperm(len(images))[:12_000]
    part = images.take(chosen)
    return split(part.x.float().div(255).sub(0.5).div(0.25), part.y)


def classifier(width: int = 16) -> nn.Module:
    """Three convolutions and a hidden layer, without normalisation or dropout."""
    sizes = [3, width, 2 * width, 4 * width]
    layers = [nn.Conv2d(a, b, 3, 2, 1) for a, b in itertools.pairwise(sizes)]
    convolutions = [part for layer in layers for part in (layer, nn.GELU())]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(64 * width, 64), nn.GELU(), nn.Linear(64, 10))


def errors(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x), y)


lab.task(
    "locked-photographs",
    model=classifier,
    data=small_photographs,
    loss=errors,
    score=lambda model, x, y: (model(x).argmax(1) == y).float().mean(),
    batch=64,
    epochs=6,
    description="a convolutional classifier on 12,000 images of CIFAR-10",
)

# ---------------------------------------------------------------------------------------- a chaotic series


def lorenz() -> dict[str, tuple[Tensor, ...]]:
    """Pieces of 24 steps of Lorenz's system, observed with noise, and the steps that follow."""
    x = torch.randn(200, 3, dtype=torch.float64) * 8 + torch.tensor([0.0, 0.0, 25.0])
    seen = []
    for step in range(2_000):
        a, b, c = x.unbind(1)
        x = x + 0.01 * torch.stack([10 * (b - a), a * (28 - c) - b, a * b - 8 / 3 * c], 1)
        if step >= 500 and step % 5 == 0:
            seen.append(x)
    series = ((torch.stack(seen, 1) - torch.tensor([0.0, 0.0, 25.0])) / 8).float()  # 200 series of 300
    pieces = series.view(-1, 25, 3)
    return split(pieces[:, :-1] + 0.05 * torch.randn(len(pieces), 24, 3), pieces[:, 1:])


class Recurrent(nn.Module):
    """A GRU and a linear layer."""

    def __init__(self, size: int = 48) -> None:
        super().__init__()
        self.gru, self.out = nn.GRU(3, size, 2, batch_first=True), nn.Linear(size, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.gru(x)[0])


lab.task(
    "locked-series",
    model=Recurrent,
    data=lorenz,
    loss=distance,
    batch=32,
    epochs=15,
    description="a GRU that goes on with Lorenz's system",
)

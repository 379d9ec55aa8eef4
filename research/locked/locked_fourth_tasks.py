"""Four more tasks that no search has seen: the fourth test.

Written down before the first run on them, in a commit of its own (`git log --follow locked_fourth_tasks.py`). The
networks are others than those of the search and of the first three tests; WikiText-2 and CIFAR-10 had a part in the
search, with other networks. The tasks were chosen by kind: a language of words, most of whose parameters belong to rare
words, because the tests before had characters and bytes alone; a table of people, because much data is in tables;
graphs; and an image that is made, not told apart. As in the third test, a batch has more rows, counting every place of
a sequence, a graph or an image, than the two sides of the largest matrix between hidden layers together, and every
example is seen once. All of this was decided by counting, not by trying.

CIFAR-10, WikiText-2 (train.txt), a9a and a9a.t of LIBSVM are read from the folder that SUPERADAM_DATA names. The
graphs are drawn at random.

    superadam compare --task-file research/locked/locked_fourth_tasks.py --methods soap
"""

import os
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, gelu, interpolate

import superadam_lab as lab
from superadam_lab import data

FOLDER = Path(os.environ.get("SUPERADAM_DATA", "."))


def split(x: Tensor, y: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Of ten rows, drawn at random, eight train, one validates and one tests."""
    tenth = torch.randint(10, (len(x),))
    which = {"train": tenth > 1, "valid": tenth == 0, "test": tenth == 1}
    return {name: (x[rows], y[rows]) for name, rows in which.items()}


def distance(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x) - y).square().mean()


# ---------------------------------------------------------------------------------------- words, by a GRU

WORDS = 4000


def words() -> dict[str, tuple[Tensor, Tensor]]:
    """Pieces of 32 words of WikiText-2, and the word that follows each. Rare words are one word."""
    text = (FOLDER / "train.txt").read_text(encoding="utf-8").split()
    order = {word: i + 1 for i, (word, _) in enumerate(Counter(text).most_common(WORDS - 1))}
    codes = torch.tensor([order.get(word, 0) for word in text])
    pieces = codes[: len(codes) // 33 * 33].view(-1, 33)
    pieces = pieces[torch.randperm(len(pieces))[:6000]]
    return split(pieces[:, :-1], pieces[:, 1:])


class Recurrent(nn.Module):
    def __init__(self, size: int = 64, hidden: int = 96) -> None:
        super().__init__()
        self.embed, self.memory = nn.Embedding(WORDS, size), nn.GRU(size, hidden, batch_first=True)
        self.head = nn.Linear(hidden, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.memory(self.embed(x))[0])


def next_word(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x).flatten(0, 1), y.flatten())


lab.task(
    "locked-words",
    model=Recurrent,
    data=words,
    loss=next_word,
    batch=16,
    epochs=1,
    description="a GRU on the words of WikiText-2",
)

# ---------------------------------------------------------------------------------------- a table, by a perceptron

COLUMNS = 123


def census() -> dict[str, tuple[Tensor, Tensor]]:
    """Adult, as a9a of LIBSVM has it: 123 marks of 48,842 people; does a person earn more than 50,000 dollars?"""
    lines = [line for name in ("a9a", "a9a.t") for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]
    x, y = torch.zeros(len(lines), COLUMNS), torch.zeros(len(lines))
    for i, line in enumerate(lines):
        label, *marks = line.split()
        y[i] = float(label) > 0
        x[i, [int(mark.split(":")[0]) - 1 for mark in marks]] = 1
    return split(x, y)


class Tabular(nn.Module):
    """Residual perceptrons after LayerNorm, with dropout."""

    def __init__(self, size: int = 64, layers: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(COLUMNS, size)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(size), nn.Linear(size, size), nn.ReLU(), nn.Dropout(0.1), nn.Linear(size, size))
            for _ in range(layers)
        )
        self.head = nn.Sequential(nn.LayerNorm(size), nn.Linear(size, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x).squeeze(-1)


def income(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return binary_cross_entropy_with_logits(model(x), y)


lab.task(
    "locked-census",
    model=Tabular,
    data=census,
    loss=income,
    batch=130,
    epochs=1,
    description="a residual network on a table of people",
)

# ---------------------------------------------------------------------------------------- graphs, by messages


def graphs() -> dict[str, tuple[Tensor, Tensor]]:
    """Random graphs of 20 nodes whose edges are likely within groups; for each node, the share of triangles around it
    that are closed. The network sees the edges and a random number for each node."""
    n, nodes = 12_000, 20
    group = torch.randint(4, (n, nodes))
    same = group[:, :, None] == group[:, None, :]
    upper = (torch.rand(n, nodes, nodes) < torch.where(same, 0.7, 0.15)).triu(1).float()
    edges = upper + upper.mT
    degree = edges.sum(-1)
    closed = (edges @ edges * edges).sum(-1) / (degree * (degree - 1)).clamp(min=1)
    marks = torch.randn(n, nodes, 1)
    return split(torch.cat([edges, marks], -1), closed)


class Messages(nn.Module):
    """Three rounds of messages: each node gets the mean of its neighbours, through a perceptron, and keeps its own."""

    def __init__(self, size: int = 96, rounds: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(2, size)
        self.rounds = nn.ModuleList(
            nn.Sequential(nn.Linear(3 * size, size), nn.LayerNorm(size), nn.GELU(), nn.Linear(size, size))
            for _ in range(rounds)
        )
        self.head = nn.Linear(size, 1)

    def forward(self, x: Tensor) -> Tensor:
        edges, marks = x[..., :-1], x[..., -1:]
        degree = edges.sum(-1, keepdim=True).clamp(min=1)
        h = self.first(torch.cat([marks, degree / 10], -1))
        for messages in self.rounds:
            mean = edges @ h / degree
            spread = (edges @ h.square() / degree - mean.square()).clamp(min=0)
            h = h + messages(torch.cat([h, mean, spread], -1))
        return self.head(h).squeeze(-1)


lab.task(
    "locked-graphs",
    model=Messages,
    data=graphs,
    loss=distance,
    batch=32,
    epochs=1,
    description="a network of messages that tells how closed the triangles of a graph are",
)

# ---------------------------------------------------------------------------------------- colours, by convolutions


def colours() -> dict[str, tuple[Tensor, Tensor]]:
    """The first 12,000 of CIFAR-10's training images in grey, and what their colours add to the grey."""
    x = data.cifar(FOLDER, 10)["train"].take(torch.arange(12_000)).x.float().div(255)
    x = x if x.shape[1] == 3 else x.movedim(-1, 1)
    grey = x.mean(1, keepdim=True)
    return split(grey.sub(0.5).div(0.25).contiguous(), (x - grey)[:, ::2].mul(10).contiguous())


class Painter(nn.Module):
    """Down to a quarter by convolutions with stride, residual blocks there, and up again; no normalisation."""

    def __init__(self, size: int = 24) -> None:
        super().__init__()
        self.fine = nn.Conv2d(1, size, 3, padding=1)
        self.down = nn.Conv2d(size, 2 * size, 4, stride=4)
        self.blocks = nn.ModuleList(nn.Conv2d(2 * size, 2 * size, 3, padding=1) for _ in range(3))
        self.head = nn.Conv2d(3 * size, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        fine = gelu(self.fine(x))
        coarse = self.down(fine)
        for block in self.blocks:
            coarse = coarse + block(gelu(coarse))
        return self.head(torch.cat([fine, interpolate(gelu(coarse), scale_factor=4)], 1))


lab.task(
    "locked-colours",
    model=Painter,
    data=colours,
    loss=distance,
    batch=32,
    epochs=1,
    description="a convolutional network that gives grey images of CIFAR-10 their colours",
)

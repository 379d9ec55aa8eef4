"""Until lab.data and lab.models are merged."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Images(NamedTuple):
    x: Tensor
    y: Tensor
    mean: Any
    std: Any


class Tokens(NamedTuple):
    ids: Tensor
    vocabulary: list[str]


def digits() -> dict[str, Images]:
    from sklearn.datasets import load_digits

    d = load_digits()
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    x = (torch.tensor(d.images)[order, None] * 15).to(torch.uint8)
    y = torch.tensor(d.target)[order].long()
    cut = {"train": (0, 1200), "valid": (1200, 1500), "test": (1500, 1797)}
    return {k: Images(x[a:b], y[a:b], (0.3,), (0.37,)) for k, (a, b) in cut.items()}


def pydoc() -> dict[str, Tokens]:
    import pydoc_data.topics as t

    words = " ".join(t.topics.values()).split()
    vocabulary = sorted(set(words), key=words.count)[-2000:] if False else ["<unk>", *sorted(set(words))[:2000]]
    index = {w: i for i, w in enumerate(vocabulary)}
    ids = torch.tensor([index.get(w, 0) for w in words])
    n = len(ids)
    cut = {"train": (0, n * 8 // 10), "valid": (n * 8 // 10, n * 9 // 10), "test": (n * 9 // 10, n)}
    return {k: Tokens(ids[a:b], vocabulary) for k, (a, b) in cut.items()}


def batches(data, size, *, seed, epoch, augment=False, skip=0):
    order = torch.randperm(len(data.y), generator=torch.Generator().manual_seed(seed * 10007 + epoch))
    for i, rows in enumerate(order.split(size)):
        if i >= skip:
            x = data.x[rows].float() / 255
            yield (x - data.mean[0]) / data.std[0], data.y[rows]


def streams(tokens, batch, bptt):
    ids = tokens.ids[: len(tokens.ids) // batch * batch].view(batch, -1).t()
    for i in range(0, len(ids) - 1, bptt):
        n = min(bptt, len(ids) - 1 - i)
        yield ids[i : i + n], ids[i + 1 : i + 1 + n]


def mlp(inputs, hidden, classes, dropout):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, classes)
    )


def small_cnn(classes, width):
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * width, classes),
    )


class LSTM(nn.Module):
    def __init__(self, vocabulary, size=650, layers=2, dropout=0.5):
        super().__init__()
        self.e, self.r, self.d = (
            nn.Embedding(vocabulary, size),
            nn.LSTM(size, size, layers, dropout=dropout),
            nn.Linear(size, vocabulary),
        )

    def forward(self, tokens, state=None):
        out, state = self.r(self.e(tokens), state)
        return self.d(out), state


class Transformer(nn.Module):
    def __init__(self, vocabulary, size=200, heads=2, hidden=200, layers=2, dropout=0.5):
        super().__init__()
        self.e, self.d = nn.Embedding(vocabulary, size), nn.Linear(size, vocabulary)
        self.t = nn.TransformerEncoder(nn.TransformerEncoderLayer(size, heads, hidden, dropout), layers)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(len(tokens))
        return self.d(self.t(self.e(tokens), mask))


class Rows(NamedTuple):
    x: Tensor
    y: Tensor


def normalised(images, part):
    return (images.x[part].float() / 255 - images.mean[0]) / images.std[0]

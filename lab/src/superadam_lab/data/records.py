"""The records that readers return: tensors with their meaning."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

__all__ = ["Batch", "DataError", "Images", "Rows", "Tokens", "augment"]

Batch = tuple[Tensor, Tensor]
PADDING = 4


class DataError(ValueError):
    """Data is missing, damaged, or not what it should be. The message says what to do."""


@dataclass(frozen=True, eq=False)
class Images:
    """N images in memory, and their classes.

    Args:
        x: uint8 [N, C, H, W].
        y: int64 [N].
        mean, std: mean and standard deviation of x/255 for each channel. A batch is (x/255 - mean)/std.
        names: names of the classes.

    >>> data = Images(torch.full((3, 1, 2, 2), 255, dtype=torch.uint8), torch.tensor([0, 1, 0]), (0.5,), (0.25,))
    >>> data.batch(torch.tensor([1]))
    (tensor([[[[2., 2.],
              [2., 2.]]]]), tensor([1]))
    """

    x: Tensor
    y: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]
    names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: Tensor | slice) -> Images:
        """Some of them."""
        return replace(self, x=self.x[rows], y=self.y[rows])

    def batch(self, rows: Tensor, key: int | None = None, part: slice = slice(None)) -> Batch:
        """These rows, or a part of them, normalised; with a key, cropped and flipped by it."""
        x = self.x[rows]
        if key is not None:  # still of 8 bits: a quarter of the work
            x = augment(x, key)
        return normalised(x[part], self.mean, self.std), self.y[rows[part]]


@dataclass(frozen=True, eq=False)
class Tokens:
    """A text as numbers of words: ids int64 [N], each below `len(vocabulary)`."""

    ids: Tensor
    vocabulary: list[str]

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: slice) -> Tokens:
        """A part of the text. The vocabulary stays."""
        return replace(self, ids=self.ids[rows])


@dataclass(frozen=True, eq=False)
class Rows:
    """A table: x float32 [N, d], dense, and y float32 [N], each 1 or -1."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: Tensor | slice) -> Rows:
        """Some of them."""
        return Rows(self.x[rows], self.y[rows])

    def batch(self, rows: Tensor, key: int | None = None, part: slice = slice(None)) -> Batch:
        """These rows, or a part of them. There is no augmentation of tables."""
        if key is not None:
            raise DataError("augment=True is for images: a table cannot be cropped or flipped.")
        return self.x[rows[part]], self.y[rows[part]]


def normalised(x: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """(x/255 - mean)/std, in float32."""
    shift, scale = _affine(mean, std)
    return x.float().sub_(shift).mul_(scale)


@cache
def _affine(mean: tuple[float, ...], std: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """Cached, because for small images computing it takes as long as everything else."""
    return 255 * torch.tensor(mean).view(-1, 1, 1), 1 / (255 * torch.tensor(std).view(-1, 1, 1))


def augment(x: Tensor, key: int) -> Tensor:
    """Crop and flip a batch of images [B, C, H, W] as for CIFAR: each is padded by 4 zeros on every side, cropped to
    its size again at random, and mirrored with probability 1/2.

    The result depends only on x and `key`. It does not use torch's generators.

    >>> x = torch.rand(5, 3, 32, 32)
    >>> torch.equal(augment(x, key=1), augment(x, key=1)), torch.equal(augment(x, key=1), augment(x, key=2))
    (True, False)
    """
    B, _, H, W = x.shape
    generator = torch.Generator().manual_seed(key)
    down, right = torch.randint(2 * PADDING + 1, (2, B), generator=generator)
    mirrored = torch.randint(2, (B, 1, 1, 1), generator=generator, dtype=torch.bool)
    padded = torch.nn.functional.pad(x, (PADDING,) * 4)
    windows = padded.unfold(2, H, 1).unfold(3, W, 1)  # a view: [B, C, shifts, shifts, H, W]
    moved = windows[torch.arange(B), :, down, right]
    return torch.where(mirrored.to(x.device), moved.flip(3), moved)

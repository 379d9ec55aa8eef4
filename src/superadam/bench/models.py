"""The models whose parameters are updated, written plainly."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["SHAPES", "Block", "ResNet18", "shapes_of"]

Shapes = list[tuple[int, ...]]


class _Residual(nn.Module):
    """Two 3 × 3 convolutions, and a way around them."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outside)
        self.around = nn.Sequential()
        if stride != 1:
            self.around = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(self.conv1(x)).relu()
        z: Tensor = self.norm2(self.conv2(y)) + self.around(x)
        return z.relu()


class ResNet18(nn.Module):
    """ResNet-18 for images of 32 × 32 (He et al. 2016): 62 tensors, 11.2 million parameters.

    >>> ResNet18()(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 10])
    """

    def __init__(self, classes: int = 10, width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        blocks: list[nn.Module] = [_Residual(width, width, 1), _Residual(width, width, 1)]
        for _ in range(3):
            blocks += [_Residual(width, 2 * width, 2), _Residual(2 * width, 2 * width, 1)]
            width *= 2
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.blocks(self.stem(images))
        logits: Tensor = self.head(features.mean(dim=(2, 3)))
        return logits


class Block(nn.Module):
    """A transformer block of GPT-2's shape (Radford et al. 2019): 12 tensors, 7.1 million parameters.

    >>> Block(width=8, heads=2)(torch.zeros(1, 5, 8)).shape
    torch.Size([1, 5, 8])
    """

    def __init__(self, width: int = 768, heads: int = 12) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(-2))
        y: Tensor = x + self.down(functional.gelu(self.up(self.norm2(x))))
        return y


def shapes_of(build: Callable[[], nn.Module]) -> Shapes:
    """The shapes of a module's parameters, without their memory."""
    with torch.device("meta"):
        return [tuple(p.shape) for p in build().parameters()]


def _gpt2_small() -> Shapes:
    return [(50257, 768), (1024, 768), *12 * shapes_of(Block), (768,), (768,)]


def _mlp() -> Shapes:
    return [(1024, 784), (1024,), (1024, 1024), (1024,), (10, 1024), (10,)]


def _many_small() -> Shapes:
    return [(32, 32), (32,)] * 500


SHAPES: dict[str, Callable[[], Shapes]] = {
    "resnet18": lambda: shapes_of(ResNet18),
    "gpt2-small": _gpt2_small,
    "mlp": _mlp,
    "many-small": _many_small,
}
"""The shapes of each model's parameters."""

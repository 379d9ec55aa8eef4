"""The models whose parameters are updated."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from superadam_lab.tasks.models import cifar_resnet  # which needs torch alone

__all__ = ["SHAPES", "Block", "shapes_of"]

Shapes = list[tuple[int, ...]]


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


def _gpt2_blocks() -> Shapes:
    return 2 * shapes_of(lambda: Block(width=512, heads=8))


def _mlp() -> Shapes:
    return [(1024, 784), (1024,), (1024, 1024), (1024,), (10, 1024), (10,)]


def _many_small() -> Shapes:
    return [(32, 32), (32,)] * 500


SHAPES: dict[str, Callable[[], Shapes]] = {
    "resnet18": lambda: shapes_of(lambda: cifar_resnet(18, classes=10)),
    "gpt2-small": _gpt2_small,
    "gpt2-blocks": _gpt2_blocks,
    "mlp": _mlp,
    "many-small": _many_small,
}
"""The shapes of each model's parameters."""

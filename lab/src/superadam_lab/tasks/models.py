"""The networks of section 6. Nothing is pretrained; initial weights come from torch's generator.

| network | data | parameters |
|---|---|---|
| `cifar_resnet(18, 10)` | CIFAR-10 | 11,173,962 |
| `vgg19_bn(100)` | CIFAR-100 | 20,086,692 |
| `imagenet_resnet(34)` | ImageNet | 21,797,672 |
| `LSTM(33278)` | WikiText-2 | 50,065,078 |
| `Transformer(33278)` | WikiText-2 | 13,828,478 |
| `mlp(64, 128, 10, 0.2)`, `small_cnn(10, 16)` | scikit-learn's digits | 9,610 and 7,514 |

`width` scales every layer: 64 is the published network.

References: He et al. 2016 (ResNet; for CIFAR with a 3 × 3 stem in place of the 7 × 7 one and its pooling),
Simonyan & Zisserman 2015 (VGG), Ioffe & Szegedy 2015 (BatchNorm), Zaremba et al. 2014 (the LSTM: medium size),
Vaswani et al. 2017 (Transformer).
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn

__all__ = [
    "LSTM",
    "Ratings",
    "Transformer",
    "VisionTransformer",
    "autoencoder",
    "cifar_resnet",
    "imagenet_resnet",
    "mlp",
    "parameters",
    "small_cnn",
    "vgg19_bn",
]

BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
State = tuple[Tensor, Tensor]


def parameters(model: nn.Module) -> int:
    """The number of trainable parameters.

    >>> parameters(nn.Linear(3, 2))
    8
    """
    return sum(p.numel() for p in model.parameters())


def mlp(inputs: int, hidden: int, classes: int, dropout: float) -> nn.Sequential:
    """One hidden layer, with dropout on it. Images are flattened.

    >>> mlp(64, 128, 10, dropout=0.2)(torch.zeros(5, 1, 8, 8)).shape
    torch.Size([5, 10])
    """
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, classes)
    )


def small_cnn(classes: int, width: int) -> nn.Sequential:
    """Three convolutions with BatchNorm, for images of one channel, such as the digits' 8 × 8.

    >>> small_cnn(10, width=16)(torch.zeros(5, 1, 8, 8)).shape
    torch.Size([5, 10])
    """
    return nn.Sequential(
        *_convolution(1, width, 3),
        *_convolution(width, width, 3),
        nn.MaxPool2d(2),
        *_convolution(width, 2 * width, 3),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, classes),
    )


def cifar_resnet(depth: int, classes: int, width: int = 64) -> nn.Sequential:
    """ResNet-18 or -34 for images of 32 × 32.

    >>> parameters(cifar_resnet(18, classes=10))
    11173962
    """
    return nn.Sequential(*_convolution(3, width, 3), *_residual(depth, classes, width))


def imagenet_resnet(depth: int, classes: int = 1000, width: int = 64) -> nn.Sequential:
    """ResNet-18 or -34 for images of 224 × 224.

    >>> parameters(imagenet_resnet(34))
    21797672
    """
    stem = *_convolution(3, width, 7, stride=2), nn.MaxPool2d(3, stride=2, padding=1)
    return nn.Sequential(*stem, *_residual(depth, classes, width))


def vgg19_bn(classes: int, width: int = 64) -> nn.Sequential:
    """VGG-19 with BatchNorm for images of 32 × 32: 16 convolutions, whose last 1 × 1 map goes into one linear layer,
    where the ImageNet network has three.

    >>> parameters(vgg19_bn(classes=100))
    20086692
    """
    layers: list[nn.Module] = []
    channels = 3
    for factor, repeats in ((1, 2), (2, 2), (4, 4), (8, 4), (8, 4)):
        for _ in range(repeats):
            layers += _convolution(channels, factor * width, 3, bias=True)
            channels = factor * width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels, classes))


class VisionTransformer(nn.Module):
    """Patches of 2 × 2 pixels as words, `layers` of attention with the norm before each part, their mean to classes.

    >>> VisionTransformer(10, size=8, layers=2)(torch.zeros(5, 1, 8, 8)).shape
    torch.Size([5, 10])
    """

    def __init__(self, classes: int, size: int, layers: int, heads: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, size, 2, stride=2)
        self.place = nn.Parameter(0.02 * torch.randn(16, size))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(size, heads, 2 * size, dropout, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.place
        for layer in self.layers:
            x = layer(x)
        return cast(Tensor, self.head(self.norm(x).mean(1)))


def autoencoder(sizes: list[int]) -> nn.Sequential:
    """Linear layers down these sizes and up again, with tanh in between (as in Hinton and Salakhutdinov 2006).

    >>> autoencoder([64, 16, 4])(torch.zeros(5, 64)).shape
    torch.Size([5, 64])
    """
    layers: list[nn.Module] = []
    for a, b in pairwise([*sizes, *sizes[-2::-1]]):
        layers += [nn.Linear(a, b), nn.Tanh()]
        nn.init.xavier_uniform_(layers[-2].weight)  # type: ignore[arg-type]
    return nn.Sequential(*layers[:-1])


class Ratings(nn.Module):
    """The rating of an item by a user: the product of their vectors and a network of both, with a bias of each.

    >>> Ratings(9, 7, size=4)(torch.tensor([[8, 0], [1, 6]])).shape
    torch.Size([2])
    """

    def __init__(self, users: int, items: int, size: int) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(users, size), nn.Embedding(items, size)
        self.bias = nn.ModuleList([nn.Embedding(users, 1), nn.Embedding(items, 1)])
        self.network = nn.Sequential(nn.Linear(2 * size, 2 * size), nn.ReLU(), nn.Linear(2 * size, 1))
        _uniform(self.user, self.item, *self.bias)

    def forward(self, pairs: Tensor) -> Tensor:
        u, i = self.user(pairs[:, 0]), self.item(pairs[:, 1])
        biases = self.bias[0](pairs[:, 0]) + self.bias[1](pairs[:, 1])
        return cast(Tensor, (u * i).sum(1) + (biases + self.network(torch.cat([u, i], 1))).squeeze(1))


class LSTM(nn.Module):
    """Word embeddings, `layers` of LSTM and a linear layer to the words, with dropout before and after each layer.

    `model(tokens[T, B], state)` returns the logits [T, B, vocabulary] of the next words, and the state after them.
    Truncated backpropagation through time gives the state to the next stretch, detached; None is a new start.

    >>> model = LSTM(vocabulary=100, size=8)
    >>> logits, state = model(torch.zeros(35, 20, dtype=torch.long))
    >>> logits.shape, [s.shape for s in state]
    (torch.Size([35, 20, 100]), [torch.Size([2, 20, 8]), torch.Size([2, 20, 8])])
    """

    def __init__(self, vocabulary: int, size: int = 650, layers: int = 2, dropout: float = 0.5) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.embedding = nn.Embedding(vocabulary, size)
        self.recurrent = nn.LSTM(size, size, layers, dropout=dropout if layers > 1 else 0.0)  # torch's: between layers
        self.decoder = nn.Linear(size, vocabulary)
        _uniform(self.embedding, self.decoder)

    def forward(self, tokens: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        output, state = self.recurrent(self.dropout(self.embedding(tokens)), state)
        return self.decoder(self.dropout(output)), cast(State, state)


class Transformer(nn.Module):
    """Word embeddings plus positions, `layers` of masked attention and feed-forward network, a linear layer to words.

    `model(tokens[T, B])` returns the logits [T, B, vocabulary] of the next words; each sees the words up to its own.

    >>> model = Transformer(vocabulary=100, size=8, hidden=8)
    >>> model(torch.zeros(35, 20, dtype=torch.long)).shape
    torch.Size([35, 20, 100])
    """

    def __init__(
        self,
        vocabulary: int,
        size: int = 200,
        heads: int = 2,
        hidden: int = 200,
        layers: int = 2,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, size)
        self.dropout = nn.Dropout(dropout)
        # A list of layers, not nn.TransformerEncoder, whose layers all start from the same weights.
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(size, heads, hidden, dropout) for _ in range(layers))
        self.decoder = nn.Linear(size, vocabulary)
        _uniform(self.embedding, self.decoder)

    def forward(self, tokens: Tensor) -> Tensor:
        size = self.embedding.embedding_dim
        x = self.embedding(tokens) * math.sqrt(size)
        x = self.dropout(x + positions(len(tokens), size).to(x).unsqueeze(1))
        mask = nn.Transformer.generate_square_subsequent_mask(len(tokens), x.device, x.dtype)
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return cast(Tensor, self.decoder(x))


def positions(length: int, size: int) -> Tensor:
    """Row t is sin(t ωᵢ), cos(t ωᵢ) in turn, ωᵢ = 10000^(-2i/size) (Vaswani et al. 2017, section 3.5).

    >>> positions(2, 4).round(decimals=2).tolist()
    [[0.0, 1.0, 0.0, 1.0], [0.8399999737739563, 0.5400000214576721, 0.009999999776482582, 1.0]]
    """
    angle = torch.outer(torch.arange(length), 10000.0 ** (-torch.arange(0, size, 2) / size))
    return torch.stack([angle.sin(), angle.cos()], dim=2).flatten(1)[:, :size]


class BasicBlock(nn.Module):
    """relu(F(x) + x): F is two 3 × 3 convolutions. Where F changes the shape, x goes through a 1 × 1 convolution."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        *second, _ = _convolution(outputs, outputs, 3)  # the last ReLU comes after the sum
        self.residual = nn.Sequential(*_convolution(inputs, outputs, 3, stride), *second)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Sequential(*([] if same else _convolution(inputs, outputs, 1, stride)[:-1]))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.residual(x) + self.shortcut(x))


def _residual(depth: int, classes: int, width: int) -> list[nn.Module]:
    """Four stages, each but the first halving the image and doubling the channels, and the classifier."""
    if depth not in BLOCKS:
        raise ValueError(f"no ResNet-{depth} here: depth must be one of {', '.join(map(str, BLOCKS))}.")
    channels = [width, width, 2 * width, 4 * width, 8 * width]
    layers: list[nn.Module] = []
    for stage, ((inputs, outputs), blocks) in enumerate(zip(pairwise(channels), BLOCKS[depth], strict=True)):
        layers.append(BasicBlock(inputs, outputs, 1 if stage == 0 else 2))
        layers += [BasicBlock(outputs, outputs, 1) for _ in range(blocks - 1)]
    return [*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], classes)]


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1, bias: bool = False) -> list[nn.Module]:
    """Convolution, BatchNorm, ReLU. A bias is undone by BatchNorm; VGG's count of parameters includes it."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=bias)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]


def _uniform(*layers: Any) -> None:
    """Uniform in [-0.1, 0.1], biases zero: with torch's default N(0, 1) embeddings the first losses are far above
    log(vocabulary)."""
    for layer in layers:
        nn.init.uniform_(layer.weight, -0.1, 0.1)
        if getattr(layer, "bias", None) is not None:
            nn.init.zeros_(layer.bias)

"""Four more tasks that no search has seen: the third test.

Written down before the first run on them, in a commit of its own (`git log --follow locked_third_tasks.py`). Data,
networks and losses are others than those of the search and of the first two tests. Two of the networks are
convolutional, because the first test was lost on one of these and the second had none. A batch has more rows, counting
every place of a sequence or an image, than the two sides of the largest hidden matrix together, as in most training:
the second test had smaller ones, where the optimizer takes longer than the gradient. Every example is seen once, so
that validation follows training. All of this was decided by counting, not by trying.

CIFAR-10 and tinyshakespeare.txt (Karpathy's) are read from the folder that SUPERADAM_DATA names. All else is drawn at
random.

    superadam compare --task-file research/locked/locked_third_tasks.py --methods soap
"""

import os
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, max_pool2d, scaled_dot_product_attention, silu

import superadam_lab as lab
from superadam_lab import data

FOLDER = Path(os.environ.get("SUPERADAM_DATA", "."))


def split(x: Tensor, y: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Of ten rows, drawn at random, eight train, one validates and one tests."""
    tenth = torch.randint(10, (len(x),))
    which = {"train": tenth > 1, "valid": tenth == 0, "test": tenth == 1}
    return {name: (x[rows], y[rows]) for name, rows in which.items()}


def labels(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of one class for each row, or for each place of each row."""
    return cross_entropy(model(x).flatten(0, -2), y.flatten())


# ---------------------------------------------------------------------------------------- plays, by a Llama


def plays() -> dict[str, tuple[Tensor, Tensor]]:
    """Shakespeare's plays, every second piece of 64 characters, and the character that follows each."""
    text = (FOLDER / "tinyshakespeare.txt").read_text(encoding="utf-8")
    order = {c: i for i, c in enumerate(sorted(set(text)))}
    codes = torch.tensor([order[c] for c in text])
    pieces = codes[: len(codes) // 130 * 130].view(-1, 130)[:, :65]
    return split(pieces[:, :-1], pieces[:, 1:])


class Block(nn.Module):
    """Attention with fewer keys than queries, then a gated perceptron, each after an RMSNorm."""

    def __init__(self, size: int, heads: int, keys: int, hidden: int) -> None:
        super().__init__()
        self.heads, self.keys, self.each = heads, keys, size // heads
        self.before, self.after = nn.RMSNorm(size), nn.RMSNorm(size)
        self.q = nn.Linear(size, size, bias=False)
        self.k = nn.Linear(size, keys * self.each, bias=False)
        self.v = nn.Linear(size, keys * self.each, bias=False)
        self.out = nn.Linear(size, size, bias=False)
        self.gate, self.up = nn.Linear(size, hidden, bias=False), nn.Linear(size, hidden, bias=False)
        self.down = nn.Linear(hidden, size, bias=False)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        h = self.before(x)
        q, k = (turned(self.cut(f(h)), angles) for f in (self.q, self.k))
        groups = self.heads // self.keys
        k, v = (t.repeat_interleave(groups, 1) for t in (k, self.cut(self.v(h))))
        x = x + self.out(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        h = self.after(x)
        return x + self.down(silu(self.gate(h)) * self.up(h))

    def cut(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.each)).transpose(1, 2)


def turned(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary places."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


class Llama(nn.Module):
    def __init__(self, size: int = 96, layers: int = 2, heads: int = 6) -> None:
        super().__init__()
        self.embed = nn.Embedding(65, size)
        self.blocks = nn.ModuleList(Block(size, heads, 2, 256) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(size), nn.Linear(size, 65, bias=False)
        rates = 10_000.0 ** -torch.linspace(0, 1, size // heads // 2)
        self.register_buffer("angles", torch.arange(64).unsqueeze(1) * rates)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x, self.angles)
        return self.head(self.norm(x))


lab.task(
    "locked-plays",
    model=Llama,
    data=plays,
    loss=labels,
    batch=16,
    epochs=1,
    description="a small Llama on the characters of Shakespeare's plays",
)

# ---------------------------------------------------------------------------------------- rotations, by convolutions


def rotations() -> dict[str, tuple[Tensor, Tensor]]:
    """The last 20,000 of CIFAR-10's training images, each turned by a multiple of 90 degrees: which one?"""
    part = data.cifar(FOLDER, 10)["train"].take(torch.arange(30_000, 50_000))
    x = part.x.float().div(255).sub(0.5).div(0.25)
    x = x if x.shape[1] == 3 else x.movedim(-1, 1)
    y = torch.randint(4, (len(x),))
    for k in range(1, 4):
        x[y == k] = x[y == k].rot90(k, (2, 3))
    return split(x.contiguous(), y)


class Plain(nn.Module):
    """Convolutions with BatchNorm and ReLU, in the manner of VGG."""

    def __init__(self, sizes: tuple[int, ...] = (16, 32, 64)) -> None:
        super().__init__()
        before = (3, *sizes[:-1])
        self.first = nn.ModuleList(self.layer(a, b) for a, b in zip(before, sizes, strict=True))
        self.second = nn.ModuleList(self.layer(b, b) for b in sizes)
        self.head = nn.Linear(sizes[-1], 4)

    @staticmethod
    def layer(a: int, b: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        for first, second in zip(self.first, self.second, strict=True):
            x = max_pool2d(second(first(x)), 2)
        return self.head(x.mean((2, 3)))


lab.task(
    "locked-rotations",
    model=Plain,
    data=rotations,
    loss=labels,
    batch=64,
    epochs=1,
    description="a convolutional network that tells by which angle an image of CIFAR-10 was turned",
)

# ---------------------------------------------------------------------------------------- diffusion, by a U-Net


def diffusion() -> dict[str, tuple[Tensor, Tensor]]:
    """Random fields u on 24 × 24 points of a torus, and where u' = Δu/300 + u - u³ leads them in a second."""
    n, size = 12_000, 24
    k = torch.fft.fftfreq(size, 1 / size)
    squares = k[:, None] ** 2 + k[None, :] ** 2
    noise = torch.fft.fft2(torch.randn(n, size, size)) * torch.exp(-squares / 18)
    u = start = torch.fft.ifft2(noise).real.mul(3).clamp(-2, 2)
    for _ in range(20):
        u = torch.fft.ifft2(torch.fft.fft2(u + 0.05 * (u - u**3)) * torch.exp(-0.05 * squares / 300 * 4 * 9.87)).real
    return split(start.unsqueeze(1), u.unsqueeze(1))


class UNet(nn.Module):
    """Two scales, with GroupNorm and SiLU; what goes out is added to what came in."""

    def __init__(self, size: int = 16) -> None:
        super().__init__()
        self.down = nn.Sequential(self.layer(1, size), self.layer(size, size))
        self.below = nn.Sequential(self.layer(size, 2 * size), self.layer(2 * size, size))
        self.up = nn.Sequential(self.layer(2 * size, size), nn.Conv2d(size, 1, 3, padding=1, padding_mode="circular"))

    @staticmethod
    def layer(a: int, b: int) -> nn.Module:
        conv = nn.Conv2d(a, b, 3, padding=1, padding_mode="circular")
        return nn.Sequential(conv, nn.GroupNorm(4, b), nn.SiLU())

    def forward(self, x: Tensor) -> Tensor:
        fine = self.down(x)
        coarse = self.below(max_pool2d(fine, 2)).repeat_interleave(2, 2).repeat_interleave(2, 3)
        return x + self.up(torch.cat([fine, coarse], 1))


def distance(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x) - y).square().mean()


lab.task(
    "locked-diffusion",
    model=UNet,
    data=diffusion,
    loss=distance,
    batch=32,
    epochs=1,
    description="a U-Net that foretells a reaction with diffusion",
)

# ---------------------------------------------------------------------------------------- solids, by PointNet


def solids() -> dict[str, tuple[Tensor, Tensor]]:
    """Clouds of 40 points on superquadrics of eight kinds, stretched, turned and blurred: which kind?"""
    n, points = 12_000, 40
    y = torch.randint(8, (n,))
    kinds = [(0.3, 0.3), (0.3, 1.0), (1.0, 0.3), (1.0, 1.0), (1.0, 2.2), (2.2, 1.0), (2.2, 2.2), (0.3, 2.2)]
    a, b = torch.tensor(kinds)[y].unbind(1)
    eta, omega = torch.pi * (torch.rand(2, n, points) - 0.5)
    omega = 2 * omega

    def power(x: Tensor, p: Tensor) -> Tensor:
        return x.sign() * x.abs() ** p.unsqueeze(1)

    x = power(eta.cos(), a) * power(omega.cos(), b)
    z = power(eta.cos(), a) * power(omega.sin(), b)
    cloud = torch.stack([x, z, power(eta.sin(), a)], -1) * (0.7 + 0.6 * torch.rand(n, 1, 3))
    turn = torch.linalg.qr(torch.randn(n, 3, 3)).Q
    return split(cloud @ turn + 0.03 * torch.randn(n, points, 3), y)


class PointNet(nn.Module):
    """The same perceptron for every point, the largest of each feature, and another perceptron."""

    def __init__(self, size: int = 96) -> None:
        super().__init__()
        self.points = nn.Sequential(*self.layers(3, size), *self.layers(size, size), *self.layers(size, 2 * size))
        self.cloud = nn.Sequential(*self.layers(2 * size, size), nn.Linear(size, 8))

    @staticmethod
    def layers(a: int, b: int) -> tuple[nn.Module, ...]:
        return nn.Linear(a, b), nn.LayerNorm(b), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.cloud(self.points(x).amax(1))


lab.task(
    "locked-solids",
    model=PointNet,
    data=solids,
    loss=labels,
    batch=32,
    epochs=1,
    description="a PointNet that tells solids apart",
)

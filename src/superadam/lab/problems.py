"""What a run trains: a model, the loss of a batch, the batches, and what is measured on the way.

Everything that is drawn depends on the seed and on the place in the run alone, so that a run can be resumed anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softplus

from superadam import sets
from superadam.lab import _stand_in as data
from superadam.lab._stand_in import Images, Rows, Tokens

__all__ = ["NMF", "Classification", "LanguageModel", "Logistic", "Problem", "SimplexRegression"]

CHUNK = 500  # samples at a time where nothing is learned
FULL = 2000  # samples of the fixed subset whose full gradient is taken, at the most
FRESH = 1_000_000  # epochs from here on are for the monitor

# A loss, and what the model carries into the next batch: an LSTM's state, or None.
Evaluated = tuple[Tensor, Any]
Metrics = dict[str, float]


class Problem:
    """Base class. `length` is the number of batches in an epoch; `options` is what the optimizer has to be told."""

    splits: tuple[str, ...] = ("train", "valid", "test")
    score = "accuracy"
    """What is measured beside the loss."""
    lr_divisor: float | None = None
    """What the learning rate is divided by after an epoch without a new least validation loss."""
    clip: float | None = None
    """The bound on the norm of a gradient, which gives both gradients of a batch one factor."""

    def __init__(self, model: nn.Module, seed: int, length: int, **options: Any) -> None:
        self.model, self.seed, self.length, self.options = model, seed, length, options
        self.device = torch.device("cpu")

    def to(self, device: torch.device) -> None:
        """Where to train."""
        self.device = device
        self.model.to(device)

    def batches(self, epoch: int, skip: int = 0) -> Iterator[Any]:
        """The batches of an epoch, without the first few."""
        raise NotImplementedError

    def loss(self, batch: Any, memory: Any = None) -> Evaluated:
        """f(x; ξ), with the same `memory` in both evaluations of a batch."""
        raise NotImplementedError

    def measure(self, split: str) -> Metrics:
        """Loss and score on a split, without dropout."""
        raise NotImplementedError

    def full(self) -> Iterator[Tensor]:
        """Losses that add up to f, without dropout, on a fixed part of the training set."""
        raise NotImplementedError

    def fresh(self, step: int) -> list[Any]:
        """Two batches for the monitor, apart from those of training."""
        return list(islice(self.batches(FRESH + step), 2))

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Without dropout, and with BatchNorm's averages."""
        self.model.eval()
        try:
            yield
        finally:
            self.model.train()

    def full_gradient_norm(self) -> float:
        """‖∇f(x)‖ by `full`."""
        params = [p for p in self.model.parameters() if p.requires_grad]
        total = [torch.zeros_like(p) for p in params]
        with self.evaluating(), torch.enable_grad():
            for loss in self.full():
                torch._foreach_add_(total, torch.autograd.grad(loss, params))
        return float(torch.nn.utils.get_total_norm(total))


class Classification(Problem):
    """Cross-entropy of images."""

    def __init__(
        self, model: nn.Module, images: dict[str, Images], seed: int, *, batch: int, augment: bool = False
    ) -> None:
        self.images, self.batch, self.augment = images, batch, augment
        super().__init__(model, seed, -(-len(images["train"].y) // batch))

    def batches(self, epoch: int, skip: int = 0) -> Iterator[Any]:
        return data.batches(
            self.images["train"], self.batch, seed=self.seed, epoch=epoch, augment=self.augment, skip=skip
        )

    def loss(self, batch: Any, memory: Any = None) -> Evaluated:
        x, y = (t.to(self.device, non_blocking=True) for t in batch)
        return cross_entropy(self.model(x), y), None

    @torch.no_grad()
    def measure(self, split: str) -> Metrics:
        loss = right = torch.zeros((), device=self.device)
        images = self.images[split]
        with self.evaluating():
            for x, y in self._in_order(images, len(images.y)):
                out = self.model(x)
                loss = loss + cross_entropy(out, y, reduction="sum")
                right = right + (out.argmax(1) == y).sum()
        return {"loss": loss.item() / len(images.y), "accuracy": right.item() / len(images.y)}

    def full(self) -> Iterator[Tensor]:
        n = min(len(self.images["train"].y), FULL)
        for x, y in self._in_order(self.images["train"], n):
            yield cross_entropy(self.model(x), y, reduction="sum") / n

    def _in_order(self, images: Images, n: int) -> Iterator[tuple[Tensor, Tensor]]:
        for i in range(0, n, CHUNK):
            part = slice(i, min(i + CHUNK, n))
            yield data.normalised(images, part).to(self.device), images.y[part].to(self.device)


class LanguageModel(Problem):
    """Cross-entropy of the next word. A recurrent model carries its state from batch to batch, without gradients."""

    score = "perplexity"
    lr_divisor = 4.0
    clip = 0.25

    def __init__(
        self, model: nn.Module, tokens: dict[str, Tokens], seed: int, *, batch: int, bptt: int, recurrent: bool
    ) -> None:
        self.tokens, self.batch, self.bptt, self.recurrent = tokens, batch, bptt, recurrent
        super().__init__(model, seed, -(-(len(tokens["train"].ids) // batch - 1) // bptt))

    def batches(self, epoch: int, skip: int = 0) -> Iterator[Any]:
        return islice(data.streams(self.tokens["train"], self.batch, self.bptt), skip, None)

    def fresh(self, step: int) -> list[Any]:
        drawn = torch.randint(self.length, (2,), generator=_generator(self.seed, FRESH + step))
        return [next(self.batches(0, skip=int(i))) for i in drawn]

    def loss(self, batch: Any, memory: Any = None) -> Evaluated:
        inputs, targets = (t.to(self.device, non_blocking=True) for t in batch)
        if self.recurrent:
            logits, memory = self.model(inputs, memory)
            memory = tuple(t.detach() for t in memory)
        else:
            logits = self.model(inputs)
        return cross_entropy(logits.flatten(0, 1), targets.flatten()), memory

    @torch.no_grad()
    def measure(self, split: str) -> Metrics:
        total, words = 0.0, 0
        with self.evaluating():
            for loss, n in self._in_order(self.tokens[split]):
                total, words = total + loss.item() * n, words + n
        mean = total / words
        return {"loss": mean, "perplexity": float(torch.tensor(mean, dtype=torch.float64).exp())}

    def full(self) -> Iterator[Tensor]:
        ids = self.tokens["train"].ids[: 10 * FULL]
        words = sum(targets.numel() for _, targets in data.streams(self._part(ids), self.batch, self.bptt))
        for loss, n in self._in_order(self._part(ids)):
            yield loss * (n / words)

    def _part(self, ids: Tensor) -> Tokens:
        return Tokens(ids, self.tokens["train"].vocabulary)

    def _in_order(self, tokens: Tokens) -> Iterator[tuple[Tensor, int]]:
        """The mean loss of each piece, and its number of words."""
        memory = None
        for batch in data.streams(tokens, self.batch, self.bptt):
            loss, memory = self.loss(batch, memory)
            yield loss, batch[1].numel()


def _generator(seed: int, epoch: int) -> torch.Generator:
    return torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)


class Samples(Problem):
    """Problems whose batches are numbers of rows, in an order that depends on the seed and the epoch."""

    def __init__(self, model: nn.Module, n: int, seed: int, batch: int, **options: Any) -> None:
        self.n, self.batch = n, batch
        super().__init__(model, seed, -(-n // batch), **options)

    def batches(self, epoch: int, skip: int = 0) -> Iterator[Any]:
        order = torch.randperm(self.n, generator=_generator(self.seed, epoch))
        return islice(iter(order.split(self.batch)), skip, None)


class Logistic(Samples):
    r"""$\frac1n \sum_i \log(1 + e^{-y_i a_i^\top x}) + \lambda \sum_j x_j^2 / (1 + x_j^2)$, with its full gradient."""

    def __init__(self, rows: dict[str, Rows], seed: int, *, batch: int, lam: float = 1e-3) -> None:
        self.rows, self.lam = rows, lam
        model = nn.Linear(rows["train"].x.shape[1], 1, bias=False, dtype=rows["train"].x.dtype)
        nn.init.zeros_(model.weight)
        self.splits = tuple(rows)
        super().__init__(model, len(rows["train"].y), seed, batch)

    def to(self, device: torch.device) -> None:
        super().to(device)
        self.rows = {split: Rows(r.x.to(device), r.y.to(device)) for split, r in self.rows.items()}

    def loss(self, batch: Any, memory: Any = None) -> Evaluated:
        rows = self.rows["train"]
        return self._objective(rows.x[batch], rows.y[batch]), None

    def _objective(self, x: Tensor, y: Tensor) -> Tensor:
        w2 = self.model.weight.square()  # type: ignore[operator]
        return softplus(-y * self.model(x).squeeze(1)).mean() + self.lam * (w2 / (1 + w2)).sum()

    @torch.no_grad()
    def measure(self, split: str) -> Metrics:
        rows = self.rows[split]
        right = (self.model(rows.x).squeeze(1) * rows.y > 0).double().mean()
        return {"loss": self._objective(rows.x, rows.y).item(), "accuracy": right.item()}

    def full(self) -> Iterator[Tensor]:
        yield self._objective(self.rows["train"].x, self.rows["train"].y)


class _Weights(nn.Module):
    """Parameters without a layer."""

    def __init__(self, **weights: Tensor) -> None:
        super().__init__()
        for name, w in weights.items():
            self.register_parameter(name, nn.Parameter(w))


class SimplexRegression(Samples):
    r"""$\frac1n \sum_i (a_i^\top w - b_i)^2$ over the simplex, for a sparse true w and noise of deviation 0.1."""

    splits = ("train", "test")
    score = "distance"  # to the true weights

    def __init__(self, seed: int, *, n: int, d: int, batch: int) -> None:
        generator = torch.Generator().manual_seed(0)  # the data are the same for every seed
        self.true = torch.zeros(d)
        self.true[: d // 5] = torch.rand(d // 5, generator=generator) + 0.1
        self.true /= self.true.sum()
        A = torch.randn(2 * n, d, generator=generator)
        b = A @ self.true + 0.1 * torch.randn(2 * n, generator=generator)
        self.rows = {"train": (A[:n], b[:n]), "test": (A[n:], b[n:])}
        super().__init__(_Weights(w=torch.full((d,), 1 / d)), n, seed, batch, constraint=sets.Simplex())

    def to(self, device: torch.device) -> None:
        super().to(device)
        self.true = self.true.to(device)
        self.rows = {split: (A.to(device), b.to(device)) for split, (A, b) in self.rows.items()}

    def loss(self, batch: Any, memory: Any = None) -> Evaluated:
        A, b = self.rows["train"]
        return self._objective(A[batch], b[batch]), None

    def _objective(self, A: Tensor, b: Tensor) -> Tensor:
        return (A @ self.model.w - b).square().mean()  # type: ignore[operator]

    @torch.no_grad()
    def measure(self, split: str) -> Metrics:
        distance = torch.linalg.vector_norm(self.model.w - self.true)  # type: ignore[operator]
        return {"loss": self._objective(*self.rows[split]).item(), "distance": distance.item()}

    def full(self) -> Iterator[Tensor]:
        yield self._objective(*self.rows["train"])


class NMF(Samples):
    r"""$\frac1n \sum_i \lVert x_i - w_i^\top H \rVert^2$ over non-negative w_i and H, for the digits' images x_i."""

    splits = ("train",)
    score = "relative_error"

    def __init__(self, images: Tensor, seed: int, *, rank: int, batch: int) -> None:
        self.X = images.flatten(1).float() / 255
        n, d = self.X.shape
        generator = _generator(seed, 0)
        factors = {name: 0.5 * torch.rand(s, generator=generator) for name, s in (("W", (n, rank)), ("H", (rank, d)))}
        super().__init__(_Weights(**factors), n, seed, batch, constraint=sets.NonNegative())

    def to(self, device: torch.device) -> None:
        super().to(device)
        self.X = self.X.to(device)

    def loss(self, batch: Any, memory: Any = None) -> Evaluated:
        return self._objective(batch), None

    def _objective(self, rows: Any) -> Tensor:
        W, H = self.model.W, self.model.H
        return (self.X[rows] - W[rows] @ H).square().sum(1).mean()  # type: ignore[index, operator]

    @torch.no_grad()
    def measure(self, split: str) -> Metrics:
        loss = self._objective(slice(None))
        return {"loss": loss.item(), "relative_error": (loss / self.X.square().sum(1).mean()).sqrt().item()}

    def full(self) -> Iterator[Tensor]:
        yield self._objective(slice(None))

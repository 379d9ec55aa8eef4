"""Workloads of runs: a model, the loss of a batch, the batches, and the measurements.

All random numbers depend only on the seed and on the position in the run, so that a run can be resumed anywhere.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import get_total_norm

from superadam_lab import data
from superadam_lab.data import ImageFiles, Images, Tokens
from superadam_lab.data.batching import ALL, Share, share

__all__ = ["Classification", "LanguageModel", "Workload", "norm", "shuffled", "some"]

CHUNK = 128  # images at a time where nothing is learned
MEASURED = 10_000  # images of the training set that are measured, at the most
FULL = (500, 2_000)  # images of the fixed part whose full gradient is taken: an eighth, but not less nor more
FULL_WORDS = (5_000, 20_000)
LESS, LESS_WORDS = 2_000, 5_000  # of each split, where there are runs by the hundred
FRESH = 1_000_000  # epochs from here on are for the monitor

# A loss, and what the model carries into the next batch: an LSTM's state, or None.
Evaluated = tuple[Tensor, Any]
Metrics = dict[str, float]
Settings = dict[str, dict[str, Any]]


class Workload:
    """Base class.

    Args:
        model: the model with its initial weights.
        source: the data, as `data.batches` takes it.
        seed: seed of the order of the data.
        batch: the batch size.
        options: options for the optimizer, such as a constraint.
    """

    splits: tuple[str, ...] = ("train", "valid", "test")
    score = "accuracy"
    """What is measured beside the loss."""
    lr_divisor: float | None = None
    """What the learning rate is divided by after an epoch without a new least validation loss."""
    clip: float | None = None
    """The bound on the norm of a gradient, which gives both gradients of a batch one factor."""
    augment = False
    workers = 0

    def __init__(self, model: nn.Module, source: Any, seed: int, batch: int, **options: Any) -> None:
        if batch < 1:
            raise ValueError(f"Invalid batch: {batch} (expected at least 1)")
        self.model = model.train()  # Hugging Face's from_pretrained leaves it without dropout
        self.source, self.seed, self.batch, self.options = source, seed, batch, options
        self.length = -(-len(source) // batch)
        """The number of batches in an epoch."""
        self.device = torch.device("cpu")
        self.settings: Settings = {}
        """Options of methods by name, which a run takes where none are given."""

    def to(self, device: torch.device) -> None:
        """Move to the device of training."""
        self.device = device
        self.model.to(device)

    def dimensions(self) -> dict[str, int]:
        """Sizes of the workload, for reports."""
        return {**self._parameters(), "training examples": len(self.source), "batch": self.batch}

    def _parameters(self) -> dict[str, int]:
        return {"parameters": sum(p.numel() for p in self.model.parameters())}

    def size(self, number: int) -> int:
        """The number of rows of a batch, which processes can share."""
        return min(self.batch, len(self.source) - number * self.batch)

    def batches(self, epoch: int, skip: int = 0, part: Share = ALL) -> Iterator[Any]:
        """The batches of an epoch after the first `skip`; or one process's share of them."""
        options = {"augment": self.augment, "skip": skip, "workers": self.workers, "part": part}
        return data.batches(self.source, self.batch, seed=self.seed, epoch=epoch, **options)  # type: ignore[arg-type]

    def evaluate_less(self) -> None:
        """From now on measure a fixed part of each split, 2,000 images or 5,000 words, for comparisons of hundreds of
        runs."""

    def loss(self, batch: Any, memory: Any = None) -> Evaluated:
        """f(x; ξ), with the same `memory` in both evaluations of a batch."""
        raise NotImplementedError

    def evaluate(self, split: str) -> Metrics:
        """Loss and score on a split, without dropout."""
        raise NotImplementedError

    def full(self) -> Iterator[Tensor]:
        """Losses that add up to f, without dropout, on a fixed part of the training set."""
        raise NotImplementedError

    def fresh(self, step: int) -> list[Any]:
        """Two batches for the monitor, drawn independently of training."""
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
        before = [p.grad for p in params]
        self.model.zero_grad()
        with self.evaluating(), torch.enable_grad():
            for loss in self.full():
                loss.backward()  # type: ignore[no-untyped-call]  # autograd.grad finds nothing of divided parameters
        found = float(norm([p.grad for p in params if p.grad is not None]))
        for p, grad in zip(params, before, strict=True):
            p.grad = grad
        return found


def shuffled(n: int) -> Tensor:
    """The numbers below n in a random order, the same one for every seed."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(0))


def some(source: Any, n: int | None) -> Any:
    """n of the rows, the same ones for every seed; all if there are no more."""
    return source if n is None or n >= len(source) else source.take(shuffled(len(source))[:n])


def _eighth(n: int, bounds: tuple[int, int]) -> int:
    return min(max(n // 8, bounds[0]), bounds[1])


class Classification(Workload):
    """Cross-entropy of images. The training loss is measured on a fixed part, at most `measured` images."""

    def __init__(
        self,
        model: nn.Module,
        images: dict[str, Images] | dict[str, ImageFiles],
        seed: int,
        batch: int,
        augment: bool = False,
        measured: int | None = None,
    ) -> None:
        super().__init__(model, images["train"], seed, batch)
        self.splits = tuple(images)
        self.measured = {**images, "train": some(images["train"], measured or MEASURED)}
        self.part = some(images["train"], _eighth(len(images["train"]), FULL))
        self.augment = augment
        # Convolutions take a quarter less time with the channels last.
        crashes = any(map(_crashes_with_channels_last, model.modules()))
        self.format = torch.contiguous_format if crashes else torch.channels_last
        if isinstance(images["train"], ImageFiles):
            self.workers = os.cpu_count() or 1

    def evaluate_less(self) -> None:
        self.measured = {split: some(images, LESS) for split, images in self.measured.items()}

    def loss(self, batch: Any, memory: Any = None) -> Evaluated:
        x, y = self._on_device(batch)
        return cross_entropy(self.model(x), y), None

    def _on_device(self, batch: Any) -> list[Tensor]:
        x, y = (t.to(self.device, non_blocking=True) for t in batch)
        return [x.contiguous(memory_format=self.format), y]

    @torch.no_grad()
    def evaluate(self, split: str) -> Metrics:
        loss = right = torch.zeros((), device=self.device)
        images = self.measured[split]
        with self.evaluating():
            for x, y in self._in_order(images):
                out = self.model(x)
                loss = loss + cross_entropy(out, y, reduction="sum")
                right = right + (out.argmax(1) == y).sum()
        return {"loss": loss.item() / len(images), "accuracy": right.item() / len(images)}

    def full(self) -> Iterator[Tensor]:
        for x, y in self._in_order(self.part):
            yield cross_entropy(self.model(x), y, reduction="sum") / len(self.part)

    def _in_order(self, images: Images | ImageFiles) -> Iterator[list[Tensor]]:
        return map(self._on_device, data.batches(images, CHUNK, workers=self.workers))


class LanguageModel(Workload):
    """Cross-entropy of the next word. A recurrent model carries its state from batch to batch, without gradients.

    Losses are measured on the first `measured` words of every text.
    """

    score = "perplexity"
    lr_divisor = 4.0
    clip = 0.25

    def __init__(
        self,
        model: nn.Module,
        tokens: dict[str, Tokens],
        seed: int,
        *,
        batch: int,
        bptt: int,
        recurrent: bool,
        measured: int | None = None,
    ) -> None:
        train = tokens["train"]
        super().__init__(model, data.streams(train, batch, bptt), seed, 1)
        self.measured = {split: data.streams(t.take(slice(measured)), batch, bptt) for split, t in tokens.items()}
        self.part = data.streams(train.take(slice(_eighth(len(train), FULL_WORDS))), batch, bptt)
        self.recurrent, self.columns = recurrent, batch

    def evaluate_less(self) -> None:
        per_batch = self.source[0][0].numel()
        self.measured = {split: stream[: -(-LESS_WORDS // per_batch)] for split, stream in self.measured.items()}

    def dimensions(self) -> dict[str, int]:
        words = sum(targets.numel() for _, targets in self.source)
        return {**self._parameters(), "training words": words, "batch": self.columns}

    def size(self, number: int) -> int:
        return self.columns

    def batches(self, epoch: int, skip: int = 0, part: Share = ALL) -> Iterator[Any]:
        mine = share(self.columns, part)
        return ((inputs[:, mine], targets[:, mine]) for inputs, targets in self.source[skip:])

    def fresh(self, step: int) -> list[Any]:
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + step)
        return [self.source[i] for i in torch.randint(self.length, (2,), generator=generator).tolist()]

    def loss(self, batch: Any, memory: Any = None) -> Evaluated:
        inputs, targets = (t.to(self.device, non_blocking=True) for t in batch)
        if self.recurrent:
            logits, memory = self.model(inputs, memory)
            memory = tuple(t.detach() for t in memory)
        else:
            logits = self.model(inputs)
        return cross_entropy(logits.flatten(0, 1), targets.flatten()), memory

    @torch.no_grad()
    def evaluate(self, split: str) -> Metrics:
        with self.evaluating():
            loss = sum(part.item() for part in self._parts(self.measured[split]))
        return {"loss": loss, "perplexity": math.exp(loss) if loss < 700 else math.inf}

    def full(self) -> Iterator[Tensor]:
        return self._parts(self.part)

    def _parts(self, stream: list[Any]) -> Iterator[Tensor]:
        """Losses of the pieces of a text, which add up to the mean over all its words."""
        memory, words = None, sum(targets.numel() for _, targets in stream)
        for batch in stream:
            loss, memory = self.loss(batch, memory)
            yield loss * (batch[1].numel() / words)


def _crashes_with_channels_last(layer: nn.Module) -> bool:
    """Whether torch 2.13 crashes in this layer's gradient, with the channels last, on processors without AVX-512:
    a 1 × 1 convolution with a stride and few channels, as in a narrow ResNet."""
    return (
        isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1) and layer.stride > (1, 1) and layer.in_channels < 8
    )


def norm(tensors: list[Tensor]) -> Tensor:
    """Return the norm over all coordinates of all tensors, sharded or not."""
    found: Any = get_total_norm(tensors)
    whole: Tensor = found.full_tensor() if hasattr(found, "full_tensor") else found
    return whole

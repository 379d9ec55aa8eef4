"""The optimizer's share of a training step."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from superadam import SuperAdam, zoo
from superadam_lab.bench import measures, peers
from superadam_lab.bench.models import Block
from superadam_lab.tasks.models import cifar_resnet

__all__ = ["TRAININGS", "Training", "shares", "with_matrices"]

Build = Callable[[nn.Module], Optimizer]

OPTIMIZERS: dict[str, Build] = {
    "torch AdamW, fused": lambda model: torch.optim.AdamW(model.parameters(), fused=True),
    "case 1, τ = 0": lambda model: SuperAdam(model, tau=0.0),
    "case 1, τ = 1": lambda model: SuperAdam(model, tau=1.0),
}


@dataclass(frozen=True)
class Training:
    """A model, a batch, and the loss of the model on the batch."""

    what: str
    model: Callable[[], nn.Module]
    batch: Callable[[], tuple[Tensor, Tensor]]
    loss: Callable[[Tensor, Tensor], Tensor]


def cifar(size: int = 128, *, width: int = 64) -> Training:
    """ResNet-18 on images of CIFAR's shape, with the paper's batch size."""

    def batch() -> tuple[Tensor, Tensor]:
        return torch.randn(size, 3, 32, 32), torch.randint(10, (size,))

    what = f"ResNet-18, {size} images of 3 × 32 × 32"
    return Training(what, lambda: cifar_resnet(18, classes=10, width=width), batch, functional.cross_entropy)


def language(size: int = 4, length: int = 256, *, width: int = 768, heads: int = 12) -> Training:
    """One block of GPT-2 small on a few sequences; the loss is a squared distance."""

    def batch() -> tuple[Tensor, Tensor]:
        return torch.randn(size, length, width), torch.randn(size, length, width)

    what = f"block of GPT-2 small, {size} sequences of {length}"
    return Training(what, lambda: Block(width, heads), batch, functional.mse_loss)


TRAININGS = {"resnet18": cifar(), "gpt2-block": language()}


class _Loop:
    """Training steps with a clock around the evaluations. The rest of a step is the optimizer's time."""

    def __init__(self, task: Training, build: Callable[[nn.Module], Optimizer]) -> None:
        torch.manual_seed(0)
        self.task, self.model = task, task.model()
        self.opt = build(self.model)
        self.inputs, self.targets = task.batch()
        self.evaluations: list[float] = []

    def step(self) -> None:
        spent = 0.0

        def closure() -> Tensor:
            nonlocal spent
            start = time.perf_counter()
            self.opt.zero_grad()
            loss = self.task.loss(self.model(self.inputs), self.targets)
            loss.backward()  # type: ignore[no-untyped-call]
            spent += time.perf_counter() - start
            return loss

        self.opt.step(closure)  # type: ignore[arg-type]
        self.evaluations.append(spent)


def with_matrices() -> dict[str, Build]:
    """AdamW, and the methods with a matrix per tensor."""
    baseline = "torch AdamW, fused"
    own = {name: functools.partial(zoo.create, name, **options) for name, options in peers.OPTIONS.items()}
    return {baseline: OPTIMIZERS[baseline], **own}


def shares(
    rounds: int, tasks: dict[str, Training] | None = None, optimizers: dict[str, Build] | None = None
) -> dict[str, Any]:
    """For each task and optimizer: a training step, the optimizer's part of it, and that part's share."""
    made: dict[str, Any] = {}
    for name, task in (TRAININGS if tasks is None else tasks).items():
        runs = {label: _Loop(task, build) for label, build in (optimizers or OPTIMIZERS).items()}
        times = measures.interleaved({label: run.step for label, run in runs.items()}, rounds, warm_up=1)
        rows = {}
        for label, whole in times.items():
            own = [all_of_it - spent for all_of_it, spent in zip(whole, runs[label].evaluations[1:], strict=True)]
            shares = [a / b for a, b in zip(own, whole, strict=True)]
            rows[label] = {
                "step": measures.summary(whole),
                "optimizer": measures.summary(own),
                "share": measures.short(statistics.median(shares)),
            }
        parameters = sum(p.numel() for p in task.model().parameters())
        made[name] = {"what": task.what, "parameters": parameters, "rounds": rounds, "rows": rows}
    return made

"""Problems without a network: all of their data fits into one batch, so the full gradient is exact."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from superadam import sets
from superadam_lab.data import Rows
from superadam_lab.tasks.workloads import Evaluated, Metrics, Workload

__all__ = ["NMF", "Logistic", "SimplexRegression"]


class Weights(nn.Module):
    """Parameters without a layer."""

    x: Tensor
    w: Tensor
    W: Tensor
    H: Tensor

    def __init__(self, **weights: Tensor) -> None:
        super().__init__()
        for name, w in weights.items():
            self.register_parameter(name, nn.Parameter(w))


class Formula(Workload):
    """A loss in closed form, `objective(*rows)`, of rows (a, b)."""

    model: Weights

    def __init__(self, model: Weights, rows: dict[str, Any], seed: int, batch: int, **options: Any) -> None:
        super().__init__(model, rows["train"], seed, batch, **options)
        self.splits = tuple(rows)
        self.all = {split: r.batch(torch.arange(len(r))) for split, r in rows.items()}

    def to(self, device: torch.device) -> None:
        super().to(device)
        self.all = {split: tuple(t.to(device) for t in rows) for split, rows in self.all.items()}

    def objective(self, a: Tensor, b: Tensor) -> Tensor:
        raise NotImplementedError

    def scored(self, loss: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """The score that is measured besides the loss."""
        raise NotImplementedError

    def loss(self, batch: Any, memory: Any = None) -> Evaluated:
        return self.objective(*(t.to(self.device) for t in batch)), None

    @torch.no_grad()
    def evaluate(self, split: str) -> Metrics:
        loss = self.objective(*self.all[split])
        return {"loss": loss.item(), self.score: self.scored(loss, *self.all[split]).item()}

    def full(self) -> Iterator[Tensor]:
        yield self.objective(*self.all["train"])


class Logistic(Formula):
    r"""$\frac1n \sum_i \log(1 + e^{-y_i a_i^\top x}) + \lambda \sum_j x_j^2 / (1 + x_j^2)$, from x = 0."""

    def __init__(self, rows: dict[str, Rows], seed: int, batch: int, lam: float = 1e-3) -> None:
        self.lam = lam
        super().__init__(Weights(x=torch.zeros(rows["train"].x.shape[1])), rows, seed, batch)

    def objective(self, a: Tensor, b: Tensor) -> Tensor:
        x2 = self.model.x.square()
        return softplus(-b * (a @ self.model.x)).mean() + self.lam * (x2 / (1 + x2)).sum()

    def scored(self, loss: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return ((a @ self.model.x) * b > 0).float().mean()


class SimplexRegression(Formula):
    r"""$\frac1n \sum_i (a_i^\top w - b_i)^2$ over the simplex, for a sparse true w and noise of deviation 0.1."""

    score = "distance"  # to the true weights

    def __init__(self, seed: int, *, n: int, d: int, batch: int) -> None:
        generator = torch.Generator().manual_seed(0)  # the data are the same for every seed
        true = torch.zeros(d)
        true[: d // 5] = torch.rand(d // 5, generator=generator) + 0.1
        self.true = true / true.sum()
        A = torch.randn(2 * n, d, generator=generator)
        both = Rows(A, A @ self.true + 0.1 * torch.randn(2 * n, generator=generator))
        rows = {"train": both.take(slice(n)), "test": both.take(slice(n, None))}
        super().__init__(Weights(w=torch.full((d,), 1 / d)), rows, seed, batch, constraint=sets.Simplex())

    def objective(self, a: Tensor, b: Tensor) -> Tensor:
        return (a @ self.model.w - b).square().mean()

    def scored(self, loss: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return (self.model.w - self.true.to(self.device)).square().sum().sqrt()


class NMF(Formula):
    r"""$\frac1n \sum_i \lVert x_i - w_i^\top H \rVert^2$ over non-negative w_i and H, an own w_i for each image."""

    score = "relative_error"

    def __init__(self, images: Tensor, seed: int, *, rank: int, batch: int) -> None:
        x = images.flatten(1).float() / 255
        n, d = x.shape
        generator = torch.Generator().manual_seed(seed)
        W, H = (0.5 * torch.rand(shape, generator=generator) for shape in ((n, rank), (rank, d)))
        rows = {"train": Rows(x, torch.arange(n))}
        super().__init__(Weights(W=W, H=H), rows, seed, batch, constraint=sets.NonNegative())

    def objective(self, a: Tensor, b: Tensor) -> Tensor:
        return (a - self.model.W[b] @ self.model.H).square().sum(1).mean()

    def scored(self, loss: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return (loss / a.square().sum(1).mean()).sqrt()

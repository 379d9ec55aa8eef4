"""Variance reduction with a correction on a part of each batch: does it pay?

    python -m research.search.partial --run    # all runs, partial.json (minutes)
    python -m research.search.partial          # the table of README.md, from that file
    python -m research.search.partial --check  # fails if the table is not what would be written

Line 11 with τ adds ∇f(x_t; ξ) - ∇f(x_{t-1}; ξ) to g_{t-1}. Here ξ is a part of the batch: with a quarter of it, a step
costs 1.25 gradients instead of 2. H_t is SOAP's, from the gradient of the whole batch. All runs of a setting cost the
same number of gradients of a batch and have 5 % warm-up and a cosine. One seed chooses a learning rate of four, three
others give the losses.
"""

import argparse
import itertools
import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from research.kept import filled
from superadam import create
from superadam_lab import bench

HERE = Path(__file__).resolve().parent
FILE, PAGE = HERE / "partial.json", HERE / "README.md"
RATES, TUNE, SEEDS = (1e-3, 3e-3, 1e-2, 3e-2), 0, (1, 2, 3)
METHODS = {  # τ, and the part of the batch whose gradient is taken at two points
    "τ = 0": (0.0, 0.0),
    "τ = 0.1, a quarter": (0.1, 0.25),
    "τ = 0.1, all": (0.1, 1.0),
    "τ = 1, a quarter": (1.0, 0.25),
    "τ = 1, all": (1.0, 1.0),
}
Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


def digits() -> tuple[Tensor, Tensor]:
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)


def reconstruction(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return mse_loss(model(x), x)


def classification(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x), y)


def autoencoder() -> nn.Module:
    sizes = (64, 48, 24, 8, 24, 48, 64)
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    return nn.Sequential(*(part for layer in layers[:-1] for part in (layer, nn.GELU())), layers[-1])


def pretrained() -> nn.Module:
    """A classifier that has seen the first half of the digits, upright; what follows are the others, turned by 90°."""
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10))
    opt = torch.optim.AdamW(model.parameters(), 3e-3)
    x, y = digits()
    for rows in itertools.chain.from_iterable(torch.randperm(900).split(50) for _ in range(20)):
        opt.zero_grad()
        classification(model, x[rows], y[rows]).backward()
        opt.step()
    return model


def turned() -> tuple[Tensor, Tensor]:
    x, y = digits()
    return x[900:].unflatten(1, (8, 8)).rot90(1, (1, 2)).flatten(1).contiguous(), y[900:]


@dataclass
class Setting:
    """A task with a batch size, and how many gradients of a batch a run may take."""

    model: Callable[[], nn.Module]
    data: Callable[[], tuple[Tensor, Tensor]]
    loss: Loss
    batch: int
    budget: int = 500


SETTINGS = {
    "autoencoder, batch 8": Setting(autoencoder, digits, reconstruction, 8),
    "autoencoder, batch 256": Setting(autoencoder, digits, reconstruction, 256),
    "fine-tuning, batch 4": Setting(pretrained, turned, classification, 4),
}


def gradient(s: Setting, model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(s.loss(model, x, y), list(model.parameters())))


@torch.no_grad()
def exchange(model: nn.Module, others: list[Tensor]) -> None:
    for p, other in zip(model.parameters(), others, strict=True):
        kept = p.clone()
        p.copy_(other)
        other.copy_(kept)


def train(s: Setting, tau: float, share: float, lr: float, seed: int) -> float:
    """The loss on the rows that were not trained on, in the end."""
    torch.manual_seed(seed)
    x, y = s.data()
    order = torch.randperm(len(x))
    test, rows = order[: len(x) // 5], order[len(x) // 5 :]
    model = s.model()
    params = list(model.parameters())
    opt = create("soap", model, lr=lr, betas=(0.9, 0.99), precondition_frequency=5, weight_decay=0.0)
    before = [p.detach().clone() for p in params]
    steps = round(s.budget / (1 + share))
    part = max(1, round(share * s.batch))
    for t in range(steps):
        for group in opt.param_groups:
            group["lr"] = lr * min(1, (t + 1) / (0.05 * steps)) * (1 + math.cos(math.pi * t / steps)) / 2
        chosen = rows[torch.randint(len(rows), (s.batch,))]
        whole = gradient(s, model, x[chosen], y[chosen])
        if share and t:
            here = whole if share == 1 else gradient(s, model, x[chosen[:part]], y[chosen[:part]])
            exchange(model, before)
            there = gradient(s, model, x[chosen[:part]], y[chosen[:part]])
            exchange(model, before)
            for p, new, old in zip(params, here, there, strict=True):
                opt.state[p]["g"] += tau * (new - old)  # line 11 multiplies it by 1 - α
        for p, g, kept in zip(params, whole, before, strict=True):
            p.grad = g
            kept.copy_(p.detach())
        opt.step()
    with torch.no_grad():
        return float(s.loss(model, x[test], y[test]))


def run() -> None:
    found = {}
    for name, setting in SETTINGS.items():
        for method, (tau, share) in METHODS.items():
            tried = {lr: train(setting, tau, share, lr, TUNE) for lr in RATES}
            finite = {lr: loss for lr, loss in tried.items() if math.isfinite(loss)}
            best = min(finite, key=finite.__getitem__)
            losses = [train(setting, tau, share, best, seed) for seed in SEEDS]
            found[f"{name}; {method}"] = {"lr": best, "losses": [float(f"{loss:.6g}") for loss in losses]}
            print(name, method, best, losses, flush=True)
    FILE.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def page() -> str:
    found = json.loads(FILE.read_text(encoding="utf-8"))
    rows = []
    for method in METHODS:
        pairs = [(found[f"{s}; {method}"]["losses"], found[f"{s}; τ = 0"]["losses"]) for s in SETTINGS]
        ratios = [math.exp(fmean(math.log(a / b) for a, b in zip(*pair, strict=True))) for pair in pairs]
        rows.append([method, *(f"{ratio:.2f}" for ratio in ratios)])
    return filled(PAGE.read_text(encoding="utf-8"), "partial", bench.Table("", ["", *SETTINGS], rows).markdown())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.run:
        run()
    if args.check:
        sys.exit(page() != PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()

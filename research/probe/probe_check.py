"""Is what `probe` says true? On three small tasks it is asked first, and then the answer is tried.

- digits: an MLP with dropout 0.5 on handwritten digits;
- text: a Transformer with one layer and dropout 0.2 on the characters of Python's own documentation;
- regression: least squares with much noise in the labels.

Each is trained with τ = 0 and with τ = 1: equally many gradient evaluations, constant learning rates and α from one
grid, the same H_t; the best of each counts, by the mean loss over seeds. The probe looks at the model that the best run
with τ = 0 has half-way, at twice its learning rate.

python -m research.probe.probe_check [--seeds 3] [--task digits]    # a few minutes
"""

import argparse
import copy
import statistics
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from research.stability import stability
from superadam import SuperAdam, probe
from superadam.matrices import SecondMoment
from superadam.schedules import BiasCorrected

ALPHAS = (0.03, 0.3)


@dataclass
class Task:
    model: nn.Module
    loss_fn: Any
    batch: Any
    """batch(generator) draws one."""
    measure: Any
    """measure(model): the loss that counts."""
    grid: tuple[float, ...]
    evaluations: int


def digits():
    (x, y), _ = stability.digits()
    torch.manual_seed(0)

    def batch(generator):
        rows = torch.randint(len(y), (16,), generator=generator)
        return x[rows], y[rows]

    def measure(model):
        return stability.measured(copy.deepcopy(model), (x, y))[0]

    return Task(stability.mlp(), stability.loss_fn, batch, measure, (2e-3, 4e-3, 8e-3, 1.6e-2), 1000)


class TinyTransformer(nn.Module):
    """Predicts the next character, from those before it."""

    def __init__(self, characters, context=32, width=32):
        super().__init__()
        self.embed, self.place = nn.Embedding(characters, width), nn.Parameter(0.1 * torch.randn(context, width))
        self.layer = nn.TransformerEncoderLayer(width, 2, 64, dropout=0.2, batch_first=True, norm_first=True)
        self.out = nn.Linear(width, characters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(context))

    def forward(self, x):
        return self.out(self.layer(self.embed(x) + self.place, src_mask=self.mask, is_causal=True))


def text(context=32):
    from pydoc_data.topics import topics

    words = "".join(topics[name] for name in ("class", "for", "with", "import", "numbers", "exprlists"))
    alphabet = sorted(set(words))
    data = torch.tensor([alphabet.index(c) for c in words])
    torch.manual_seed(0)

    def batch(generator, size=8):
        starts = torch.randint(len(data) - context - 1, (size, 1), generator=generator)
        pieces = data[starts + torch.arange(context + 1)]
        return pieces[:, :-1], pieces[:, 1:]

    def loss_fn(model, batch):
        return nn.functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())

    @torch.no_grad()
    def measure(model):
        return loss_fn(copy.deepcopy(model).eval(), batch(torch.Generator().manual_seed(99), 512)).item()

    return Task(TinyTransformer(len(alphabet)), loss_fn, batch, measure, (2e-3, 4e-3, 8e-3, 1.6e-2), 400)


def regression(d=20, noise=1.0):
    scale = torch.logspace(-1, 0.5, d)
    solution = 1 / scale  # far away where the curvature is small, so that small learning rates do not get there
    torch.manual_seed(0)
    model = nn.Linear(d, 1, bias=False)

    def batch(generator):
        a = torch.randn(16, d, generator=generator) * scale
        return a, a @ solution[:, None] + noise * torch.randn(16, 1, generator=generator)

    def loss_fn(model, batch):
        return (model(batch[0]) - batch[1]).square().mean() / 2

    def measure(model):
        return (((model.weight.detach() - solution) * scale) ** 2).sum().item() / 2  # above the smallest loss

    return Task(model, loss_fn, batch, measure, (8e-3, 1.6e-2, 3.2e-2, 6.4e-2, 0.128), 1500)


TASKS = {"digits": digits, "text": text, "regression": regression}


def make(model, lr, tau, alpha):
    matrix = SecondMoment(lam=5e-4, bias_correction=True)
    return SuperAdam(model, lr, tau=tau, matrix=matrix, schedule=BiasCorrected(1 - alpha))


def train(task, opt, model, evaluations, seed):
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    while opt.gradient_evaluations < evaluations:
        samples = task.batch(generator)

        def closure(samples=samples):
            opt.zero_grad()
            loss = task.loss_fn(model, samples)
            loss.backward()
            return loss

        opt.step(closure)
    opt.flush()
    return model


def compare(task, tau, seeds, evaluations):
    """(lr, α) → mean loss at the end."""

    def final(lr, alpha, seed):
        model = copy.deepcopy(task.model)
        loss = task.measure(train(task, make(model, lr, tau, alpha), model, evaluations, seed))
        return loss if loss < 1e6 else 1e6

    return {
        (lr, alpha): statistics.mean(final(lr, alpha, seed) for seed in range(seeds))
        for lr in task.grid
        for alpha in ALPHAS
    }


def check(name, seeds=3):
    """The report of `probe`, and for τ = 0 and τ = 1 the best lr, α and loss."""
    task = TASKS[name]()
    results = {tau: compare(task, tau, seeds, task.evaluations) for tau in (0.0, 1.0)}
    best = {tau: min(losses, key=losses.get) for tau, losses in results.items()}
    lr, alpha = best[0.0]
    halfway = train(task, make(task.model, lr, 0.0, alpha), task.model, task.evaluations // 2, seed=0)
    generator = torch.Generator().manual_seed(7)
    loader = (task.batch(generator) for _ in range(128))
    report = probe(halfway, task.loss_fn, loader, lr=2 * lr, batches=128)
    return report, {tau: (*best[tau], results[tau][best[tau]]) for tau in best}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--task", choices=TASKS, action="append")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.task or TASKS:
        report, best = check(name, options.seeds)
        print(f"{name}\n{report}")
        for tau, (lr, alpha, loss) in best.items():
            print(f"  tried tau={tau:g}: loss {loss:.4f} at lr {lr:g}, alpha {alpha:g}")
        winner = min(best, key=lambda tau: best[tau][2])
        print(f"  {'AGREES' if winner == report.tau else 'DISAGREES'}\n", flush=True)


if __name__ == "__main__":
    main()

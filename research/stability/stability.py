"""At which learning rates variance reduction diverges, and what helps: the numbers and the figure of README.md.

Handwritten digits, an MLP with dropout 0.5, batches of 16. Every variant gets equally many gradient evaluations (τ > 0
takes half as many steps), the same weights, batches and masks for a seed, and a learning rate that falls to zero as a
cosine. Only how g_t and H_t are formed differs. Deterministic, on one thread.

python -m research.stability.stability [--evaluations 1500] [--seeds 3]    # ten minutes or more
"""

import argparse
import math
import statistics
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

from superadam import SuperAdam, create
from superadam.estimators import Averaged, Mars
from superadam.matrices import SecondMoment
from superadam.schedules import Constant

OUT = Path(__file__).resolve().parent / "stability.png"
BATCH = 16
GRID = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2)
CHANCE = math.log(10)


def composed(alpha=0.3, lam=5e-4, **options):
    """SUPER-ADAM with the weights of Adam: μ = 1, constant α, and v corrected for its start."""
    matrix = SecondMoment(lam=lam, bias_correction=True)
    return lambda model, lr: SuperAdam(model, lr, matrix=matrix, schedule=Constant(alpha=alpha), **options)


def averaged(alpha=0.3, lam=5e-4, *, tau=1.0, beta=0.0, guard=None, own=False):
    return composed(alpha, lam, estimator=Averaged(tau, beta, guard, own))


VARIANTS = {
    "AdamW": lambda model, lr: torch.optim.AdamW(model.parameters(), lr, weight_decay=0.0),
    "AdamW, ε = λ": composed(0.1, tau=0.0),
    "τ=1, α=0.1": composed(0.1, tau=1.0),
    "τ=1": composed(tau=1.0),
    "τ=1, α=0.6": composed(0.6, tau=1.0),
    "τ=1, λ=1e-8": composed(lam=1e-8, tau=1.0),
    "clip g": composed(tau=1.0, clip=1.0),
    "clip the corrected gradient": composed(estimator=Mars(1.0, 0.3, bound=1.0)),
    "restart every 50 steps": composed(tau=1.0),
    "guard": averaged(guard=1.0),
    "average": averaged(beta=0.9),
    "H from r": averaged(own=True),
    "H from r, λ=1e-8": averaged(lam=1e-8, own=True),
    "average, H from r": averaged(beta=0.9, own=True),
    "average, H from r, guard": averaged(beta=0.9, guard=1.0, own=True),
    "average, H from r, α=0.6": averaged(0.6, beta=0.9, own=True),
    "τ=0.1, H from r": averaged(0.1, tau=0.1, own=True),
    "MARS (τ=0.025)": lambda model, lr: create("mars", model, lr=lr),
}
RESTART = {"restart every 50 steps": 50}
DRAWN = ("AdamW", "τ=1, α=0.1", "τ=1", "average", "H from r", "average, H from r", "average, H from r, guard")


def digits():
    """Train and test sets: 1,200 and 597 images."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x, y = torch.tensor(images, dtype=torch.float32)[order] / 16, torch.tensor(labels)[order]
    return (x[:1200], y[:1200]), (x[1200:], y[1200:])


def mlp():
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10))


def loss_fn(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


@torch.no_grad()
def measured(model, *sets):
    """The loss on each set, without dropout; that of chance if it is larger or not finite."""
    model.eval()
    losses = [loss_fn(model, batch).item() for batch in sets]
    return [loss if loss < CHANCE else CHANCE for loss in losses]


def train(make, lr, data, *, seed, evaluations, restart=None):
    """Train on `evaluations` gradients. Returns the losses on the training and on the test set."""
    torch.manual_seed(seed)
    model = mlp()
    opt = make(model, lr)
    two_point = getattr(opt, "two_point", False)
    steps = evaluations // 2 if two_point else evaluations
    cosine = torch.optim.lr_scheduler.LambdaLR(opt, lambda t: (1 + math.cos(math.pi * t / steps)) / 2)
    order = torch.Generator().manual_seed(seed)
    x, y = data[0]
    for t in range(steps):
        if restart and t % restart == 0:
            opt.restart()
        rows = torch.randint(len(y), (BATCH,), generator=order)

        def closure(batch=(x[rows], y[rows])):
            opt.zero_grad()
            loss = loss_fn(model, batch)
            loss.backward()
            return loss

        opt.step(closure)
        cosine.step()
    if two_point:
        opt.flush()
    return measured(model, *data)


def sweep(variants, *, grid=GRID, seeds=3, evaluations=1500):
    """variant → lr → [(training loss, test loss) of each seed]."""
    data = digits()
    return {
        name: {
            lr: [
                train(make, lr, data, seed=seed, evaluations=evaluations, restart=RESTART.get(name))
                for seed in range(seeds)
            ]
            for lr in grid
        }
        for name, make in variants.items()
    }


def mean_loss(runs, column=0):
    return statistics.mean(run[column] for run in runs)


def rows(results):
    """Best learning rate and its losses, and the largest one at which training still works."""
    for name, by_lr in results.items():
        lr = min(by_lr, key=lambda lr: mean_loss(by_lr[lr]))
        spread = statistics.stdev(run[0] for run in by_lr[lr]) if len(by_lr[lr]) > 1 else 0.0
        works = [lr for lr in by_lr if mean_loss(by_lr[lr]) < 0.1]
        yield name, lr, mean_loss(by_lr[lr]), spread, mean_loss(by_lr[lr], 1), max(works, default=None)


def draw(results, path, evaluations):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    fig, panel = plt.subplots(figsize=(8, 4.8), layout="constrained")
    for name in (name for name in DRAWN if name in results):
        losses = [[run[0] for run in runs] for runs in results[name].values()]
        line = {"color": "black", "linewidth": 2.2} if name == "AdamW" else {}
        (drawn,) = panel.plot(
            list(results[name]), [statistics.mean(run) for run in losses], marker="o", markersize=4, label=name, **line
        )
        panel.fill_between(
            list(results[name]), list(map(min, losses)), list(map(max, losses)), color=drawn.get_color(), alpha=0.12
        )
    panel.axhline(CHANCE, color="grey", linestyle=":")
    panel.annotate("chance, or diverged", (GRID[0], CHANCE), xytext=(0, 4), textcoords="offset points", color="grey")
    panel.set(xscale="log", yscale="log", xlabel="learning rate", ylabel="training loss at the end")
    panel.set_title(f"Digits, MLP with dropout, {evaluations} gradients of 16 images: mean and range over seeds")
    panel.grid(alpha=0.3, which="both")
    panel.legend(fontsize=8)
    fig.savefig(path, dpi=130)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--evaluations", type=int, default=1500)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    start = time.time()
    results = {}
    print(
        "| variant | best lr | training loss | test loss | largest lr with training loss < 0.1 |\n|---|---|---|---|---|"
    )
    for name, make in VARIANTS.items():
        results |= sweep({name: make}, seeds=options.seeds, evaluations=options.evaluations)
        _, lr, loss, spread, test, works = list(rows(results))[-1]
        works = "none" if works is None else f"{works:g}"
        print(f"| {name} | {lr:g} | {loss:.4f} ± {spread:.4f} | {test:.4f} | {works} |", flush=True)
    draw(results, OUT, options.evaluations)
    print(f"\n{OUT} ({time.time() - start:.0f} s)")


if __name__ == "__main__":
    main()

"""Compare optimizers on a task of your own: equal tuning for all, then other seeds, and a report to look at.

python examples/compare_your_task.py    # under a minute; or, with more of everything and a table while it runs:
superadam compare --task-file examples/compare_your_task.py

A task is a model, data and a loss; here a small network that learns sin(3x) from noisy points. Each method has the same
number of trials and of gradient evaluations (τ = 1 takes half as many steps), the learning rate is chosen by validation
loss, and the best one is repeated with seeds that no trial has seen. Prints each method's learning rate and mean
validation loss, and where report.html is. So small a comparison says nothing about the methods:

    adamw: lr 0.16, validation loss 0.0130
    super_adam: lr 0.16, validation loss 0.0157
    super_adam tau=1: lr 0.16, validation loss 0.0220
"""

import statistics
import tempfile
from pathlib import Path

import torch
from torch import nn

import superadam_lab as lab

METHODS = ("adamw", "super_adam", "super_adam tau=1")


def model():
    return nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))


def data():
    generator = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(600, 1, generator=generator) - 1
    y = (3 * x).sin() + 0.1 * torch.randn(600, 1, generator=generator)
    return {"train": (x[:400], y[:400]), "valid": (x[400:], y[400:])}


def loss(model, x, y):
    return nn.functional.mse_loss(model(x), y)


lab.task("sine", model=model, data=data, loss=loss, batch=20)


def main(folder=None, trials=4, seeds=3, evaluations=600):
    folder = Path(folder or tempfile.mkdtemp(prefix="compare-"))
    options = {"trials": trials, "seeds": seeds, "budget_evals": evaluations, "tune": {"lr": (1e-3, 0.3)}}
    results = lab.compare(methods=METHODS, task_file=__file__, out=folder, **options)
    found = {}
    for method in results.plan.methods:
        repeated = [r for r in results.records if r.method == method and r.phase == "report"]
        losses = [r.rows[-1]["valid_loss"] for r in repeated]
        found[method] = statistics.mean(losses)
        print(f"{method}: lr {repeated[0].options['lr']:.2g}, validation loss {found[method]:.4f}")
    print(f"{folder}/report.html")
    return found


if __name__ == "__main__":
    main()

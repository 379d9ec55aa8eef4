"""Ask before you pay: `probe` measures on your own model and batches whether τ = 1 is worth its second gradient.

python examples/probe_first.py    # a few seconds

Two tasks: digits with much dropout, whose gradients change so much from step to step that their differences are noisy,
and a regression with noisy labels, whose gradients hardly change, so that noise is what is left to reduce. Each model
is trained a while with Adam, then probed at twice its learning rate; probing changes nothing of it. Prints

    digits: τ = 0 (a difference has 0.041 of the variance of a gradient, at best α 2.00 times the noise in x)
    regression: τ = 1 (a difference has 0.00033 of the variance of a gradient, at best α 0.48 times the noise in x)

and with `python examples/probe_first.py --reports` all that was measured. docs/probe.md has the rule behind it.
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn

from superadam import create, probe


def digits():
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    rows = torch.randint(len(y), (300, 16), generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10))
    return model, nn.functional.cross_entropy, [(x[some], y[some]) for some in rows], 8e-3


def regression(d=20):
    generator = torch.Generator().manual_seed(0)
    scale = torch.logspace(-1, 0.5, d)
    x = torch.randn(800, 16, d, generator=generator) * scale
    y = (x / scale).sum(-1, keepdim=True) + torch.randn(800, 16, 1, generator=generator)
    return nn.Linear(d, 1, bias=False), nn.functional.mse_loss, list(zip(x, y, strict=True)), 8e-3


def main(reports=False):
    verdicts = {}
    for task in (digits, regression):
        torch.manual_seed(0)
        model, criterion, batches, lr = task()

        def loss_fn(model, batch, criterion=criterion):
            return criterion(model(batch[0]), batch[1])

        opt = create("adam", model, lr=lr)
        for batch in batches:
            opt.zero_grad()
            loss_fn(model, batch).backward()
            opt.step()
        report = probe(model, loss_fn, batches, lr=2 * lr, batches=128)
        print(
            f"{task.__name__}: τ = {report.tau:g} (a difference has {report.variance_ratio:.2g} of the variance of a "
            f"gradient, at best α {report.noise_ratio:.2f} times the noise in x)"
        )
        if reports:
            print(f"\n{report}\n")
        verdicts[task.__name__] = report
    return verdicts


if __name__ == "__main__":
    main(reports="--reports" in sys.argv)

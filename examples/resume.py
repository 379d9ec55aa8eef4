"""Stopped in the middle of an epoch and resumed, bit for bit: τ = 0, τ = 1 with a closure, τ = 1 with `twice`.

python examples/resume.py    # a few seconds

`save_checkpoint` keeps model, optimizer, scheduler, generators and, by `Resumable`, the place in the data. Prints for
each way the losses of a run that was never stopped and of one that was, and that all of them are the same.
"""

import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from superadam import Resumable, SuperAdam, load_checkpoint, save_checkpoint, twice

EPOCHS = 3


def setup(tau):
    torch.manual_seed(0)
    x = torch.randn(320, 10)
    y = (x[:, :1] * x[:, 1:2]).tanh() + 0.1 * torch.randn(320, 1)
    shuffled = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True, generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))
    opt = SuperAdam(model, lr=0.03, tau=tau, matrix="SecondMoment", schedule="Paper")
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, EPOCHS * len(shuffled))
    return {"model": model, "optimizer": opt, "scheduler": scheduler, "data": Resumable(shuffled)}


def train(model, optimizer, scheduler, data, *, way, path, stop=None):
    """Until the end, or until `stop` batches are done. Saves after every batch."""
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "data": data}
    losses = load_checkpoint(path, **parts) if path.exists() else []

    def evaluate(x, y):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    of_batch = []  # the losses of its turns: with `twice` two
    while data.epoch < EPOCHS:
        for turn, (x, y) in enumerate(twice(data) if way == "twice" else data):
            if way == "closure":
                of_batch.append(optimizer.step(lambda x=x, y=y: evaluate(x, y)))
            else:
                of_batch.append(evaluate(x, y))
                optimizer.step()
                if way == "twice" and turn % 2 == 0:
                    continue  # the second turn of this batch ends it
            scheduler.step()
            losses.append(of_batch[0].item())
            of_batch = []
            save_checkpoint(path, **parts, extra=losses)
            if len(losses) == stop:
                return losses
    optimizer.flush()
    return losses


def main():
    results = {}
    for name, tau, way in (("tau=0", 0.0, "plain"), ("closure", 1.0, "closure"), ("twice", 1.0, "twice")):
        with tempfile.TemporaryDirectory() as folder:
            whole = train(**setup(tau), way=way, path=Path(folder) / "whole.pt")
            train(**setup(tau), way=way, path=Path(folder) / "last.pt", stop=13)  # in the middle of an epoch
            resumed = train(**setup(tau), way=way, path=Path(folder) / "last.pt")
        results[name] = {"whole": whole, "resumed": resumed}
        print(f"{name}: loss {whole[0]:.4f} to {whole[-1]:.4f}, resumed {resumed[-1]:.4f}, same: {whole == resumed}")
    return results


if __name__ == "__main__":
    main()

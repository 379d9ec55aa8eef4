"""Hugging Face Accelerate: τ = 1 with a closure, and with `twice`; stopped in the middle of an epoch and resumed.

pip install superadam[trainers]; python examples/with_accelerate.py    # a few seconds

Prints the losses of a run that was never stopped and of one that was, which are the same.
"""

import tempfile

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from superadam import SuperAdam, twice

EPOCHS = 3


def train(way, *, stop=None, folder=None, resume=None):
    """Until the end, or until `stop` batches are done and saved; from the start, or after `resume` batches."""
    set_seed(0)
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
    x = torch.randn(320, 10)
    y = (x[:, :1] * x[:, 1:2]).tanh()
    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))
    opt = SuperAdam(model, lr=0.03, tau=0.0 if way == "tau=0" else 1.0, schedule="Paper")
    own = torch.Generator()  # what the loader draws at the start of an epoch is not drawn from the dropout's generator
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True, generator=own)
    model, opt, loader = accelerator.prepare(model, opt, loader)

    def evaluate(x, y):
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        losses.append(loss.item())
        return loss

    done = 0
    losses: list[float] = []
    if resume is not None:
        accelerator.load_state(folder)
        done = resume
    for epoch in range(done // len(loader), EPOCHS):
        rest = accelerator.skip_first_batches(loader, done - epoch * len(loader))
        for turn, (x, y) in enumerate(twice(rest) if way == "twice" else rest):
            if way == "closure":
                opt.step(lambda x=x, y=y: evaluate(x, y))
            else:
                evaluate(x, y)
                opt.step()
                if way == "twice" and turn % 2 == 0:
                    continue
            done += 1
            if done == stop:
                accelerator.save_state(folder)
                return losses
    opt.optimizer.flush()
    return losses


def main():
    results = {}
    for way in ("tau=0", "closure", "twice"):
        whole = train(way)
        with tempfile.TemporaryDirectory() as folder:
            train(way, stop=13, folder=folder)
            resumed = train(way, folder=folder, resume=13)
        results[way] = {"whole": whole, "resumed": resumed}
        same = whole[-len(resumed) :] == resumed
        print(f"{way}: loss {whole[0]:.4f} to {whole[-1]:.4f}, resumed {resumed[-1]:.4f}, same: {same}")
    return results


if __name__ == "__main__":
    main()

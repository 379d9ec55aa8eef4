"""A small training run that draws on everything a checkpoint must bring back."""

import random

import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from superadam import Resumable, SuperAdam, load_checkpoint, save_checkpoint, twice

BATCHES, EPOCHS = 5, 3


class Noisy(Dataset):
    """Samples that are augmented anew each time, with noise of every generator."""

    def __init__(self):
        self.x = torch.randn(4 * BATCHES, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        self.own = torch.Generator().manual_seed(2)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        noise = torch.randn(3) + torch.randn(3, generator=self.own) + random.gauss(0, 1) + numpy.random.randn()
        return self.x[i] + 0.1 * noise, self.x[i].sum()


class Run:
    """Model, optimizer, scheduler, scaler, data and a generator of its own; one loss for every batch."""

    def __init__(self, *, tau=1.0, way="twice", seeded=True, workers=0, scheduler=None, scaler=False, payload=0):
        torch.manual_seed(0)
        random.seed(0)
        numpy.random.seed(0)
        layers = nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1)
        self.model = nn.Sequential(*layers).double()
        self.opt = SuperAdam(self.model, lr=0.1, tau=tau, matrix="GradientNorm")
        make = scheduler or (lambda opt: torch.optim.lr_scheduler.StepLR(opt, 2, 0.7))
        self.scheduler = make(self.opt)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10) if scaler else None
        noisy = Noisy()
        order = torch.Generator().manual_seed(3) if seeded else None
        loader = DataLoader(noisy, batch_size=4, shuffle=True, generator=order, num_workers=workers)
        self.data = Resumable(loader, noisy.own)
        self.targets = torch.Generator().manual_seed(4)
        self.way, self.losses, self.payload = way, [], torch.zeros(payload)

    def parts(self):
        return {
            "model": self.model,
            "optimizer": self.opt,
            "scheduler": self.scheduler,
            "scaler": self.scaler,
            "data": self.data,
            "targets": self.targets,
        }

    def save(self, path):
        save_checkpoint(path, **self.parts(), extra={"losses": self.losses, "payload": self.payload})

    def load(self, path):
        self.losses = list(load_checkpoint(path, **self.parts())["losses"])
        return self

    def loss(self, x, y):
        return (self.model(x)[:, 0] - y).square().mean()

    def step(self, x, y):
        def closure():
            self.opt.zero_grad()
            loss = self.loss(x, y)
            loss.backward()
            return loss

        if self.scaler is not None:
            self.scaler.scale(self.loss(x, y)).backward()
            self.scaler.step(self.opt)
            self.scaler.update()
            self.opt.zero_grad()
        elif self.way == "twice":
            for _ in twice([None]):
                loss = closure()
                self.opt.step()
            self.losses.append(loss.item())
        else:
            self.losses.append(self.opt.step(closure).item())

    def train(self, after_batch=lambda run: None, epochs=EPOCHS):
        while self.data.epoch < epochs:
            for x, y in self.data:
                self.step(x, y + 0.1 * torch.randn(len(y), generator=self.targets))
                if not isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                    self.scheduler.step()
                elif self.losses:
                    self.scheduler.step(self.losses[-1])
                after_batch(self)
        return self

    def everything(self):
        """All that can be seen of it, for comparing."""
        states = {name: part.state_dict() for name, part in self.parts().items() if hasattr(part, "state_dict")}
        return {**states, "losses": self.losses, "targets": self.targets.get_state(), "default": torch.get_rng_state()}

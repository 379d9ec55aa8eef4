"""Scenarios of DDP and of ZeRO."""

from contextlib import nullcontext

import torch
from torch import nn

from problems import CASES
from superadam import SuperAdam, twice
from workers.scenarios import data_of, ddp, loss_of, network, scenario, train, whole


def run_ddp(rank, world, options, half_steps, wrapper):
    model = ddp(world, **wrapper)
    opt = SuperAdam(model, **options)
    train(model, opt, data_of(rank, world), half_steps=half_steps and opt.two_point)
    opt.flush()
    return whole(model)


def run_accumulated(rank, world, way):
    """Micro-batches, of which all but the last leave the gradients in each process."""
    model = ddp(world)
    opt = SuperAdam(model, lr=0.01, tau=1.0)
    pieces = [piece for batch in data_of(rank, world) for piece in zip(*(t.chunk(2) for t in batch), strict=True)]

    def alone(last):
        return nullcontext() if last or world == 0 else model.no_sync()

    if way == "turns":
        turns = twice(pieces, accumulate=2)
        for batch in turns:
            with alone(turns.complete):
                (loss_of(model, batch) / turns.size).backward()
            if turns.complete:
                opt.step()
                opt.zero_grad()
    else:
        for pair in zip(pieces[::2], pieces[1::2], strict=True):

            def closure(pair=pair):
                opt.zero_grad()
                for i, batch in enumerate(pair):
                    with alone(i == 1):
                        (loss_of(model, batch) / 2).backward()

            opt.step(closure)
    opt.flush()
    return whole(model)


class Branches(nn.Module):
    """A layer that only some batches go through."""

    def __init__(self):
        super().__init__()
        self.base = network()
        self.extra = nn.Linear(5, 3).double()

    def forward(self, inputs):
        return self.base(inputs) + (self.extra(inputs) if self.used else 0.0)


def run_unused(rank, world, tau):
    inner = Branches()
    model = ddp(world, inner, find_unused_parameters=True)
    opt = SuperAdam(model, lr=0.01, tau=tau)
    for n, batch in enumerate(data_of(rank, world)):
        inner.used = n % 2 == 1
        train(model, opt, [batch])
    opt.flush()
    return whole(model)


def run_buffers(rank, world):
    """BatchNorm, in a network that is given wrapped: each batch counts once."""
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).double()
    model = ddp(world, inner)
    for half_steps in (False, True):
        train(model, SuperAdam(model, tau=1.0), data_of(rank, world), half_steps=half_steps)
    return inner[1].num_batches_tracked


def run_zero(rank, world, tau):
    """ZeRO: each process keeps the state of some parameters."""
    model = ddp(world)
    options = {"lr": 0.01, "tau": tau, "matrix": "Belief", "weight_decay": 0.1}
    if world > 0:
        from torch.distributed.optim import ZeroRedundancyOptimizer  # warns of its own use of torch.jit

        opt = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=SuperAdam, **options)
    else:
        opt = SuperAdam(model, **options)
    train(model, opt, data_of(rank, world), half_steps=tau > 0)
    return whole(model)


for name, options in {
    "case 1 tau=0": {"lr": 0.01},
    "case 1 tau=1": {"lr": 0.01, "tau": 1.0},
    "case 2 tau=1": {"lr": 0.005, "tau": 1.0, "matrix": CASES["2"], "clip": 0.5},
    "case 3": {"lr": 0.05, "matrix": CASES["3"]},
}.items():
    scenario(f"ddp {name} closure", run_ddp, options, False, {})
    scenario(f"ddp {name} half-steps", run_ddp, options, True, {})
scenario("ddp static", run_ddp, {"lr": 0.01, "tau": 1.0}, True, {"static_graph": True})
for way in ("turns", "closure"):
    scenario(f"ddp accumulated {way}", run_accumulated, way)
for tau in (0.0, 1.0):
    scenario(f"ddp unused tau={tau}", run_unused, tau)
    scenario(f"zero tau={tau}", run_zero, tau)
scenario("buffers", run_buffers)

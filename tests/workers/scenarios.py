"""Scenarios by name, a small task, and the way of a process through them.

A scenario is a function of the rank and of the number of processes, 0 for this very process without any wrapper. What
it returns on rank 0 is compared by the tests.
"""

import os
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from patience import STILL
from superadam import twice

BATCHES = 6
HALF = BATCHES // 2
SCENARIOS = {}
SLOW = set()  # names of those that only `make test-slow` runs


def scenario(name, function, *args, slow=False):
    SCENARIOS[name] = lambda rank, world: function(rank, world, *args)
    if slow:
        SLOW.add(name)


def network():
    """Sizes that 2 and 4 processes do not divide evenly: some hold nothing of a bias."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def data_of(rank, world, size=8):
    """This process's part of every batch."""
    generator = torch.Generator().manual_seed(1)
    joint = [[torch.randn(size, k, generator=generator, dtype=torch.float64) for k in (5, 3)] for _ in range(BATCHES)]
    return [tuple(t.chunk(max(world, 1))[rank] for t in batch) for batch in joint]


def loss_of(model, batch):
    inputs, targets = batch
    return (model(inputs) - targets).square().mean()


def train(model, opt, data, *, half_steps=False):
    """The usual loop of either kind; the model's wrapper averages gradients over the processes."""
    if half_steps:
        for batch in twice(data):
            loss_of(model, batch).backward()
            opt.step()
            opt.zero_grad()
        return
    for batch in data:

        def closure(batch=batch):
            opt.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            return loss

        opt.step(closure)


def whole(model):
    """All parameters, put together from the processes."""
    names = ((n.removeprefix("module."), p.detach()) for n, p in model.named_parameters())
    return {n: p.full_tensor() if hasattr(p, "full_tensor") else p.clone() for n, p in names}


def sharded(world, **options):
    model = network()
    if world > 0:
        fully_shard(model[0], **options)
        fully_shard(model, **options)
    return model


def ddp(world, model=None, **options):
    model = network() if model is None else model
    return DistributedDataParallel(model, **options) if world > 0 else model


def run_all(rank, world, folder, names):
    """One process: run the scenarios and keep what each returned, or how it failed."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meet-{world}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=STILL),
    )
    results = {}
    for name in names:
        try:
            results[name] = SCENARIOS[name](rank, world)
        except Exception:
            results[name] = traceback.format_exc()
    if rank == 0:
        torch.save(results, f"{folder}/results-{world}.pt")
    dist.destroy_process_group()
    # Not the usual way out: DTensor's caches keep gloo's threads alive, and one that lets go of a tensor while Python
    # shuts down aborts the process (now and then; pytorch/pytorch#179291).
    os._exit(0)

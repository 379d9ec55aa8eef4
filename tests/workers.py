"""What the processes of tests/test_distributed.py run: every scenario in one start, since starting is what takes long.

A scenario is a function of the world it runs in; what it returns on rank 0 is compared by the tests.
"""

import os
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from problems import CASES, LR
from superadam import SuperAdam, penalties, sets, twice

BATCHES = 6


def network(dtype=torch.float64, norm=False):
    """Sizes that 2 and 4 processes do not divide, and a bias that 4 cannot share."""
    torch.manual_seed(0)
    middle = [nn.BatchNorm1d(7)] if norm else []
    return nn.Sequential(nn.Linear(5, 7), *middle, nn.Tanh(), nn.Linear(7, 3)).to(dtype)


def batches(n=BATCHES, size=8):
    generator = torch.Generator().manual_seed(1)
    return [tuple(torch.randn(size, k, generator=generator, dtype=torch.float64) for k in (5, 3)) for _ in range(n)]


def mine(batch, rank, world):
    return tuple(t.chunk(world)[rank] for t in batch)


def loss_of(model, batch):
    inputs, targets = batch
    return (model(inputs) - targets).square().mean()


def train(model, opt, data, *, half_steps=False):
    """The usual loop of either kind; gradients are averaged over the processes by the model's wrapper."""
    if half_steps and opt.two_point:
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
    return {n: getattr(p, "full_tensor", lambda p=p: p)().detach().clone() for n, p in model.named_parameters()}


def sharded(rank, world):
    model = network()
    if world > 0:
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer)
        fully_shard(model)
    return model


def data_of(rank, world):
    return [mine(batch, rank, max(world, 1)) for batch in batches()]


# Compositions that run sharded, by name.
COMPOSITIONS = {
    **{f"case {c} tau={t}": {"matrix": m, "lr": LR[c], "tau": t} for c, m in CASES.items() for t in (0.0, 1.0)},
    "clip": {"lr": 0.01, "clip": 0.05},
    "clip tau=1 foreach": {"lr": 0.01, "clip": 0.05, "tau": 1.0, "foreach": True},
    "case 2 foreach": {"matrix": CASES["2"], "lr": 0.005, "foreach": True, "weight_decay": 0.1},
    "rows": {"lr": 0.05, "constraint": sets.L2Ball(0.5, dim=-1)},
    "rows tau=1": {"lr": 0.05, "tau": 1.0, "constraint": sets.L1Ball(0.7, dim=-1)},
    "box": {"lr": 0.05, "constraint": sets.Box(-0.1, 0.2), "penalty": penalties.L1(1e-3)},
}


def fsdp(options):
    def scenario(rank, world):
        model = sharded(rank, world)
        params = list(model.parameters())
        if "rows" in scenario.name:
            params = [{"params": [p for p in params if p.dim() == 2]}, {"params": [p for p in params if p.dim() == 1]}]
            params[1]["constraint"] = None
        opt = SuperAdam(params, **options)
        train(model, opt, data_of(rank, world))
        feasibility = opt.feasibility()
        opt.flush()
        return {**whole(model), "feasibility": torch.tensor(feasibility)}

    return scenario


# What is saved by two processes and loaded by one and by four.
SAVED = {
    "case 1 tau=0": {"lr": 0.01},
    "case 1 tau=1": {"lr": 0.01, "tau": 1.0, "weight_decay": 0.1, "clip": 0.5},
    "case 3": {"matrix": CASES["3"], "lr": 0.05},
    "case 4b tau=1": {"matrix": CASES["4b"], "lr": 0.005, "tau": 1.0, "constraint": sets.Box(-0.3, 0.3)},
    "amsgrad, tensor lr, capturable": {
        "matrix": "AMSGrad",
        "lr": torch.tensor(0.01, dtype=torch.float64),
        "tau": 1.0,
        "capturable": True,
    },
}
HALF = BATCHES // 2


def saved(options, way):
    """Train, save; in other worlds, load, go on. In no world: train without a break."""

    def scenario(rank, world):
        model = sharded(rank, world)
        opt = SuperAdam(model, **options)
        data = data_of(rank, world)
        folder = f"{os.environ.get('SAVED_IN', '')}/{scenario.name}".replace(" ", "-")
        if world == 0 or world == 2:
            train(model, opt, data[:HALF])
        if way == "flushed":
            opt.flush()
        elif way == "restarted":
            opt.restart()
        if world == 2:
            dcp.save(state_of(model, opt, way), checkpoint_id=folder)
        elif world > 0:
            with torch.no_grad():
                for p in model.parameters():
                    p.zero_()
            if way == "plain":
                opt.init_state()
            state = state_of(model, opt, way)
            dcp.load(state, checkpoint_id=folder)
            if way == "plain":
                model.load_state_dict(state["model"])
                opt.load_state_dict(state["opt"])
            else:
                set_state_dict(model, opt, model_state_dict=state["model"], optim_state_dict=state["opt"])
        train(model, opt, data[HALF:])
        opt.flush()
        return whole(model)

    return scenario


def state_of(model, opt, way):
    if way == "plain":
        return {"model": model.state_dict(), "opt": opt.state_dict()}
    return dict(zip(("model", "opt"), get_state_dict(model, opt), strict=True))


SCENARIOS = {f"fsdp {name}": fsdp(options) for name, options in COMPOSITIONS.items()}
SCENARIOS |= {f"saved {name} {way}": saved(options, way) for name, options in SAVED.items() for way in ("dsd", "plain")}
SCENARIOS |= {f"saved {way}": saved({"lr": 0.01, "tau": 1.0}, way) for way in ("flushed", "restarted")}
for name, scenario in SCENARIOS.items():
    scenario.name = name


def run_all(rank, world, folder, names):
    """One process: run the scenarios and keep what each returned, or how it failed."""
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world, timeout=timedelta(seconds=20)
    )
    results = {}
    for name in names:
        try:
            results[name] = SCENARIOS[name](rank, world)
        except Exception:
            results[name] = traceback.format_exc()
    if rank == 0:
        torch.save(results, f"{folder}/results.pt")
    dist.destroy_process_group()

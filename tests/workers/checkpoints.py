"""Scenarios that save with one number of processes and load with another."""

import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard

from problems import CASES
from superadam import SuperAdam, iterates, matrices, sets, stepsizes
from workers.owners import OF_TENSORS, SOAP, deep, deep_sharded
from workers.scenarios import HALF, data_of, ddp, network, scenario, sharded, train, whole
from workers.sharded import weights_and_biases

SAVED = {
    "case 1 tau=0": {"lr": 0.01},
    "case 1 tau=1": {"lr": 0.01, "tau": 1.0, "weight_decay": 0.1, "clip": 0.5},
    "case 3": {"matrix": CASES["3"], "lr": 0.05},
    "case 4b tau=1": {"matrix": CASES["4b"], "lr": 0.005, "tau": 1.0, "constraint": sets.Box(-0.3, 0.3)},
    "rows tau=1": {"lr": 0.05, "tau": 1.0, "constraint": sets.L2Ball(0.5, dim=-1)},
    "auto": {"lr": "auto", "stepsize": stepsizes.Prodigy(d0=0.01)},
    "schedule-free": {"lr": 0.01, "iterate": iterates.ScheduleFree(), "tau": 1.0},
    "SOAP": {"matrix": matrices.ByShape(SOAP, layers=()), "lr": 0.01},
    "SOAP tau=1": {"matrix": matrices.ByShape(SOAP, layers=()), "lr": 0.01, "tau": 1.0},
    "tensor lr": {"matrix": "AMSGrad", "lr": torch.tensor(0.01, dtype=torch.float64), "tau": 1.0},
}


def state_of(model, opt, style):
    if style == "plain":
        return {"model": model.state_dict(), "opt": opt.state_dict()}
    return dict(zip(("model", "opt"), get_state_dict(model, opt, options=STYLES[style]), strict=True))


STYLES = {"nested": StateDictOptions(), "flat": StateDictOptions(flatten_optimizer_state_dict=True)}


def save_and_load(rank, world, name, options, way="", style="nested"):
    """Two processes train and save. Others load and go on. No process (world 0): train without a break."""
    model = sharded(world)
    opt = SuperAdam(weights_and_biases(model, constraint=None) if "rows" in name else model, **options)
    data = data_of(rank, world)
    folder = f"{os.environ.get('SAVED_IN')}/{name}".replace(" ", "-")
    if world in (0, 2):
        train(model, opt, data[:HALF])
        {"flush": opt.flush, "restart": opt.restart}.get(way, lambda: None)()
    if world == 2:
        dcp.save(state_of(model, opt, style), checkpoint_id=folder)
    elif world > 0:
        with torch.no_grad():
            for p in model.parameters():
                p.zero_()
        if style == "plain":
            opt.init_state()
        state = state_of(model, opt, style)
        dcp.load(state, checkpoint_id=folder)
        if style == "plain":
            model.load_state_dict(state["model"])
            opt.load_state_dict(state["opt"])
        else:
            parts = {"model_state_dict": state["model"], "optim_state_dict": state["opt"]}
            set_state_dict(model, opt, **parts, options=STYLES[style])
    train(model, opt, data[HALF:])
    opt.flush()
    return whole(model)


def from_one_process(rank, world):
    """What an unsharded run has saved, loaded as it is."""
    model = network()
    opt = SuperAdam(model, lr=0.005, tau=1.0, matrix="BeliefNorm")
    train(model, opt, data_of(0, 0)[:HALF])
    if world > 0:
        state = opt.state_dict()
        fully_shard(model)
        opt = SuperAdam(model, lr=0.005, tau=1.0, matrix="BeliefNorm")
        opt.load_state_dict(state)
    train(model, opt, data_of(rank, world)[HALF:])
    opt.flush()
    return whole(model)


for name, options in SAVED.items():
    scenario(f"saved {name}", save_and_load, name, options)
for way in ("flush", "restart"):
    scenario(f"saved after {way}", save_and_load, way, {"lr": 0.01, "tau": 1.0}, way)
for tau in (0.0, 1.0):
    scenario(f"saved plainly tau={tau}", save_and_load, f"plain {tau}", {"lr": 0.01, "tau": tau}, "", "plain")
    scenario(f"saved flat tau={tau}", save_and_load, f"flat {tau}", {"lr": 0.01, "tau": tau}, "", "flat")
scenario("saved by one", from_one_process)
scenario("saved plainly SOAP", save_and_load, "plain SOAP", SAVED["SOAP tau=1"], "", "plain")
scenario("saved flat SOAP", save_and_load, "flat SOAP", SAVED["SOAP tau=1"], "", "flat")


def resumed(rank, world, wrapped, way):
    """A run with matrices of tensors, that others go on with."""
    options = OF_TENSORS["SOAP tau=1"]
    model = wrapped(world)
    opt = SuperAdam(model, **options)
    data = data_of(rank, world)
    if world == 0:
        train(model, opt, data)
        opt.flush()
        return whole(model)
    model, opt = way(model, opt, data[:HALF], wrapped, options)
    train(model, opt, data[HALF:])
    opt.flush()
    return whole(model)


def divided_state(model, opt, data, wrapped, options):
    """DDP: from processes with owners to processes without any, and back."""
    opt.divide_matrices()
    for batches in (data[:1], data[1:]):
        train(model, opt, batches)
        weights, state = model.state_dict(), opt.state_dict()
        again = wrapped(dist.get_world_size())
        again.load_state_dict(weights)
        other = SuperAdam(again, **options)
        other.load_state_dict(state)
        if not opt._processes:
            other.divide_matrices()
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
        model, opt = again, other
    assert opt._processes
    return model, opt


def whole_state(model, opt, data, wrapped, options):
    """FSDP2: everything on rank 0, and back."""
    train(model, opt, data)
    weights, state = get_state_dict(model, opt, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    again = wrapped(dist.get_world_size())
    other = SuperAdam(again, **options)
    how = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(again, weights, options=how)  # set_state_dict would take the empty dict of rank 1 for no wish
    set_optimizer_state_dict(again, other, state, options=how)
    return again, other


def state_of_one(model, opt, data, wrapped, options):
    """FSDP2 goes on with what a run of one process has saved."""
    folder = f"{os.environ.get('SAVED_IN')}/by-one"
    if dist.get_rank() == 0:
        alone = deep()
        of_one = SuperAdam(alone, **options)
        train(alone, of_one, data_of(0, 0)[:HALF])
        dcp.save(state_of(alone, of_one, "nested"), checkpoint_id=folder, no_dist=True)
    dist.barrier()
    parts = state_of(model, opt, "nested")
    dcp.load(parts, checkpoint_id=folder)
    set_state_dict(model, opt, model_state_dict=parts["model"], optim_state_dict=parts["opt"])
    return model, opt


scenario("ddp divided saved", resumed, lambda world: ddp(world, deep()), divided_state)
scenario("owned saved whole", resumed, deep_sharded, whole_state)
scenario("owned saved by one", resumed, deep_sharded, state_of_one)

"""Scenarios of FSDP2 and of its meshes."""

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from problems import CASES, LR
from superadam import SuperAdam, create, iterates, matrices, penalties, sets, stepsizes, twice
from superadam.distributed import local, positions
from workers.scenarios import BATCHES, data_of, loss_of, network, scenario, sharded, train, whole

COMPOSITIONS = {
    **{f"case {c} tau={t}": {"matrix": m, "lr": LR[c], "tau": t} for c, m in CASES.items() for t in (0.0, 1.0)},
    "clip, decay": {"lr": 0.01, "clip": 0.05, "weight_decay": 0.1},
    "clip tau=1 foreach": {"lr": 0.01, "clip": 0.05, "tau": 1.0, "foreach": True},
    "case 2 foreach": {"matrix": CASES["2"], "lr": 0.005, "foreach": True},
    "rows": {"lr": 0.05, "constraint": sets.L2Ball(0.5, dim=-1)},
    "rows tau=1": {"lr": 0.05, "tau": 1.0, "constraint": sets.L1Ball(0.7, dim=-1)},
    "box": {"lr": 0.05, "constraint": sets.Box(-0.1, 0.2), "penalty": penalties.L1(1e-3)},
}


def weights_and_biases(model, **of_biases):
    params = list(model.parameters())
    return [
        {"params": [p for p in params if p.dim() == 2]},
        {"params": [p for p in params if p.dim() == 1], **of_biases},
    ]


def run_fsdp(rank, world, options):
    model = sharded(world)
    opt = SuperAdam(weights_and_biases(model, constraint=None), **options)
    train(model, opt, data_of(rank, world))
    feasibility = opt.feasibility()
    opt.flush()
    return {**whole(model), "feasibility": torch.tensor(feasibility)}


def run_method(rank, world, name, options):
    model = sharded(world)
    opt = create(name, model, **options)
    train(model, opt, data_of(rank, world))
    opt.flush()
    return whole(model)


def run_observed(rank, world):
    """Sophia, with a curvature from another batch in every second step."""
    model = sharded(world)
    opt = create("sophia_g", model, lr=0.01, rho=10.0, batch=8)
    data = data_of(rank, world)
    for n, batch in enumerate(data):
        if n % 2 == 0:
            loss_of(model, data[n - 1]).backward()
            opt.observe()
        train(model, opt, [batch])
    assert all(bool((local(opt.state[p]["h"]) > 0).all()) for p in model.parameters())  # without, it is Sign
    return whole(model)


def run_half_steps(rank, world):
    model = sharded(world)
    opt = SuperAdam(model, lr=0.01, tau=1.0, matrix="GradientNorm")
    train(model, opt, data_of(rank, world), half_steps=True)
    opt.flush()
    return whole(model)


def run_columns(rank, world):
    """A set along the rows' dimension, of a parameter that is cut along the other."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    if world > 0:
        fully_shard(model, shard_placement_fn=lambda p: Shard(1) if p.shape == (3, 8) else Shard(0))
    last = {"params": [model[2].weight], "constraint": sets.Simplex(1.0, dim=0)}
    opt = SuperAdam([last, {"params": [*model[0].parameters(), model[2].bias]}], lr=0.05)
    train(model, opt, data_of(rank, world))
    return {**whole(model), "feasibility": torch.tensor(opt.feasibility() < 1e-12)}


def run_hybrid(rank, world):
    """Sharded over two processes, replicated over two."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "parts")) if world > 0 else None
    model = sharded(world, mesh=mesh)
    opt = SuperAdam(model, lr=0.005, tau=1.0, matrix="BeliefNorm", clip=0.5)
    train(model, opt, data_of(rank, world))
    opt.flush()
    return whole(model)


def run_tensor_parallel(rank, world):
    """Layers divided over two processes, and each part over two more."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    data = data_of(0, 0)
    if world > 0:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "layers"))
        parallelize_module(model, mesh["layers"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(model, mesh=mesh["data"])
        data = data_of(mesh.get_local_rank("data"), 2)
    opt = SuperAdam(model, lr=0.005, tau=1.0, matrix="GradientNorm", clip=0.5)
    train(model, opt, data)
    opt.flush()
    return whole(model)


def run_scaler(rank, world, tau, overflow):
    """An overflow in one process's part of one gradient."""
    model = sharded(world)
    opt = SuperAdam(model, lr=0.01, tau=tau)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    data = data_of(rank, world)
    for n, batch in enumerate(twice(data) if tau > 0 else data):
        scaler.scale(loss_of(model, batch)).backward()
        if n == overflow:
            grad = model[0].weight.grad
            grad = grad.to_local() if hasattr(grad, "to_local") else grad
            if rank == 0:
                grad[0, 0] = torch.inf
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
    opt.flush()
    return {**whole(model), "scale": torch.tensor(scaler.get_scale())}


def refused(rank, world):
    """What is said of compositions that cannot work on parts."""
    rows = torch.ones(7, 1, dtype=torch.float64)
    options = {
        "whole tensor": {"constraint": sets.L2Ball(1.0)},
        "sharded dim": {"constraint": sets.Simplex(1.0, dim=0)},
        "matrix": {"constraint": sets.SpectralBall(1.0), "matrix": matrices.GradientNorm()},
        "rows of bounds": {"constraint": sets.Box(-rows, rows)},
        "penalty": {"penalty": penalties.GroupLasso(0.1, dim=0)},
        "joint": {"matrix": matrices.DampedLBFGS()},
    }
    model, said = sharded(world), {}
    for name, option in options.items():
        before = whole(model)
        try:
            SuperAdam([("the.weight", model[0].weight)], **option)
            said[name] = ""
        except ValueError as error:
            said[name] = str(error)
        torch.testing.assert_close(whole(model), before, rtol=0, atol=0)
    return said


def run_rounded(rank, world, options):
    """bfloat16 weights, whose gradients are given, so that no sum of short numbers depends on how they are divided."""
    model = nn.Sequential(*network(), nn.Linear(1200, 512)).bfloat16()  # more than a tile for each of two processes
    if world > 0:
        fully_shard(model)
    opt = SuperAdam(weights_and_biases(model, constraint=None), lr=0.05, **options)
    for n in range(BATCHES):

        def closure(n=n):
            for p in model.parameters():
                grad = torch.sin(torch.arange(p.numel()).view(p.shape) * (n + 1.0)).bfloat16()
                p.grad = distribute_tensor(grad, p.device_mesh, p.placements) if world > 0 else grad

        opt.step(closure)
    opt.zero_grad()
    opt.flush()
    return whole(model)


def run_positions(rank, world):
    """What stochastic rounding depends on: the same for every number of processes."""
    places = {f"places {n}": (p, positions(p)) for n, p in sharded(world).named_parameters()}
    if world == 0:
        return {n: x for n, (_, x) in places.items()}
    return {
        n: DTensor.from_local(x, p.device_mesh, p.placements, shape=p.shape, stride=p.stride()).full_tensor()
        for n, (p, x) in places.items()
    }


for name, options in COMPOSITIONS.items():
    scenario(f"fsdp {name}", run_fsdp, options)
scenario("fsdp mars", run_method, "mars", {"lr": 0.01, "gamma": 0.2, "clip_corrected": 0.01})
scenario("fsdp storm", run_method, "storm", {"k": 0.1, "omega": 1.0, "c": 10.0})
scenario("fsdp prodigy", run_method, "prodigy", {"d0": 0.01})
scenario("fsdp dog", run_method, "dog", {"reps_rel": 0.01})
scenario("fsdp lamb", run_method, "lamb", {})
scenario("fsdp lion", run_method, "lion", {"lr": 0.01})
scenario("fsdp adafactor", run_method, "adafactor", {"lr": 0.1})
scenario("fsdp adam_mini", run_method, "adam_mini", {"lr": 0.01})
scenario("fsdp schedule-free", run_method, "schedule_free_adamw", {"lr": 0.02, "warmup_steps": 2, "weight_decay": 0.1})
scenario("fsdp sophia_g observe", run_observed)
scenario("fsdp lars", run_method, "lars", {})
scenario("fsdp cautious_adamw", run_method, "cautious_adamw", {"lr": 0.01})
for name in ("ademamix", "adan", "nadamw", "radam", "adamax"):
    scenario(f"fsdp {name}", run_method, name, {"lr": 0.01, "weight_decay": 0.1}, slow=True)
ITERATES = {"Averaged": iterates.Averaged(0.9), "Lookahead": iterates.Lookahead(every=2)}
for name, iterate in ITERATES.items():
    for tau in (0.0, 1.0):
        options = {"lr": 0.01, "tau": tau, "iterate": iterate}
        scenario(f"fsdp {name} tau={tau}", run_fsdp, options, slow=tau == 0)
scenario("fsdp auto tau=1", run_fsdp, {"lr": "auto", "stepsize": stepsizes.Prodigy(d0=0.01), "tau": 1.0})
scenario("fsdp half-steps", run_half_steps)
scenario("fsdp columns", run_columns)
scenario("fsdp positions", run_positions)
scenario("fsdp stochastic tau=1", run_rounded, {"tau": 1.0, "rounding": "stochastic"})
scenario("fsdp hybrid", run_hybrid)
scenario("fsdp tensor-parallel", run_tensor_parallel)
for tau, overflow in ((0.0, 2), (1.0, 4), (1.0, 5)):
    scenario(f"fsdp scaler tau={tau} {overflow}", run_scaler, tau, overflow)
scenario("refused", refused)

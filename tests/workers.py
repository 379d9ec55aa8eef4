"""What the processes of tests/test_distributed.py run: every scenario in one start, since starting is what takes long.

A scenario is a function of the rank and of the number of processes, 0 for this very process without any wrapper. What
it returns on rank 0 is compared by the tests.
"""

import itertools
import os
import traceback
from contextlib import nullcontext
from datetime import timedelta
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from patience import STILL
from problems import CASES, LR
from superadam import Monitor, SuperAdam, create, iterates, matrices, penalties, sets, stepsizes, twice
from superadam._state.sharding import local, positions
from superadam.estimators import Nesterov

BATCHES = 6
HALF = BATCHES // 2
SCENARIOS = {}
SLOW = set()  # names of those that only `make test-slow` runs


def scenario(name, function, *args, slow=False):
    SCENARIOS[name] = lambda rank, world: function(rank, world, *args)
    if slow:
        SLOW.add(name)


# ------------------------------------------------------------------------------------------------------- a small task


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


# -------------------------------------------------------------------------------------------------------------- FSDP2

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
        "differentiable": {"differentiable": True},
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
scenario("fsdp master rows", run_rounded, {"tau": 1.0, "rounding": "master", "constraint": sets.L2Ball(0.5, dim=-1)})
scenario("fsdp hybrid", run_hybrid)
scenario("fsdp tensor-parallel", run_tensor_parallel)
for tau, overflow in ((0.0, 2), (1.0, 4), (1.0, 5)):
    scenario(f"fsdp scaler tau={tau} {overflow}", run_scaler, tau, overflow)
scenario("refused", refused)

# ------------------------------------------------------------------------------------------------- matrices of tensors

# One-sided where a gradient cannot have full rank on the other side: eigenvectors of a null space are anybody's guess.
KRONECKER = {"every": 2, "one_sided_above": 6}
SOAP = matrices.SOAP(lam=0.03, **KRONECKER)
OF_TENSORS = {
    "SOAP": {"matrix": matrices.ByShape(SOAP), "lr": 0.003},
    "SOAP tau=1": {"matrix": matrices.ByShape(SOAP), "lr": 0.003, "tau": 1.0, "clip": 0.5},
    "Shampoo": {
        "matrix": matrices.ByShape(matrices.Shampoo(eps=1e-6, grafting=matrices.SecondMoment(), **KRONECKER)),
        "lr": 0.01,
        "weight_decay": 0.1,
    },
    "KLShampoo": {"matrix": matrices.ByShape(matrices.KLShampoo(**KRONECKER)), "lr": 0.01},
    "PSGDKron": {"matrix": matrices.ByShape(matrices.PSGDKron()), "lr": 0.01, "foreach": False},
    "Muon": {"matrix": matrices.ByShape(matrices.Spectral(), rate=0.3), "estimator": Nesterov(), "lr": 0.02},
    "Spectral tau=1": {"matrix": matrices.ByShape(matrices.Spectral(lam=0.1)), "lr": 0.02, "tau": 1.0},
}


def deep():
    """Matrices of several shapes, two of them alike, that 2 and 4 processes do not divide evenly."""
    torch.manual_seed(0)
    sizes = [5, 7, 6, 6, 6, 3]
    pairs = itertools.pairwise(sizes)
    return nn.Sequential(*[layer for m, n in pairs for layer in (nn.Linear(m, n), nn.Tanh())][:-1]).double()


def deep_sharded(world, **options):
    model = deep()
    if world > 0:
        fully_shard(model[0], **options)
        fully_shard(model, **options)
    return model


def factor_numbers(opt):
    """How many numbers of factors this process holds."""
    names = [plan.factors(p) & opt.state[p].keys() for plan in opt._plans for p in plan.group["params"]]
    params = [p for group in opt.param_groups for p in group["params"]]
    return sum(opt.state[p][name].numel() for p, own in zip(params, names, strict=True) for name in own)


def run_owned(rank, world, options, columns=False):
    """FSDP2: each matrix has an owner, and all have work."""
    # FSDP2 cuts columns in equal parts only
    placement = {"shard_placement_fn": lambda p: Shard(1 if p.dim() == 2 and p.shape[1] % world == 0 else 0)}
    model = deep_sharded(world, **(placement if columns else {}))
    opt = SuperAdam(model, **options)
    train(model, opt, data_of(rank, world))
    opt.flush()
    if world > 1:
        owners = [place.owner for place in opt._places.values()]
        assert set(owners) == set(range(min(world, len(owners)))), owners
    return whole(model)


def run_divided(rank, world, options, late=False):
    """DDP: each matrix has an owner."""
    model = ddp(world, deep())
    opt = SuperAdam(model, **options)
    data = data_of(rank, world)
    if late:  # whoever has factors already keeps or drops them
        train(model, opt, data[:HALF])
        data = data[HALF:]
    if world > 0:
        before = factor_numbers(opt)
        opt.divide_matrices()
        assert not late or factor_numbers(opt) < before
    train(model, opt, data)
    opt.flush()
    return whole(model)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weights = nn.Parameter(torch.randn(4, 3, 5, dtype=torch.float64))

    def forward(self, inputs):
        return torch.einsum("bi,eoi->beo", inputs, self.weights).tanh().mean(1)


def experts(world):
    model = Experts()
    if world > 0:
        fully_shard(model)
    return model, SuperAdam(model, lr=0.01, matrix=matrices.SOAP(every=2, one_sided_above=0, batch_dims=1))


def run_experts(rank, world):
    model, opt = experts(world)
    train(model, opt, data_of(rank, world))
    return whole(model)


def run_monitored(rank, world):
    """The monitor's sums and extremes are those of all processes."""
    model = deep_sharded(world)
    opt = SuperAdam(model, **OF_TENSORS["SOAP"])
    monitor = Monitor(opt, every=2)
    train(model, opt, data_of(rank, world))
    last = monitor.history[-1]
    reported = [set(last["factors"])]
    if world > 0:
        reported = [None] * world
        dist.all_gather_object(reported, set(last["factors"]))
    assert sum(map(len, reported)) == len(set().union(*reported)) == 4, reported  # each by its owner
    return {**whole(model), **{name: torch.tensor(last[name]).double() for name in ("H_min", "H_max", "grad_norm")}}


def run_divided_unused(rank, world):
    """A layer that has a gradient in some batches only: its pending move is taken in the others."""
    inner = Branches()
    model = ddp(world, inner, find_unused_parameters=True)
    opt = SuperAdam(model, **OF_TENSORS["Spectral tau=1"])
    if world > 0:
        opt.divide_matrices()
    for n, batch in enumerate(data_of(rank, world)):
        inner.used = n % 2 == 1
        train(model, opt, [batch])
    opt.flush()
    return whole(model)


def disagreeing(rank, world, wrapper, tau):
    """What each process says to a gradient that rank 1 has not, in the last evaluation; they go on together."""
    model = deep_sharded(world) if wrapper == "fsdp" else ddp(world, deep())
    opt, data, lacking = SuperAdam(model, **OF_TENSORS["SOAP"] | {"tau": tau}), data_of(rank, world), []
    if wrapper == "ddp":
        opt.divide_matrices()

    def closure():
        opt.zero_grad()
        loss_of(model, data[0]).backward()
        if lacking and lacking.pop() and rank == 1:
            next(model.parameters()).grad = None

    said = [""] * world
    opt.step(closure)
    before = whole(model)
    lacking[:] = [True, False] if tau else [True]
    try:
        opt.step(closure)
    except RuntimeError as error:
        dist.all_gather_object(said, str(error))
    if not tau:
        torch.testing.assert_close(whole(model), before, rtol=0, atol=0)
    opt.step(closure)
    points = [None] * world
    dist.all_gather_object(points, whole(model))
    for n, p in points[0].items():
        assert torch.equal(p, points[1][n])
        assert not torch.equal(p, before[n])
    return said


def count_of_tensors(rank, world, options):
    """Collectives of the second step, beside those of the gradients; and the share of the factors that is here."""
    model, opt = experts(world) if options is None else (deep_sharded(world), None)
    opt = opt or SuperAdam(model, **options)
    data = data_of(rank, world)
    train(model, opt, data[:1])
    loss_of(model, data[1]).backward()
    with Collectives() as seen:
        opt.step()
    mine = torch.tensor([float(factor_numbers(opt))])
    total = mine.clone()
    dist.all_reduce(total)
    return {"messages": seen.names, "share": float(mine / total) if total > 0 else 0.0}


for name, options in OF_TENSORS.items():
    scenario(f"owned {name}", run_owned, options)
    scenario(f"ddp divided {name}", run_divided, options)
scenario("owned monitored", run_monitored)
scenario("ddp divided unused", run_divided_unused)
for wrapper in ("fsdp", "ddp"):
    for tau in (0.0, 1.0):
        scenario(f"refused gradient {wrapper} tau={tau}", disagreeing, wrapper, tau)
scenario("owned columns", run_owned, OF_TENSORS["SOAP"], True)
scenario("ddp divided late", run_divided, OF_TENSORS["SOAP"], True)
scenario("ddp divided ball", run_divided, {**OF_TENSORS["Shampoo"], "constraint": sets.L2Ball(1.0)})
scenario("owned experts", run_experts)
scenario("count experts", count_of_tensors, None)
for name in ("SOAP", "Muon"):
    scenario(f"count owned {name}", count_of_tensors, OF_TENSORS[name])

# ---------------------------------------------------------------------------------------------------------------- DDP


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

# ------------------------------------------------------------------------------------------------------ communication


class Collectives(TorchDispatchMode):
    """The names of all collectives that are run."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "c10d" in func.namespace:
            self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def count_fsdp(rank, world, options):
    """Collectives of the second step on: of gradients, and of the optimizer."""
    model = network()
    fully_shard(model)
    opt = SuperAdam(model, **options)
    data = data_of(rank, world)
    train(model, opt, data[:1])
    with Collectives() as seen:
        train(model, opt, data[1:2])
    return {
        "gradients": sum("reduce_scatter" in name for name in seen.names),
        "scalars": sum("reduce" in name and "scatter" not in name for name in seen.names),
    }


def count_ddp(rank, world, options):
    model = ddp(world)
    seen = []

    def hook(_, bucket):
        seen.append(bucket.index())
        future = dist.all_reduce(bucket.buffer().div_(world), async_op=True).get_future()
        return future.then(lambda f: f.value()[0])

    model.register_comm_hook(None, hook)
    opt = SuperAdam(model, **options)
    data = data_of(rank, world)
    train(model, opt, data[:1])
    seen.clear()
    with mock.patch.object(dist, "all_reduce", wraps=dist.all_reduce) as reduce:
        train(model, opt, data[1:2])
    return {"gradients": len(seen), "scalars": reduce.call_count - len(seen)}


for case in ("1", "2", "3"):
    for tau in (0.0, 1.0):
        options = {"matrix": CASES[case], "tau": tau, "lr": LR[case]}
        scenario(f"count fsdp case {case} tau={tau}", count_fsdp, options)
        scenario(f"count ddp case {case} tau={tau}", count_ddp, options)

# -------------------------------------------------------------------------------------------------------- checkpoints

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
    "tensor lr": {"matrix": "AMSGrad", "lr": torch.tensor(0.01, dtype=torch.float64), "tau": 1.0, "capturable": True},
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

"""Scenarios of matrices of tensors that processes divide among them."""

import itertools

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard

from superadam import Monitor, SuperAdam, matrices, sets
from superadam.estimators import Nesterov
from workers.messages import Collectives
from workers.replicated import Branches
from workers.scenarios import HALF, data_of, ddp, loss_of, scenario, train, whole

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
    "Muon": {"matrix": matrices.ByShape(matrices.Muon(), rate=0.3), "estimator": Nesterov(), "lr": 0.02},
    "Spectral tau=1": {"matrix": matrices.ByShape(matrices.Muon(lam=0.1)), "lr": 0.02, "tau": 1.0},
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

"""Scenarios that count the messages of a step."""

from unittest import mock

import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode

from problems import CASES, LR
from superadam import SuperAdam
from workers.scenarios import data_of, ddp, network, scenario, train


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

"""Bytes of optimizer state on each process: `torchrun --nproc-per-node 2 -m research.state.state_per_process`."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from superadam import create

WIDTH, LAYERS = 256, 4


def network() -> nn.Module:
    layers = [nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True) for _ in range(LAYERS)]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 10))


def size(method: str, wrapper: str) -> int:
    model = network()
    model = fully_shard(model) if wrapper == "fsdp" else DistributedDataParallel(model)
    opt = create(method, model)
    if wrapper == "ddp divided":
        opt.divide_matrices()
    opt.init_state()
    tensors = [t for state in opt.state.values() for t in state.values() if isinstance(t, torch.Tensor)]
    held = [t.to_local() if hasattr(t, "to_local") else t for t in tensors]
    return sum(t.numel() * t.element_size() for t in held)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    for method in ("adamw", "muon", "soap", "shampoo", "psgd_kron"):
        for wrapper in ("ddp", "ddp divided", "fsdp"):
            sizes: list[int] = [0] * dist.get_world_size()
            dist.all_gather_object(sizes, size(method, wrapper))
            if dist.get_rank() == 0:
                print(f"{method:9} {wrapper:11}", ", ".join(f"{n / 2**20:.1f}" for n in sizes), "MiB", flush=True)
    dist.barrier()
    os._exit(0)  # DTensor's caches keep gloo's threads alive

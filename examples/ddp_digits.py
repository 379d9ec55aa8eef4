"""Data-parallel training with two gradients of every batch, each summed over two micro-batches.

torchrun --nproc-per-node 2 examples/ddp_digits.py    # under half a minute

Prints `2 processes, 400 gradients, test accuracy 97.4%`.
"""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from superadam import SuperAdam, twice

EPOCHS, MICRO_BATCH = 10, 16


def data():
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x, y = torch.tensor(images, dtype=torch.float32)[order] / 16, torch.tensor(labels)[order]
    return TensorDataset(x[:1297], y[:1297]), (x[1297:], y[1297:])


def main():
    dist.init_process_group("gloo")  # "nccl" on GPUs
    train_set, (x, y) = data()
    sampler: DistributedSampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, batch_size=MICRO_BATCH, sampler=sampler, drop_last=True)

    torch.manual_seed(0)  # the same first weights everywhere
    net = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))
    model = DistributedDataParallel(net)
    torch.manual_seed(1 + dist.get_rank())  # other dropout masks in each process; `twice` repeats each process's own
    # given the module, BatchNorm's statistics see each batch once
    opt = SuperAdam(model, lr=0.02, tau=1.0, schedule="Paper")

    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        turns = twice(loader, accumulate=2)
        for inputs, targets in turns:
            # Gradients travel once per evaluation: with the last micro-batch.
            with nullcontext() if turns.complete else model.no_sync():
                loss = nn.functional.cross_entropy(model(inputs), targets)
                (loss / turns.size).backward()
            if turns.complete:
                opt.step()
                opt.zero_grad()
    opt.flush()

    model.eval()
    with torch.no_grad():
        accuracy = (model(x).argmax(1) == y).float().mean().item()
    # The step is the same everywhere, so the weights are too.
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    others = weights.clone()
    dist.broadcast(others, src=0)
    assert torch.equal(weights, others)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} processes, {opt.gradient_evaluations} gradients, test accuracy {accuracy:.1%}")
    dist.barrier()  # torch 2.13 can deadlock below while gloo's thread still holds the tensor of the last broadcast
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

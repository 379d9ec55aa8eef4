"""A character model as nanoGPT trains one: random crops, micro-batches, weight decay in groups, warm-up and cosine."""

import math

import torch
from torch import nn

from superadam import SuperAdam

TEXT = torch.tensor([ord(c) % 32 for c in "the quick brown fox jumps over the lazy dog, and the dog sleeps on. " * 20])


class GPT(nn.Module):
    def __init__(self, width=16, block=8):
        super().__init__()
        self.tokens, self.places = nn.Embedding(32, width), nn.Embedding(block, width)
        self.layer = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.2, batch_first=True, norm_first=True)
        self.head = nn.Linear(width, 32)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(block))

    def forward(self, x, y):
        h = self.layer(self.tokens(x) + self.places.weight, src_mask=self.mask, is_causal=True)
        return nn.functional.cross_entropy(self.head(h).flatten(0, 1), y.flatten())


def train(tau, fetch="outside", steps=6, micro_batches=2, warmup=2, lr=0.05, seen=None):
    """The model and its optimizer. The next batch is fetched "outside" of the closure, "first" or "last" in it."""
    torch.manual_seed(0)
    model = GPT()
    matrices, vectors = ([p for p in model.parameters() if (p.dim() >= 2) == wide] for wide in (True, False))
    opt = SuperAdam([{"params": matrices, "weight_decay": 0.1}, {"params": vectors}], lr=lr, tau=tau, clip=1.0)

    def get_batch():
        starts = torch.randint(len(TEXT) - 9, (4,))
        return tuple(torch.stack([TEXT[i + k : i + k + 8] for i in starts]) for k in (0, 1))

    batch = [get_batch() for _ in range(micro_batches)]

    def closure():
        nonlocal batch
        opt.zero_grad()
        if fetch == "first":
            batch = [get_batch() for _ in range(micro_batches)]
        if seen is not None:
            seen.append(batch)
        losses = [model(x, y) / micro_batches for x, y in batch]
        sum(losses).backward()
        if fetch == "last":  # while the device computes
            batch = [get_batch() for _ in range(micro_batches)]
        return sum(losses).detach()

    for step in range(steps):
        for group in opt.param_groups:
            group["lr"] = lr * min((step + 1) / warmup, 0.5 + 0.5 * math.cos(math.pi * step / steps))
        opt.step(closure)
        if fetch == "outside":
            batch = [get_batch() for _ in range(micro_batches)]
    opt.flush()
    return model, opt

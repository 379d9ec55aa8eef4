"""A small language model whose weights and state are divided over the processes, with a checkpoint in between.

torchrun --nproc-per-node 2 examples/fsdp_lm.py
"""

import tempfile
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from superadam import SuperAdam, twice

STEPS, BATCH, CONTEXT, WIDTH = 120, 8, 64, 64
TEXT = torch.tensor(list("".join(topics.values()).encode("ascii", "ignore")))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.places = nn.Embedding(128, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        options = {"dropout": 0.1, "batch_first": True, "norm_first": True}
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(WIDTH, 2, 4 * WIDTH, **options) for _ in range(2))
        self.out = nn.Linear(WIDTH, 128)

    def forward(self, tokens):
        x = self.embed(tokens) + self.places(torch.arange(CONTEXT, device=tokens.device))
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT, device=tokens.device)
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return self.out(x)


def batches(steps, generator):
    for _ in range(steps):
        starts = torch.randint(len(TEXT) - CONTEXT - 1, (BATCH,), generator=generator)
        windows = torch.stack([TEXT[i : i + CONTEXT + 1] for i in starts])
        yield windows[:, :-1], windows[:, 1:]


def setup():
    torch.manual_seed(0)
    model = Model()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model, SuperAdam(model, lr=0.01, tau=1.0, clip=1.0)  # after fully_shard; the norm is over all processes


def train(model, opt, steps, generator):
    for tokens, targets in twice(batches(steps, generator)):
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        opt.step()
        opt.zero_grad()
    loss = loss.detach()
    dist.all_reduce(loss)
    return loss.item() / dist.get_world_size()


def main():
    dist.init_process_group("gloo")  # "nccl" on GPUs
    generator = torch.Generator().manual_seed(dist.get_rank())  # each process draws its own batches
    model, opt = setup()
    losses = [train(model, opt, 1, generator), train(model, opt, STEPS // 2, generator)]

    folder = [tempfile.mkdtemp()]  # of rank 0
    dist.broadcast_object_list(folder)
    dcp.save(dict(zip("mo", get_state_dict(model, opt), strict=True)), checkpoint_id=folder[0])
    model, opt = setup()  # any number of processes can load it
    state = dict(zip("mo", get_state_dict(model, opt), strict=True))
    dcp.load(state, checkpoint_id=folder[0])
    set_state_dict(model, opt, model_state_dict=state["m"], optim_state_dict=state["o"])

    losses.append(train(model, opt, STEPS // 2, generator))
    opt.flush()
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} processes, loss per byte: " + " → ".join(f"{loss:.2f}" for loss in losses))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

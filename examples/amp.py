"""Mixed precision: bfloat16 by autocast alone, and float16 with a `GradScaler`, with τ = 0 and with τ = 1.

python examples/amp.py    # a few seconds, on a CPU; change DEVICE for another

float16 overflows: the scaler starts with a scale that is too large on purpose, and lowers it as steps are skipped. With
τ = 1 a batch whose first or second gradient overflowed is skipped as a whole. Prints for each way the first and the
last loss, and how many batches were skipped:

    float16, τ = 1: loss 1.09 to 0.05, 11 batches skipped
"""

import torch
from torch import nn

from superadam import SuperAdam, twice

DEVICE = "cpu"
TOO_LARGE = 2.0**24


def setup(tau):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)).to(DEVICE)  # parameters stay in float32
    x = torch.randn(100, 32, 16, device=DEVICE)
    return model, SuperAdam(model, lr=0.03, tau=tau, schedule="Paper"), [(batch, batch[:, :1].sin()) for batch in x]


def bfloat16(tau):
    model, opt, loader = setup(tau)
    losses = []
    for x, y in twice(loader) if tau > 0 else loader:
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(model(x).float(), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        losses.append(loss.item())
    opt.flush()
    return losses, 0


def float16(tau):
    model, opt, loader = setup(tau)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=TOO_LARGE)
    losses, skipped = [], 0
    for x, y in twice(loader) if tau > 0 else loader:
        with torch.autocast(DEVICE, dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x).float(), y)
        scaler.scale(loss).backward()
        scaler.step(opt)  # without a closure
        before = scaler.get_scale()
        scaler.update()  # in every turn
        skipped += scaler.get_scale() < before
        opt.zero_grad()
        losses.append(loss.item())
    opt.flush()
    return losses, skipped


def main():
    result = {}
    for way in (bfloat16, float16):
        for tau in (0.0, 1.0):
            losses, skipped = way(tau)
            first, last = losses[0], sum(losses[-20:]) / 20
            print(f"{way.__name__}, τ = {tau:g}: loss {first:.2f} to {last:.2f}, {skipped} batches skipped")
            result[way.__name__, tau] = {"first": first, "last": last, "skipped": skipped, "losses": losses}
    return result


if __name__ == "__main__":
    main()

"""Accelerate with gradient accumulation and clipping, as its documentation writes it; τ = 1 adds `twice`."""

from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

from superadam import SuperAdam, twice


def train(model, dataset, *, tau, size, accumulate, clip=None, epochs=2):
    """The trained model, its optimizer, and how many samples went into metrics."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    opt = SuperAdam(model, lr=0.05, tau=tau, clip=clip if tau else None)  # with τ > 0 the optimizer clips g_t
    model, opt, loader = accelerator.prepare(model, opt, DataLoader(dataset, batch_size=size))
    samples = 0
    for _ in range(epochs):
        for x, y in twice(loader, accumulate=accumulate) if tau else loader:
            with accelerator.accumulate(model):
                out = model(x)
                accelerator.backward(nn.functional.mse_loss(out, y))
                if clip and not tau and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), clip)
                opt.step()
                opt.zero_grad()
            samples += len(accelerator.gather_for_metrics(out))
    return accelerator.unwrap_model(model), opt.optimizer, samples

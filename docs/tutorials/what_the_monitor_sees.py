# %% [markdown]
# # What the monitor sees
#
# A `Monitor` records what an optimizer does, without changing the run. Here it watches SUPER-ADAM with variance
# reduction (τ = 1), which needs two gradients per batch, on a network with dropout.

# %%
import textwrap
import warnings

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

from superadam import Monitor, SuperAdam

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=64, shuffle=True)


def setup():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, 10))
    opt = SuperAdam(model, lr=1e-3, tau=1.0)

    def loss(batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    return opt, loss


# %% [markdown]
# ## One line before the loop
#
# With `loss` and `batches` the monitor computes two more gradients for every report. From them it estimates how far the
# estimate g_t is from the true gradient.

# %%
opt, loss = setup()
monitor = Monitor(opt, every=5, loss=loss, batches=loader)

for batch in [batch for _ in range(6) for batch in loader]:

    def closure(batch=batch):
        opt.zero_grad()
        value = loss(batch)
        value.backward()
        return value

    opt.step(closure)

monitor.close()
opt.flush()
for name in ("step", "gradient_evaluations", "grad_norm", "g_norm", "condition", "estimator_error", "variance_ratio"):
    print(f"{name:21s}{monitor.last[name]:.4g}")

# %% alt="A panel for each thing that was recorded, against the steps: norms of the gradients, their cosine, the entries of H_t and its condition, the length of a step, the variance of differences over that of gradients, and more."
monitor.plot()

# %% [markdown]
# With τ = 1, look at the panel "variance of differences over that of gradients". Variance reduction adds the difference
# of the two gradients of a batch to the estimate. This pays only if differences have less variance than gradients: the
# ratio must be below 1, and the smaller the better.
#
# ## A mistake that still trains
#
# This closure draws its batch itself. The optimizer calls it twice, so the two gradients belong to different batches. The
# loss still falls. The monitor warns as soon as it has measured the ratio (`superadam.check_pairs(model, closure)` tells
# before training):

# %%
opt, loss = setup()
wrong = Monitor(opt, every=5, loss=loss, batches=loader)
batches = iter([batch for _ in range(12) for batch in loader])


def closure():
    opt.zero_grad()
    value = loss(next(batches))
    value.backward()
    return value


with warnings.catch_warnings(record=True) as said:
    losses = [opt.step(closure).item() for _ in range(174)]

wrong.close()
for warning in said[:1]:
    print(textwrap.fill(f"{warning.category.__name__}: {warning.message}", 90), end="\n\n")
print(f"loss: {losses[0]:.2f} at first, {sum(losses[-29:]) / 29:.2f} in the last 29 batches")

# %% alt="The variance ratio against the steps. With one batch for both gradients it stays below 0.1; with a new batch in each call of the closure it is above 1."
for name, watched in (("one batch for both gradients", monitor), ("a new batch in each call", wrong)):
    reports = [report for report in watched.history if "variance_ratio" in report]
    plt.semilogy([r["step"] for r in reports], [r["variance_ratio"] for r in reports], label=name)
plt.axhline(1.0, linestyle=":", color="gray")
plt.xlabel("step")
plt.ylabel("variance ratio")
plt.legend()
plt.show()

# %% [markdown]
# [Watching a run](../monitor.md) lists every number and every alarm, and has recipes for TensorBoard and Weights & Biases.

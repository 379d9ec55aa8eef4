# %% [markdown]
# # A portfolio
#
# This page chooses the weights of 30 assets. Each weight is between 0 and 15 %, all weights sum to 1, and no sector has
# more than 25 %. The gradients come from random batches of days.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.optimize import minimize

import superadam
from superadam import sets

ASSETS, SECTORS, DAYS, CAP, LIMIT = 30, 5, 2000, 0.15, 0.25

generator = torch.Generator().manual_seed(0)


def randn(*shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


sector = torch.arange(ASSETS) // (ASSETS // SECTORS)
drift = torch.linspace(0.12, 0.02, SECTORS)[sector] + 0.03 * randn(ASSETS)
returns = drift + 0.6 * randn(DAYS, SECTORS)[:, sector] + (0.3 + randn(ASSETS).abs()) * randn(DAYS, ASSETS)
mean, centred = returns.mean(0), returns - returns.mean(0)
covariance = centred.T @ centred / DAYS


def objective(w):
    """Half the variance minus the mean return."""
    return (w @ covariance @ w / 2 - mean @ w).item()


# %% [markdown]
# ## The constraint
#
# `CappedSimplex` bounds the weights. A row of `Polyhedron` bounds one sector: $A w \le b$. `Intersection` combines both.

# %%
A = torch.nn.functional.one_hot(sector).T.double()
X = sets.Intersection(sets.CappedSimplex(total=1.0, cap=CAP), sets.Polyhedron(A, torch.full((SECTORS,), LIMIT)))

# %% [markdown]
# ## Two ways to keep Adam in the set
#
# - On the set: with `constraint=X`, each step of Adam goes to the best feasible point in Adam's metric, H_t. This is
#   line 9 of the algorithm.
# - Projected: Adam takes its usual step and then moves to the nearest feasible point. This is the usual recipe.
#
# scipy's SLSQP, which gets the exact mean and covariance, is the reference.

# %%
m, C, rows = mean.numpy(), covariance.numpy(), A.numpy()
found = minimize(
    lambda w: w @ C @ w / 2 - m @ w,
    np.full(ASSETS, 1 / ASSETS),
    jac=lambda w: C @ w - m,
    bounds=[(0, CAP)] * ASSETS,
    constraints=[
        {"type": "eq", "fun": lambda w: w.sum() - 1},
        {"type": "ineq", "fun": lambda w: LIMIT - rows @ w},
    ],
    options={"ftol": 1e-12, "maxiter": 500},
)
exact = torch.from_numpy(found.x)


def fit(lr, constraint, steps=200, batch=256):
    w = torch.full((ASSETS,), 1 / ASSETS, dtype=torch.float64, requires_grad=True)
    opt = superadam.create("adam", [w], lr=lr, constraint=constraint)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    order, gaps = torch.Generator().manual_seed(1), []
    for _ in range(steps):
        days = torch.randint(DAYS, (batch,), generator=order)
        opt.zero_grad()
        loss = (centred[days] @ w).square().mean() / 2 - returns[days].mean(0) @ w
        loss.backward()
        opt.step()
        scheduler.step()
        if constraint is None:
            with torch.no_grad():
                w.copy_(X.argmin(w, 1.0))
        gaps.append(objective(w.detach()) - objective(exact))
    return w.detach(), gaps


rates = (1e-3, 3e-3, 1e-2)
runs = {"on the set": [fit(lr, X) for lr in rates], "projected": [fit(lr, None) for lr in rates]}

print("objective above the optimum, by learning rate")
print(" " * 12 + "".join(f"{lr:10g}" for lr in rates))
for name, all_rates in runs.items():
    print(f"{name:12s}" + "".join(f"{gaps[-1]:10.1e}" for _, gaps in all_rates))

# %% [markdown]
# Each way at its best learning rate:

# %% alt="Left: how far the objective is above the optimum, step by step: Adam on the set comes closer than Adam with a projection. Right: the 30 weights of Adam on the set, coloured by sector, beside those of SLSQP, none above 15 %."
best = {name: min(all_rates, key=lambda run: run[1][-1]) for name, all_rates in runs.items()}
fig, (left, right) = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained", width_ratios=(2, 3))
for name, (w, gaps) in best.items():
    left.semilogy(gaps, label=name)
    print(f"{name}: outside of the set by {X.violation(w).item():.0e}, largest sector {(A @ w).max().item():.1%}")
left.set(xlabel="step", title="objective above the optimum")
left.legend()
w = best["on the set"][0]
right.bar(range(ASSETS), w, color=[f"C{s}" for s in sector])
right.plot(range(ASSETS), exact, "_", color="gray", markersize=8, markeredgewidth=2, label="SLSQP")
right.axhline(CAP, linestyle=":", color="gray")
right.set(xlabel="asset, coloured by sector", title="weights, on the set", xticks=[])
right.legend()
plt.show()

# %% [markdown]
# Both are feasible after every step and use the same batches. Adam scales each coordinate differently, and a Euclidean
# projection ignores these scales, so it converges to [another point](../constraints.md#why-the-metric-matters).
# [Constraints and penalties](../constraints.md) lists all sets and their costs.

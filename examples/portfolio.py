"""A portfolio with caps: weights at least 0, at most 20 % each, that sum to 1.

python examples/portfolio.py    # a few seconds

minimise risk/2 · wᵀΣw - mean·w, from the daily returns of 30 invented assets; gradients from batches of 256 days. The
reference is SLSQP of scipy, which gets the exact mean and covariance. Prints the objectives (ours is above by 2.5e-4,
equal weights by 5.9e-2), how many assets are held, and that caps and sum hold.
"""

import numpy as np
import torch
from scipy.optimize import minimize

from superadam import SuperAdam, sets

ASSETS, DAYS, CAP, RISK = 30, 2000, 0.2, 1.0


def returns(seed=0):
    """Days × assets, in per cent: three common factors and noise of the asset's own."""
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    drift, loadings = 0.05 + 0.05 * randn(ASSETS), 0.4 * randn(3, ASSETS)
    own = 0.3 + randn(ASSETS).abs()
    return drift + randn(DAYS, 3) @ loadings + own * randn(DAYS, ASSETS)


def slsqp(mean, covariance):
    result = minimize(
        lambda w: RISK / 2 * w @ covariance @ w - mean @ w,
        np.full(ASSETS, 1 / ASSETS),
        jac=lambda w: RISK * covariance @ w - mean,
        bounds=[(0, CAP)] * ASSETS,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like},
        options={"ftol": 1e-12, "maxiter": 500},
    )
    return torch.from_numpy(result.x)


def main(steps=2000, batch=256):
    r = returns()
    mean, centred = r.mean(0), r - r.mean(0)
    covariance = centred.T @ centred / DAYS

    def objective(w):
        return (RISK / 2 * w @ covariance @ w - mean @ w).item()

    w = torch.full((ASSETS,), 1 / ASSETS, dtype=torch.float64, requires_grad=True)
    opt = SuperAdam([w], lr=3e-3, tau=1.0, schedule="Paper", constraint=sets.CappedSimplex(total=1.0, cap=CAP))
    order = torch.Generator().manual_seed(1)

    def closure():
        opt.zero_grad()
        loss = RISK / 2 * (centred[days] @ w).square().mean() - r[days].mean(0) @ w
        loss.backward()
        return loss

    for _ in range(steps):
        days = torch.randint(DAYS, (batch,), generator=order)
        opt.step(closure)
    opt.flush()
    reference, w = slsqp(mean.numpy(), covariance.numpy()), w.detach()
    gap = objective(w) - objective(reference)
    at_start = objective(torch.full_like(w, 1 / ASSETS)) - objective(reference)
    print(f"objective: {objective(w):.5f}, SLSQP {objective(reference):.5f}; above it by {gap:.1e}")
    print(f"(equal weights: above it by {at_start:.1e})")
    held = [(v > 1e-3).sum().item() for v in (w, reference)]
    print(f"assets held: {held[0]}, SLSQP {held[1]}; largest weight {w.max():.4f}, sum {w.sum():.6f}")
    facts = {"gap": gap, "start": at_start, "largest": w.max().item(), "violation": opt.feasibility()}
    return {**facts, "weights": (w, reference)}


if __name__ == "__main__":
    main()

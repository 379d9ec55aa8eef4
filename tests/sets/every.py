"""An example of every set, for tensors of shape (3, 5)."""

import numpy as np
import torch
from scipy.optimize import minimize

from superadam import sets


def slsqp(y, d, constraints=(), bounds=None):
    """The minimiser that scipy finds."""
    y, d = np.asarray(y), np.asarray(d)
    result = minimize(
        lambda x: 0.5 * (d * (x - y) ** 2).sum(),
        np.full(y.shape, 0.2),
        jac=lambda x: d * (x - y),
        method="SLSQP",
        bounds=bounds,
        constraints=constraints,
        options={"ftol": 1e-12, "maxiter": 1000},
    )
    return torch.from_numpy(result.x)


def l1_by_halves(y, d, r):
    """x = p - q with p, q ≥ 0 and Σ p + q ≤ r, which has no corners."""
    y, d, n = np.asarray(y), np.asarray(d), len(y)

    def gradient(pq):
        g = d * (pq[:n] - pq[n:] - y)
        return np.concatenate([g, -g])

    result = minimize(
        lambda pq: 0.5 * (d * (pq[:n] - pq[n:] - y) ** 2).sum(),
        np.full(2 * n, r / (2 * n)),
        jac=gradient,
        method="SLSQP",
        bounds=[(0, None)] * (2 * n),
        constraints={"type": "ineq", "fun": lambda pq: r - pq.sum()},
        options={"ftol": 1e-12, "maxiter": 1000},
    )
    return torch.from_numpy(result.x[:n] - result.x[n:])


ROW = torch.tensor([1.0, -2.0, 0.5, 3.0, 1.0], dtype=torch.float64)


ROWS = torch.stack([ROW, torch.tensor([0.0, 1.0, 1.0, -1.0, 2.0], dtype=torch.float64)])


CENTER = torch.tensor([1.0, 0.0, -1.0, 0.5, 0.2], dtype=torch.float64)


def equality(f):
    return {"type": "eq", "fun": f}


def inequality(f):
    return {"type": "ineq", "fun": f}


OF_SCIPY = {
    "box": (sets.Box(-0.5, 0.7), lambda y, d: slsqp(y, d, bounds=[(-0.5, 0.7)] * 5)),
    "non-negative": (sets.NonNegative(), lambda y, d: slsqp(y, d, bounds=[(0, None)] * 5)),
    "linf": (sets.LInfBall(0.6), lambda y, d: slsqp(y, d, bounds=[(-0.6, 0.6)] * 5)),
    "simplex": (
        sets.Simplex(2.0),
        lambda y, d: slsqp(y, d, equality(lambda x: x.sum() - 2), bounds=[(0, None)] * 5),
    ),
    "capped": (
        sets.CappedSimplex(2.0, 0.6),
        lambda y, d: slsqp(y, d, equality(lambda x: x.sum() - 2), bounds=[(0, 0.6)] * 5),
    ),
    "capped by a tensor": (
        sets.CappedSimplex(2.0, ROW.abs()),
        lambda y, d: slsqp(y, d, equality(lambda x: x.sum() - 2), bounds=[(0, float(c)) for c in ROW.abs()]),
    ),
    "l1": (sets.L1Ball(1.5), lambda y, d: l1_by_halves(y, d, 1.5)),
    "l2": (sets.L2Ball(0.8), lambda y, d: slsqp(y, d, inequality(lambda x: 0.64 - (x**2).sum()))),
    "l2 elsewhere": (
        sets.L2Ball(0.8, CENTER),
        lambda y, d: slsqp(y, d, inequality(lambda x: 0.64 - ((x - CENTER.numpy()) ** 2).sum())),
    ),
    "halfspace": (sets.Halfspace(ROW, 0.3), lambda y, d: slsqp(y, d, inequality(lambda x: 0.3 - ROW.numpy() @ x))),
    "hyperplane": (sets.Hyperplane(ROW, 0.3), lambda y, d: slsqp(y, d, equality(lambda x: 0.3 - ROW.numpy() @ x))),
    "affine": (
        sets.Affine(ROWS, torch.tensor([0.3, -1.0])),
        lambda y, d: slsqp(y, d, equality(lambda x: ROWS.numpy() @ x - np.array([0.3, -1.0], dtype=np.float32))),
    ),
}


GEN = torch.Generator().manual_seed(5)


A_15 = torch.randn(3, 15, generator=GEN, dtype=torch.float64)


# For tensors of shape (3, 5).
EVERY = {
    "Box": sets.Box(-0.5, 0.5),
    "Box of tensors": sets.Box(-torch.rand(3, 5, generator=GEN), torch.rand(5, generator=GEN)),
    "NonNegative": sets.NonNegative(),
    "LInfBall": sets.LInfBall(0.5),
    "L2Ball": sets.L2Ball(1.0),
    "L2Ball of rows": sets.L2Ball(0.7, center=0.5, dim=1),
    "L2Ball of columns": sets.L2Ball(0.7, dim=0),
    "L1Ball": sets.L1Ball(2.0),
    "L1Ball of rows": sets.L1Ball(0.8, dim=-1),
    "L1Ball of dims": sets.L1Ball(0.8, dim=(0, 1)),
    "Simplex": sets.Simplex(),
    "Simplex of columns": sets.Simplex(3.0, dim=0),
    "CappedSimplex": sets.CappedSimplex(1.0, 0.3),
    "Halfspace": sets.Halfspace(1.0, -40.0),
    "Hyperplane": sets.Hyperplane(torch.arange(15.0).view(3, 5), 1.0),
    "Affine": sets.Affine(A_15, torch.ones(3)),
    "SpectralBall": sets.SpectralBall(0.6),
    "NuclearBall": sets.NuclearBall(1.0),
    "CappedSimplex from below": sets.CappedSimplex(1.0, 0.3, low=0.1),
    "BoxSection": sets.BoxSection(torch.arange(15.0).view(3, 5) - 3, 2.0, -0.3, torch.rand(5, generator=GEN) + 0.2),
    "BoxSection of rows": sets.BoxSection(2.0, 1.0, 0.0, 0.3, dim=1),
    "Ordered": sets.Ordered(),
    "Ordered columns": sets.Ordered("decreasing", -0.5, 0.5, dim=0),
    "GroupL1Ball": sets.GroupL1Ball(1.5),
    "GroupL1Ball of columns": sets.GroupL1Ball(1.5, group=0),
    "L1InfBall": sets.L1InfBall(1.0),
    "SecondOrderCone": sets.SecondOrderCone(),
    "Sphere": sets.Sphere(2.0),
    "Sphere of rows": sets.Sphere(0.7, dim=1),
    "Polyhedron": sets.Polyhedron(torch.cat([A_15, -A_15]), torch.ones(6)),
    "DoublyStochastic": sets.DoublyStochastic(),
    "Intersection of balls": sets.Intersection(sets.L1Ball(2.0), sets.L2Ball(0.8)),
    "Transport": sets.DoublyStochastic(torch.tensor([1.0, 2.0, 2.0]), 1.0),
    "Simplex in a box": sets.Intersection(
        sets.Simplex(dim=None), sets.Box(0, 0.2), sets.Halfspace(A_15[0].view(3, 5), 0.1)
    ),
}


EQUATIONS = ("Simplex", "Capped", "Hyper", "Affine", "BoxSection", "Sphere", "Doubly", "Transport")


INEQUALITIES = [name for name in EVERY if not name.startswith(EQUATIONS)]


def example(constraint, dtype=torch.float64, seed=0):
    gen = torch.Generator().manual_seed(seed)
    y = 2 * torch.randn(3, 5, generator=gen, dtype=torch.float64)
    d = 10 ** (4 * torch.rand(3, 5, generator=gen, dtype=torch.float64) - 2)
    return y.to(dtype), torch.tensor(0.7, dtype=dtype) if constraint.scalar_metric else d.to(dtype)


BOUNDED = [name for name, part in EVERY.items() if part.bounded]


OF_ROWS = {
    "BoxSection": sets.BoxSection(torch.tensor([1.0, -2.0, 0.5, 3.0, 1.0, 0.0]), 0.4, -0.5, 1.0),
    "BoxSection of rows": sets.BoxSection(2.0, 1.0, 0.0, 0.3, dim=-1),
    "CappedSimplex": sets.CappedSimplex(1.0, 0.3, low=0.05),
    "Ordered": sets.Ordered(),
    "Ordered, bounds": sets.Ordered("decreasing", 0.0, 1.0),
    "GroupL1Ball": sets.GroupL1Ball(1.5),
    "L1InfBall": sets.L1InfBall(1.0),
    "SecondOrderCone": sets.SecondOrderCone(),
    "Sphere": sets.Sphere(dim=-1),
}

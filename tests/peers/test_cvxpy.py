"""Line 9 on sets and with penalties equals what cvxpy finds."""

import numpy as np
import pytest
import torch

from penalties.every import EVERY, example, objective
from sets.coupled import metric, numbers
from sets.every import OF_ROWS
from superadam import sets


@pytest.mark.slow
def test_balls_of_matrix_norms():
    cp = pytest.importorskip("cvxpy")
    gen = torch.Generator().manual_seed(0)
    Y = torch.randn(4, 3, generator=gen, dtype=torch.float64)
    X = cp.Variable((4, 3))
    for constraint, condition in [
        (sets.SpectralBall(0.8), cp.sigma_max(X) <= 0.8),
        (sets.NuclearBall(1.3), cp.normNuc(X) <= 1.3),
    ]:
        cp.Problem(cp.Minimize(cp.sum_squares(X - Y.numpy())), [condition]).solve(solver="SCS", eps=1e-9)
        torch.testing.assert_close(constraint.argmin(Y, 2.0), torch.from_numpy(X.value), rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in OF_ROWS if name != "Sphere"])
@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")  # its distance from ours is what is tested
def test_sets_of_rows(name):
    cp = pytest.importorskip("cvxpy")
    part, gen = OF_ROWS[name], torch.Generator().manual_seed(0)
    for _ in range(10):
        y = 2 * torch.randn(4, 6, generator=gen, dtype=torch.float64)
        d = 3 * torch.rand(4, 6, generator=gen, dtype=torch.float64) + 0.2
        X = cp.Variable((4, 6))
        a = torch.ones(6) if name != "BoxSection" else part.a
        conditions = {
            "BoxSection": [cp.sum(cp.multiply(a.expand(4, 6).numpy(), X)) == 0.4, X >= -0.5, X <= 1],
            "BoxSection of rows": [2 * cp.sum(X, axis=1) == 1, X >= 0, X <= 0.3],
            "CappedSimplex": [cp.sum(X, axis=1) == 1, X >= 0.05, X <= 0.3],
            "Ordered": [X[:, 1:] >= X[:, :-1]],
            "Ordered, bounds": [X[:, 1:] <= X[:, :-1], X >= 0, X <= 1],
            "GroupL1Ball": [cp.sum(cp.norm(X, 2, axis=1)) <= 1.5],
            "L1InfBall": [cp.sum(cp.max(cp.abs(X), axis=1)) <= 1],
            "SecondOrderCone": [cp.norm(X[i, :-1]) <= X[i, -1] for i in range(4)],
        }[name]
        goal = cp.Minimize(cp.sum_squares(cp.multiply(d.sqrt().numpy(), X - y.numpy())))
        least = cp.Problem(goal, conditions).solve(solver="CLARABEL")
        x = part.argmin(y, d)
        # An interior point is near the least value, and by its square root near x.
        assert abs(float((d * (x - y).square()).sum()) - least) < 1e-6 * (1 + least)
        torch.testing.assert_close(x, torch.from_numpy(X.value), rtol=0, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_coupled_sets(seed):
    cp = pytest.importorskip("cvxpy")
    y, d = numbers(seed, (5, 5)), metric(seed + 1, (5, 5), 2)
    A, b = numbers(seed + 2, (6, 25)), numbers(seed + 3, (6,)).abs()
    r, c = numbers(seed + 4, (5,)).abs(), numbers(seed + 5, (5,)).abs()
    c = c * r.sum() / c.sum()
    X, S = cp.Variable((5, 5)), cp.Variable((5, 5), PSD=True)
    marginals = [cp.sum(X, axis=1) == r.numpy(), cp.sum(X, axis=0) == c.numpy()]
    flat = cp.reshape(X, (25,), order="C")
    sums, sectors = cp.sum(X), torch.eye(5).repeat_interleave(5, 1)
    problems = [
        (sets.Polyhedron(A, b), X, [A.numpy() @ flat <= b.numpy()], d),
        (sets.DoublyStochastic(), X, [X >= 0, cp.sum(X, axis=0) == 1, cp.sum(X, axis=1) == 1], d),
        (sets.DoublyStochastic(r, c), X, [X >= 0, *marginals], d),
        (sets.Ordered("convex", dim=1), X, [cp.diff(X, k=2, axis=1) >= 0], d),
        (sets.Ordered("concave", -0.3, 0.5, dim=0), X, [cp.diff(X, k=2, axis=0) <= 0, X >= -0.3, X <= 0.5], d),
        (sets.PSD(), S, [], 2.0),
        (sets.Spectrahedron(1.5), S, [cp.trace(S) == 1.5], 2.0),
        (sets.Correlation(), S, [cp.diag(S) == 1], 2.0),
        (
            sets.Intersection(sets.Simplex(dim=None), sets.Halfspace(A[0].view(5, 5), -0.3), sets.Box(0, 0.3)),
            X,
            [X >= 0, X <= 0.3, sums == 1, A[0].numpy() @ flat <= -0.3],
            d,
        ),
        (
            sets.Intersection(sets.CappedSimplex(1.0, 0.15, dim=None), sets.Polyhedron(sectors, torch.full((5,), 0.3))),
            X,
            [X >= 0, X <= 0.15, sums == 1, cp.sum(X, axis=1) <= 0.3],
            d,
        ),
        (sets.Intersection(sets.L1Ball(2.0), sets.L2Ball(0.7)), X, [cp.norm1(flat) <= 2.0, cp.norm2(flat) <= 0.7], d),
    ]
    for part, variable, conditions, weights in problems:
        w = np.sqrt(np.broadcast_to(np.asarray(weights), (5, 5)))
        objective = cp.sum_squares(cp.multiply(w, variable - y.numpy()))
        cp.Problem(cp.Minimize(objective), conditions).solve(solver="CLARABEL")
        found = torch.from_numpy(np.asarray(variable.value))
        torch.testing.assert_close(part.argmin(y, weights), found, rtol=0, atol=2e-5, msg=str(type(part)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")  # at tolerances that it nearly reaches
@pytest.mark.parametrize("name", EVERY)
def test_penalties(name):
    cp = pytest.importorskip("cvxpy")
    lam, penalty = 0.7, EVERY[name]
    for seed in range(5):
        y, d = example(seed, (3, 5))
        d = torch.full_like(d, float(d.mean())) if penalty.scalar_metric else d
        x = cp.Variable((3, 5))
        h = {
            "L1": cp.norm1(x),
            "L2": cp.sum_squares(x) / 2,
            "ElasticNet": cp.norm1(x) + 0.4 / 0.7 * cp.sum_squares(x) / 2,
            "GroupLasso": cp.norm(x, "fro"),
            "GroupLasso of rows": sum(cp.norm(x[i]) for i in range(3)),
            "OverlappingGroupLasso": cp.norm(x[0, :3]) + cp.norm(x[0, 2:4]) + cp.norm(x[0, 3:]),
            "Huber": cp.sum(cp.huber(x, 0.5)) / 2,
            "TotalVariation": cp.sum(cp.abs(x[:, 1:] - x[:, :-1])),
            "TotalVariation of columns": cp.sum(cp.abs(x[1:] - x[:-1])),
            "Nuclear": cp.normNuc(x),
        }[name]
        fit = cp.sum(cp.multiply(d.numpy() / 2, cp.square(x - y.numpy())))
        cp.Problem(cp.Minimize(fit + lam * h)).solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10)
        ours = penalty.argmin(y, float(d.mean()) if penalty.scalar_metric else d)
        best = objective(penalty, torch.from_numpy(x.value), y, d)
        assert objective(penalty, ours, y, d) <= best + 1e-9
        torch.testing.assert_close(ours, torch.from_numpy(x.value), rtol=0, atol=1e-4)

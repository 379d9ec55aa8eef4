"""Linear minimisation: feasible, no point is better, and line 9 with a vanishing matrix."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment, linprog

from sets.conditions import POINTS, TOL, point
from sets.every import BOUNDED, EVERY, OF_SCIPY, ROW, example
from superadam import SuperAdam, matrices, sets


@pytest.mark.parametrize(
    ("part", "instead"),
    [
        (sets.Polyhedron(torch.eye(4), torch.ones(4)), "linear program in every step. Use an adaptive matrix"),
        (sets.Intersection(sets.Simplex(), sets.Box(0, 0.7)), "CappedSimplex and BoxSection have an lmo"),
        (sets.Correlation(), "semidefinite program in every step. Use a matrix with one learning rate"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_sets_without_lmo_say_what_to_use(part, instead):
    with pytest.raises(NotImplementedError, match=instead):
        part.lmo(torch.ones(2, 2))
    with pytest.raises(ValueError, match=instead):
        SuperAdam([torch.nn.Parameter(torch.eye(2))], matrix=matrices.Zero(), constraint=part)


@pytest.mark.parametrize("name", BOUNDED)
@given(st.integers(0, 10**6), st.sampled_from(POINTS), st.sampled_from([torch.float64, torch.float32]))
def test_lmo_is_feasible_and_no_point_is_better(name, seed, kind, dtype):
    constraint, gen = EVERY[name], torch.Generator().manual_seed(seed)
    g = point(kind, (3, 5), dtype, gen)
    x = constraint.lmo(g)
    assert x.dtype == dtype
    assert constraint.contains(x, tol=TOL[dtype])
    for scale in (0.1, 3.0):
        other = constraint.argmin(scale * torch.randn(3, 5, generator=gen, dtype=torch.float64), 1.0)
        products = g.double() * torch.stack([x.double(), other])
        assert products[0].sum() <= products[1].sum() + TOL[dtype] * (1 + products.abs().sum())


@pytest.mark.parametrize("name", BOUNDED)
def test_lmo_is_line_9_with_a_vanishing_matrix(name):
    """⟨g, argmin(-g/ε)⟩ is above the least by at most ε times half of the squared diameter."""
    constraint = EVERY[name]
    for seed in range(5):
        g, _ = example(constraint, seed=seed)
        near = constraint.argmin(-1e7 * g, 1.0)
        least = (g * constraint.lmo(g)).sum()
        assert -1e-12 <= (g * near).sum() - least <= 1e-5


@pytest.mark.parametrize("dim", [None, 0, -1, (0, 2), 1])
def test_lmo_of_slices_is_that_of_each(dim):
    g = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    axes = {i % 3 for i in (range(3) if dim is None else [dim] if isinstance(dim, int) else dim)}
    for build in (
        lambda dim: sets.Simplex(2.0, dim),
        lambda dim: sets.CappedSimplex(1.0, 0.6, dim),
        lambda dim: sets.L1Ball(2.0, dim),
        lambda dim: sets.L2Ball(2.0, 0.3, dim),
        lambda dim: sets.Sphere(2.0, dim),
        lambda dim: sets.BoxSection(2.0, 1.0, -0.1, 0.7, dim),
        lambda dim: sets.Ordered("increasing", 0.0, 1.0, dim),
        lambda dim: sets.Ordered("concave", 0.0, 1.0, dim),
    ):
        x = build(dim).lmo(g)
        for at in np.ndindex(*(1 if i in axes else n for i, n in enumerate(g.shape))):
            slice_ = tuple(slice(None) if i in axes else at[i] for i in range(3))
            torch.testing.assert_close(x[slice_], build(None).lmo(g[slice_]))


@pytest.mark.parametrize("name", ["box", "linf", "simplex", "capped", "capped by a tensor", "l1"])
def test_lmo_solves_the_linear_program(name):
    constraint, _ = OF_SCIPY[name]
    caps = {"capped": [0.6] * 5, "capped by a tensor": ROW.abs().tolist()}.get(name, [None] * 5)
    for seed in range(10):
        g = torch.randn(5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        if name == "l1":  # x = p - q
            program = linprog([*g.tolist(), *(-g).tolist()], A_ub=[[1] * 10], b_ub=[1.5])
        elif "box" in name or "linf" in name:
            program = linprog(g.tolist(), bounds=[tuple(constraint.bounds())] * 5)
        else:
            program = linprog(g.tolist(), A_eq=[[1] * 5], b_eq=[2.0], bounds=[(0, cap) for cap in caps])
        assert abs(program.fun - float(g @ constraint.lmo(g))) < 1e-9


@pytest.mark.parametrize("order", ["convex", "concave"])
@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_lmo_of_convex_sequences_solves_the_linear_program(n, order):
    part = sets.Ordered(order, -1.0, 2.0)
    bend = np.diff(np.eye(n), n=2, axis=0)
    for seed in range(20):
        g = torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).round(decimals=1)
        x = part.lmo(g)
        assert part.contains(x, 1e-12)
        ordered = {"A_ub": -bend if order == "convex" else bend, "b_ub": np.zeros(n - 2)} if n > 2 else {}
        assert abs(linprog(g.numpy(), bounds=[(-1, 2)] * n, **ordered).fun - float(g @ x)) < 1e-9


@pytest.mark.parametrize("n", [1, 2, 5, 12])
@pytest.mark.parametrize("whole", [False, True], ids=["real", "ties"])
def test_lmo_of_doubly_stochastic_is_an_assignment(n, whole):
    for seed in range(5):
        g = torch.randn(2, n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        g = (3 * g).round() if whole else g
        x = sets.DoublyStochastic().lmo(g)
        assert ((x == 0) | (x == 1)).all()
        assert (x.sum(-1) == 1).all()
        assert (x.sum(-2) == 1).all()
        for cost, plan in zip(g, x, strict=True):
            rows, columns = linear_sum_assignment(cost.numpy())
            assert abs(float((cost * plan).sum()) - cost.numpy()[rows, columns].sum()) < 1e-12


@pytest.mark.parametrize("shape", [(3, 5), (6, 4), (1, 7), (7, 1)])
def test_lmo_of_a_transport_plan_solves_the_linear_program(shape):
    m, n = shape
    for seed in range(8):
        gen = torch.Generator().manual_seed(seed)
        g, r, c = (torch.rand(s, generator=gen, dtype=torch.float64) for s in (shape, m, n))
        r[0] = 0.0 if seed == 3 and m > 1 else r[0]
        c = c * r.sum() / c.sum()
        part = sets.DoublyStochastic(r, c)
        x = part.lmo(g)
        assert part.contains(x, 1e-13)
        sums = np.concatenate([np.kron(np.eye(m), np.ones(n)), np.kron(np.ones(m), np.eye(n))])
        program = linprog(g.flatten().tolist(), A_eq=sums, b_eq=torch.cat([r, c]).numpy())
        assert abs(program.fun - float((g * x).sum())) < 1e-12


def test_lmo_of_balls_is_the_dual_norm():
    g = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    singular = torch.linalg.svdvals(g)
    for constraint, dual in [
        (sets.L2Ball(2.0), g.norm()),
        (sets.Sphere(2.0), g.norm()),
        (sets.LInfBall(2.0), g.abs().sum()),
        (sets.L1Ball(2.0), g.abs().max()),
        (sets.SpectralBall(2.0), singular.sum()),
        (sets.NuclearBall(2.0), singular[0]),
        (sets.GroupL1Ball(2.0), g.norm(dim=1).max()),
        (sets.L1InfBall(2.0), g.abs().sum(1).max()),
    ]:
        torch.testing.assert_close((g * constraint.lmo(g)).sum(), -2 * dual)
    U, _, V = torch.linalg.svd(g, full_matrices=False)
    torch.testing.assert_close(sets.SpectralBall(2.0).lmo(g), -2 * U @ V)


def test_lmo_of_ties():
    g = torch.tensor([0.0, -2.0, 2.0, -2.0])
    assert sets.Box(-1.0, 2.0).lmo(g).tolist() == [0.5, 2.0, -1.0, 2.0]
    assert sets.L1Ball(3.0).lmo(g).tolist() == [0.0, 3.0, 0.0, 0.0]
    assert sets.Simplex().lmo(g).tolist() == [0.0, 1.0, 0.0, 0.0]
    assert sets.CappedSimplex(1.0, 0.75).lmo(g).tolist() == [0.0, 0.75, 0.0, 0.25]
    zero = torch.zeros(2, 3)
    assert not sets.L1Ball(1.0).lmo(zero).any()
    assert not sets.SpectralBall(1.0).lmo(zero).any()
    assert not sets.NuclearBall(1.0).lmo(zero).any()
    assert sets.Sphere(2.0, dim=1).lmo(zero).tolist() == [[2.0, 0.0, 0.0]] * 2
    assert torch.equal(sets.L2Ball(1.0, center=0.5).lmo(zero), torch.full((2, 3), 0.5))
    low_rank = torch.outer(torch.tensor([1.0, 2.0, 2.0]), torch.tensor([3.0, 4.0]))
    torch.testing.assert_close(sets.SpectralBall(1.0).lmo(low_rank), -low_rank / 15)
    torch.testing.assert_close(sets.NuclearBall(1.0).lmo(low_rank), -low_rank / 15)


@pytest.mark.parametrize("name", BOUNDED)
def test_lmo_of_other_input(name):
    constraint = EVERY[name]
    g = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.bfloat16, torch.float16):
        x = constraint.lmo(g.to(dtype))
        assert x.dtype == dtype
        torch.testing.assert_close(x.float(), constraint.lmo(g.to(dtype).float()), rtol=1e-2, atol=1e-5)
    assert constraint.lmo(torch.empty(0, 5)).shape == (0, 5)
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="g must be finite"):
            constraint.lmo(g.index_fill(1, torch.tensor([2]), bad))
    with pytest.raises(ValueError, match="floating-point"):
        constraint.lmo(g.long())


def test_lmo_of_a_number():
    g = torch.tensor(2.0)
    for constraint, x in [
        (sets.L1Ball(3.0), -3.0),
        (sets.L2Ball(3.0, 1.0), -2.0),
        (sets.Simplex(3.0), 3.0),
        (sets.Box(-1, 1), -1.0),
    ]:
        assert constraint.lmo(g).item() == x

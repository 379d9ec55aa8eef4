"""The exact step of line 9: every set meets its optimality conditions, written down here once more, on any input.

`argmin(y, d)` minimises ½ Σ dᵢ(xᵢ - yᵢ)². The conditions are stated in the units of x, for w = 1/d: a multiplier is
read off x itself, and x compared with what it should be for this multiplier.
"""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment, linprog, minimize

from superadam import SuperAdam, matrices, sets
from superadam._state.options import Composition
from superadam._state.parts import Part
from superadam.estimators import Recursive
from superadam.iterates import Plain
from superadam.schedules import Paper

TOL = {torch.float64: 1e-9, torch.float32: 1e-5}

# ------------------------------------------------------------------------------------------------------------- inputs

POINTS = ["normal", "ties", "zeros", "huge", "tiny", "magnitudes", "one large", "negative", "sparse"]
METRICS = ["scalar", "ones", "uniform", "twelve orders", "two values", "large", "small"]


def point(kind, shape, dtype, gen):
    y = torch.randn(shape, generator=gen, dtype=torch.float64)
    if kind == "ties":
        y = y.round()
    elif kind == "zeros":
        y = torch.zeros_like(y)
    elif kind == "huge":
        y = y * 1e30
    elif kind == "tiny":
        y = y * 1e-20
    elif kind == "magnitudes":
        y = y * 10 ** (24 * torch.rand(shape, generator=gen, dtype=torch.float64) - 12)
    elif kind == "one large":
        y[..., :1] = 1e6
    elif kind == "negative":
        y = -y.abs()
    elif kind == "sparse":
        y = y * (torch.rand(shape, generator=gen) < 0.2)
    return y.to(dtype)


def metric(kind, shape, dtype, gen):
    u = torch.rand(shape, generator=gen, dtype=torch.float64)
    return {
        "scalar": torch.tensor(0.3, dtype=torch.float64),
        "ones": torch.ones_like(u),
        "uniform": u + 0.1,
        "twelve orders": 10 ** (12 * u - 6),
        "two values": torch.where(u < 0.5, 1e-6, 1e6).double(),
        "large": 1e12 * (u + 0.1),
        "small": 1e-12 * (u + 0.1),
    }[kind].to(dtype)


@st.composite
def problems(draw, scalar_metric=False):
    shape = draw(st.sampled_from([(1,), (2,), (7,), (3, 5), (40,), (2, 3, 4), (20, 30)]))
    dtype = draw(st.sampled_from([torch.float64, torch.float32]))
    gen = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    y = point(draw(st.sampled_from(POINTS)), shape, dtype, gen)
    d = metric("scalar" if scalar_metric else draw(st.sampled_from(METRICS)), shape, dtype, gen)
    return y, d, draw(st.sampled_from([1e-3, 1.0, 30.0])), draw(st.sampled_from([None, -1, 0]))


# --------------------------------------------------------------------------------------------- optimality conditions
#
# Each function gives the largest violation for one slice (vectors of float64), relative to the numbers that occur.


def relative(error, *scales):
    """max |errorᵢ| / (sum of the scales)ᵢ, with 0/0 = 0."""
    scale = sum(torch.as_tensor(s).abs() for s in scales)
    error = error.abs() / torch.where(error == 0, 1.0, scale)
    return float(error.max())


def positive(t):
    return t.clamp(min=0)


def kkt_interval(lo, hi, y, w, x):
    free, low, high = (x > lo) & (x < hi), x == lo, x == hi
    assert (free | low | high).all()
    wrong = torch.where(free, x - y, torch.where(low & high, 0.0, torch.where(low, positive(y - lo), positive(hi - y))))
    return relative(wrong, y, 1)


def kkt_simplex(total, y, w, x, cap=math.inf):
    assert (x >= 0).all()
    assert (x <= cap * (1 + 1e-6)).all()
    free, none, full = (x > 0) & (x < cap), x == 0, x >= cap
    # Read θ off the free coordinates, but as far as those at a bound allow: close to a bound, the former say little.
    theta = (y - x)[free].sum() / w[free].sum() if free.any() else torch.tensor(0.0)
    least = (y / w)[none].max() if none.any() else torch.tensor(-math.inf)
    most = ((y - cap) / w)[full].min() if full.any() else torch.tensor(math.inf)
    level = y - theta.maximum(least).minimum(most) * w
    wrong = torch.where(free, x - level, torch.where(none, positive(level), positive(cap - level)))
    return max(relative(wrong, y, total), relative(x.sum() - total, total))


def kkt_l1(r, y, w, x):
    if y.abs().sum() <= r:
        return relative(x - y, y)
    assert (x * y >= 0).all()
    return kkt_simplex(r, y.abs(), w, x.abs())


def kkt_l2(r, y, w, x):
    if y.norm() <= r:
        return relative(x - y, y)
    if r == 0:
        return float(x.norm())
    nu = (y - x).abs().sum() / (x.abs() * w).sum()
    big = x / r
    return max(relative(x - y / (1 + nu * w), y, r), abs(float(big.norm()) - 1), float(nu < 0))


def kkt_hyperplane(a, b, y, w, x, inequality=False):
    excess = a @ x - b
    if inequality and a @ y <= b:
        return relative(x - y, y)
    i = (a * a * w).argmax()
    lagrange = (y - x)[i] / (a * w)[i]
    size = a.abs() @ (x.abs() + 1e-3 * y.abs()) + abs(b)
    stationary = relative(x - (y - lagrange * a * w), y, x, y.abs().max() * 1e-3)
    return max(stationary, float(excess.abs() / size), float(inequality and lagrange < -1e-9))


def kkt_affine(A, b, y, w, x):
    """The closed form, in 60 digits: with twelve orders of magnitude, 16 are not enough to judge by."""
    with mpmath.workdps(60):
        M, target, start, W = (mpmath.matrix(t.tolist()) for t in (A, b, y, w))
        WMt = mpmath.matrix([[W[i] * M[j, i] for j in range(M.rows)] for i in range(M.cols)])
        exact = start - WMt * mpmath.lu_solve(M * WMt, M * start - target)
        exact = torch.tensor([float(e) for e in exact], dtype=torch.float64)
    return max(relative(x - exact, y.abs().max() + b.abs().max()), relative(A @ x - b, A.abs() @ x.abs(), b))


def dual_of_ball(r, y, x, norm, dual):
    """⟨y - x, x⟩ = r ‖y - x‖*, and ‖x‖ ≤ r."""
    if norm(y) <= r:
        return relative(x - y, y)
    gap = r * dual(y - x) - ((y - x) * x).sum()
    return max(float(gap.abs() / (r * dual(y))), float(positive(norm(x) / r - 1)) if r else float(norm(x)))


def check_slices(x, y, d, dim, dtype, residual):
    """The residual is small in every slice."""
    assert x.shape == y.shape
    assert x.dtype == y.dtype
    w = (d.double().max() / d.double()).expand_as(y)
    axes = list(range(y.dim())) if dim is None else [dim % y.dim()]
    kept = [i for i in range(y.dim()) if i not in axes]
    size = math.prod(y.shape[i] for i in axes)
    rows = (t.double().permute(*kept, *axes).reshape(-1, size) for t in (y, w, x))
    for row in zip(*rows, strict=True):
        assert residual(*row) < TOL[dtype]


@given(problems())
def test_separable_sets(problem):
    y, d, r, _ = problem
    for x, lo, hi in [
        (sets.Box(-r, None).argmin(y, d), -r, math.inf),
        (sets.Box(None, r).argmin(y, d), -math.inf, r),
        (sets.Box(-torch.ones_like(y), r).argmin(y, d), -1.0, r),
        (sets.NonNegative().argmin(y, d), 0.0, math.inf),
        (sets.LInfBall(r).argmin(y, d), -r, r),
    ]:
        lo, hi = (float(torch.tensor(b, dtype=y.dtype)) for b in (lo, hi))
        check_slices(x, y, d, None, y.dtype, lambda *row, lo=lo, hi=hi: kkt_interval(lo, hi, *row))


@given(problems())
def test_simplex(problem):
    y, d, total, dim = problem
    x = sets.Simplex(total, dim).argmin(y, d)
    check_slices(x, y, d, dim, y.dtype, lambda *row: kkt_simplex(total, *row))


@given(problems(), st.sampled_from([1.001, 1.7, 20.0]))
def test_capped_simplex(problem, room):
    y, d, total, dim = problem
    n = y.numel() if dim is None else y.shape[dim]
    cap = float(torch.tensor(room * total / n, dtype=y.dtype))
    x = sets.CappedSimplex(total, cap, dim).argmin(y, d)
    check_slices(x, y, d, dim, y.dtype, lambda *row: kkt_simplex(total, *row, cap=cap))


@given(problems())
def test_l1_ball(problem):
    y, d, r, dim = problem
    x = sets.L1Ball(r, dim).argmin(y, d)
    check_slices(x, y, d, dim, y.dtype, lambda *row: kkt_l1(r, *row))


@given(problems())
def test_l2_ball(problem):
    y, d, r, dim = problem
    x = sets.L2Ball(r, dim=dim).argmin(y, d)
    check_slices(x, y, d, dim, y.dtype, lambda *row: kkt_l2(r, *row))


@given(problems(), st.sampled_from([-10.0, -1e-3, 0.0, 1.0]))
def test_halfspace_and_hyperplane(problem, b):
    y, d, _, _ = problem
    a = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(y.dtype)
    flat = a.double().flatten()
    x = sets.Hyperplane(a, b).argmin(y, d)
    check_slices(x, y, d, None, y.dtype, lambda *row: kkt_hyperplane(flat, b, *row))
    x = sets.Halfspace(a, b).argmin(y, d)
    check_slices(x, y, d, None, y.dtype, lambda *row: kkt_hyperplane(flat, b, *row, inequality=True))


@given(problems(), st.integers(1, 4))
def test_affine(problem, m):
    y, d, _, _ = problem
    gen = torch.Generator().manual_seed(m)
    A = torch.randn(min(m, y.numel()), y.numel(), generator=gen, dtype=torch.float64)
    b = torch.randn(len(A), generator=gen, dtype=torch.float64)
    x = sets.Affine(A, b).argmin(y, d)
    check_slices(x, y, d, None, y.dtype, lambda *row: kkt_affine(A, b, *row))


@given(problems(scalar_metric=True))
def test_matrix_norm_balls(problem):
    y, d, r, _ = problem

    def spectral(m):
        return torch.linalg.svdvals(m).max()

    def nuclear(m):
        return torch.linalg.svdvals(m).sum()

    for constraint, norm, dual in [
        (sets.SpectralBall(r), spectral, nuclear),
        (sets.NuclearBall(r), nuclear, spectral),
    ]:
        x = constraint.argmin(y, d)
        size = y.shape[-2:].numel() if y.dim() > 1 else y.numel()
        shape = y.shape[-2:] if y.dim() > 1 else (1, -1)
        for before, after in zip(y.double().reshape(-1, size), x.double().reshape(-1, size), strict=True):
            assert dual_of_ball(r, before.view(shape), after.view(shape), norm, dual) < TOL[y.dtype]


# ------------------------------------------------------------------------------------------------------ equal to scipy


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


@pytest.mark.parametrize("name", OF_SCIPY)
def test_equals_scipy(name):
    constraint, reference = OF_SCIPY[name]
    for seed in range(20):
        gen = torch.Generator().manual_seed(seed)
        y = torch.randn(5, generator=gen, dtype=torch.float64) * 2
        d = torch.rand(5, generator=gen, dtype=torch.float64) * 3 + 0.2
        x = constraint.argmin(y, d)
        torch.testing.assert_close(x, reference(y, d), rtol=0, atol=2e-6)
        assert constraint.contains(x)


@pytest.mark.slow
def test_equals_cvxpy():
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


# --------------------------------------------------------------------------------------------------- of every set

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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", EVERY)
def test_idempotent(name, dtype):
    constraint = EVERY[name]
    for seed in range(10):
        y, d = example(constraint, dtype, seed)
        x = constraint.argmin(y, d)
        again = constraint.argmin(x, d)
        digits = (
            1e-9 if isinstance(constraint, sets.Intersection) and dtype == torch.float64 else 0.0
        )  # found by iterations
        torch.testing.assert_close(again, x, rtol=0, atol=max(digits, 20 * torch.finfo(dtype).eps))
        assert constraint.contains(x, tol=4e-6)
        assert not constraint.contains(y)


@pytest.mark.parametrize("name", INEQUALITIES)
def test_feasible_point_comes_back_bit_for_bit(name):
    constraint = EVERY[name]
    y, d = example(constraint)
    inner = {"L2Ball of rows": 0.5, "Halfspace": -3.0}.get(name, 0.0)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        clipped = name.startswith(("Box", "NonNegative", "Ordered", "SecondOrderCone"))
        feasible = constraint.argmin(y, d).to(dtype) if clipped else (0.02 * y + inner).to(dtype)
        if name == "SecondOrderCone":
            feasible[:, -1] += 1
        x = constraint.argmin(feasible, d)
        assert torch.equal(x, feasible)
        assert x.data_ptr() != feasible.data_ptr()
        assert constraint.violation(x) == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", EVERY)
def test_low_precision_is_the_rounded_exact_step(name, dtype):
    constraint = EVERY[name]
    y, d = example(constraint, dtype)
    x = constraint.argmin(y, d)
    assert x.dtype == dtype
    exact = constraint.argmin(y.double(), d.double())
    torch.testing.assert_close(x.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-5)


@pytest.mark.parametrize("name", EVERY)
def test_scale_of_the_metric_does_not_matter(name):
    constraint = EVERY[name]
    y, d = example(constraint)
    torch.testing.assert_close(constraint.argmin(y, 1e8 * d), constraint.argmin(y, d), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(constraint.argmin(y, 3.0), constraint.argmin(y, torch.tensor(3.0)))
    if not constraint.scalar_metric:
        torch.testing.assert_close(constraint.argmin(y, 3.0), constraint.argmin(y, torch.full_like(y, 3.0)))


@pytest.mark.parametrize("name", EVERY)
def test_violation_is_positive_outside(name):
    constraint = EVERY[name]
    y, d = example(constraint)
    x = constraint.argmin(y, d)
    outside, inside = constraint.violation(y), constraint.violation(x)
    assert outside.dim() == inside.dim() == 0
    assert outside > 0.01
    assert 0 <= inside < 1e-12
    # The farther, the more.
    assert constraint.violation(x + 2 * (y - x)) > outside


@pytest.mark.parametrize("name", EVERY)
def test_bad_input(name):
    constraint = EVERY[name]
    y, d = example(constraint)
    for bad in (math.nan, math.inf, -math.inf):
        with pytest.raises(ValueError, match="y must be finite"):
            constraint.argmin(y.index_fill(1, torch.tensor([2]), bad), d)
    for bad in (math.nan, math.inf, 0.0, -1.0):
        with pytest.raises(ValueError, match="d must be positive and finite"):
            constraint.argmin(y, bad)
    if not constraint.scalar_metric:
        with pytest.raises(ValueError, match="d must be positive and finite"):
            constraint.argmin(y, d * (torch.arange(5) > 0))
        with pytest.raises(ValueError, match="shape of y"):
            constraint.argmin(y, d[0])
    with pytest.raises(ValueError, match="floating-point"):
        constraint.argmin(y.long(), 1.0)


@pytest.mark.parametrize("name", EVERY)
def test_spec_is_the_set(name):
    constraint = EVERY[name]
    found = sets.ConvexSet.find(constraint.spec())
    assert found == constraint
    assert hash(found) == hash(constraint)
    assert found is not constraint
    y, d = example(constraint)
    assert torch.equal(found.argmin(y, d), constraint.argmin(y, d))


def test_parts_with_different_tensors_differ():
    a = torch.ones(3)
    assert sets.Halfspace(a, 1.0) == sets.Halfspace(a.clone(), 1.0)
    assert sets.Halfspace(a, 1.0) != sets.Halfspace(2 * a, 1.0)
    assert sets.Halfspace(a, 1.0) != sets.Halfspace(1.0, 1.0)
    assert sets.Halfspace(a, 1.0) != sets.Hyperplane(a, 1.0)
    assert issubclass(sets.Halfspace, Part)


# ------------------------------------------------------------------------------------------------- shapes and slices


@pytest.mark.parametrize(
    "build",
    [
        lambda dim: sets.Simplex(1.0, dim),
        lambda dim: sets.CappedSimplex(1.0, 0.2, dim),
        lambda dim: sets.L1Ball(1.0, dim),
        lambda dim: sets.L2Ball(1.0, dim=dim),
        lambda dim: sets.CappedSimplex(1.0, 0.2, dim, low=0.01),
        lambda dim: sets.BoxSection(2.0, 1.0, -0.3, None, dim),
        lambda dim: sets.Ordered(dim=dim),
        lambda dim: sets.SecondOrderCone(dim),
        lambda dim: sets.Sphere(1.0, dim),
    ],
    ids=["Simplex", "CappedSimplex", "L1Ball", "L2Ball", "from below", "BoxSection", "Ordered", "cone", "Sphere"],
)
def test_slices_are_solved_on_their_own(build):
    """A thousand rows at once are the rows one by one, whatever the dimension they run along."""
    gen = torch.Generator().manual_seed(0)
    y = torch.randn(1000, 12, generator=gen, dtype=torch.float64) * 10 ** torch.linspace(-3, 3, 1000).double()[:, None]
    d = 10 ** (12 * torch.rand(1000, 12, generator=gen, dtype=torch.float64) - 6)
    x = build(-1).argmin(y, d)
    assert build(-1).contains(x, tol=1e-11)
    for i in range(0, 1000, 37):
        torch.testing.assert_close(x[i], build(None).argmin(y[i], d[i]), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(build(0).argmin(y.T, d.T), x.T, rtol=1e-9, atol=1e-12)
    y, d = (t.view(1000, 3, 4).movedim(0, 1) for t in (y, d))
    torch.testing.assert_close(build((0, 2)).argmin(y, d).movedim(1, 0).reshape(1000, 12), x, rtol=1e-9, atol=1e-12)


def test_any_shape():
    for constraint in (
        sets.Box(-1, 1),
        sets.NonNegative(),
        sets.LInfBall(1.0),
        sets.L2Ball(1.0),
        sets.L2Ball(1.0, dim=-1),
        sets.L1Ball(1.0),
        sets.Simplex(),
        sets.Simplex(dim=None),
        sets.CappedSimplex(1.0, 1.0),
        sets.Halfspace(1.0, 1.0),
        sets.Hyperplane(1.0, 1.0),
        sets.Affine(torch.ones(1, 1), torch.ones(1)),
        sets.SpectralBall(1.0),
        sets.NuclearBall(1.0),
        sets.BoxSection(2.0, 2.0),
        sets.Ordered(high=1.0),
        sets.GroupL1Ball(1.0),
        sets.L1InfBall(1.0),
        sets.SecondOrderCone(),
        sets.Sphere(1.0),
    ):
        for y in (torch.tensor(3.0), torch.tensor([3.0]), torch.full((1, 1, 1), 3.0)):
            x = constraint.argmin(y, 2.0)
            assert x.shape == y.shape
            assert float(x) == (3.0 if constraint in (sets.NonNegative(), sets.SecondOrderCone()) else 1.0)
        for shape in ((0,), (0, 3), (3, 0)):
            assert constraint.argmin(torch.zeros(shape), 2.0).shape == shape
        assert constraint.violation(torch.zeros(0, 3)) >= 0


@pytest.mark.parametrize("y", [torch.tensor([1.0, -2.0]), torch.zeros(2)], ids=["somewhere", "there already"])
def test_radius_zero(y):
    d = torch.tensor([1e-6, 1e6])
    for constraint in (
        sets.LInfBall(0.0),
        sets.L2Ball(0.0),
        sets.L1Ball(0.0),
        sets.Simplex(0.0),
        sets.CappedSimplex(0.0, 1.0),
        sets.CappedSimplex(0.0, 0.0),
        sets.Box(0, 0),
        sets.BoxSection(1.0, 0.0, 0.0),
        sets.GroupL1Ball(0.0),
        sets.L1InfBall(0.0),
    ):
        assert torch.equal(constraint.argmin(y, d).abs(), torch.zeros(2))
    assert torch.equal(sets.L2Ball(0.0, center=3.0).argmin(y, d), torch.full((2,), 3.0))
    assert torch.equal(sets.SpectralBall(0.0).argmin(y, 1.0).abs(), torch.zeros(2))
    assert torch.equal(sets.NuclearBall(0.0).argmin(y, 1.0).abs(), torch.zeros(2))


def test_no_gradient_is_recorded_and_y_is_kept():
    y = torch.tensor([3.0, 4.0], requires_grad=True)
    x = sets.L2Ball(1.0).argmin(y, torch.ones(2))
    assert not x.requires_grad
    assert y.tolist() == [3.0, 4.0]


def test_large_simplex_in_float32():
    """A million coordinates: the sum is right to the last digits."""
    gen = torch.Generator().manual_seed(0)
    y, d = torch.rand(10**6, generator=gen) * 1e-3, torch.rand(10**6, generator=gen) + 0.01
    for constraint in (
        sets.Simplex(),
        sets.L1Ball(1.0),
        sets.L2Ball(0.1),
        sets.Sphere(0.1),
        sets.CappedSimplex(1.0, 1e-5),
    ):
        assert constraint.violation(constraint.argmin(y, d)) < 1e-6 * getattr(constraint, "r", 1.0)


def test_wrong_metric_gives_another_point():
    """What the exact step is for: the Euclidean projection is not the minimiser."""
    y, d = torch.tensor([1.0, 1.0]), torch.tensor([1.0, 9.0])
    assert sets.Simplex().argmin(y, 1.0).tolist() == [0.5, 0.5]
    torch.testing.assert_close(sets.Simplex().argmin(y, d), torch.tensor([0.1, 0.9]))


# --------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: sets.Box(1, 0), "lo <= hi"),
        (lambda: sets.Box(torch.tensor([0.0, 2.0]), 1), "lo <= hi"),
        (lambda: sets.Box(math.nan, 1), "lo <= hi"),
        (lambda: sets.Box(math.inf, None), "lo <= hi"),
        (lambda: sets.LInfBall(-1.0), "0 <= r"),
        (lambda: sets.L2Ball(-1.0), "0 <= r"),
        (lambda: sets.L2Ball(1.0, center=torch.tensor([math.nan])), "finite"),
        (lambda: sets.L1Ball(math.inf), "0 <= r"),
        (lambda: sets.SpectralBall(-1.0), "0 <= r"),
        (lambda: sets.NuclearBall(math.nan), "0 <= r"),
        (lambda: sets.Simplex(-1.0), "0 <= total"),
        (lambda: sets.CappedSimplex(-1.0, 1.0), "0 <= total"),
        (lambda: sets.CappedSimplex(1.0, torch.tensor([1.0, -1.0])), "cap >= 0"),
        (lambda: sets.CappedSimplex(1.0, 0.3).argmin(torch.zeros(3), 1.0), "caps sum to 0.9, less than the total 1"),
        (lambda: sets.Halfspace(torch.zeros(3), 1.0), "a != 0"),
        (lambda: sets.Hyperplane(1.0, math.inf), "finite"),
        (lambda: sets.Halfspace(torch.ones(3), 1.0).argmin(torch.zeros(4), 1.0), "does not broadcast"),
        (lambda: sets.Affine(torch.ones(2, 3), torch.ones(2)), "independent rows"),
        (lambda: sets.Affine(torch.ones(1, 3), torch.ones(2)), r"\(m, n\)"),
        (lambda: sets.Affine(torch.ones(1, 3), torch.ones(1)).argmin(torch.zeros(4), 1.0), "3 coordinates.* has 4"),
    ],
)
def test_impossible_sets_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def beside(matrix):
    """The parts of a composition with this matrix."""
    return Composition(Recursive(), matrix, Paper(), Plain(), None, None, None)


@pytest.mark.parametrize("constraint", [sets.SpectralBall(1.0), sets.NuclearBall(1.0)], ids=["spectral", "nuclear"])
def test_matrix_norm_balls_need_a_scalar_metric(constraint):
    with pytest.raises(ValueError, match="GradientNorm") as error:
        constraint.argmin(torch.ones(2, 2), torch.ones(2, 2))
    names = {"GradientNorm", "BarzilaiBorwein", "BeliefNorm", "AccumulatedNorm", "EstimateNorm", "Identity"}
    for name in names:
        assert name in str(error.value)
        assert constraint.objection(beside(getattr(matrices, name)()), {}) is None
    assert "SecondMoment has many" in constraint.objection(beside(matrices.SecondMoment()), {})
    assert sets.L2Ball(1.0).objection(beside(matrices.SecondMoment()), {}) is None


def test_set_of_ones_own():
    """Only argmin is needed."""

    class Ray(sets.ConvexSet):
        def argmin(self, y, d):
            d = torch.as_tensor(d).expand_as(y)
            return ((d * y).sum() / d.sum()).clamp(min=0).expand_as(y)

    try:
        assert Ray().violation(torch.tensor([-1.0, -3.0])) == 3
        assert Ray().contains(torch.tensor([2.0, 2.0]))
        assert not Ray().contains(torch.tensor([2.0, 2.1]))
        assert sets.ConvexSet.find("ray") == Ray()
    finally:
        del sets.ConvexSet._names["Ray"]


# -------------------------------------------------------------------------------------------------------------- lmo

BOUNDED = [name for name, part in EVERY.items() if part.bounded]


def test_which_sets_are_bounded():
    unbounded = {"NonNegative", "Halfspace", "Hyperplane", "Affine", "Polyhedron", "Ordered", "SecondOrderCone"}
    unbounded |= {"Intersection of balls", "Simplex in a box"}  # bounded, without lmo
    assert set(BOUNDED) == EVERY.keys() - unbounded
    for part in (*map(EVERY.get, unbounded), sets.Box(0, None), sets.Box(-1, torch.tensor([1.0, math.inf]))):
        assert not part.bounded
        with pytest.raises((ValueError, NotImplementedError), match=r"bounded|program in every step\. Use an adaptive"):
            part.lmo(torch.ones(3, 5))


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

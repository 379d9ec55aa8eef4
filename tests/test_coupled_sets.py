"""Sets whose step is found by Newton's method or by active rows: Polyhedron, convex sequences, DoublyStochastic, the
semidefinite ones, Intersection. Each is checked by a certificate of its own, found by other means (linear programs,
non-negative least squares, eigenvalues), and by another set that is the same."""

import io
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment, linprog, nnls

from superadam import SuperAdam, matrices, sets

PROPERTY = settings(deadline=None)
FLOAT32 = 1e-5


def numbers(seed, shape, spread=0.0):
    """Normal numbers, times 10 to a power within spread/2 of 0."""
    gen = torch.Generator().manual_seed(seed)
    y = torch.randn(shape, generator=gen, dtype=torch.float64)
    return y * 10 ** (spread * (torch.rand(shape, generator=gen, dtype=torch.float64) - 0.5))


def metric(seed, shape, spread):
    return 10 ** (spread * (torch.rand(shape, generator=torch.Generator().manual_seed(seed)).double() - 0.5))


def nearly(part, y, d):
    """float32 gives the solution for the same numbers, rounded."""
    y, d = y.float(), d.float()
    exact = part.argmin(y.double(), d.double())
    torch.testing.assert_close(part.argmin(y, d).double(), exact, rtol=FLOAT32, atol=FLOAT32 * float(exact.abs().max()))


# -------------------------------------------------------------------------------------------------------- Polyhedron


def polyhedron(seed, m, n, kind):
    """A set that is not empty; with rows that depend on each other, too."""
    A, inner = numbers(seed, (m, n)), numbers(seed + 1, (n,))
    slack = numbers(seed + 2, (m,)).abs()
    if kind == "dependent":
        A, slack = (
            torch.cat([A, 2 * A[:1], -A[:1], A.sum(0, keepdim=True)]),
            torch.cat([slack, slack[:1], slack[:1], slack[:1]]),
        )
    elif kind == "corners":
        slack = slack * (torch.arange(m) % 2)
    elif kind == "scaled":
        scale = 10 ** (8 * torch.rand(m, generator=torch.Generator().manual_seed(seed)).double() - 4)
        A, slack = A * scale[:, None], slack * scale
    return sets.Polyhedron(A, A @ inner + slack)


def from_cone(normals, y, d, x):
    """How far D(y - x) is from the cone of some normals, relative to its length."""
    push = ((y - x) * d.sqrt()).numpy()
    if not len(normals) or not push.any():
        return float(np.abs(push).max())
    columns = (normals / d.sqrt()).T.numpy()
    _, left = nnls(columns / np.linalg.norm(columns, axis=0), push, maxiter=10_000)
    return left / np.linalg.norm(push)


def kkt_polyhedron(A, b, y, d, x):
    """How far x is outside, and how far D(y - x) is from the cone of the rows that hold as equations."""
    excess, size = A @ x - b, A.abs() @ x.abs() + b.abs() + 1e-3 * A.abs().amax(1) * x.abs().max() + 1e-300
    held = excess.abs() <= 1e-9 * size
    return float((excess / size).max()), from_cone(A[held], y, d, x)


@PROPERTY
@given(
    st.integers(0, 10**6),
    st.sampled_from([1, 3, 12]),
    st.sampled_from([1, 4, 15]),
    st.sampled_from(["plain", "dependent", "corners", "scaled"]),
    st.sampled_from([0, 3, 12]),
    st.sampled_from([1.0, 1e-3, 1e3]),
)
def test_polyhedron(seed, m, n, kind, spread, size):
    part = polyhedron(seed, m, n, kind)
    y, d = size * numbers(seed + 3, (n,)), metric(seed + 4, (n,), spread)
    x = part.argmin(y, d)
    outside, left = kkt_polyhedron(part.A, part.b, y, d, x)
    assert outside < 1e-9
    assert left < 1e-9
    if bool((part.A @ y <= part.b).all()):
        assert torch.equal(x, y)
    nearly(part, y, d)


def test_polyhedron_of_hundreds_of_rows_from_its_last_rows():
    part = polyhedron(0, 200, 60, "plain")
    y, d = 10 * numbers(1, (60,)), metric(2, (60,), 2)
    rows = torch.zeros(200)
    x = part.argmin(y, d, rows)
    assert max(kkt_polyhedron(part.A, part.b, y, d, x)) < 1e-9
    assert rows.sum() > 5
    for start in (rows, torch.ones(200), torch.full((200,), torch.nan)):
        torch.testing.assert_close(part.argmin(y, d, start), x, rtol=1e-9, atol=1e-9)


def test_polyhedron_of_one_row_is_the_halfspace_and_of_two_the_hyperplane():
    a, y, d = numbers(0, (7,)), numbers(1, (7,)), metric(2, (7,), 12)
    b = float(a @ y) - 1
    one = sets.Polyhedron(a[None], torch.tensor([b], dtype=torch.float64)).argmin(y, d)
    torch.testing.assert_close(one, sets.Halfspace(a, b).argmin(y, d), rtol=1e-9, atol=1e-9)
    two = sets.Polyhedron(torch.stack([a, -a]), torch.tensor([b, -b], dtype=torch.float64)).argmin(y, d)
    torch.testing.assert_close(two, sets.Hyperplane(a, b).argmin(y, d), rtol=1e-9, atol=1e-9)


def test_what_float64_cannot_solve_is_refused():
    part = polyhedron(1, 40, 5, "plain")
    with pytest.raises(ValueError, match=r"because of rounding|empty"):
        part.argmin(1e10 * numbers(1, (5,)), metric(2, (5,), 40))


def test_a_polyhedron_has_no_slices_and_says_what_to_write():
    part = polyhedron(3, 4, 3, "plain")
    with pytest.raises(TypeError, match=r"no option 'dim'.*torch\.block_diag\(\*\[A\] \* k\), b\.repeat\(k\)"):
        sets.Polyhedron(part.A, part.b, dim=1)
    with pytest.raises(TypeError, match="no option 'size'"):
        sets.Polyhedron(part.A, part.b, size=1)
    y, d = numbers(4, (5, 3)), metric(5, (5, 3), 3)
    x = sets.Polyhedron(torch.block_diag(*[part.A] * 5), part.b.repeat(5)).argmin(y, d)
    for each, of_y, of_d in zip(x, y, d, strict=True):
        torch.testing.assert_close(each, part.argmin(of_y, of_d), rtol=0, atol=1e-11)


# -------------------------------------------------------------------------------------------------- convex sequences


def bends(n, order, low, high):
    """The rows of a convex or concave sequence with bounds, by their definition."""
    eye = torch.eye(n, dtype=torch.float64)
    second = eye.diff(n=2, dim=0) * (-1 if order == "convex" else 1)
    A, b = [second], [torch.zeros(len(second))]
    if high is not None:
        A, b = [*A, eye], [*b, torch.full((n,), high)]
    if low is not None:
        A, b = [*A, -eye], [*b, torch.full((n,), -low)]
    return torch.cat(A), torch.cat(b).double()


@PROPERTY
@given(
    st.integers(0, 10**6),
    st.sampled_from([1, 2, 3, 9, 30]),
    st.sampled_from(["convex", "concave"]),
    st.sampled_from([(None, None), (0.0, None), (None, 0.5), (-1.0, 1.0)]),
    st.sampled_from([0, 3, 6]),
    st.booleans(),
)
def test_convex_sequences(seed, n, order, ends, spread, smooth):
    part, y, d = sets.Ordered(order, *ends), numbers(seed, (n,)), metric(seed + 1, (n,), spread)
    if smooth:  # so that most coordinates are kinks
        y = torch.linspace(-1, 1, n, dtype=torch.float64).square() * (1 if order == "convex" else -1) + 1e-3 * y
    x = part.argmin(y, d)
    A, b = bends(n, order, *ends)
    if len(A) == 0 or bool((A @ y <= b).all()):
        assert torch.equal(x, y)
    else:
        outside, left = kkt_polyhedron(A, b, y, d, x)
        assert outside < 1e-9
        assert left < 1e-9
    assert part.violation(x) < 1e-11 * float(1 + y.abs().max())
    nearly(part, y, d)


def test_convex_sequences_by_hinges():
    """Non-negative weights of hinges and any line: the same regression, with other unknowns."""
    y, d, t = numbers(0, (12,)), metric(1, (12,), 1), torch.arange(12, dtype=torch.float64)
    line = [torch.ones_like(t), -torch.ones_like(t), t, -t]
    columns = torch.stack([*line, *((t - k).clamp(min=0) for k in range(1, 11))], 1)
    weights, _ = nnls((d.sqrt()[:, None] * columns).numpy(), (d.sqrt() * y).numpy(), maxiter=10_000)
    torch.testing.assert_close(
        sets.Ordered("convex").argmin(y, d), columns @ torch.from_numpy(weights), rtol=0, atol=1e-9
    )


@pytest.mark.parametrize("dim", [0, 1, -1, (0, 2), None])
def test_convex_slices_are_solved_one_by_one_from_the_last_rows(dim):
    part, y, d = sets.Ordered("convex", -1.0, dim=dim), numbers(0, (3, 4, 2)), metric(1, (3, 4, 2), 2)
    alone = sets.Ordered("convex", -1.0)
    axes = range(3) if dim is None else dim if isinstance(dim, tuple) else (dim % 3,)
    shape = [3, 4, 2]
    order = [i for i in range(3) if i not in axes] + list(axes)
    flat = [v.permute(order).reshape(-1, int(np.prod([shape[i] for i in axes]))) for v in (y, d)]
    expected = torch.stack([alone.argmin(*each) for each in zip(*flat, strict=True)])
    root = torch.zeros(part.root_shape(y))
    for start in (None, root, root, torch.full_like(root, torch.nan)):
        x = part.argmin(y, d) if start is None else part.argmin(y, d, start)
        torch.testing.assert_close(x.permute(order).reshape(expected.shape), expected, rtol=0, atol=1e-11)
    assert root.any()


# -------------------------------------------------------------------------------------------------- DoublyStochastic


@PROPERTY
@given(
    st.integers(0, 10**6),
    st.sampled_from([1, 2, 5, 12]),
    st.sampled_from([0, 4, 12]),
    st.sampled_from([1.0, 1e-3, 1e2, 1e5]),
)
def test_doubly_stochastic(seed, n, spread, size):
    """⟨D(x - y), x⟩ is least among all permutation matrices, and so among all doubly stochastic ones."""
    part, y, d = sets.DoublyStochastic(), size * numbers(seed, (n, n)), metric(seed + 1, (n, n), spread)
    x = part.argmin(y, d)
    assert part.violation(x) < 1e-12
    slope = (d * (x - y)).numpy()
    best = slope[linear_sum_assignment(slope)].sum()
    assert (slope * x.numpy()).sum() - best <= 1e-9 * np.abs(slope).max() * n
    if spread < 12:
        nearly(part, y, d)


@PROPERTY
@given(
    st.integers(0, 10**6),
    st.sampled_from([(1, 4), (3, 2), (4, 7), (12, 9)]),
    st.booleans(),
    st.sampled_from([0, 4, 12]),
    st.sampled_from([1.0, 1e-3, 1e2]),
)
def test_transport_with_given_marginals(seed, shape, zero, spread, size):
    """Prices u and v that prove it: D(x - y) is u + v where x is positive, and not below it elsewhere. A linear program
    agrees that no plan has a smaller ⟨D(x - y), x⟩, as far as its tolerance goes."""
    m, n = shape
    rows, columns = numbers(seed, (m,)).abs(), numbers(seed + 1, (n,)).abs()
    if zero and m > 1:
        rows[0] = 0.0
    columns = columns * rows.sum() / columns.sum()
    part, y, d = sets.DoublyStochastic(rows, columns), size * numbers(seed + 2, shape), metric(seed + 3, shape, spread)
    prices = torch.zeros(m + n, dtype=torch.float64)
    x = part.argmin(y, d, prices)
    torch.testing.assert_close(x.sum(1), rows, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(x.sum(0), columns, rtol=1e-9, atol=1e-12)
    assert (x >= 0).all()
    slope = d * (x - y)
    reduced = slope - prices[:m, None] - prices[m:]
    largest = slope.abs().max()
    assert (reduced[:, columns > 0][rows > 0]).min() >= -1e-9 * largest
    assert (reduced * x).abs().max() <= 1e-9 * largest * rows.sum()
    if spread < 12:
        nearly(part, y, d)
    slope = slope.numpy()
    A = np.concatenate([np.kron(np.eye(m), np.ones(n)), np.kron(np.ones(m), np.eye(n))])
    program = linprog(slope.ravel(), A_eq=A, b_eq=np.concatenate([rows, columns]), bounds=(0, None))
    assert (slope * x.numpy()).sum() - program.fun <= 1e-6 * np.abs(slope).max() * float(rows.sum())


@pytest.mark.parametrize(("n", "size"), [(60, 1000.0), (120, 10.0), (120, 1000.0), (300, 30.0)])
@pytest.mark.parametrize("seed", [0, 1])
def test_transport_with_uneven_marginals_and_large_costs(n, size, seed):
    """Nearly a linear program. x has the form of a minimiser by its potentials, which are found again from x > 0."""
    r, c = (torch.softmax(1.5 * numbers(100 + 2 * seed + k, (n,)), 0) for k in range(2))
    y = -size * torch.rand(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    part, root = sets.DoublyStochastic(r, c), torch.zeros(2 * n, dtype=torch.float64)
    x = part.argmin(y, 1.0, root)
    assert part.violation(x) <= 1e-12
    slack = x - y - root[:n, None] - root[n:]
    assert float(slack.min()) > -1e-12 * size
    assert float((slack * x).abs().max()) < 1e-12 * size


def test_a_transport_plan_of_one_row_is_the_simplex_and_batches_are_solved_one_by_one():
    y, d = numbers(0, (4, 3, 5)), metric(1, (4, 3, 5), 4)
    one = sets.DoublyStochastic(2.0, None).argmin(y[0, :1].mT, d[0, :1].mT)
    torch.testing.assert_close(one, torch.full_like(one, 2.0))
    part = sets.DoublyStochastic(torch.tensor([1.0, 2.0, 0.5]))
    x = part.argmin(y, d)
    for each, of_y, of_d in zip(x, y, d, strict=True):
        torch.testing.assert_close(part.argmin(of_y, of_d), each, rtol=1e-10, atol=1e-12)
    assert torch.equal(part.argmin(x, d), x)


@pytest.mark.parametrize("fill", [0.0, 1.0, -3.0, 1e30, torch.inf, torch.nan])
def test_a_start_from_elsewhere_changes_nothing(fill):
    y, d = numbers(0, (4, 4)), metric(1, (4, 4), 2)
    for part in (
        sets.DoublyStochastic(),
        sets.Intersection(sets.Simplex(dim=None), sets.Box(0, 0.1)),
        sets.Intersection(sets.L1Ball(2.0), sets.L2Ball(0.7)),
    ):
        root = torch.full(part.root_shape(y), fill, dtype=torch.float64)
        x = part.argmin(y, d)
        for _ in range(2):  # and what it leaves is a start, too
            torch.testing.assert_close(part.argmin(y, d, root), x, rtol=1e-9, atol=1e-9)


# ------------------------------------------------------------------------------------------------------ semidefinite


def symmetric(x):
    return (x + x.mT) / 2


@PROPERTY
@given(st.integers(0, 10**6), st.sampled_from([1, 2, 5, 12]), st.sampled_from([1.0, 1e-3, 1e3]), st.booleans())
def test_semidefinite_sets(seed, n, size, batch):
    y = size * numbers(seed, (3, n, n) if batch else (n, n))
    goal = symmetric(y)
    least = max(size, 1.0)

    x = sets.PSD().argmin(y, 0.7)
    assert sets.PSD().violation(x) <= 1e-12 * least
    assert torch.linalg.eigvalsh(x - goal).amin() > -1e-9 * size  # the normal cone: x - y ⪰ 0, ⟨x - y, x⟩ = 0
    assert ((x - goal) * x).sum((-2, -1)).abs().max() <= 1e-9 * size**2 * n

    part = sets.Spectrahedron(2.0)
    x = part.argmin(y, 0.7)
    assert part.violation(x) < 1e-12
    gap = ((x - goal) * (x - part.lmo(x - goal))).sum((-2, -1))
    assert gap.max() <= 1e-9 * size * n + 1e-9

    x = sets.Correlation().argmin(y, 0.7)
    assert sets.Correlation().violation(x) < 1e-12
    z = ((x - goal) @ x).diagonal(dim1=-2, dim2=-1)  # so that (y + Diag(z) - x) x has a diagonal of 0
    away = goal + torch.diag_embed(z) - x
    assert torch.linalg.eigvalsh(away).amax() <= 1e-9 * least * n
    assert (away @ x).abs().max() <= 1e-9 * least * n
    for part in (sets.PSD(), sets.Spectrahedron(2.0), sets.Correlation()):
        nearly(part, y, torch.tensor(0.7))


SEMIDEFINITE = {"PSD": sets.PSD(), "Spectrahedron": sets.Spectrahedron(2.0), "Correlation": sets.Correlation()}


@pytest.mark.parametrize("name", SEMIDEFINITE)
def test_of_every_semidefinite_set(name):
    part, y = SEMIDEFINITE[name], numbers(0, (2, 4, 4))
    x = part.argmin(y, 1.0)
    torch.testing.assert_close(part.argmin(x, 1.0), x, rtol=0, atol=1e-13)
    for inside in (torch.eye(4).double() / 2 if name == "Spectrahedron" else torch.eye(4).double(),):
        assert torch.equal(part.argmin(inside, 1.0), inside)
        assert part.violation(inside) == 0
    for each, of_y in zip(x, y, strict=True):
        torch.testing.assert_close(part.argmin(of_y, 3.0), each, rtol=1e-9, atol=1e-12)
    for dtype in (torch.float32, torch.bfloat16):
        rounded = part.argmin(y.to(dtype), 1.0)
        exact = part.argmin(y.to(dtype).double(), 1.0).to(dtype)
        torch.testing.assert_close(rounded, exact, rtol=torch.finfo(dtype).eps, atol=1e-5)
    assert part.violation(y) > 0.1
    assert part.argmin(torch.zeros(0, 3, 3), 1.0).shape == (0, 3, 3)
    assert part.violation(torch.zeros(0, 3, 3)) == 0
    with pytest.raises(ValueError, match=r"square matrices.*\(3, 5\)"):
        part.argmin(torch.zeros(3, 5), 1.0)
    with pytest.raises(ValueError, match="one learning rate"):
        part.argmin(y, torch.ones(2, 4, 4))
    with pytest.raises(ValueError, match="y must be finite"):
        part.argmin(y / 0, 1.0)
    assert part.bounded == (name == "Spectrahedron")
    assert sets.ConvexSet.find(part.spec()) == part


def test_the_lmo_of_the_spectrahedron_is_the_least_eigenvalue():
    g = numbers(0, (3, 5, 5))
    x = sets.Spectrahedron(2.0).lmo(g)
    assert sets.Spectrahedron(2.0).violation(x) < 1e-12
    torch.testing.assert_close((g * x).sum((-2, -1)), 2 * torch.linalg.eigvalsh(symmetric(g))[..., 0])


# ------------------------------------------------------------------------------------------------------ Intersection

N = 8
ROW = numbers(5, (N,))
EYE = torch.eye(N, dtype=torch.float64)
ONES = torch.ones(1, N, dtype=torch.float64)
PAIRS = EYE[::2] + EYE[1::2]


def rows(*pairs):
    b = [torch.full((len(A),), bound, dtype=torch.float64) for A, bound in pairs]
    return sets.Polyhedron(torch.cat([A for A, _ in pairs]), torch.cat(b))


SUM_IS_ONE = ((ONES, 1.0), (-ONES, -1.0))
# Each beside its rows.
POLYHEDRA = {
    "simplex and halfspace": (
        sets.Intersection(sets.Simplex(), sets.Halfspace(ROW, -0.2)),
        rows(*SUM_IS_ONE, (-EYE, 0.0), (ROW[None], -0.2)),
    ),
    "simplex and box": (
        sets.Intersection(sets.Simplex(), sets.Box(0.02, 0.3)),
        rows(*SUM_IS_ONE, (-EYE, -0.02), (EYE, 0.3)),
    ),
    "capped simplex between two halfspaces": (
        sets.Intersection(sets.CappedSimplex(1.0, 0.4), sets.Halfspace(ROW, 0.1), sets.Halfspace(-ROW, 0.1)),
        rows(*SUM_IS_ONE, (-EYE, 0.0), (EYE, 0.4), (ROW[None], 0.1), (-ROW[None], 0.1)),
    ),
    "capped simplex with lower bounds and a halfspace": (
        sets.Intersection(sets.CappedSimplex(1.0, 0.4, low=0.05), sets.Halfspace(ROW, 0.1)),
        rows(*SUM_IS_ONE, (-EYE, -0.05), (EYE, 0.4), (ROW[None], 0.1)),
    ),
    "capped simplex with negative lower bounds for each coordinate, and a box": (
        sets.Intersection(sets.CappedSimplex(1.0, 0.5 + 0 * ROW, low=-0.1 * ROW.abs()), sets.Box(None, 0.3)),
        sets.Polyhedron(
            torch.cat([ONES, -ONES, -EYE, EYE]),
            torch.cat([torch.tensor([1.0, -1.0]), 0.1 * ROW.abs(), torch.full_like(ROW, 0.3)]),
        ),
    ),
    "box section and halfspace": (
        sets.Intersection(sets.BoxSection(ROW, 0.3, low=-0.2, high=0.6), sets.Halfspace(1.0, 0.4)),
        rows((ROW[None], 0.3), (-ROW[None], -0.3), (-EYE, 0.2), (EYE, 0.6), (ONES, 0.4)),
    ),
    "capped simplex and the sums of pairs, which add up to one": (
        sets.Intersection(sets.CappedSimplex(1.0, 0.25), sets.Polyhedron(PAIRS, torch.full((N // 2,), 0.3))),
        rows(*SUM_IS_ONE, (-EYE, 0.0), (EYE, 0.25), (PAIRS, float(torch.tensor(0.3)))),
    ),
    "an intersection within one": (
        sets.Intersection(
            sets.Intersection(sets.Simplex(), sets.Halfspace(ROW, -0.2)), sets.CappedSimplex(1.0, 0.5, low=0.01)
        ),
        rows(*SUM_IS_ONE, (-EYE, -0.01), (EYE, 0.5), (ROW[None], -0.2)),
    ),
    "box and affine": (
        sets.Intersection(sets.Box(-1, 1), sets.Affine(torch.stack([ROW, EYE[0]]), torch.tensor([0.5, 0.25]))),
        rows((EYE, 1.0), (-EYE, 1.0), (ROW[None], 0.5), (-ROW[None], -0.5), (EYE[:1], 0.25), (-EYE[:1], -0.25)),
    ),
    "linear sets": (
        sets.Intersection(sets.Hyperplane(1.0, 1.0), sets.Halfspace(ROW, 0.1), sets.Polyhedron(EYE, torch.ones(N))),
        rows(*SUM_IS_ONE, (ROW[None], 0.1), (EYE, 1.0)),
    ),
    "boxes": (sets.Intersection(sets.Box(-0.5, None), sets.LInfBall(0.7)), rows((EYE, 0.7), (-EYE, 0.5))),
}


@pytest.mark.parametrize("name", POLYHEDRA)
@settings(derandomize=True, deadline=None, max_examples=8)
@given(st.integers(0, 10**6), st.sampled_from([0, 2, 4, 8, 12]), st.sampled_from([1.0, 50.0]))
def test_intersections_equal_their_rows(name, seed, spread, size):
    part, same = POLYHEDRA[name]
    y, d = size * numbers(seed, (N,)), metric(seed + 1, (N,), spread)
    x = part.argmin(y, d)
    torch.testing.assert_close(x, same.argmin(y, d), rtol=0, atol=1e-9)
    assert part.violation(x) < 1e-11
    nearly(part, y, d)


CURVED = {
    "l1 and l2 balls": sets.Intersection(sets.L1Ball(1.5), sets.L2Ball(0.8)),
    "two l2 balls": sets.Intersection(sets.L2Ball(1.0, 0.3), sets.L2Ball(1.2)),
    "l1, l2 and linf balls": sets.Intersection(sets.L1Ball(1.5), sets.L2Ball(0.8), sets.LInfBall(0.5)),
    "ball, halfspace, non-negative": sets.Intersection(sets.NonNegative(), sets.L2Ball(1.0), sets.Halfspace(ROW, -0.4)),
    "l1 ball, halfspace, non-negative": sets.Intersection(
        sets.NonNegative(), sets.L1Ball(1.0), sets.Halfspace(ROW, -0.4)
    ),
    "l2 ball and hyperplane": sets.Intersection(sets.L2Ball(1.0), sets.Hyperplane(ROW, 0.5)),
}


def normals(part, x):
    """Vectors whose cone is the normal cone of a set at x."""
    if isinstance(part, sets.Intersection):
        return [normal for each in part.sets for normal in normals(each, x)]
    if isinstance(part, sets.L2Ball):
        away = x - part.center
        return [away] if away.norm() >= part.r - 1e-9 else []
    if isinstance(part, sets.L1Ball):
        zero = x.abs() < 1e-10
        signs = [[-1.0, 1.0] if at else [float(v.sign())] for v, at in zip(x, zero, strict=True)]
        return [torch.tensor(v).double() for v in itertools.product(*signs)] if x.abs().sum() >= part.r - 1e-9 else []
    if isinstance(part, sets.NonNegative):
        return list(-EYE[x < 1e-10])
    if isinstance(part, sets.LInfBall):
        return list((EYE * x.sign())[x.abs() > part.r - 1e-10])
    if isinstance(part, sets.Hyperplane):
        return [part.a, -part.a]
    return [part.a] if part.a @ x >= part.b - 1e-9 else []


@pytest.mark.parametrize("name", CURVED)
@settings(derandomize=True, deadline=None, max_examples=8)
@given(st.integers(0, 10**6), st.sampled_from([0, 2, 4]), st.sampled_from([0.3, 1.0, 3.0]))
def test_curved_intersections(name, seed, spread, size):
    """D(y - x) is in the sum of the sets' normal cones."""
    part = CURVED[name]
    y, d = size * numbers(seed, (N,)), metric(seed + 1, (N,), spread)
    x = part.argmin(y, d)
    assert part.violation(x) < 1e-11
    if part.violation(y) == 0:
        assert torch.equal(x, y)
    else:
        assert from_cone(torch.stack(normals(part, x)), y, d, x) < 1e-9
    nearly(part, y, d)


def test_lower_bounds_of_a_capped_simplex_hold_in_an_intersection():
    part = sets.Intersection(sets.CappedSimplex(1.0, 0.6, low=0.05), sets.Halfspace(torch.tensor([1.0, 0, 0, 0]), 0.5))
    x = part.argmin(torch.tensor([2.0, -1.0, 0.3, 0.1]), 1.0)
    torch.testing.assert_close(x, torch.tensor([0.5, 0.05, 0.325, 0.125]))


def test_the_certificate_is_each_sets_own_violation(monkeypatch):
    """Pieces that are not the whole set give an x that is outside of it: an error, no silent result."""
    part = sets.Intersection(sets.CappedSimplex(1.0, 0.6, low=0.05), sets.Halfspace(torch.tensor([1.0, 0, 0, 0]), 0.5))
    monkeypatch.setattr(sets.CappedSimplex, "pieces", lambda self, x: (sets.Hyperplane(1.0, 1.0), sets.Box(0, 0.6)))
    with pytest.raises(ValueError, match=r"CappedSimplex\(.*\) does not hold: it is off by 0\.05"):
        part.argmin(torch.tensor([2.0, -1.0, 0.3, 0.1]), 1.0)


@pytest.mark.parametrize("n", [200_000, 1_000_000])
def test_the_certificate_does_not_weaken_with_the_number_of_coordinates(n):
    """One negative coordinate among a million is outside, however large the sum of all coordinates is."""
    y = torch.full((n,), 0.5)
    y[0] = -8e-4
    x = sets.Intersection(sets.NonNegative(), sets.Halfspace(1.0, 1e7)).argmin(y, 1.0)
    assert torch.equal(x, y.clamp(min=0))
    capped = sets.Intersection(sets.Simplex(), sets.Box(0, 2 / n), sets.Halfspace(numbers(0, (n,)), -0.1))
    x = capped.argmin(numbers(1, (n,)).float(), metric(2, (n,), 1))
    assert capped.violation(x) <= 1e-7  # the rounding errors of float32 in a sum of 1
    assert float(x.min()) >= 0
    assert float(x.max()) <= 2 / n * (1 + 1e-7)


def test_equations_that_say_the_same_twice():
    same = sets.Intersection(sets.Simplex(2.0), sets.CappedSimplex(2.0, 0.5), sets.Hyperplane(-3.0, -6.0))
    y, d = numbers(0, (N,)), metric(1, (N,), 3)
    torch.testing.assert_close(same.argmin(y, d), sets.CappedSimplex(2.0, 0.5).argmin(y, d), rtol=0, atol=1e-11)
    with pytest.raises(ValueError, match=r"empty: equations .1. contradict"):
        sets.Intersection(sets.Simplex(1.0), sets.Simplex(2.0)).argmin(y, d)


@pytest.mark.parametrize("low", [0.0, 0.05])
def test_a_simplex_of_rows_and_a_box_are_the_capped_simplex(low):
    """One set, solved once, and not by sweeps."""
    y, d = numbers(0, (3, N)), metric(1, (3, N), 6)
    simplex = sets.CappedSimplex(1.0, 0.9, dim=-1, low=low) if low else sets.Simplex(dim=-1)
    x = sets.Intersection(simplex, sets.Box(0.01, 0.3)).argmin(y, d)
    torch.testing.assert_close(
        x, sets.CappedSimplex(1.0, 0.3, dim=-1, low=max(low, 0.01)).argmin(y, d), rtol=0, atol=1e-12
    )
    with pytest.raises(ValueError, match="CappedSimplex is empty: the caps sum to"):
        sets.Intersection(simplex, sets.Box(0, 0.1)).argmin(y, d)


def test_an_intersection_refuses_what_is_not_convex():
    with pytest.raises(ValueError, match="expected convex sets, which Sphere is not"):
        sets.Intersection(sets.Sphere(), sets.NonNegative())


def test_an_intersection_says_what_it_needs_and_checkpoints_its_sets():
    simple, balls = (
        sets.Intersection(sets.Simplex(), sets.Box(0, 0.5)),
        sets.Intersection(sets.PSD(), sets.SpectralBall(1.0)),
    )
    assert sets.Intersection(sets.Halfspace(1.0, 1.0), sets.Hyperplane(ROW, 0.0)).needs == "inverse"
    assert simple.needs == balls.needs == "diagonal"
    assert balls.scalar_metric
    assert not simple.scalar_metric
    assert sets.Intersection(sets.Box(0, 1), sets.NonNegative()).separable
    assert not simple.separable
    assert not simple.bounded
    nested = sets.Intersection(simple, sets.Halfspace(ROW, 1.0))
    stored = io.BytesIO()
    torch.save(nested.spec(), stored)
    stored.seek(0)
    found = sets.ConvexSet.find(torch.load(stored, weights_only=True))
    assert found == nested
    assert hash(found) == hash(nested)
    assert found != sets.Intersection(simple, sets.Halfspace(2 * ROW, 1.0))
    assert nested != simple
    y = numbers(0, (N,))
    assert torch.equal(found.argmin(y, 1.0), nested.argmin(y, 1.0))
    x = balls.argmin(numbers(1, (4, 4)), 1.0)
    assert torch.linalg.eigvalsh(x).amin() > -1e-12
    assert torch.linalg.eigvalsh(x).amax() < 1 + 1e-12


def test_a_set_of_ones_own_in_an_intersection():
    class Rising(sets.ConvexSet):
        def argmin(self, y, d):
            d = torch.as_tensor(d).expand_as(y)
            mean = (d * y).sum() / d.sum()
            return torch.where(y[0] > y[-1], mean, y)

    try:
        part = sets.Intersection(Rising(), sets.Simplex())
        torch.testing.assert_close(part.argmin(torch.tensor([0.9, 0.3]), 1.0), torch.tensor([0.5, 0.5]))
    finally:
        del sets.ConvexSet._names["Rising"]


# ------------------------------------------------------------------------------------------------------- equal to cvxpy


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_equals_cvxpy(seed):
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


# ------------------------------------------------------------------------------------------------------ training

SQUARE = {
    "Polyhedron": (sets.Polyhedron(numbers(0, (6, 16)), numbers(1, (6,)).abs()), None),
    "DoublyStochastic": (sets.DoublyStochastic(), None),
    "transport": (sets.DoublyStochastic(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.3, 0.3, 0.2, 0.2])), None),
    "convex rows": (sets.Ordered("convex", low=-0.3, high=1.0), None),
    "PSD": (sets.PSD(), "GradientNorm"),
    "Spectrahedron": (sets.Spectrahedron(), "GradientNorm"),
    "Correlation": (sets.Correlation(), "GradientNorm"),
    "Intersection of rows": (
        sets.Intersection(sets.Simplex(dim=None), sets.Halfspace(numbers(2, (4, 4)), -0.1), sets.Box(0, 0.2)),
        None,
    ),
    "Intersection of balls": (sets.Intersection(sets.L1Ball(2.0), sets.L2Ball(0.8)), None),
}


def training(name, dtype=torch.float32):
    part, matrix = SQUARE[name]
    x = torch.nn.Parameter(numbers(7, (4, 4)).to(dtype))
    opt = SuperAdam([x], lr=0.1, constraint=part, **({} if matrix is None else {"matrix": matrix}))
    target = numbers(8, (4, 4)).to(dtype)

    def step(t):
        x.grad = x.detach() - target + 0.3 * numbers(1000 + t, (4, 4)).to(dtype)
        opt.step()

    return x, opt, step


@pytest.mark.parametrize("name", SQUARE)
@pytest.mark.parametrize("steps", [25, pytest.param(10_000, marks=pytest.mark.slow)])
def test_every_iterate_is_feasible_in_float32(name, steps):
    _, opt, step = training(name)
    worst = opt.feasibility()
    for t in range(steps):
        step(t)
        worst = max(worst, opt.feasibility())
    assert worst < 4e-6


@pytest.mark.parametrize("name", SQUARE)
def test_resumed_equals_uninterrupted(name):
    x, opt, step = training(name)
    for t in range(5):
        step(t)
    stored = io.BytesIO()
    torch.save({"x": x.detach().clone(), "opt": opt.state_dict()}, stored)
    for t in range(5, 10):
        step(t)
    stored.seek(0)
    kept = torch.load(stored, weights_only=True)
    again, other, step = training(name)
    other.load_state_dict(kept["opt"])
    again.data.copy_(kept["x"])
    for t in range(5, 10):
        step(t)
    if "balls" in name:  # whose extrapolation has rounding errors that depend on where memory is
        torch.testing.assert_close(again, x, rtol=0, atol=1e-7)
    else:
        assert torch.equal(again, x)


def test_a_polyhedron_goes_with_every_matrix_and_an_intersection_of_rows_too():
    for part in (SQUARE["Polyhedron"][0], sets.Intersection(sets.Hyperplane(1.0, 1.0), SQUARE["Polyhedron"][0])):
        for matrix in (matrices.SOAP(), matrices.PSGDKron(), matrices.GradientNorm(), matrices.SecondMoment()):
            x = torch.nn.Parameter(numbers(7, (4, 4)))
            opt = SuperAdam([x], lr=0.1, constraint=part, matrix=matrix)
            for t in range(5):
                x.grad = numbers(t, (4, 4))
                opt.step()
            assert opt.feasibility() < 1e-9


# ------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: sets.Polyhedron(torch.ones(2, 3), torch.ones(3)), r"\(m, n\)"),
        (lambda: sets.Polyhedron(torch.zeros(1, 3), torch.ones(1)), "rows that are not 0"),
        (lambda: sets.Polyhedron(torch.ones(1, 3) / 0, torch.ones(1)), "finite"),
        (
            lambda: sets.Polyhedron(torch.tensor([[1.0], [-1.0]]), torch.tensor([-1.0, -1.0])),
            "the set is empty.*[0, 1]",
        ),
        (lambda: sets.Polyhedron(torch.ones(1, 3), torch.ones(1)).argmin(torch.ones(4), 1.0), "3 coordinates.* has 4"),
        (lambda: sets.DoublyStochastic(-1.0), "rows >= 0"),
        (lambda: sets.DoublyStochastic(1.0, torch.tensor([torch.nan])), "finite"),
        (lambda: sets.DoublyStochastic(1.0, 1.0).argmin(torch.ones(2, 3), 1.0), "rows sum to 2, the columns to 3"),
        (lambda: sets.DoublyStochastic(torch.ones(3)).argmin(torch.ones(2, 3), 1.0), "rows of shape .* do not fit"),
        (lambda: sets.DoublyStochastic().argmin(torch.ones(3), 1.0), r"a set of matrices.*\(3,\)"),
        (lambda: sets.Spectrahedron(-1.0), "0 <= trace"),
        (lambda: sets.Intersection(), "one after the other"),
        (lambda: sets.Intersection([sets.Simplex(), sets.Box(0, 1)]), "one after the other"),
        (lambda: sets.Intersection(sets.Box(0, 1), sets.Box(2, 3)).argmin(torch.zeros(3), 1.0), "empty"),
        (
            lambda: sets.Intersection(sets.Hyperplane(1.0, 1.0), sets.Hyperplane(1.0, 2.0)).argmin(torch.zeros(3), 1.0),
            "equations .1. contradict",
        ),
        (
            lambda: sets.Intersection(sets.Box(0, 0.1), sets.Simplex()).argmin(torch.zeros(3), 1.0),
            "no point of Box that meets all rows",
        ),
    ],
)
def test_impossible_sets_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_sets_that_do_not_meet(monkeypatch):
    with pytest.raises(ValueError, match=r"was found in L2Ball.*: the nearest one is 4\.19615 from its center"):
        sets.Intersection(sets.L2Ball(1.0), sets.L2Ball(1.0, center=3.0)).argmin(torch.ones(3), 1.0)
    monkeypatch.setattr("superadam.sets.intersection.MAX_SWEEPS", 50)
    with pytest.raises(ValueError, match="the Intersection of L1Ball, Box was not solved in 50 rounds"):
        sets.Intersection(sets.L1Ball(1.0), sets.Box(-3.0, -2.0)).argmin(torch.ones(3), 1.0)


def test_a_set_that_is_missing_is_an_error_that_says_how_to_write_it():
    with pytest.raises(
        ValueError, match=r"Unknown constraint 'Polytope'.*argmin\(self, y, d\).*Intersection.*Your own set"
    ):
        SuperAdam([torch.nn.Parameter(torch.ones(2))], constraint="Polytope")
    with pytest.raises(AttributeError, match=r"no 'Simplx': did you mean 'Simplex'\?.*Intersection"):
        sets.Simplx  # noqa: B018
    assert not hasattr(sets, "__wrapped__")

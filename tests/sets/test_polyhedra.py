"""Polyhedra and convex sequences: the conditions of line 9, starts from the last rows."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from sets.coupled import from_cone, metric, nearly, numbers
from superadam import sets

PROPERTY = settings(deadline=None)


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

"""Doubly stochastic matrices and transport plans."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment, linprog

from sets.coupled import metric, nearly, numbers
from superadam import sets

PROPERTY = settings(deadline=None)


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

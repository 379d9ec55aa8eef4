"""The exact step of line 9 on simplices, with and without bounds."""

from fractions import Fraction

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sets.conditions import check_slices, kkt_simplex, problems
from sets.wide import DIMS, all_scales, bound, check_rows, sizes, water_level
from superadam import sets


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


PROPERTY = settings(deadline=None)


@PROPERTY
@given(all_scales(), DIMS)
def test_simplex_over_the_whole_range(problem, dim):
    total = Fraction(problem[2])
    check_rows(sets.Simplex(problem[2], dim), problem, dim, lambda y, d: (water_level(y, d, total), sizes(y, total)))


@PROPERTY
@given(all_scales(), DIMS, st.sampled_from([1.5, 20.0]))
def test_capped_simplex_over_the_whole_range(problem, dim, room):
    y, total = problem[0], Fraction(problem[2])
    n = y.numel() if dim is None else y.shape[dim]
    cap = float(torch.tensor(room * problem[2] / n, dtype=y.dtype))
    part = sets.CappedSimplex(problem[2], cap, dim)
    check_rows(part, problem, dim, lambda y, d: (water_level(y, d, total, Fraction(cap)), sizes(y, total)))


def test_orders_of_magnitude_in_a_large_metric():
    """Rounding errors of the many coordinates with small d are not taken for a sum that has to be brought down."""
    for seed in range(10):
        gen = torch.Generator().manual_seed(seed)
        y = torch.randn(10**5, generator=gen).clamp(-1, 1)
        d = torch.where(torch.rand(10**5, generator=gen) < 0.5, 2e-6, 1e6)
        for part in (sets.Simplex(), sets.L1Ball(1.0)):
            x = part.argmin(y, d)
            assert part.violation(x) < 1e-6
            torch.testing.assert_close(x, part.argmin(y.double(), d.double()).float(), rtol=1e-5, atol=1e-6)


@PROPERTY
@given(all_scales(), DIMS, st.sampled_from([-1.0, 0.02, 0.05]), st.sampled_from([1.5, 20.0]))
def test_capped_simplex_with_lower_bounds(problem, dim, low, room):
    y, total = problem[0], Fraction(problem[2])
    n = y.numel() if dim is None else y.shape[dim]
    cap, low = bound(room / n, problem[2], y.dtype), bound(low, problem[2], y.dtype)
    part = sets.CappedSimplex(problem[2], cap, dim, low=low)

    def exact(y, d):
        least = Fraction(low)
        shifted = water_level([v - least for v in y], d, total - n * least, Fraction(cap) - least)
        return [v + least for v in shifted], [s + abs(least) for s in sizes(y, total)]

    check_rows(part, problem, dim, exact)


def test_tensors_as_lower_bounds():
    low, cap = torch.tensor([0.1, 0.2, 0.0]).double(), torch.tensor([0.5, 0.4, 1.0]).double()
    y, d = torch.tensor([2.0, -1.0, 0.3]).double(), torch.tensor([1.0, 2.0, 4.0]).double()
    x = sets.CappedSimplex(1.0, cap, low=low).argmin(y, d)
    torch.testing.assert_close(x, sets.BoxSection(1.0, 1.0, low, cap).argmin(y, d))
    torch.testing.assert_close(x, torch.tensor([0.5, 0.2, 0.3]).double())

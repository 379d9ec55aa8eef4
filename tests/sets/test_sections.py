"""The exact step of line 9 on sections of boxes."""

import math
from fractions import Fraction

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sets.conditions import TOL
from sets.wide import DIMS, all_scales, bound, interpolated, rows, solve
from superadam import sets

PROPERTY = settings(deadline=None)


def section(y, d, a, b, lo, hi):
    def at(theta):
        free = [v - theta * c / w for v, c, w in zip(y, a, d, strict=True)]
        return [min(max(v, low), high) for v, low, high in zip(free, lo, hi, strict=True)]

    corners = [
        (v - bound) * w / c
        for v, w, c, *bounds in zip(y, d, a, lo, hi, strict=True)
        for bound in bounds
        if c and math.isfinite(bound)
    ]
    theta = interpolated(lambda t: sum(c * v for c, v in zip(a, at(t), strict=True)), corners or [Fraction(0)], b)
    return at(theta)


@PROPERTY
@given(
    all_scales(),
    DIMS,
    st.integers(0, 100),
    st.sampled_from([(-1.0, 1.0), (0.0, None), (None, 2.0), (-3.0, 0.5), (None, None)]),
)
def test_box_section(problem, dim, seed, ends):
    y, gen = problem[0], torch.Generator().manual_seed(seed)
    a = torch.randn(y.shape, generator=gen).round(decimals=1).to(y.dtype)
    a[(0,) * y.dim()] = 1.0
    a = a.abs() if dim is not None else a  # so that the rows with the same b are not empty
    a = torch.where(a.abs() < 0.3, 0.0 if dim is None else 1.0, a)
    lo, hi = (None if end is None else bound(end, problem[2], y.dtype) for end in ends)
    b = bound(0.1, problem[2], y.dtype)
    part = sets.BoxSection(a, b, lo, hi, dim)
    low, high = -math.inf if lo is None else Fraction(lo), math.inf if hi is None else Fraction(hi)
    x = solve(part, *problem[:2], root=problem[3], scratch=problem[4])
    for of_y, of_d, of_a, of_x in rows(dim, y, problem[1], a, x):
        n, size = len(of_y), Fraction(problem[2])
        answer = section(of_y, of_d, of_a, Fraction(b), [low] * n, [high] * n)
        tol = Fraction(TOL[y.dtype])
        moved = max(abs(u - v) for u, v in zip(answer, of_y, strict=True)) if lo is None or hi is None else 0
        for u, v, w in zip(of_x, answer, of_y, strict=True):
            own = abs(w) if abs(w) <= 10**9 * size or lo is None or hi is None else 0
            assert abs(u - v) <= tol * (size + own + abs(v) + moved)
            assert low <= u <= high
        terms = [c * v for c, v in zip(of_a, of_x, strict=True)]
        assert abs(sum(terms) - Fraction(b)) <= tol * (abs(Fraction(b)) + sum(map(abs, terms)))


def test_a_section_with_coordinates_that_do_not_count():
    a = torch.tensor([0.0, 1.0, 2.0])
    x = sets.BoxSection(a, 3.0, -1.0, 2.0).argmin(torch.tensor([-5.0, 1.0, 1.0]), 1.0)
    assert x.tolist() == [-1.0, 1.0, 1.0]
    g = torch.tensor([1.0, 0.5, 4.0])
    assert sets.BoxSection(a, 3.0, -1.0, 2.0).lmo(g).tolist() == [-1.0, 2.0, 0.5]

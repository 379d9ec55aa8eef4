"""The exact step of line 9 on balls of vectors."""

from fractions import Fraction

import mpmath
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sets.conditions import check_slices, kkt_simplex, problems, relative
from sets.wide import DIMS, all_scales, big, check_rows, fraction, root_of, sizes, water_level
from superadam import sets


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


PROPERTY = settings(deadline=None)


def exact_l2(r, y, d):
    if sum(v * v for v in y) <= r * r:
        return y
    with mpmath.workdps(60):
        p, q, top = big(y), big(d), mpmath.mpf(r.numerator) / r.denominator
        size = mpmath.sqrt(sum(v * v for v in p)) / top
        nu = root_of(
            lambda nu: sum((a * b / (b + nu)) ** 2 for a, b in zip(p, q, strict=True)) - top**2,
            min(q) * 1e-40,
            max(q) * size,
        )
        return [fraction(a * b / (b + nu)) for a, b in zip(p, q, strict=True)]


@PROPERTY
@given(all_scales(), DIMS)
def test_l1_ball_over_the_whole_range(problem, dim):
    r = Fraction(problem[2])

    def exact(y, d):
        size = [abs(v) for v in y]
        if sum(size) <= r:
            return y, sizes(y, r)
        return [v if a > 0 else -v for v, a in zip(water_level(size, d, r), y, strict=True)], sizes(y, r)

    check_rows(sets.L1Ball(problem[2], dim), problem, dim, exact)


@PROPERTY
@given(all_scales(), DIMS, st.sampled_from([0.0, 1.5, -1e4]))
def test_l2_ball_over_the_whole_range(problem, dim, shift):
    y, r = problem[0], Fraction(problem[2])
    shift = float(torch.tensor(shift * problem[2], dtype=y.dtype))
    center = Fraction(shift)

    def exact(y, d):
        return [v + center for v in exact_l2(r, [v - center for v in y], d)], r + abs(center)

    check_rows(sets.L2Ball(problem[2], shift, dim), problem, dim, exact)

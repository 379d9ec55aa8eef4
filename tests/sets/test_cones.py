"""The exact step of line 9 on second-order cones."""

from fractions import Fraction

import mpmath
from hypothesis import given, settings
from hypothesis import strategies as st

from sets.wide import DIMS, all_scales, big, check_rows, fraction, root_of
from superadam import sets

PROPERTY = settings(deadline=None)


def exact_cone(y, d):
    with mpmath.workdps(60):
        (*u, s), (*w, last) = big(y), big(d)
        if mpmath.norm(u) <= s if u else s >= 0:
            return y
        if not u or mpmath.norm([a * b for a, b in zip(u, w, strict=True)]) <= -last * s:
            return [Fraction(0)] * len(y)
        above = max(s, mpmath.mpf(0))

        def excess(c):
            t = above + c
            return sum((a * b / (b * t + last * (t - s))) ** 2 for a, b in zip(u, w, strict=True)) - 1

        size = mpmath.norm(u)
        c = root_of(excess, size * mpmath.mpf(10) ** -150, size + above)
        t = above + c
        x = [a * b * t / (b * t + last * (t - s)) for a, b in zip(u, w, strict=True)]
        return [*map(fraction, x), fraction(t)]


@PROPERTY
@given(all_scales(), DIMS, st.sampled_from([-1.0, 1.0]))
def test_second_order_cone(problem, dim, sign):
    y = problem[0].clone()
    last = y.flatten()[-1:] if dim is None else y.select(dim, -1)
    last.mul_(sign)

    def exact(y, d):
        x = exact_cone(y, d)
        return x, max(map(abs, x)) + abs(y[-1])

    check_rows(sets.SecondOrderCone(dim), (y, *problem[1:]), dim, exact)

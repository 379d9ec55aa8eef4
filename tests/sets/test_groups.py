"""The exact step of line 9 on balls of groups."""

from fractions import Fraction

import mpmath
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sets.conditions import TOL
from sets.wide import all_scales, big, interpolated, rows, solve
from superadam import sets

PROPERTY = settings(deadline=None)


@st.composite
def grouped(draw):
    """A problem of three groups of four, in the order of its dimensions, and the dimension of a group."""
    problem = draw(all_scales().filter(lambda p: p[0].shape == (3, 4)))
    return problem, draw(st.sampled_from([0, 1]))


def exact_l1_inf(r, y, d):
    """y and d are lists of groups. λ by interpolation; the largest of each group by its own equation."""
    if sum(max(map(abs, row)) for row in y) <= r:
        return y

    def height(row, weights, lam):
        if sum(abs(v) * w for v, w in zip(row, weights, strict=True)) <= lam:
            return Fraction(0)
        at = interpolated(
            lambda m: sum(w * max(abs(v) - m, 0) for v, w in zip(row, weights, strict=True)),
            [abs(v) for v in row] + [Fraction(0)],
            lam,
        )
        return max(at, Fraction(0))

    corners = [
        sum(w * max(abs(v) - m, 0) for v, w in zip(row, weights, strict=True))
        for row, weights in zip(y, d, strict=True)
        for m in [*map(abs, row), Fraction(0)]
    ]
    groups = list(zip(y, d, strict=True))
    lam = interpolated(lambda lam: sum(height(*group, max(lam, Fraction(0))) for group in groups), corners, r)
    tops = [height(*group, lam) for group in groups]
    return [[min(max(v, -top), top) for v in row] for row, top in zip(y, tops, strict=True)]


@PROPERTY
@given(grouped())
def test_l1_inf_ball(of):
    (y, d, length, root, scratch), group = of
    r = Fraction(length)
    x = solve(sets.L1InfBall(length, group), y, d, root, scratch)
    groups = list(rows(group, y, d, x))
    answer = exact_l1_inf(r, [row[0] for row in groups], [row[1] for row in groups])
    tol, largest = Fraction(TOL[y.dtype]), max(abs(v) for row in groups for v in row[0])
    for (_, _, found), wanted in zip(groups, answer, strict=True):
        for u, v in zip(found, wanted, strict=True):
            assert abs(u - v) <= tol * r + Fraction(1e-14) * largest
    assert sum(max(map(abs, row[2])) for row in groups) <= r * (1 + tol)


def kkt_groups(r, y, d, x, tol):
    """The largest violation of the optimality conditions, relative to r and, far outside, to y; in many digits."""
    scale = r + 1e-14 / tol * max(abs(v) for row in y for v in row)
    norm = [mpmath.norm(row) for row in y]
    if sum(norm) <= r:
        return max(abs(u - v) for a, b in zip(x, y, strict=True) for u, v in zip(a, b, strict=True)) / scale
    rho = [mpmath.norm(row) for row in x]
    worst = max(abs(sum(rho) - r) / scale, sum(rho) / r - 1)  # on the border up to rounding errors of y, never outside
    # x (1 + λ / (d ρ)) = y, from the coordinate that says most.
    coordinates = [
        (min(abs(v - u), abs(u)), (v - u) * w * size / u)
        for row, weights, point, size in zip(y, d, x, rho, strict=True)
        for v, w, u in zip(row, weights, point, strict=True)
        if u != 0
    ]
    lam = max(coordinates)[1]
    for row, weights, point, size in zip(y, d, x, rho, strict=True):
        push = mpmath.norm([v * w for v, w in zip(row, weights, strict=True)])
        if size == 0:
            worst = max(worst, (push / lam - 1) * r / scale)
            continue
        wanted = [v / (1 + lam / (w * size)) for v, w in zip(row, weights, strict=True)]
        worst = max(worst, *(abs(u - v) / scale for u, v in zip(point, wanted, strict=True)))
    return worst


# Three groups that are alike, so far outside that λ has no digits left in which they differ.
ALIKE = 1e15 * torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 1.0, 1.0], [1.0, 0.0, 0.0, 1.0]])


@PROPERTY
@example(((ALIKE, torch.ones(3, 4), 1.0, None, False), 0))
@given(grouped())
def test_group_l1_ball(of):
    (y, d, length, root, scratch), group = of
    x = solve(sets.GroupL1Ball(length, group), y, d, root, scratch)
    with mpmath.workdps(60):
        groups = [[big(values) for values in row] for row in rows(group, y, d, x)]
        residual = kkt_groups(mpmath.mpf(length), *([row[i] for row in groups] for i in range(3)), TOL[y.dtype])
    assert residual <= 10 * TOL[y.dtype]


def test_groups_of_one_coordinate_are_the_l1_ball_and_one_group_is_one_norm():
    gen = torch.Generator().manual_seed(0)
    y = 3 * torch.randn(5, 4, generator=gen, dtype=torch.float64)
    d = 10 ** (4 * torch.rand(5, 4, generator=gen, dtype=torch.float64) - 2)
    for kind in (sets.GroupL1Ball, sets.L1InfBall):
        alone = kind(2.0, group=2, dim=None).argmin(y[..., None], d[..., None])[..., 0]
        torch.testing.assert_close(alone, sets.L1Ball(2.0).argmin(y, d), rtol=1e-10, atol=1e-12)
        rows_ = kind(2.0, group=2, dim=(1, 2)).argmin(y[..., None], d[..., None])[..., 0]
        torch.testing.assert_close(rows_, sets.L1Ball(2.0, dim=1).argmin(y, d), rtol=1e-10, atol=1e-12)
    one = sets.GroupL1Ball(2.0, group=(0, 1)).argmin(y, d)
    torch.testing.assert_close(one, sets.L2Ball(2.0).argmin(y, d), rtol=1e-10, atol=1e-12)
    one = sets.L1InfBall(2.0, group=(0, 1)).argmin(y, d)
    torch.testing.assert_close(one, sets.LInfBall(2.0).argmin(y, d), rtol=1e-10, atol=1e-12)

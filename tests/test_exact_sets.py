"""Line 9 on sections of boxes, ordered slices, balls of groups, cones and spheres: equal to the exact answer.

Over the whole range of numbers, as in test_range.py: d over 24 orders of magnitude and more, in rational numbers where
the answer is linear in pieces, in 60 digits elsewhere.
"""

import math
from fractions import Fraction

import mpmath
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from superadam import Monitor, SuperAdam, iterates, schedules, sets, theory
from superadam.sets import ordered
from test_range import DIMS, MAX, PROPERTY, TOL, big, check_rows, fraction, level, problems, root_of, rows, sizes, solve

# --------------------------------------------------------------------------------------------------------- sections


def interpolated(decreasing, corners, total):
    """Where a function that is linear between the corners has this value; beyond them it is linear as well."""
    corners = sorted(set(corners))
    corners = [corners[0] - 1, *corners, corners[-1] + 1]
    lo, hi = 0, len(corners) - 1
    while hi - lo > 1:
        mid = (lo + hi) // 2
        lo, hi = (mid, hi) if decreasing(corners[mid]) >= total else (lo, mid)
    more, less = decreasing(corners[lo]), decreasing(corners[hi])
    if more == less:
        return corners[lo]
    return corners[lo] + (corners[hi] - corners[lo]) * (more - total) / (more - less)


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


def bound(value, scale, dtype):
    return float(torch.tensor(value * scale, dtype=dtype))


@PROPERTY
@given(
    problems(),
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


@PROPERTY
@given(problems(), DIMS, st.sampled_from([-1.0, 0.02, 0.05]), st.sampled_from([1.5, 20.0]))
def test_capped_simplex_with_lower_bounds(problem, dim, low, room):
    y, total = problem[0], Fraction(problem[2])
    n = y.numel() if dim is None else y.shape[dim]
    cap, low = bound(room / n, problem[2], y.dtype), bound(low, problem[2], y.dtype)
    part = sets.CappedSimplex(problem[2], cap, dim, low=low)

    def exact(y, d):
        least = Fraction(low)
        shifted = level([v - least for v in y], d, total - n * least, Fraction(cap) - least)
        return [v + least for v in shifted], [s + abs(least) for s in sizes(y, total)]

    check_rows(part, problem, dim, exact)


def test_tensors_as_lower_bounds():
    low, cap = torch.tensor([0.1, 0.2, 0.0]).double(), torch.tensor([0.5, 0.4, 1.0]).double()
    y, d = torch.tensor([2.0, -1.0, 0.3]).double(), torch.tensor([1.0, 2.0, 4.0]).double()
    x = sets.CappedSimplex(1.0, cap, low=low).argmin(y, d)
    torch.testing.assert_close(x, sets.BoxSection(1.0, 1.0, low, cap).argmin(y, d))
    torch.testing.assert_close(x, torch.tensor([0.5, 0.2, 0.3]).double())


def test_a_section_with_coordinates_that_do_not_count():
    a = torch.tensor([0.0, 1.0, 2.0])
    x = sets.BoxSection(a, 3.0, -1.0, 2.0).argmin(torch.tensor([-5.0, 1.0, 1.0]), 1.0)
    assert x.tolist() == [-1.0, 1.0, 1.0]
    g = torch.tensor([1.0, 0.5, 4.0])
    assert sets.BoxSection(a, 3.0, -1.0, 2.0).lmo(g).tolist() == [-1.0, 2.0, 0.5]


# ---------------------------------------------------------------------------------------------------------- ordered


def pooled(y, d):
    """Pool adjacent violators, one after the other."""
    blocks = []
    for value, weight in zip(y, d, strict=True):
        blocks.append((value, weight, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (a, v, n), (b, w, m) = blocks.pop(-2), blocks.pop()
            blocks.append(((a * v + b * w) / (v + w), v + w, n + m))
    return [value for value, _, n in blocks for _ in range(n)]


def size_of_mean(y, d, x):
    """Σ d |y| / Σ d of each block: what its rounding errors are relative to."""
    sums = {}
    for v, w, at in zip(y, d, x, strict=True):
        S, W = sums.get(at, (0, 0))
        sums[at] = S + abs(v) * w, W + w
    return [sums[at][0] / sums[at][1] for at in x]


@PROPERTY
@given(problems(), DIMS, st.sampled_from(["increasing", "decreasing"]), st.sampled_from([(None, None), (-0.5, 1.0)]))
def test_ordered(problem, dim, order, ends):
    sign, (lo, hi) = 1 if order == "increasing" else -1, ends

    def exact(y, d):
        x = [sign * v for v in pooled([sign * v for v in y], d)]
        size = size_of_mean(y, d, x)
        return x if lo is None else [min(max(v, Fraction(lo)), Fraction(hi)) for v in x], size

    check_rows(sets.Ordered(order, lo, hi, dim), problem, dim, exact)


LONG = {
    "noise": lambda n, noise: noise,
    "trend": lambda n, noise: torch.linspace(0, 1, n).double() + 0.1 * noise,
    "a few outliers": lambda n, noise: torch.linspace(0, 1, n).double() + noise * (noise > 2.2) * 0.1,
    "reversed": lambda n, noise: torch.linspace(1, 0, n).double(),
    "one drop": lambda n, noise: torch.linspace(0, 2, n).double() % 1,
    "drop at the end": lambda n, noise: torch.cat([2 ** torch.linspace(0, 20, n - 1).double(), torch.zeros(1)]),
    "saw": lambda n, noise: torch.linspace(0, 1, n).double() + torch.arange(n) % 50 * 1e-2,
    "ties": lambda n, noise: noise.round(),
}


@pytest.mark.parametrize("rows_", [1, 7])
@pytest.mark.parametrize("name", LONG)
def test_long_ordered_slices_take_few_sweeps(name, rows_, monkeypatch):
    """Equal to pooling one after the other, and no order of the input makes a sweep for each block."""
    gen, n, sweeps = torch.Generator().manual_seed(0), 2000, []
    y = torch.stack([LONG[name](n, torch.randn(n, generator=gen, dtype=torch.float64)) for _ in range(rows_)])
    d = torch.rand(y.shape, generator=gen, dtype=torch.float64) + 0.1
    blocks = ordered._blocks
    monkeypatch.setattr(ordered, "_blocks", lambda *of: sweeps.append(1) or blocks(*of))
    x = sets.Ordered().argmin(y, d)
    assert len(sweeps) <= 40
    exact = torch.tensor([pooled(*row) for row in zip(y.tolist(), d.tolist(), strict=True)], dtype=torch.float64)
    torch.testing.assert_close(x, exact, rtol=1e-10, atol=1e-10)
    assert sets.Ordered().violation(x) == 0
    alone = x == exact  # a block of one coordinate is this coordinate, bit for bit
    assert torch.equal(x[alone & (exact == y)], y[alone & (exact == y)])
    assert torch.equal(sets.Ordered("decreasing").argmin(-y, d), -x)
    assert torch.equal(sets.Ordered("decreasing").argmin(y.flip(-1), d.flip(-1)).flip(-1).sort(-1)[0].diff() >= 0,
                       torch.ones(rows_, n - 1, dtype=torch.bool))  # fmt: skip


def test_a_million_ordered_coordinates_in_float32():
    """Sums of a million terms, in one block."""
    y = torch.linspace(1, 0, 10**6)
    torch.testing.assert_close(sets.Ordered().argmin(y, 2.0), torch.full_like(y, 0.5), rtol=1e-6, atol=0)


@given(st.integers(0, 10**6), st.sampled_from(["increasing", "decreasing"]))
def test_lmo_of_ordered_is_the_best_step(seed, order):
    g = torch.randn(6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).round(decimals=1)
    steps = torch.ones(7, 6, dtype=torch.float64).triu() * 3 - 1  # from -1 to 2, at every place
    steps = steps if order == "increasing" else steps.flip(-1)
    x = sets.Ordered(order, -1.0, 2.0).lmo(g)
    assert sets.Ordered(order, -1.0, 2.0).contains(x, 0.0)
    torch.testing.assert_close(g @ x, (steps @ g).min())


# ----------------------------------------------------------------------------------------------------------- groups


@st.composite
def grouped(draw):
    """A problem of three groups of four, in the order of its dimensions, and the dimension of a group."""
    problem = draw(problems().filter(lambda p: p[0].shape == (3, 4)))
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


# ------------------------------------------------------------------------------------------------- cones and spheres


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
@given(problems(), DIMS, st.sampled_from([-1.0, 1.0]))
def test_second_order_cone(problem, dim, sign):
    y = problem[0].clone()
    last = y.flatten()[-1:] if dim is None else y.select(dim, -1)
    last.mul_(sign)

    def exact(y, d):
        x = exact_cone(y, d)
        return x, max(map(abs, x)) + abs(y[-1])

    check_rows(sets.SecondOrderCone(dim), (y, *problem[1:]), dim, exact)


def exact_sphere(r, y, d):
    """For a y that is not 0 where d is least."""
    with mpmath.workdps(60):
        p, w, top = big(y), big(d), mpmath.mpf(r.numerator) / r.denominator
        least = min(w)
        size = mpmath.norm([a * b for a, b in zip(p, w, strict=True)]) / top
        c = root_of(
            lambda c: sum((a * b / (b - least + c)) ** 2 for a, b in zip(p, w, strict=True)) - top**2,
            size * mpmath.mpf(10) ** -200,
            size * 2,
        )
        return [fraction(a * b / (b - least + c)) for a, b in zip(p, w, strict=True)]


@PROPERTY
@given(problems().filter(lambda p: bool((p[0] != 0).all())), DIMS)
def test_sphere(problem, dim):
    r = Fraction(problem[2])
    check_rows(sets.Sphere(problem[2], dim), problem, dim, lambda y, d: (exact_sphere(r, y, d), r))


def test_a_sphere_without_a_nearest_point():
    """Where y does not say which one, some nearest point."""
    assert sets.Sphere(2.0).argmin(torch.zeros(3), 1.0).tolist() == [2.0, 0.0, 0.0]
    x = sets.Sphere(2.0).argmin(torch.tensor([0.0, 1.0, 0.0]), torch.tensor([3.0, 2.0, 1.0]))
    torch.testing.assert_close(x, torch.tensor([0.0, 2.0, 0.0]))
    x = sets.Sphere(2.0).argmin(torch.tensor([0.0, 0.3, 0.0]), torch.tensor([3.0, 2.0, 1.0]))
    torch.testing.assert_close(x, torch.tensor([0.0, 0.6, math.sqrt(4 - 0.36)]))  # d x + ν x = d y with ν = -1


def test_a_sphere_is_said_not_to_be_convex():
    x = torch.nn.Parameter(torch.tensor([0.0, 2.0]))
    opt = SuperAdam([x], lr=0.1, schedule=schedules.Constant(mu=0.5, alpha=1.0), constraint=sets.Sphere())
    assert x.tolist() == [0.0, 1.0]
    stated = opt.check_theory(theory.Problem(L=1.0, sigma=1.0, rho=None, gap=1.0))
    assert any("not convex" in text for text in stated.outside)
    monitor = Monitor(opt, every=1)
    for _ in range(150):
        x.grad = torch.tensor([-1.0, 0.5])
        opt.step()
        assert opt.feasibility() < 1e-6
    torch.testing.assert_close(x.detach(), torch.tensor([1.0, -0.5]) / math.sqrt(1.25), rtol=1e-3, atol=1e-3)
    assert monitor.history[-1]["feasibility"] < 1e-6
    with pytest.raises(ValueError, match=r"use iterates\.Plain"):
        SuperAdam([x], constraint=sets.Sphere(), iterate=iterates.ScheduleFree())


# ---------------------------------------------------------------------------------------------------- of all of them

EVERY = {
    "BoxSection": sets.BoxSection(torch.tensor([1.0, -2.0, 0.5, 3.0, 1.0, 0.0]), 0.4, -0.5, 1.0),
    "BoxSection of rows": sets.BoxSection(2.0, 1.0, 0.0, 0.3, dim=-1),
    "CappedSimplex": sets.CappedSimplex(1.0, 0.3, low=0.05),
    "Ordered": sets.Ordered(),
    "Ordered, bounds": sets.Ordered("decreasing", 0.0, 1.0),
    "GroupL1Ball": sets.GroupL1Ball(1.5),
    "L1InfBall": sets.L1InfBall(1.0),
    "SecondOrderCone": sets.SecondOrderCone(),
    "Sphere": sets.Sphere(dim=-1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EVERY if name != "Sphere"])
@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")  # its distance from ours is what is tested
def test_equals_cvxpy(name):
    cp = pytest.importorskip("cvxpy")
    part, gen = EVERY[name], torch.Generator().manual_seed(0)
    for _ in range(10):
        y = 2 * torch.randn(4, 6, generator=gen, dtype=torch.float64)
        d = 3 * torch.rand(4, 6, generator=gen, dtype=torch.float64) + 0.2
        X = cp.Variable((4, 6))
        a = torch.ones(6) if name != "BoxSection" else part.a
        conditions = {
            "BoxSection": [cp.sum(cp.multiply(a.expand(4, 6).numpy(), X)) == 0.4, X >= -0.5, X <= 1],
            "BoxSection of rows": [2 * cp.sum(X, axis=1) == 1, X >= 0, X <= 0.3],
            "CappedSimplex": [cp.sum(X, axis=1) == 1, X >= 0.05, X <= 0.3],
            "Ordered": [X[:, 1:] >= X[:, :-1]],
            "Ordered, bounds": [X[:, 1:] <= X[:, :-1], X >= 0, X <= 1],
            "GroupL1Ball": [cp.sum(cp.norm(X, 2, axis=1)) <= 1.5],
            "L1InfBall": [cp.sum(cp.max(cp.abs(X), axis=1)) <= 1],
            "SecondOrderCone": [cp.norm(X[i, :-1]) <= X[i, -1] for i in range(4)],
        }[name]
        goal = cp.Minimize(cp.sum_squares(cp.multiply(d.sqrt().numpy(), X - y.numpy())))
        least = cp.Problem(goal, conditions).solve(solver="CLARABEL")
        x = part.argmin(y, d)
        # An interior point is near the least value, and by its square root near x.
        assert abs(float((d * (x - y).square()).sum()) - least) < 1e-6 * (1 + least)
        torch.testing.assert_close(x, torch.from_numpy(X.value), rtol=0, atol=1e-3)


@pytest.mark.parametrize("steps", [150, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", EVERY)
def test_every_iterate_stays_feasible_in_float32(name, steps):
    gen = torch.Generator().manual_seed(0)
    x = torch.randn(3, 6, generator=gen).requires_grad_()
    opt = SuperAdam([x], lr=0.1, schedule="Paper", constraint=EVERY[name])
    target, worst = 2 * torch.randn(3, 6, generator=gen), 0.0
    for _ in range(steps):
        x.grad = x.detach() - target + 0.1 * torch.randn(3, 6, generator=gen)
        opt.step()
        worst = max(worst, opt.feasibility())
    assert worst < 2e-6


@pytest.mark.parametrize("name", EVERY)
def test_resumed_equals_uninterrupted(name, tmp_path):
    gen = torch.Generator().manual_seed(0)
    start, grads = torch.randn(3, 6, generator=gen), torch.randn(8, 3, 6, generator=gen)

    def run(x, opt, some):
        for g in some:
            x.grad = g.clone()
            opt.step()
        return x.detach().clone()

    x = start.clone().requires_grad_()
    opt = SuperAdam([x], lr=0.3, constraint=EVERY[name])
    half = run(x, opt, grads[:4])
    torch.save(opt.state_dict(), tmp_path / "opt.pt")
    whole = run(x, opt, grads[4:])
    x = half.clone().requires_grad_()
    opt = SuperAdam([x], lr=0.3, constraint=EVERY[name])
    opt.load_state_dict(torch.load(tmp_path / "opt.pt", weights_only=True))
    x.data.copy_(half)
    assert torch.equal(run(x, opt, grads[4:]), whole)


@pytest.mark.parametrize("name", [name for name in EVERY if name not in ("BoxSection", "Ordered", "SecondOrderCone")])
def test_violation_of_the_largest_numbers_is_finite(name):
    for sign in (1, -1):
        assert EVERY[name].violation(torch.full((2, 6), sign * MAX)).isfinite()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: sets.BoxSection(0.0, 1.0), "a != 0"),
        (lambda: sets.BoxSection(1.0, math.inf), "finite"),
        (lambda: sets.BoxSection(1.0, 1.0, 1.0, 0.0), "low <= high"),
        (lambda: sets.BoxSection(1.0, 4.0, 0.0, 1.0).argmin(torch.zeros(3), 1.0), r"aᵀx is 0 to 3, never b = 4"),
        (lambda: sets.BoxSection(1.0, 4.0, 0.0).lmo(torch.ones(3)), "not bounded"),
        (lambda: sets.CappedSimplex(1.0, 0.1, low=0.2), "low <= cap"),
        (lambda: sets.CappedSimplex(1.0, 1.0, low=0.4).argmin(torch.zeros(3), 1.0), "bounds sum to 1.2, more than"),
        (lambda: sets.Ordered("bent"), "'increasing', 'decreasing', 'convex' or 'concave'"),
        (lambda: sets.Ordered("convex", 0.0).lmo(torch.ones(3)), "Give it low and high"),
        (lambda: sets.Ordered("convex").argmin(torch.ones(2, 501), 1.0), "at most 500 coordinates, and these have 501"),
        (lambda: sets.Ordered(low=1.0, high=0.0), "low <= high"),
        (lambda: sets.Ordered(low=1.0).lmo(torch.ones(3)), "Give it low and high"),
        (lambda: sets.GroupL1Ball(-1.0), "0 <= r"),
        (lambda: sets.L1InfBall(1.0, group=None), "dimensions of a group"),
        (lambda: sets.GroupL1Ball(1.0, group=1, dim=0).argmin(torch.ones(2, 2), 1.0), "must include the dimensions"),
        (lambda: sets.Sphere(0.0), "0 < r"),
    ],
)
def test_impossible_sets_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()

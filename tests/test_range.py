"""Line 9 over the whole range of numbers: y up to the largest float32, d from 1e-30 to 1e30, warm starts of any size.

The answer is compared with one computed exactly, in rational numbers where the equations are linear in pieces and in
many digits elsewhere.
"""

import math
from fractions import Fraction

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from superadam import penalties, sets
from superadam.penalties import combined_argmin
from superadam.sets import groups, levels, roots, sections, simplices
from test_penalties import exact_fused

TOL = {torch.float64: 1e-9, torch.float32: 1e-5}
PROPERTY = settings(deadline=None)
MAX = torch.finfo(torch.float32).max
TINY = Fraction(1e-36)  # about here float32 begins to have less digits

# ------------------------------------------------------------------------------------------------------------- inputs


def magnitudes(gen, shape, center, spread):
    """10 to a power within spread/2 of the center."""
    return 10 ** (center + spread * (torch.rand(shape, generator=gen, dtype=torch.float64) - 0.5))


@st.composite
def problems(draw):
    """y, d, a length that belongs to a set, a root to start from, and whether y and d may be written into."""
    shape = draw(st.sampled_from([(1,), (6,), (2, 3), (3, 4)]))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    gen = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    spread = draw(st.sampled_from([0, 1, 12, 76]))
    y = magnitudes(gen, shape, draw(st.integers(-38, 38)), spread).clamp(max=draw(st.sampled_from([MAX, 1e38])))
    y = y * draw(st.sampled_from([torch.ones(shape), torch.randn(shape, generator=gen).sign()]))
    y = y * (torch.rand(shape, generator=gen) < draw(st.sampled_from([0.0, 0.6, 1.0, 1.0])))
    spread = draw(st.sampled_from([0, 1, 12, 60]))
    d = magnitudes(gen, () if draw(st.booleans()) else shape, draw(st.integers(-30, 30)), spread).clamp(1e-30, 1e30)
    length = 10.0 ** draw(st.sampled_from([0, 0, 0, -6, 6, -20, 20]))
    root = draw(st.sampled_from([None, 0.0, 1.0, -1.0, 1e-30, 1e30, -1e30, MAX, math.inf, math.nan]))
    return y.to(dtype), d.to(dtype), length, root, draw(st.booleans())


def solve(part, y, d, root=None, scratch=False):
    """The answer, with what is true of every one."""
    shape = part.root_shape(y) if isinstance(part, sets.ConvexSet) else None
    memory = {} if shape is None or root is None else {"root": torch.full(shape, root, dtype=y.dtype)}
    x = part.argmin(y.clone(), d.clone(), scratch=scratch, **memory)
    assert x.isfinite().all()
    assert (x.shape, x.dtype) == (y.shape, y.dtype)
    if memory:
        assert memory["root"].isfinite().all() or not math.isfinite(root)
        again = part.argmin(y, d, **memory)  # what was left there does for the next time
        torch.testing.assert_close(again, x, rtol=TOL[y.dtype], atol=TOL[y.dtype] * float(x.abs().max()))
    return x


def rows(dim, *tensors):
    """The slices along `dim`, as lists of exact numbers."""
    shape = tensors[0].shape
    dim = None if dim is None else dim % len(shape)
    for parts in zip(
        *(
            (
                t.expand(shape).flatten()[None]
                if dim is None
                else t.expand(shape).movedim(dim, -1).reshape(-1, shape[dim])
            )
            for t in tensors
        ),
        strict=True,
    ):
        yield [[Fraction(v) for v in part.tolist()] for part in parts]


def check_rows(part, problem, dim, exact):
    """exact(y, d) gives the answer for one slice, and the size to which errors in it are relative."""
    y, d, _, root, scratch = problem
    x = solve(part, y, d, root, scratch)
    for of_y, of_d, of_x in rows(dim, y, d, x):
        answer, scale = exact(of_y, of_d)
        for i, value in enumerate(answer):
            size = scale[i] if isinstance(scale, list) else scale
            least = Fraction(torch.finfo(y.dtype).smallest_normal * torch.finfo(y.dtype).eps)  # the smallest number
            assert abs(of_x[i] - value) <= Fraction(TOL[y.dtype]) * size + least


# ------------------------------------------------------------------------------------------------------ exact answers


def level(y, d, total, cap=None):
    """clip(y - θ/d, 0, cap) with the sum `total`: linear between neighbouring corners."""
    n = len(y)

    def at(theta):
        return [
            max(Fraction(0), y[i] - theta / d[i]) if cap is None else min(max(Fraction(0), y[i] - theta / d[i]), cap)
            for i in range(n)
        ]

    corners = sorted(
        {y[i] * d[i] for i in range(n)} | ({(y[i] - cap) * d[i] for i in range(n)} if cap is not None else set())
    )
    if cap is None:
        corners.insert(0, min(corners[0], min((y[i] - total) * d[i] for i in range(n))))
    lo, hi = 0, len(corners) - 1
    while hi - lo > 1:
        mid = (lo + hi) // 2
        lo, hi = (mid, hi) if sum(at(corners[mid])) >= total else (lo, mid)
    more, less = sum(at(corners[lo])), sum(at(corners[hi]))
    if more == less:
        return at(corners[lo])
    return at(corners[lo] + (corners[hi] - corners[lo]) * (more - total) / (more - less))


def root_of(decreasing, lo, hi):
    """Where a decreasing function of a positive number crosses 0."""
    lo, hi = mpmath.log(lo), mpmath.log(hi)
    for _ in range(120):
        mid = (lo + hi) / 2
        lo, hi = (mid, hi) if decreasing(mpmath.exp(mid)) > 0 else (lo, mid)
    return mpmath.exp(hi)


def big(values):
    return [mpmath.mpf(v.numerator) / v.denominator for v in values]


def fraction(value):
    man, exp = mpmath.mpf(value).man_exp
    return Fraction(int(math.copysign(1, value)) * abs(int(man))) * Fraction(2) ** int(exp)


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


def exact_group(lam, y, d):
    if sum((a * b) ** 2 for a, b in zip(y, d, strict=True)) <= lam * lam:
        return [Fraction(0)] * len(y)
    with mpmath.workdps(60):
        p, q, weight = big(y), big(d), mpmath.mpf(lam.numerator) / lam.denominator
        size = mpmath.sqrt(sum(v * v for v in p))
        rho = root_of(
            lambda rho: sum((a * b / (b * rho + weight)) ** 2 for a, b in zip(p, q, strict=True)) - 1,
            size * mpmath.mpf(10) ** -200,
            size * 2,
        )
        return [fraction(a * b * rho / (b * rho + weight)) for a, b in zip(p, q, strict=True)]


DIMS = st.sampled_from([None, 0, -1])


def sizes(y, total):
    """To what the errors of y - θ/d are relative: its parts, but for a y so large that this would say nothing."""
    return [total + (abs(v) if abs(v) <= 10**9 * total else 0) for v in y]


@PROPERTY
@given(problems(), DIMS)
def test_simplex(problem, dim):
    total = Fraction(problem[2])
    check_rows(sets.Simplex(problem[2], dim), problem, dim, lambda y, d: (level(y, d, total), sizes(y, total)))


@PROPERTY
@given(problems(), DIMS, st.sampled_from([1.5, 20.0]))
def test_capped_simplex(problem, dim, room):
    y, total = problem[0], Fraction(problem[2])
    n = y.numel() if dim is None else y.shape[dim]
    cap = float(torch.tensor(room * problem[2] / n, dtype=y.dtype))
    part = sets.CappedSimplex(problem[2], cap, dim)
    check_rows(part, problem, dim, lambda y, d: (level(y, d, total, Fraction(cap)), sizes(y, total)))


@PROPERTY
@given(problems(), DIMS)
def test_l1_ball(problem, dim):
    r = Fraction(problem[2])

    def exact(y, d):
        size = [abs(v) for v in y]
        if sum(size) <= r:
            return y, sizes(y, r)
        return [v if a > 0 else -v for v, a in zip(level(size, d, r), y, strict=True)], sizes(y, r)

    check_rows(sets.L1Ball(problem[2], dim), problem, dim, exact)


@PROPERTY
@given(problems(), DIMS, st.sampled_from([0.0, 1.5, -1e4]))
def test_l2_ball(problem, dim, shift):
    y, r = problem[0], Fraction(problem[2])
    shift = float(torch.tensor(shift * problem[2], dtype=y.dtype))
    center = Fraction(shift)

    def exact(y, d):
        return [v + center for v in exact_l2(r, [v - center for v in y], d)], r + abs(center)

    check_rows(sets.L2Ball(problem[2], shift, dim), problem, dim, exact)


@PROPERTY
@given(problems(), DIMS, st.sampled_from([0.0, 1e-9, 1.0, 1e9]))
def test_group_lasso(problem, dim, lam):
    part = penalties.GroupLasso(lam, dim)
    check_rows(part, problem, dim, lambda y, d: (exact_group(Fraction(lam), y, d) if lam else y, [abs(v) for v in y]))


@PROPERTY
@given(problems(), st.sampled_from([0, -1]), st.sampled_from([1e-9, 1.0, 1e9]))
def test_total_variation(problem, dim, lam):
    check_rows(
        penalties.TotalVariation(lam, dim), problem, dim, lambda y, d: (exact_fused(lam, y, d), max(abs(v) for v in y))
    )


@PROPERTY
@given(problems(), st.sampled_from([1e-9, 1.0, 1e9]))
def test_overlapping_group_lasso(problem, lam):
    """x (1 + Σ λ/(d ‖x_G‖)) = y wherever x is not zero."""
    y, d, _, _, scratch = problem
    groups = [[0, 1, 2], [2, 3], [3, 4, 5]] if y.numel() > 5 else [[0]]
    x = solve(penalties.OverlappingGroupLasso(lam, groups), y, d, scratch=scratch).double().flatten()
    pull, size = torch.zeros_like(x), float(y.abs().max())
    for group in groups:
        if x[group].any():
            pull[group] += lam / torch.linalg.vector_norm(x[group] / size).item() / size
    wrong = x * (1 + pull / d.double().expand_as(y).flatten()) - y.double().flatten()
    assert (wrong[x != 0].abs() <= TOL[y.dtype] * size).all()


def clip(value, lo, hi):
    return min(max(value, lo), hi)


@PROPERTY
@given(problems(), st.sampled_from([0.0, 1e-9, 1.0, 1e9]), st.sampled_from([0.0, 1e-9, 1.0, 1e9]))
def test_separable_sets_and_penalties(problem, l1, l2):
    """Alone and together: the penalty's minimiser, clipped."""
    y, d, r, _, scratch = problem
    boxes = {
        None: (-math.inf, math.inf),
        sets.LInfBall(r): (-r, r),
        sets.NonNegative(): (0, math.inf),
        sets.Box(torch.full_like(y, -r), r / 2): (-r, r / 2),
    }
    for penalty, a, b in [
        (None, 0, 0),
        (penalties.L1(l1), l1, 0),
        (penalties.L2(l2), 0, l2),
        (penalties.ElasticNet(l1, l2), l1, l2),
        (penalties.Huber(l2, delta=1e75), 0, l2),  # all squares
    ]:
        for box, bounds in boxes.items():
            x = combined_argmin(box, penalty, y.clone(), d.clone(), scratch=scratch)
            lo, hi = (float(torch.tensor(bound, dtype=y.dtype)) for bound in bounds)
            lo, hi = (Fraction(bound) if math.isfinite(bound) else bound for bound in (lo, hi))
            for of_y, of_d, of_x in rows(None, y, d, x):
                for v, weight, found in zip(of_y, of_d, of_x, strict=True):
                    free = (v - clip(v, -Fraction(a) / weight, Fraction(a) / weight)) / (1 + Fraction(b) / weight)
                    # Relative to x itself, but for what |y| - λ/d loses and for numbers with less digits.
                    size = abs(free) + (abs(v) / 1000 if a else 0) + TINY
                    assert abs(found - clip(free, lo, hi)) <= Fraction(TOL[y.dtype]) * size


def test_a_penalty_that_is_far_larger_than_d():
    """λ/d is beyond float32, x is not."""
    y, d = torch.tensor([1e38, -2e38, 0.0]), torch.tensor([1e-30, 1e-30, 1e-30])
    expected = torch.tensor([0.1, -0.2, 0.0])
    for penalty in (penalties.L2(1e9), penalties.ElasticNet(1e-9, 1e9)):
        torch.testing.assert_close(penalty.argmin(y, d), expected)
        torch.testing.assert_close(penalty.argmin(y, 1e-30), expected)


def solve_or_refuse(part, y, d, scratch, answer):
    """None where a clear error says that the answer does not fit into y's dtype."""
    size, most = max(abs(v) for v in answer), torch.finfo(y.dtype).max
    if size < 0.999 * most:
        return solve(part, y, d, scratch=scratch)
    if size > 1.001 * most:
        with pytest.raises(ValueError, match="beyond the largest"):
            part.argmin(y, d)
    return None


@PROPERTY
@given(problems(), st.sampled_from([0.0, 1.0, -1e-9, 1e9]), st.integers(0, 100), st.sampled_from([0, 6, 30]))
def test_halfspace_and_hyperplane(problem, b, seed, spread):
    y, d, _, _, scratch = problem
    gen = torch.Generator().manual_seed(seed)
    a = (magnitudes(gen, y.shape, 0, spread) * torch.randn(y.shape, generator=gen).sign()).to(y.dtype)
    for part in (sets.Hyperplane(a, b), sets.Halfspace(a, b)):
        [(of_y, of_d, of_a)] = rows(None, y, d, a)
        terms = list(zip(of_y, of_d, of_a, strict=True))
        excess = sum(v * c for v, _, c in terms) - Fraction(b)
        size = sum(abs(v * c) for v, _, c in terms) + abs(Fraction(b))
        scale = sum(c * c / w for _, w, c in terms)
        if isinstance(part, sets.Halfspace) and excess <= 0:
            excess = Fraction(0)
        answer = [v - c / w * excess / scale for v, w, c in terms]
        x = solve_or_refuse(part, y, d, scratch, answer)
        if x is None:
            continue
        [of_x] = next(rows(None, x))
        for i, (v, w, c) in enumerate(terms):
            assert abs(of_x[i] - answer[i]) <= Fraction(TOL[y.dtype]) * (abs(v) + abs(c) / w * size / scale + TINY)
        left = sum(v * c for v, c in zip(of_x, of_a, strict=True)) - Fraction(b)
        if excess:
            terms = sum(abs(v * c) for v, c in zip(of_x, of_a, strict=True)) + abs(Fraction(b))
            assert abs(left) <= Fraction(TOL[y.dtype]) * (terms + size / 10**6)


@PROPERTY
@given(problems(), st.integers(1, 4))
def test_affine(problem, m):
    y, d, _, _, scratch = problem
    gen = torch.Generator().manual_seed(m)
    A = torch.randn(min(m, y.numel()), y.numel(), generator=gen, dtype=torch.float64)
    b = torch.randn(len(A), generator=gen, dtype=torch.float64)
    with mpmath.workdps(400):
        M, target = mpmath.matrix(A.tolist()), mpmath.matrix(b.tolist())
        [(of_y, of_d)] = rows(None, y, d)
        start, W = mpmath.matrix(big(of_y)), [1 / v for v in big(of_d)]
        WMt = mpmath.matrix([[W[i] * M[j, i] for j in range(M.rows)] for i in range(M.cols)])
        answer = [fraction(v) for v in start - WMt * mpmath.lu_solve(M * WMt, M * start - target)]
    x = solve_or_refuse(sets.Affine(A, b), y, d, scratch, answer)
    if x is None:
        return
    [(of_x,)] = rows(None, x)
    size = max(abs(v) for v in of_y) + Fraction(float(b.abs().max()))
    for v, w in zip(of_x, answer, strict=True):
        assert abs(v - w) <= Fraction(TOL[y.dtype]) * size
    for row, aim in zip(A.tolist(), b.tolist(), strict=True):
        terms = [Fraction(c) * v for c, v in zip(row, of_x, strict=True)]
        assert abs(sum(terms) - Fraction(aim)) <= Fraction(TOL[y.dtype]) * (
            sum(abs(t) for t in terms) + abs(Fraction(aim))
        )


def spectral(sigma):
    return sigma.max()


def nuclear(sigma):
    return sigma.sum()


@PROPERTY
@given(problems())
def test_matrix_norm_balls(problem):
    """⟨y - x, x⟩ = r ‖y - x‖*, and ‖x‖ ≤ r."""
    y, d, r, _, scratch = problem
    d = d.flatten()[0]
    for part, norm, dual in [(sets.SpectralBall(r), spectral, nuclear), (sets.NuclearBall(r), nuclear, spectral)]:
        x = solve(part, y, d, scratch=scratch)
        before, after = (t.double().view(-1, y.shape[-1]) for t in (y, x))
        sigma = torch.linalg.svdvals(before)
        if norm(sigma) <= r:
            assert torch.equal(x, y)
            continue
        away = before - after
        gap = r * dual(torch.linalg.svdvals(away)) - (away * after).sum()
        assert gap.abs() <= TOL[y.dtype] * r * dual(sigma)
        assert norm(torch.linalg.svdvals(after)) <= r * (1 + TOL[y.dtype])
        assert part.violation(x) <= r * TOL[y.dtype]


EVERY = {
    "Box": sets.Box(-0.5, 0.5),
    "Box far away": sets.Box(-MAX, -0.9 * MAX),
    "NonNegative": sets.NonNegative(),
    "LInfBall": sets.LInfBall(0.5),
    "L2Ball": sets.L2Ball(1.0),
    "L2Ball of rows": sets.L2Ball(0.7, center=0.5, dim=1),
    "L1Ball": sets.L1Ball(2.0),
    "Simplex": sets.Simplex(),
    "CappedSimplex": sets.CappedSimplex(1.0, 0.6),
    "Halfspace": sets.Halfspace(torch.tensor([1.0, 1e-3, 1e3]), -40.0),
    "Hyperplane": sets.Hyperplane(1.0, 1.0),
    "Affine": sets.Affine(torch.eye(6)[:2], torch.ones(2)),
    "SpectralBall": sets.SpectralBall(0.6),
    "NuclearBall": sets.NuclearBall(1.0),
    "BoxSection": sets.BoxSection(1.0, 0.5, -0.5, 0.5),
    "Ordered": sets.Ordered(low=-1.0, high=1.0),
    "GroupL1Ball": sets.GroupL1Ball(1.0),
    "L1InfBall": sets.L1InfBall(1.0),
    "Sphere": sets.Sphere(),
    "SecondOrderCone": sets.SecondOrderCone(),
    "Polyhedron": sets.Polyhedron(torch.tensor([[1.0, 2.0] * 3, [-1.0, 1.0] * 3, [-1.0, -2.0] * 3]), torch.ones(3)),
    "DoublyStochastic": sets.DoublyStochastic(),
    "Intersection": sets.Intersection(sets.L1Ball(1.0), sets.Hyperplane(1.0, 0.5)),
}


@pytest.mark.parametrize("name", EVERY)
def test_violation_of_the_largest_numbers(name):
    """It is finite, and grows with x, up to the largest float32."""
    for sign in (1, -1):
        last = -1.0
        for size in (0.0, 1e18, 1e25, 1e36, MAX):
            found = EVERY[name].violation(torch.full((2, 3), sign * size))
            assert found.isfinite()
            feasible = name == "Box far away" or (sign, name) in [(1, "NonNegative"), (-1, "Halfspace")]
            assert feasible or found > last
            last = found


@pytest.mark.parametrize("name", [name for name in EVERY if "Box" not in name])
def test_what_float64_is_not_enough_for_is_refused(name):
    """In double precision there are numbers beyond: never NaN, but an error that says what can be solved."""
    part, y = EVERY[name], torch.ones(2, 3, dtype=torch.float64)
    if part.separable:
        assert part.argmin(1e300 * y, 1.0).isfinite().all()
        return
    with pytest.raises(ValueError, match=r"at most 1e75 in y.*y has up to 1e\+300.*scale the problem"):
        part.argmin(1e300 * y, 1.0)
    torch.testing.assert_close(part.argmin(2 * y, 1e-300), part.argmin(2 * y, 1.0))
    if not part.scalar_metric:
        d = y.clone()
        d[0, 0] = 1e-150
        with pytest.raises(ValueError, match="a ratio of at most 1e100"):
            part.argmin(y, d)


def test_an_answer_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"beyond the largest torch\.float32"):
        sets.Box(torch.tensor(1e39, dtype=torch.float64), None).argmin(torch.zeros(2), 1.0)
    with pytest.raises(ValueError, match=r"beyond the largest torch\.float16"):
        sets.Hyperplane(1.0, 1e6).argmin(torch.zeros(2, dtype=torch.float16), 1.0)


@PROPERTY
@given(st.integers(0, 10**6), st.sampled_from([1e-30, 1e-10, 1.0, 1e10, 1e30]))
def test_roots_of_another_set(seed, size):
    """A root that belongs to quite another equation changes nothing but the time."""
    gen = torch.Generator().manual_seed(seed)
    y, d = torch.randn(4, 6, generator=gen), torch.rand(4, 6, generator=gen) + 0.1
    for part in (
        sets.Simplex(),
        sets.L1Ball(1.0, dim=1),
        sets.L2Ball(1.0, dim=1),
        sets.CappedSimplex(1.0, 0.4, low=-0.1),
        sets.BoxSection(2.0, 1.0, -0.1, dim=1),
        sets.GroupL1Ball(1.0, group=1, dim=(1,)),
        sets.L1InfBall(1.0, group=1, dim=1),
        sets.SecondOrderCone(),
        sets.Sphere(dim=1),
    ):
        root = size * torch.randn(4, 1, generator=gen)
        torch.testing.assert_close(part.argmin(y, d, root), part.argmin(y, d), rtol=1e-5, atol=1e-6)


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


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("dim", [1, 0])
def test_rows_that_need_more_iterations_go_on_by_themselves(warm, dim):
    """Some rows in a hundred have a d over eight orders of magnitude; of the l1 ball, some are inside."""
    gen = torch.Generator().manual_seed(0)
    y = 3 * torch.randn(400, 30, generator=gen, dtype=torch.float64)
    y[::3] *= 0.01
    d = torch.where((torch.arange(400) % 50 == 0)[:, None], magnitudes(gen, (400, 30), 0, 8), torch.ones(()))
    y, d = (t.movedim(1, dim) for t in (y, d))
    for part in (sets.Simplex(dim=dim), sets.L1Ball(2.0, dim=dim), sets.L2Ball(2.0, dim=dim)):
        alone = [part.argmin(*(t.movedim(dim, 1)[i : i + 1].movedim(1, dim) for t in (y, d))) for i in range(400)]
        root = None
        if warm:
            root = torch.zeros(part.root_shape(y))
            part.argmin((1.01 * y).float(), d.float(), root)
        x = part.argmin(y.float(), d.float(), root)
        torch.testing.assert_close(x.double(), torch.cat(alone, 1 - dim), rtol=1e-5, atol=2e-6)
        assert part.violation(x) < 2e-6


# --------------------------------------------------------------------------------------- without a look from the host


@pytest.fixture
def no_looks(monkeypatch):
    """The form of the solvers for a GPU: fixed iterations."""
    for module in (roots, levels, simplices, sections, groups):
        monkeypatch.setattr(module, "may_look", lambda x: False)


@pytest.mark.parametrize(
    "test",
    [test_simplex, test_l1_ball, test_l2_ball, test_group_lasso, test_halfspace_and_hyperplane, test_affine],
    ids=lambda test: test.__name__,
)
def test_exact_answers_without_looks(test, no_looks):
    test()


ORDINARY = {
    "CappedSimplex": sets.CappedSimplex(1.0, 0.4),
    "CappedSimplex, lower bounds": sets.CappedSimplex(1.0, 0.4, low=0.05),
    "BoxSection": sets.BoxSection(2.0, 0.5, -0.3, 0.6, dim=-1),
    "BoxSection without bounds": sets.BoxSection(-1.0, 0.5),
    "SecondOrderCone": sets.SecondOrderCone(),
    "Sphere": sets.Sphere(2.0, dim=-1),
    "GroupL1Ball": sets.GroupL1Ball(0.7),
    "L1InfBall": sets.L1InfBall(0.7),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("spread", [0, 1, 4])
@pytest.mark.parametrize("name", ORDINARY)
def test_the_same_answers_without_looks(name, spread, warm, dtype, monkeypatch):
    """As with looks, which other tests compare with exact answers. d spans up to four orders of magnitude."""
    part, gen = ORDINARY[name], torch.Generator().manual_seed(spread)
    for size in (1e-3, 1.0, 30.0):
        y = (size * torch.randn(4, 7, generator=gen, dtype=torch.float64)).to(dtype)
        d = magnitudes(gen, (4, 7), 0, spread).to(dtype)
        root = torch.zeros(part.root_shape(y), dtype=dtype) if warm else None
        if warm:
            part.argmin(1.1 * y, d, root)
        expected = part.argmin(y, d)
        with monkeypatch.context() as patch:
            for module in (roots, levels, simplices, sections, groups):
                patch.setattr(module, "may_look", lambda x: False)
            x = part.argmin(y, d, root)
        scale = float(expected.abs().max())
        torch.testing.assert_close(x, expected, rtol=0, atol=TOL[dtype] * scale)
        assert part.violation(x) <= 1e-6 * max(1.0, scale)


@pytest.mark.parametrize("size", [1e6, 1e18, 1e30])
def test_a_section_stays_feasible_when_its_iterations_end(size, no_looks):
    y = torch.tensor([size, size, 0.0, -size, size, 1.0])
    for part in (sets.CappedSimplex(1.0, 0.3), sets.BoxSection(1.0, 0.2, -1.0, 0.5)):
        assert part.violation(part.argmin(y, 1.0)) <= 1e-6


@pytest.mark.parametrize("trials", [150, pytest.param(5000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "part",
    [sets.L2Ball(1.0), sets.L2Ball(1e-6), sets.L1Ball(1.0), sets.Simplex(), sets.SecondOrderCone()],
    ids=str,
)
def test_the_root_of_a_far_problem_changes_nothing(part, trials):
    """A warm start may be wrong by orders of magnitude, as after a change of the learning rate."""
    generator = torch.Generator().manual_seed(0)
    uniform = lambda *shape: torch.rand(*shape, generator=generator)  # noqa: E731
    for _ in range(trials):
        shape = (3, int(2 + 10 * uniform(1)))
        y = torch.randn(shape, generator=generator) * 10 ** (4 * uniform(1) - 1)
        d = 10 ** (8 * uniform(*shape) - 4)
        root = torch.zeros(part.root_shape(y))
        part.argmin(y * 10 ** (6 * uniform(1) - 3), d.clone(), root)
        x, exact = part.argmin(y.clone(), d.clone(), root).double(), part.argmin(y.double(), d.double())
        weight = d.double().sqrt()
        size = (weight * exact).norm() + (weight * (exact - y)).norm()
        assert (weight * (x - exact)).norm() <= 1e-5 * size
        assert part.relative_violation(x) <= 1e-5


@pytest.mark.parametrize(
    ("part", "y", "d", "root", "x"),
    [
        (
            sets.L2Ball(1.0),
            [0.64, 3.71],
            [1.0, 0.001],
            100.0,
            [0.6376, 0.7704],
        ),  # float32 loses the variance of 1/(α + c)
        (sets.Simplex(), [-0.467, 0.273], [1e-4, 1e5], 0.001, [0.727, 0.273]),  # one step from the root is 7e4 long
    ],
)
def test_roots_from_which_a_first_step_misleads(part, y, d, root, x):
    found = part.argmin(torch.tensor(y), torch.tensor(d), torch.tensor([root]))
    torch.testing.assert_close(found, torch.tensor(x), rtol=1e-3, atol=1e-6)

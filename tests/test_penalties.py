"""The exact step of line 9 with a penalty: subgradient conditions, scipy, and penalties together with boxes.

`argmin(y, d)` minimises ½ Σ dᵢ(xᵢ - yᵢ)² + h(x). The conditions are stated in the units of x: those of the gradient,
divided by d.
"""

import itertools
import math
from fractions import Fraction

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize, minimize_scalar

from superadam import SuperAdam, matrices, penalties, sets
from superadam.penalties import combined_argmin, pair_objection
from test_sets import TOL, check_slices, problems, relative

WEIGHTS = st.sampled_from([0.0, 1e-6, 0.3, 1e4])


# -------------------------------------------------------------------------------------------- subgradient conditions


def kkt_elastic(l1, l2, y, d, x):
    """d(x - y) + l1 ∂|x| + l2 x ∋ 0."""
    rest = y - x - l2 / d * x  # = l1/d times a subgradient of |x|
    wrong = torch.where(x == 0, (y.abs() - l1 / d).clamp(min=0), rest - l1 / d * x.sign())
    return relative(wrong, y)


def kkt_huber(lam, delta, y, d, x):
    """d(x - y) + λ clip(x, -δ, δ) = 0."""
    return relative(x + lam / d * x.clamp(-delta, delta) - y, y)


def exact_fused(lam, y, d):
    """The only pattern of rises, falls and equal neighbours whose values have that order and whose duals fit, in
    rational numbers."""
    y, d, lam = [Fraction(v) for v in y], [Fraction(v) for v in d], Fraction(lam)
    for jumps in itertools.product((0, 1, -1), repeat=len(y) - 1):
        ends = [i for i, jump in enumerate(jumps) if jump] + [len(y) - 1]
        x, first, before = [], 0, 0
        for last in ends:
            after = jumps[last] if last < len(jumps) else 0
            part = range(first, last + 1)
            value = (sum(d[i] * y[i] for i in part) - lam * (before - after)) / sum(d[i] for i in part)
            x, first, before = x + [value] * len(part), last + 1, after
        duals = itertools.accumulate(a * (b - c) for a, b, c in zip(d, x, y, strict=True))
        steps = [b - a for a, b in itertools.pairwise(x)]
        fits = all(abs(u) <= lam for u in duals)
        if fits and all(step * jump > 0 if jump else step == 0 for step, jump in zip(steps, jumps, strict=True)):
            return x
    raise AssertionError("no pattern fits")


def kkt_fused(lam, y, d, x):
    """The duals u_i = Σ_{j ≤ i} d(x - y) are within ±λ, λ where x rises and -λ where it falls, 0 at the end; as far as
    the last digit of the largest y, and the sums here, let them."""
    u, jumps = (d * (x - y)).cumsum(0), x.diff().sign()
    digits = (d * y.abs().max()).cumsum(0) * len(y) / 16
    wrong = torch.where(jumps == 0, (u[:-1].abs() - lam).clamp(min=0), u[:-1] - lam * jumps)
    return max(relative(wrong, digits[:-1], lam) if len(y) > 1 else 0.0, relative(u[-1], digits[-1], lam))


def kkt_group(lam, y, d, x):
    """d(x - y) + λ x/‖x‖ = 0, or ‖d y‖ ≤ λ where x = 0."""
    if not x.any():
        return max(0.0, float((d * y).norm() / lam) - 1) if lam else float(y.norm())
    return relative(x - y + lam / d * (x / x.norm()), y)


@given(problems(), WEIGHTS, WEIGHTS)
def test_separable_penalties(problem, l1, l2):
    y, d, _, _ = problem
    for penalty, a, b in [
        (penalties.L1(l1), l1, 0.0),
        (penalties.L2(l2), 0.0, l2),
        (penalties.ElasticNet(l1, l2), l1, l2),
    ]:
        x = penalty.argmin(y, d)
        assert x.dtype == y.dtype
        assert kkt_elastic(a, b, y.double(), d.double(), x.double()) < TOL[y.dtype]


@given(problems(), WEIGHTS, st.sampled_from([1e-3, 1.0, 100.0]))
def test_huber(problem, lam, delta):
    y, d, _, _ = problem
    x = penalties.Huber(lam, delta).argmin(y, d)
    assert x.dtype == y.dtype
    assert kkt_huber(lam, delta, y.double(), d.double(), x.double()) < TOL[y.dtype]


@given(problems(), WEIGHTS)
def test_total_variation(problem, lam):
    y, d, _, dim = problem
    x = penalties.TotalVariation(lam, dim or 0).argmin(y, d)
    if y.dtype == torch.float64:  # the duals of numbers rounded to float32 say little
        top = d.double().max()
        check_slices(x, y, d, dim or 0, y.dtype, lambda y, w, x: kkt_fused(lam or 1e-300, y, top / w, x))
    exact = penalties.TotalVariation(lam, dim or 0).argmin(y.double(), d.double())
    assert relative(x.double() - exact, y.double().abs().max()) < TOL[y.dtype]


@given(problems(scalar_metric=True), WEIGHTS)
def test_nuclear(problem, lam):
    """d(y - x) = λ W with ‖W‖ ≤ 1 and ⟨W, x⟩ = ‖x‖_*."""
    y, d, _, _ = problem
    x = penalties.Nuclear(lam).argmin(y, d)
    assert x.dtype == y.dtype
    size = y.shape[-2:].numel() if y.dim() > 1 else y.numel()
    shape = y.shape[-2:] if y.dim() > 1 else (1, -1)
    for before, after in zip(y.double().reshape(-1, size), x.double().reshape(-1, size), strict=True):
        before, after, scale = before.view(shape), after.view(shape), lam + float(d * before.norm())
        rest = d.double() * (before - after)
        assert torch.linalg.svdvals(rest)[0] <= lam + TOL[y.dtype] * scale
        gap = lam * torch.linalg.svdvals(after).sum() - (rest * after).sum()
        assert abs(float(gap)) <= TOL[y.dtype] * scale * float(before.norm() + 1e-300)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("spread", [0, 3, 12, 24])
def test_overlapping_group_lasso(seed, spread):
    """x (1 + Σ λ/(d ‖x_G‖)) = y where no group is zero, and a dual that fits where one is: those of the barrier."""
    gen = torch.Generator().manual_seed(seed)
    n, lam = 12, (0.3, 1.0, 4.0)[seed % 3]
    groups = [torch.randperm(n, generator=gen)[: 2 + seed % 4].tolist() for _ in range(2 + seed % 7)]
    y = torch.randn(n, generator=gen, dtype=torch.float64)
    d = 10 ** (spread * (torch.rand(n, generator=gen, dtype=torch.float64) - 0.5))
    x = penalties.OverlappingGroupLasso(lam, groups).argmin(y, d)
    pull, dual = torch.zeros(n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
    for group in groups:
        if x[group].any():
            pull[group] += lam / x[group].norm()
    free = x != 0
    assert relative((x + pull / d * x - y)[free], y[free]) < 1e-9 if free.any() else True
    # Where a group is zero, duals of norm λ at most make up for d y: found in turns, each nearest to what is left.
    zero = [group for group in groups if not x[group].any()]
    covered = sorted(set().union(*zero))
    assert all(i in covered for i in range(n) if not free[i] and y[i] != 0)
    u = [torch.zeros(len(group), dtype=torch.float64) for group in zero]
    for _ in range(3000):
        for k, group in enumerate(zero):
            aim = (d * y - dual)[group] + u[k]
            new = aim * min(1.0, lam / max(float(aim.norm()), 1e-300))
            dual[group] += new - u[k]
            u[k] = new
        if not zero or (d * y - dual)[covered].abs().max() < 1e-9 * lam:
            break
    else:
        raise AssertionError("no duals were found")


@given(problems(), WEIGHTS)
def test_group_lasso(problem, lam):
    y, d, _, dim = problem
    x = penalties.GroupLasso(lam, dim).argmin(y, d)
    top = d.double().max()
    check_slices(x, y, d, dim, y.dtype, lambda y, w, x: kkt_group(lam, y, top / w, x))


# ------------------------------------------------------------------------------------------------------ equal to scipy

EVERY = {
    "L1": penalties.L1(0.7),
    "L2": penalties.L2(0.7),
    "ElasticNet": penalties.ElasticNet(0.7, 0.4),
    "GroupLasso": penalties.GroupLasso(0.7, None),
    "GroupLasso of rows": penalties.GroupLasso(0.7, -1),
    "OverlappingGroupLasso": penalties.OverlappingGroupLasso(0.7, [[0, 1, 2], [2, 3], [3, 4]]),
    "Huber": penalties.Huber(0.7, 0.5),
    "TotalVariation": penalties.TotalVariation(0.7),
    "TotalVariation of columns": penalties.TotalVariation(0.7, dim=0),
    "Nuclear": penalties.Nuclear(0.7),
}
ANY_SIZE = [name for name in EVERY if name != "OverlappingGroupLasso"]


def metric_of(penalty, d):
    """A number where the penalty needs one."""
    return float(d.mean()) if penalty.scalar_metric else d


def example(seed, shape=(5,), dtype=torch.float64):
    gen = torch.Generator().manual_seed(seed)
    y = 2 * torch.randn(shape, generator=gen, dtype=torch.float64)
    return y.to(dtype), (torch.rand(shape, generator=gen, dtype=torch.float64) * 3 + 0.2).to(dtype)


def objective(penalty, x, y, d):
    return 0.5 * (d * (x - y) ** 2).sum() + penalty.value(x)


@pytest.mark.parametrize("name", ["L1", "L2", "ElasticNet", "Huber"])
@pytest.mark.parametrize("box", [None, (-0.4, 0.9)], ids=["alone", "with a box"])
def test_equals_scipy_in_one_dimension(name, box):
    penalty = EVERY[name]
    lo, hi = box or (-10.0, 10.0)
    for seed in range(10):
        y, d = example(seed)
        x = combined_argmin(sets.Box(*box) if box else None, penalty, y, d)
        for y_i, d_i, x_i in zip(y, d, x, strict=True):
            best = minimize_scalar(
                lambda v, y=y_i, d=d_i: float(objective(penalty, torch.tensor(v, dtype=torch.float64), y, d)),
                bounds=(lo, hi),
                method="bounded",
                options={"xatol": 1e-9},
            )
            assert abs(best.x - float(x_i)) < 1e-5


def test_group_lasso_equals_scipy():
    """With t ≥ ‖x‖ in the place of ‖x‖, which has no corner where t > 0."""
    penalty = EVERY["GroupLasso"]
    for seed in range(10):
        y, d = (t.numpy() for t in example(seed))
        best = minimize(
            lambda z, y=y, d=d: 0.5 * (d * (z[:-1] - y) ** 2).sum() + 0.7 * z[-1],
            np.append(np.full(5, 0.1), 1.0),
            method="SLSQP",
            constraints={"type": "ineq", "fun": lambda z: z[-1] ** 2 - (z[:-1] ** 2).sum()},
            bounds=[(None, None)] * 5 + [(1e-9, None)],
            options={"ftol": 1e-13, "maxiter": 1000},
        )
        x = penalty.argmin(torch.from_numpy(y), torch.from_numpy(d))
        torch.testing.assert_close(x, torch.from_numpy(best.x[:-1]), rtol=0, atol=1e-5)


# --------------------------------------------------------------------------------------------------- of every penalty


@pytest.mark.parametrize("name", EVERY)
def test_no_point_nearby_is_better(name):
    """Also with the value that the penalty itself reports."""
    penalty = EVERY[name]
    gen = torch.Generator().manual_seed(1)
    for seed in range(20):
        y, d = example(seed, (3, 4))
        d = metric_of(penalty, d)
        x = penalty.argmin(y, d)
        best = objective(penalty, x, y, d)
        for size in (1e-4, 1e-2, 1.0):
            other = x + size * torch.randn(3, 4, generator=gen, dtype=torch.float64)
            assert objective(penalty, other, y, d) > best


def test_values():
    x = torch.tensor([[3.0, -4.0], [0.0, 2.0]])
    assert penalties.L1(2.0).value(x) == 18
    assert penalties.L2(2.0).value(x) == 29
    assert penalties.ElasticNet(1.0, 2.0).value(x) == 38
    assert penalties.GroupLasso(2.0, 1).value(x) == 14
    assert penalties.OverlappingGroupLasso(2.0, [[0, 1], [1, 3], [2]]).value(x) == pytest.approx(
        2 * (5 + math.sqrt(20))
    )
    assert penalties.Huber(2.0, delta=1.0).value(x) == 2 * (2.5 + 3.5 + 1.5)
    assert penalties.TotalVariation(2.0).value(x) == 18
    assert penalties.TotalVariation(2.0, dim=0).value(x) == 18
    assert penalties.Nuclear(2.0).value(torch.diag(torch.tensor([3.0, -4.0]))) == pytest.approx(14)
    assert penalties.GroupLasso(2.0, 0).value(x) == pytest.approx(2 * (3 + math.sqrt(20)))


@pytest.mark.parametrize("name", [name for name in ANY_SIZE if "Variation" not in name])
def test_zero_is_exact(name):
    penalty = EVERY[name]
    x = penalty.argmin(torch.tensor([[1e-3, -1e-3], [5.0, 5.0]]), 1.0)
    if name in ("L1", "ElasticNet", "GroupLasso of rows"):
        assert x[0].tolist() == [0.0, 0.0]
    assert (x[1] > 1).all()


def test_group_lasso_solves_all_rows_at_once():
    y, d = example(0, (1000, 6))
    y, d = y * 10 ** torch.linspace(-2, 2, 1000).double()[:, None], d**6
    x = penalties.GroupLasso(1.0, 1).argmin(y, d)
    for i in range(0, 1000, 37):
        torch.testing.assert_close(x[i], penalties.GroupLasso(1.0, None).argmin(y[i], d[i]), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(penalties.GroupLasso(1.0, 0).argmin(y.T, d.T), x.T, rtol=1e-9, atol=1e-12)
    assert 0 < (x == 0).all(1).sum() < 1000


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", EVERY)
def test_low_precision_is_the_rounded_exact_step(name, dtype):
    y, d = example(0, (3, 4), dtype)
    d = metric_of(EVERY[name], d.double()) if EVERY[name].scalar_metric else d
    x = EVERY[name].argmin(y, d)
    assert x.dtype == dtype
    exact = EVERY[name].argmin(y.double(), torch.as_tensor(d).double())
    torch.testing.assert_close(x.double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("name", ANY_SIZE)
def test_any_shape(name):
    for y in (torch.tensor(3.0), torch.tensor([3.0]), torch.full((1, 1, 1), 3.0)):
        assert EVERY[name].argmin(y, 2.0).shape == y.shape
    for shape in ((0,), (0, 3), (3, 0)):
        assert EVERY[name].argmin(torch.zeros(shape), 2.0).shape == shape
        assert EVERY[name].value(torch.zeros(shape)) == 0


@pytest.mark.parametrize("name", EVERY)
def test_spec_is_the_penalty(name):
    found = penalties.Penalty.find(EVERY[name].spec())
    assert found == EVERY[name]
    assert hash(found) == hash(EVERY[name])


# ------------------------------------------------------------------------------------------------ of some penalties


@hypothesis.example(4397, 24, 1e3)
@given(st.integers(0, 10**6), st.sampled_from([0, 2, 12, 24]), st.sampled_from([1e-6, 0.3, 1.0, 1e3]))
def test_total_variation_equals_rational_numbers(seed, spread, lam):
    gen = torch.Generator().manual_seed(seed)
    n = 1 + seed % 6
    y = torch.randn(n, generator=gen, dtype=torch.float64).mul_(3)
    y = y.round() if seed % 3 == 0 else y
    d = 10 ** (spread * (torch.rand(n, generator=gen, dtype=torch.float64) - 0.5))
    x = penalties.TotalVariation(lam).argmin(y, d)
    exact = torch.tensor([float(v) for v in exact_fused(lam, y.tolist(), d.tolist())], dtype=torch.float64)
    error = (x - exact).abs()
    light = d * error < 1e-10 * lam  # too light beside λ to be told from a neighbour
    assert relative(error.masked_fill(light, 0.0), y.abs().max()) < 1e-9


def test_total_variation_is_constant_in_pieces_to_the_last_bit():
    """Four levels under noise, far from zero: no jump is of the size of a rounding error."""
    gen = torch.Generator().manual_seed(0)
    levels = 1e6 + torch.tensor([0.0, 5.0, 1.0, 9.0], dtype=torch.float64).repeat_interleave(500)
    y = levels + 0.3 * torch.randn(3, 2000, generator=gen, dtype=torch.float64)
    d = torch.rand(3, 2000, generator=gen, dtype=torch.float64) + 0.5
    x = penalties.TotalVariation(20.0).argmin(y, d)
    jumps = x.diff()
    assert ((jumps == 0) | (jumps.abs() > 1e-5)).all()
    assert ((jumps != 0).sum(1) < 20).all()
    assert (x - levels).abs().median() < 0.1
    assert torch.equal(penalties.TotalVariation(20.0, dim=0).argmin(y.T, d.T), x.T)


def test_total_variation_of_values_that_grow_geometrically():
    """Each round splits off the largest alone: as many rounds as coordinates."""
    y = 2.0 ** torch.arange(40, dtype=torch.float64)
    ends = torch.zeros(40, dtype=torch.float64)
    ends[0], ends[-1] = 0.1, -0.1
    torch.testing.assert_close(penalties.TotalVariation(0.1).argmin(y, 1.0), y + ends, rtol=0, atol=1e-14 * 2.0**40)


def test_groups_that_share_nothing_are_a_group_lasso():
    y, d = example(3, (4, 3))
    groups = [[3 * i, 3 * i + 1, 3 * i + 2] for i in range(4)]
    x = penalties.OverlappingGroupLasso(5.0, groups).argmin(y, d)
    torch.testing.assert_close(x, penalties.GroupLasso(5.0, 1).argmin(y, d), rtol=1e-12, atol=1e-14)
    assert 0 < (x == 0).all(1).sum() < 4
    uneven = penalties.OverlappingGroupLasso(2.0, [[0, 1, 2], [3]]).argmin(y, d)
    assert torch.equal(uneven.flatten()[4:], y.flatten()[4:])
    torch.testing.assert_close(uneven[1, 0], penalties.L1(2.0).argmin(y, d)[1, 0], rtol=1e-12, atol=1e-14)


def test_the_same_group_twice_counts_twice():
    y, d = example(4, (3,))
    twice = penalties.OverlappingGroupLasso(0.4, [[0, 1, 2], [2, 1, 0]]).argmin(y, d)
    torch.testing.assert_close(twice, penalties.GroupLasso(0.8, None).argmin(y, d), rtol=1e-9, atol=1e-12)


def test_bad_groups():
    for bad in ([], [[]], [[0, 0]], [[-1]]):
        with pytest.raises(ValueError, match="Invalid groups"):
            penalties.OverlappingGroupLasso(1.0, bad)
    with pytest.raises(ValueError, match=r"index 6, and a parameter of shape \(2, 3\) has 6 coordinates"):
        penalties.OverlappingGroupLasso(1.0, [[0, 6]]).argmin(torch.ones(2, 3), 1.0)


def test_nuclear_needs_one_learning_rate():
    p = torch.ones(3, 2, requires_grad=True)
    with pytest.raises(ValueError, match=r"Nuclear needs one learning rate .* SecondMoment has many; .*GradientNorm"):
        SuperAdam([p], penalty=penalties.Nuclear(0.1), matrix=matrices.SecondMoment())
    with pytest.raises(ValueError, match="d must be a scalar"):
        penalties.Nuclear(0.1).argmin(torch.ones(3, 2), torch.ones(3, 2))
    target = torch.outer(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, -1.0]))
    opt = SuperAdam([p], lr=0.5, penalty=penalties.Nuclear(0.1), matrix=matrices.Identity())
    for _ in range(50):
        p.grad = p.detach() - target
        opt.step()
    with opt.at_x_tilde():
        assert torch.linalg.matrix_rank(p.detach(), rtol=1e-6) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")  # at tolerances that it nearly reaches
@pytest.mark.parametrize("name", EVERY)
def test_equals_cvxpy(name):
    cp = pytest.importorskip("cvxpy")
    lam, penalty = 0.7, EVERY[name]
    for seed in range(5):
        y, d = example(seed, (3, 5))
        d = torch.full_like(d, float(d.mean())) if penalty.scalar_metric else d
        x = cp.Variable((3, 5))
        h = {
            "L1": cp.norm1(x),
            "L2": cp.sum_squares(x) / 2,
            "ElasticNet": cp.norm1(x) + 0.4 / 0.7 * cp.sum_squares(x) / 2,
            "GroupLasso": cp.norm(x, "fro"),
            "GroupLasso of rows": sum(cp.norm(x[i]) for i in range(3)),
            "OverlappingGroupLasso": cp.norm(x[0, :3]) + cp.norm(x[0, 2:4]) + cp.norm(x[0, 3:]),
            "Huber": cp.sum(cp.huber(x, 0.5)) / 2,
            "TotalVariation": cp.sum(cp.abs(x[:, 1:] - x[:, :-1])),
            "TotalVariation of columns": cp.sum(cp.abs(x[1:] - x[:-1])),
            "Nuclear": cp.normNuc(x),
        }[name]
        fit = cp.sum(cp.multiply(d.numpy() / 2, cp.square(x - y.numpy())))
        cp.Problem(cp.Minimize(fit + lam * h)).solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10)
        ours = penalty.argmin(y, float(d.mean()) if penalty.scalar_metric else d)
        best = objective(penalty, torch.from_numpy(x.value), y, d)
        assert objective(penalty, ours, y, d) <= best + 1e-9
        torch.testing.assert_close(ours, torch.from_numpy(x.value), rtol=0, atol=1e-4)


# ------------------------------------------------------------------------------------------------------------- pairs


def test_pairs():
    y, d = torch.tensor([3.0, -3.0, 0.5]), torch.tensor([1.0, 2.0, 1.0])
    box, l1 = sets.Box(-1, 1), penalties.L1(1.0)
    assert combined_argmin(box, l1, y, d).tolist() == [1.0, -1.0, 0.0]
    assert torch.equal(combined_argmin(box, None, y, d), box.argmin(y, d))
    assert torch.equal(combined_argmin(None, l1, y, d), l1.argmin(y, d))
    assert torch.equal(combined_argmin(None, None, y, d), y)


def test_pairs_that_are_not_separable_are_refused():
    box, l1, group = sets.NonNegative(), penalties.L1(1.0), penalties.GroupLasso(1.0, -1)
    assert pair_objection(box, l1) is None
    assert pair_objection(None, group) is None
    assert pair_objection(sets.Simplex(), None) is None
    assert "Simplex does not" in pair_objection(sets.Simplex(), l1)
    assert "GroupLasso does not" in pair_objection(box, group)
    with pytest.raises(ValueError, match="L2Ball does not"):
        combined_argmin(sets.L2Ball(1.0), l1, torch.ones(2), 1.0)


# --------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_bad_weights(bad):
    for build in (
        lambda: penalties.L1(bad),
        lambda: penalties.L2(bad),
        lambda: penalties.ElasticNet(bad, 0.0),
        lambda: penalties.ElasticNet(0.0, bad),
        lambda: penalties.GroupLasso(bad, 0),
        lambda: penalties.OverlappingGroupLasso(bad, [[0]]),
        lambda: penalties.Huber(bad),
        lambda: penalties.Huber(1.0, delta=bad),
        lambda: penalties.TotalVariation(bad),
        lambda: penalties.Nuclear(bad),
    ):
        with pytest.raises(ValueError, match="Invalid"):
            build()


@pytest.mark.parametrize("name", EVERY)
def test_bad_input(name):
    y = torch.ones(2, 3)
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="y must be finite"):
            EVERY[name].argmin(y * bad, 1.0)
    for bad in (math.nan, math.inf, 0.0, -1.0):
        with pytest.raises(ValueError, match="d must be positive and finite"):
            EVERY[name].argmin(y, bad if EVERY[name].scalar_metric else y * bad)

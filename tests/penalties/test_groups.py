"""Penalties of groups: subgradient conditions, scipy, groups that overlap."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from penalties.every import EVERY, example
from sets.conditions import TOL, check_slices, problems, relative
from sets.wide import DIMS, all_scales, big, check_rows, fraction, root_of, solve
from superadam import penalties

PROPERTY = settings(deadline=None)


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


@PROPERTY
@given(all_scales(), DIMS, st.sampled_from([0.0, 1e-9, 1.0, 1e9]))
def test_group_lasso_over_the_whole_range(problem, dim, lam):
    part = penalties.GroupLasso(lam, dim)
    check_rows(part, problem, dim, lambda y, d: (exact_group(Fraction(lam), y, d) if lam else y, [abs(v) for v in y]))


@PROPERTY
@given(all_scales(), st.sampled_from([1e-9, 1.0, 1e9]))
def test_overlapping_group_lasso_over_the_whole_range(problem, lam):
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


WEIGHTS = st.sampled_from([0.0, 1e-6, 0.3, 1e4])


def kkt_group(lam, y, d, x):
    """d(x - y) + λ x/‖x‖ = 0, or ‖d y‖ ≤ λ where x = 0."""
    if not x.any():
        return max(0.0, float((d * y).norm() / lam) - 1) if lam else float(y.norm())
    return relative(x - y + lam / d * (x / x.norm()), y)


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


def test_group_lasso_solves_all_rows_at_once():
    y, d = example(0, (1000, 6))
    y, d = y * 10 ** torch.linspace(-2, 2, 1000).double()[:, None], d**6
    x = penalties.GroupLasso(1.0, 1).argmin(y, d)
    for i in range(0, 1000, 37):
        torch.testing.assert_close(x[i], penalties.GroupLasso(1.0, None).argmin(y[i], d[i]), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(penalties.GroupLasso(1.0, 0).argmin(y.T, d.T), x.T, rtol=1e-9, atol=1e-12)
    assert 0 < (x == 0).all(1).sum() < 1000


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

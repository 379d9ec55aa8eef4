"""Penalties of single coordinates: subgradient conditions, scipy, together with boxes."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from penalties.every import EVERY, example, objective
from sets.conditions import TOL, problems, relative
from sets.wide import TINY, all_scales, rows
from superadam import penalties, sets
from superadam.penalties import combined_argmin

PROPERTY = settings(deadline=None)


def clip(value, lo, hi):
    return min(max(value, lo), hi)


@PROPERTY
@given(all_scales(), st.sampled_from([0.0, 1e-9, 1.0, 1e9]), st.sampled_from([0.0, 1e-9, 1.0, 1e9]))
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


WEIGHTS = st.sampled_from([0.0, 1e-6, 0.3, 1e4])


def kkt_elastic(l1, l2, y, d, x):
    """d(x - y) + l1 ∂|x| + l2 x ∋ 0."""
    rest = y - x - l2 / d * x  # = l1/d times a subgradient of |x|
    wrong = torch.where(x == 0, (y.abs() - l1 / d).clamp(min=0), rest - l1 / d * x.sign())
    return relative(wrong, y)


def kkt_huber(lam, delta, y, d, x):
    """d(x - y) + λ clip(x, -δ, δ) = 0."""
    return relative(x + lam / d * x.clamp(-delta, delta) - y, y)


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

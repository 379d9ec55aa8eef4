"""Boxes: the exact step of line 9."""

import math

import torch
from hypothesis import given

from sets.conditions import check_slices, positive, problems, relative
from superadam import sets


def kkt_interval(lo, hi, y, w, x):
    free, low, high = (x > lo) & (x < hi), x == lo, x == hi
    assert (free | low | high).all()
    wrong = torch.where(free, x - y, torch.where(low & high, 0.0, torch.where(low, positive(y - lo), positive(hi - y))))
    return relative(wrong, y, 1)


@given(problems())
def test_separable_sets(problem):
    y, d, r, _ = problem
    for x, lo, hi in [
        (sets.Box(-r, None).argmin(y, d), -r, math.inf),
        (sets.Box(None, r).argmin(y, d), -math.inf, r),
        (sets.Box(-torch.ones_like(y), r).argmin(y, d), -1.0, r),
        (sets.NonNegative().argmin(y, d), 0.0, math.inf),
        (sets.LInfBall(r).argmin(y, d), -r, r),
    ]:
        lo, hi = (float(torch.tensor(b, dtype=y.dtype)) for b in (lo, hi))
        check_slices(x, y, d, None, y.dtype, lambda *row, lo=lo, hi=hi: kkt_interval(lo, hi, *row))

"""Total variation: subgradient conditions and the exact answer in rational numbers."""

import itertools
from fractions import Fraction

import hypothesis
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sets.conditions import TOL, check_slices, problems, relative
from sets.wide import all_scales, check_rows
from superadam import penalties

PROPERTY = settings(deadline=None)


@PROPERTY
@given(all_scales(), st.sampled_from([0, -1]), st.sampled_from([1e-9, 1.0, 1e9]))
def test_total_variation_over_the_whole_range(problem, dim, lam):
    check_rows(
        penalties.TotalVariation(lam, dim), problem, dim, lambda y, d: (exact_fused(lam, y, d), max(abs(v) for v in y))
    )


WEIGHTS = st.sampled_from([0.0, 1e-6, 0.3, 1e4])


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


@given(problems(), WEIGHTS)
def test_total_variation(problem, lam):
    y, d, _, dim = problem
    x = penalties.TotalVariation(lam, dim or 0).argmin(y, d)
    if y.dtype == torch.float64:  # the duals of numbers rounded to float32 say little
        top = d.double().max()
        check_slices(x, y, d, dim or 0, y.dtype, lambda y, w, x: kkt_fused(lam or 1e-300, y, top / w, x))
    exact = penalties.TotalVariation(lam, dim or 0).argmin(y.double(), d.double())
    assert relative(x.double() - exact, y.double().abs().max()) < TOL[y.dtype]


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


def test_a_light_coordinate_between_a_high_and_a_low_one_takes_its_own_value():
    """The metric spans 48 orders of magnitude."""
    y, d = [1.0, 1.0, 0.0, 0.0, 1.0, 0.0], [1e-23, 2.6e8, 6e-19, 5.6, 5e12, 3e25]
    x = penalties.TotalVariation(1.0).argmin(*(torch.tensor(t, dtype=torch.float64) for t in (y, d)))
    exact = [float(v) for v in exact_fused(1.0, y, d)]
    torch.testing.assert_close(x, torch.tensor(exact, dtype=torch.float64), rtol=0, atol=1e-12)


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

"""Ordered slices: equal to the exact answer by pooling, in few sweeps."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sets.wide import DIMS, all_scales, check_rows
from superadam import sets
from superadam.sets import ordered

PROPERTY = settings(deadline=None)


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
@given(all_scales(), DIMS, st.sampled_from(["increasing", "decreasing"]), st.sampled_from([(None, None), (-0.5, 1.0)]))
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

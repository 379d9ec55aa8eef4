"""The exact step of line 9 on halfspaces, hyperplanes and affine sets."""

from fractions import Fraction

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sets.conditions import TOL, check_slices, problems, relative
from sets.wide import TINY, all_scales, big, fraction, magnitudes, rows, solve
from superadam import sets


def kkt_hyperplane(a, b, y, w, x, inequality=False):
    excess = a @ x - b
    if inequality and a @ y <= b:
        return relative(x - y, y)
    i = (a * a * w).argmax()
    lagrange = (y - x)[i] / (a * w)[i]
    size = a.abs() @ (x.abs() + 1e-3 * y.abs()) + abs(b)
    stationary = relative(x - (y - lagrange * a * w), y, x, y.abs().max() * 1e-3)
    return max(stationary, float(excess.abs() / size), float(inequality and lagrange < -1e-9))


def kkt_affine(A, b, y, w, x):
    """The closed form, in 60 digits: with twelve orders of magnitude, 16 are not enough to judge by."""
    with mpmath.workdps(60):
        M, target, start, W = (mpmath.matrix(t.tolist()) for t in (A, b, y, w))
        WMt = mpmath.matrix([[W[i] * M[j, i] for j in range(M.rows)] for i in range(M.cols)])
        exact = start - WMt * mpmath.lu_solve(M * WMt, M * start - target)
        exact = torch.tensor([float(e) for e in exact], dtype=torch.float64)
    return max(relative(x - exact, y.abs().max() + b.abs().max()), relative(A @ x - b, A.abs() @ x.abs(), b))


@given(problems(), st.sampled_from([-10.0, -1e-3, 0.0, 1.0]))
def test_halfspace_and_hyperplane(problem, b):
    y, d, _, _ = problem
    a = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(y.dtype)
    flat = a.double().flatten()
    x = sets.Hyperplane(a, b).argmin(y, d)
    check_slices(x, y, d, None, y.dtype, lambda *row: kkt_hyperplane(flat, b, *row))
    x = sets.Halfspace(a, b).argmin(y, d)
    check_slices(x, y, d, None, y.dtype, lambda *row: kkt_hyperplane(flat, b, *row, inequality=True))


@given(problems(), st.integers(1, 4))
def test_affine(problem, m):
    y, d, _, _ = problem
    gen = torch.Generator().manual_seed(m)
    A = torch.randn(min(m, y.numel()), y.numel(), generator=gen, dtype=torch.float64)
    b = torch.randn(len(A), generator=gen, dtype=torch.float64)
    x = sets.Affine(A, b).argmin(y, d)
    check_slices(x, y, d, None, y.dtype, lambda *row: kkt_affine(A, b, *row))


PROPERTY = settings(deadline=None)


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
@given(all_scales(), st.sampled_from([0.0, 1.0, -1e-9, 1e9]), st.integers(0, 100), st.sampled_from([0, 6, 30]))
def test_halfspace_and_hyperplane_over_the_whole_range(problem, b, seed, spread):
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
@given(all_scales(), st.integers(1, 4))
def test_affine_over_the_whole_range(problem, m):
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

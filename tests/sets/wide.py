"""Line 9 over the whole range of numbers: y up to the largest float32, d from 1e-30 to 1e30, warm starts of any size.

The answer is compared with one computed exactly, in rational numbers where the equations are linear in pieces and in
many digits elsewhere.
"""

import math
from fractions import Fraction

import mpmath
import torch
from hypothesis import strategies as st

from sets.conditions import TOL
from superadam import sets

MAX = torch.finfo(torch.float32).max


TINY = Fraction(1e-36)  # about here float32 begins to have less digits


def magnitudes(gen, shape, center, spread):
    """10 to a power within spread/2 of the center."""
    return 10 ** (center + spread * (torch.rand(shape, generator=gen, dtype=torch.float64) - 0.5))


@st.composite
def all_scales(draw):
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


def water_level(y, d, total, cap=None):
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


DIMS = st.sampled_from([None, 0, -1])


def sizes(y, total):
    """To what the errors of y - θ/d are relative: its parts, but for a y so large that this would say nothing."""
    return [total + (abs(v) if abs(v) <= 10**9 * total else 0) for v in y]


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


def bound(value, scale, dtype):
    return float(torch.tensor(value * scale, dtype=dtype))

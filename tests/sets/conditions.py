"""Random points and metrics, and the optimality conditions of line 9, written down once more.

`argmin(y, d)` minimises ½ Σ dᵢ(xᵢ - yᵢ)² on the set. The conditions are stated in the units of x: those of the
gradient, divided by d, where w = max(d)/d.
"""

import math

import torch
from hypothesis import strategies as st

TOL = {torch.float64: 1e-9, torch.float32: 1e-5}


POINTS = ["normal", "ties", "zeros", "huge", "tiny", "magnitudes", "one large", "negative", "sparse"]


METRICS = ["scalar", "ones", "uniform", "twelve orders", "two values", "large", "small"]


def point(kind, shape, dtype, gen):
    y = torch.randn(shape, generator=gen, dtype=torch.float64)
    if kind == "ties":
        y = y.round()
    elif kind == "zeros":
        y = torch.zeros_like(y)
    elif kind == "huge":
        y = y * 1e30
    elif kind == "tiny":
        y = y * 1e-20
    elif kind == "magnitudes":
        y = y * 10 ** (24 * torch.rand(shape, generator=gen, dtype=torch.float64) - 12)
    elif kind == "one large":
        y[..., :1] = 1e6
    elif kind == "negative":
        y = -y.abs()
    elif kind == "sparse":
        y = y * (torch.rand(shape, generator=gen) < 0.2)
    return y.to(dtype)


def metric(kind, shape, dtype, gen):
    u = torch.rand(shape, generator=gen, dtype=torch.float64)
    return {
        "scalar": torch.tensor(0.3, dtype=torch.float64),
        "ones": torch.ones_like(u),
        "uniform": u + 0.1,
        "twelve orders": 10 ** (12 * u - 6),
        "two values": torch.where(u < 0.5, 1e-6, 1e6).double(),
        "large": 1e12 * (u + 0.1),
        "small": 1e-12 * (u + 0.1),
    }[kind].to(dtype)


@st.composite
def problems(draw, scalar_metric=False):
    shape = draw(st.sampled_from([(1,), (2,), (7,), (3, 5), (40,), (2, 3, 4), (20, 30)]))
    dtype = draw(st.sampled_from([torch.float64, torch.float32]))
    gen = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    y = point(draw(st.sampled_from(POINTS)), shape, dtype, gen)
    d = metric("scalar" if scalar_metric else draw(st.sampled_from(METRICS)), shape, dtype, gen)
    return y, d, draw(st.sampled_from([1e-3, 1.0, 30.0])), draw(st.sampled_from([None, -1, 0]))


#
# Each function gives the largest violation for one slice (vectors of float64), relative to the numbers that occur.
def relative(error, *scales):
    """max |errorᵢ| / (sum of the scales)ᵢ, with 0/0 = 0."""
    scale = sum(torch.as_tensor(s).abs() for s in scales)
    error = error.abs() / torch.where(error == 0, 1.0, scale)
    return float(error.max())


def positive(t):
    return t.clamp(min=0)


def kkt_simplex(total, y, w, x, cap=math.inf):
    assert (x >= 0).all()
    assert (x <= cap * (1 + 1e-6)).all()
    free, none, full = (x > 0) & (x < cap), x == 0, x >= cap
    # Read θ off the free coordinates, but as far as those at a bound allow: close to a bound, the former say little.
    theta = (y - x)[free].sum() / w[free].sum() if free.any() else torch.tensor(0.0)
    least = (y / w)[none].max() if none.any() else torch.tensor(-math.inf)
    most = ((y - cap) / w)[full].min() if full.any() else torch.tensor(math.inf)
    level = y - theta.maximum(least).minimum(most) * w
    wrong = torch.where(free, x - level, torch.where(none, positive(level), positive(cap - level)))
    return max(relative(wrong, y, total), relative(x.sum() - total, total))


def check_slices(x, y, d, dim, dtype, residual):
    """The residual is small in every slice."""
    assert x.shape == y.shape
    assert x.dtype == y.dtype
    w = (d.double().max() / d.double()).expand_as(y)
    axes = list(range(y.dim())) if dim is None else [dim % y.dim()]
    kept = [i for i in range(y.dim()) if i not in axes]
    size = math.prod(y.shape[i] for i in axes)
    rows = (t.double().permute(*kept, *axes).reshape(-1, size) for t in (y, w, x))
    for row in zip(*rows, strict=True):
        assert residual(*row) < TOL[dtype]

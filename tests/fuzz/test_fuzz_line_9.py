"""Line 9 is minimal: in no direction that stays in the set does it get less, to first order, nor at any other point."""

import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from fuzz.compositions import FUZZ
from fuzz.regions import PENALTIES, SETS, feasible_points, regions, symmetric
from sets.conditions import METRICS, POINTS, metric, point
from superadam import SuperAdam, matrices, schedules

DTYPES = st.sampled_from([torch.float64, torch.float32])
CLOSE = {torch.float64: 1e-8, torch.float32: 1e-4}
KNOWN = {"GroupL1Ball": ["huge"], "Intersection of three": ["huge", "one large"]}
"""Points that these tests found to get a wrong answer. Whoever mends a set deletes its line."""


def descent(slope, x, z):
    """Return -⟨slope, z - x⟩, relative to the numbers in it: positive if x is not minimal among x and z.

    `slope` is a pair of terms whose difference it is.
    """
    product = (slope[0] - slope[1]) * (z - x)
    sizes = (slope[0].abs() + slope[1].abs()) * (z.abs() + x.abs())
    return -float(product.sum() / sizes.sum().clamp(min=1e-300))


def outside(part, x, sizes):
    """Return how far x is outside the set, relative to x or to the set."""
    return min(float(part.relative_violation(x)), float(part.violation(x)) / sizes.r)


@FUZZ
@given(regions(SETS), st.sampled_from(POINTS), st.sampled_from(METRICS), DTYPES)
def test_no_feasible_direction_leads_nearer_to_y(region, of_y, of_d, dtype):
    kind, part, sizes = region
    assume(of_y not in KNOWN.get(kind, ()))
    y = symmetric(point(of_y, sizes.shape, torch.float64, sizes.gen), part).to(dtype)
    d = metric("scalar" if part.scalar_metric else of_d, sizes.shape, dtype, sizes.gen)
    try:
        x = part.argmin(y.clone(), d.clone())
    except ValueError as error:
        assert "iterations" in str(error)  # noqa: PT017
        return
    assert outside(part, x, sizes) < CLOSE[dtype]
    d, y, x = d.double(), y.double(), x.double()
    for z in feasible_points(part, x, sizes):
        if part.convex:
            assert descent((d * x, d * y), x, z) < CLOSE[dtype]
        else:
            assert descent((d * (x + z) / 2, d * y), x, z) < CLOSE[dtype]  # ½ d (z - y)² - ½ d (x - y)²


@FUZZ
@given(regions(SETS | PENALTIES), st.sampled_from([0.01, 1.0]), st.booleans(), st.sampled_from([None, False]), DTYPES)
def test_a_step_of_two_tensors_is_minimal(region, gamma, scalar, foreach, dtype):
    """H_t is known: |∇f| + 0.1, or 2."""
    kind, part, sizes = region
    scalar = scalar or getattr(part, "scalar_metric", False)
    matrix = matrices.Identity(scale=2.0) if scalar else matrices.SecondMoment(0.0, 0.1, bias_correction=False)
    params = [symmetric(sizes.normal(), part).to(dtype).requires_grad_() for _ in range(2)]
    opt = SuperAdam(
        params,
        lr=gamma,
        matrix=matrix,
        schedule=schedules.Constant(mu=1.0, alpha=1.0, first=1.0),
        foreach=foreach,
        **{"constraint" if kind in SETS else "penalty": part},
    )
    for _ in range(3):
        before = [p.detach().double().clone() for p in params]
        for p in params:
            p.grad = symmetric(sizes.normal(), part).to(dtype)
        opt.step()
        for x_t, p in zip(before, params, strict=True):
            x, g = p.detach().double(), p.grad.double()
            H = torch.tensor(2.0) if scalar else g.abs() + 0.1
            slope = (H / gamma * x + g, H / gamma * x_t)
            if kind in SETS:
                assert outside(part, p.detach(), sizes) < CLOSE[dtype]
                for z in feasible_points(part, x, sizes):
                    middle = (slope[0] if part.convex else slope[0] + H / gamma * (z - x) / 2, slope[1])
                    assert descent(middle, x, z) < CLOSE[dtype]
            else:
                for z in (x + 1e-3 * sizes.normal(), x + sizes.normal(), 0 * x, x_t):
                    least, other = (objective(part, g, H / gamma, u, x_t) for u in (x, z))
                    assert least[0] - other[0] <= CLOSE[dtype] * (least[1] + other[1])


def objective(part, g, d, x, x_t):
    """Return ⟨g, x⟩ + ½ (x - x_t)ᵀ d (x - x_t) + h(x), and the size of its terms."""
    terms = [g * x, d * (x - x_t).square() / 2]
    return sum(float(t.sum()) for t in terms) + float(part.value(x)), sum(float(t.abs().sum()) for t in terms)

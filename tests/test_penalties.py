"""The exact step of line 9 with a penalty: subgradient conditions, scipy, and penalties together with boxes.

`argmin(y, d)` minimises ½ Σ dᵢ(xᵢ - yᵢ)² + h(x). The conditions are stated in the units of x: those of the gradient,
divided by d.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize, minimize_scalar

from superadam import penalties, sets
from superadam.penalties import combined_argmin, pair_objection
from test_sets import TOL, check_slices, problems, relative

WEIGHTS = st.sampled_from([0.0, 1e-6, 0.3, 1e4])


# -------------------------------------------------------------------------------------------- subgradient conditions


def kkt_elastic(l1, l2, y, d, x):
    """d(x - y) + l1 ∂|x| + l2 x ∋ 0."""
    rest = y - x - l2 / d * x  # = l1/d times a subgradient of |x|
    wrong = torch.where(x == 0, (y.abs() - l1 / d).clamp(min=0), rest - l1 / d * x.sign())
    return relative(wrong, y)


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
}


def example(seed, shape=(5,), dtype=torch.float64):
    gen = torch.Generator().manual_seed(seed)
    y = 2 * torch.randn(shape, generator=gen, dtype=torch.float64)
    return y.to(dtype), (torch.rand(shape, generator=gen, dtype=torch.float64) * 3 + 0.2).to(dtype)


def objective(penalty, x, y, d):
    return 0.5 * (d * (x - y) ** 2).sum() + penalty.value(x)


@pytest.mark.parametrize("name", ["L1", "L2", "ElasticNet"])
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
    assert penalties.GroupLasso(2.0, 0).value(x) == pytest.approx(2 * (3 + math.sqrt(20)))


@pytest.mark.parametrize("name", EVERY)
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
    x = EVERY[name].argmin(y, d)
    assert x.dtype == dtype
    exact = EVERY[name].argmin(y.double(), d.double())
    torch.testing.assert_close(x.double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("name", EVERY)
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
            EVERY[name].argmin(y, y * bad)

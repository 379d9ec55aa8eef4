"""What holds for every penalty: no point nearby is better, values, shapes, plain data, pairs with boxes, refusals."""

import math

import pytest
import torch

from penalties.every import ANY_SIZE, EVERY, example, metric_of, objective
from superadam import penalties, sets
from superadam.penalties import combined_argmin, pair_objection


@pytest.mark.parametrize("name", EVERY)
def test_no_point_nearby_is_better(name):
    """Also with the value that the penalty itself reports."""
    penalty = EVERY[name]
    gen = torch.Generator().manual_seed(1)
    for seed in range(20):
        y, d = example(seed, (3, 4))
        d = metric_of(penalty, d)
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
    assert penalties.OverlappingGroupLasso(2.0, [[0, 1], [1, 3], [2]]).value(x) == pytest.approx(
        2 * (5 + math.sqrt(20))
    )
    assert penalties.Huber(2.0, delta=1.0).value(x) == 2 * (2.5 + 3.5 + 1.5)
    assert penalties.TotalVariation(2.0).value(x) == 18
    assert penalties.TotalVariation(2.0, dim=0).value(x) == 18
    assert penalties.Nuclear(2.0).value(torch.diag(torch.tensor([3.0, -4.0]))) == pytest.approx(14)
    assert penalties.GroupLasso(2.0, 0).value(x) == pytest.approx(2 * (3 + math.sqrt(20)))


@pytest.mark.parametrize("name", [name for name in ANY_SIZE if "Variation" not in name])
def test_zero_is_exact(name):
    penalty = EVERY[name]
    x = penalty.argmin(torch.tensor([[1e-3, -1e-3], [5.0, 5.0]]), 1.0)
    if name in ("L1", "ElasticNet", "GroupLasso of rows"):
        assert x[0].tolist() == [0.0, 0.0]
    assert (x[1] > 1).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", EVERY)
def test_low_precision_is_the_rounded_exact_step(name, dtype):
    y, d = example(0, (3, 4), dtype)
    d = metric_of(EVERY[name], d.double()) if EVERY[name].scalar_metric else d
    x = EVERY[name].argmin(y, d)
    assert x.dtype == dtype
    exact = EVERY[name].argmin(y.double(), torch.as_tensor(d).double())
    torch.testing.assert_close(x.double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("name", ANY_SIZE)
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


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_bad_weights(bad):
    for build in (
        lambda: penalties.L1(bad),
        lambda: penalties.L2(bad),
        lambda: penalties.ElasticNet(bad, 0.0),
        lambda: penalties.ElasticNet(0.0, bad),
        lambda: penalties.GroupLasso(bad, 0),
        lambda: penalties.OverlappingGroupLasso(bad, [[0]]),
        lambda: penalties.Huber(bad),
        lambda: penalties.Huber(1.0, delta=bad),
        lambda: penalties.TotalVariation(bad),
        lambda: penalties.Nuclear(bad),
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
            EVERY[name].argmin(y, bad if EVERY[name].scalar_metric else y * bad)

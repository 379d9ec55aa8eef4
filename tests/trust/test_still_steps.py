"""Steps with γ = 0, as in the first step of a warm-up, and matrices with a NaN, leave nothing spoilt."""

import pytest
import torch

from superadam import SuperAdam, estimators, matrices, penalties, sets


@pytest.mark.parametrize(
    "region", [{"constraint": sets.L2Ball(1.0)}, {"constraint": sets.Box(-1, 1)}, {"penalty": penalties.L1(0.1)}]
)
@pytest.mark.parametrize(
    "parts", [{"matrix": "AdaDelta"}, {"matrix": matrices.Centered(lam=1e-3), "estimator": estimators.HeavyBall()}]
)
def test_a_warm_up_from_0_trains_on_a_set(parts, region):
    x = torch.full((4,), 0.3, requires_grad=True)
    opt = SuperAdam([x], lr=0.0, **parts, **region)
    for t in range(6):
        opt.param_groups[0]["lr"] = t / 5
        x.grad = torch.tensor([1.0, -1.0, 0.5, 2.0])
        opt.step()
        assert all(v.isfinite().all() for v in opt.state[x].values() if isinstance(v, torch.Tensor))
    assert x.isfinite().all()
    assert (x != 0.3).any()


class NaNInThree(matrices.Diagonal):
    """A user's H that is NaN where a gradient is negative."""

    def H(self, s):
        return (s.g + 2.0).sqrt()


@pytest.mark.parametrize("last", [False, True])
def test_a_nan_in_an_h_is_refused_in_any_order(last):
    good, bad = torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)
    params = [good, bad] if last else [bad, good]
    opt = SuperAdam(params, lr=0.1, matrix=NaNInThree())
    good.grad, bad.grad = torch.ones(2), torch.full((3,), -5.0)
    with pytest.raises(RuntimeError, match="not positive definite"):
        opt.step()

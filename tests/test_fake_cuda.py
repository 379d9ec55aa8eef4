"""No step of the zoo waits for a GPU, or mixes devices: run on fake CUDA tensors, which have no values to wait for."""

from unittest import mock

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from superadam import SuperAdam, create, penalties, sets, zoo

DEFAULTS = {"sgd": {"momentum": 0.9}, "storm": {"k": 0.1, "omega": 1.0, "c": 10.0}, "super_adam": {}}
# These have an estimator of their own, so that τ is no choice.
NO_TAU = {"adam_plus", "mars", "mars_approx", "nigt", "sadagrad", "super_adam_plus"}
# These decide by the step count on the host, and refuse CUDA graphs.
ON_HOST = {"sadagrad"}


def build(name, params, tau, **options):
    options = {**DEFAULTS.get(name, {}), **options}
    if name == "storm":
        return create(name, params, **options)  # τ is 1
    return create(name, params, **({} if name in NO_TAU else {"tau": tau}), **options)


def copy_(x, y):
    """The binding of Tensor.copy_ asks for a CUDA driver before it gets to the fake tensor; the operator does not."""
    return torch.ops.aten.copy_.default(x, y)


def steps(build, *, overflow=False):
    """Two steps on fake tensors in float32 and bfloat16, and the end of training."""
    with mock.patch.object(torch.Tensor, "copy_", copy_), FakeTensorMode():
        params = [
            torch.zeros(shape, device="cuda", dtype=dtype, requires_grad=True)
            for dtype in (torch.float32, torch.bfloat16)
            for shape in ((3, 2), ())
        ]
        opt = build(params)

        def closure():
            for p in params:
                p.grad = torch.ones_like(p)
            return torch.ones((), device="cuda")

        for _ in range(2):
            if overflow:
                closure()
                opt.grad_scale, opt.found_inf = torch.ones(2, device="cuda")
                opt.step()
            else:
                opt.step(closure)
        opt.flush()
        kept = [v for p in params for v in opt.state[p].values() if isinstance(v, torch.Tensor)]
        assert all(v.device.type == "cuda" for v in kept)
        return opt


@pytest.mark.parametrize(("foreach", "how"), [(False, "master"), (None, "stochastic")], ids=["per-tensor", "foreach"])
@pytest.mark.parametrize("tau", [0.0, 1.0])
@pytest.mark.parametrize("name", sorted(zoo.METHODS))
def test_no_step_waits(name, tau, foreach, how):
    """Either way of rounding concerns the bfloat16 parameters only."""
    if tau > 0 and name in NO_TAU:
        pytest.skip("no τ to choose")
    options = {"foreach": foreach, "rounding": how, "capturable": name not in ON_HOST}
    steps(lambda params: build(name, params, tau, **options))


@pytest.mark.parametrize("tau", [0.0, 1.0])
@pytest.mark.parametrize(
    "options",
    [
        {"constraint": sets.Box(-1.0, 1.0)},
        {"constraint": sets.NonNegative(), "penalty": penalties.ElasticNet(0.1, 0.1)},
        {"constraint": sets.LInfBall(1.0), "penalty": penalties.L2(0.1)},
        {"penalty": penalties.L1(0.1)},
    ],
    ids=str,
)
def test_no_step_waits_for_a_set_of_intervals(options, tau):
    steps(lambda params: SuperAdam(params, tau=tau, capturable=True, **options))


@pytest.mark.parametrize("name", sorted(zoo.METHODS))
def test_graphs_are_refused_only_by_the_one_that_decides_on_the_host(name):
    params = [torch.zeros(2, requires_grad=True)]
    if name in ON_HOST:
        with pytest.raises(ValueError, match="use capturable=False"):
            build(name, params, 0.0, capturable=True)
    else:
        build(name, params, 0.0, capturable=True)


@pytest.mark.parametrize("name", sorted(set(zoo.METHODS) - ON_HOST))
def test_an_overflow_is_skipped_without_waiting(name):
    """With capturable=True and one gradient per batch, as torch's fused optimizers do it."""
    if build(name, [torch.zeros(2, requires_grad=True)], 0.0).two_point:
        pytest.skip("two gradients per batch: the host decides")
    steps(lambda params: build(name, params, 0.0, capturable=True), overflow=True)


def test_fake_tensors_would_notice():
    """Without capturable, the host looks at whether gradients have overflowed."""
    with pytest.raises(DataDependentOutputException, match="_local_scalar_dense"):
        steps(lambda params: SuperAdam(params), overflow=True)

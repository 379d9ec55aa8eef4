"""No step of the zoo waits for a GPU, or mixes devices: run on fake CUDA tensors, which have no values to wait for."""

from unittest import mock

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR

from equality.test_line_9 import PARTS
from pairs import pairs
from superadam import SuperAdam, create, penalties, sets, zoo

DEFAULTS = {"sgd": {"momentum": 0.9}, "storm": {"k": 0.1, "omega": 1.0, "c": 10.0}, "super_adam": {}}
# These have an estimator of their own, or need the newest gradient in the step, so that τ is no choice.
NO_TAU = {
    "adan",
    "ademamix",
    "adopt",
    "stable_adamw",
    "lion",
    "nadam",
    "nadamw",
    "adam_plus",
    "mars",
    "mars_approx",
    "mars_m",
    "mars_shampoo",
    "muon",
    "nigt",
    "sadagrad",
    "adamw_ahead",
    "super_adam_plus",
}


def build(name, params, tau, **options):
    options = {**DEFAULTS.get(name, {}), **options}
    if name == "storm":
        return create(name, params, **options)  # τ is 1
    return create(name, params, **({} if name in NO_TAU else {"tau": tau}), **options)


def copy_(x, y):
    """The binding of Tensor.copy_ asks for a CUDA driver before it gets to the fake tensor; the operator does not."""
    return torch.ops.aten.copy_.default(x, y)


def steps(build, *, number=3, overflow=False, shapes=((3, 2), ()), scheduler=None):
    """Some steps on fake tensors in float32 and bfloat16, and the end of training."""
    with mock.patch.object(torch.Tensor, "copy_", copy_), FakeTensorMode():
        params = [
            torch.zeros(shape, device="cuda", dtype=dtype, requires_grad=True)
            for dtype in (torch.float32, torch.bfloat16)
            for shape in shapes
        ]
        opt = build(params)
        schedule = None if scheduler is None else scheduler(opt)

        def closure():
            for p in params:
                p.grad = torch.ones_like(p)
            return torch.ones((), device="cuda")

        for _ in range(number):
            if overflow:
                closure()
                opt.grad_scale, opt.found_inf = torch.ones(2, device="cuda")
                opt.step()
            else:
                opt.step(closure)
            if schedule is not None:
                schedule.step()
        opt.flush()
        kept = [v for p in params for v in opt.state[p].values() if isinstance(v, torch.Tensor)]
        assert all(v.device.type == "cuda" for v in kept)
        return opt


# Slices by index ask for a CUDA driver, though the tensor is fake.
SLICED = {"psgd_kron"}


@pytest.mark.parametrize(
    ("name", "tau", "how"), pairs(sorted(set(zoo.METHODS) - SLICED), [0.0, 1.0], ["nearest", "stochastic"], one_in=3)
)
def test_no_step_waits(name, tau, how):
    """Either way of rounding concerns the bfloat16 parameters only."""
    if tau > 0 and name in NO_TAU:
        pytest.skip("no τ to choose")
    foreach = False if how == "nearest" else None
    steps(lambda params: build(name, params, tau, foreach=foreach, rounding=how))


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
    steps(lambda params: SuperAdam(params, tau=tau, **options))


def has_tensors(part):
    """Whether an option is a tensor: it has values, and those of a fake one cannot be checked."""
    return any(isinstance(value, torch.Tensor) for value in part.spec().values())


PARTS = {
    **PARTS,
    "Halfspace of one number": sets.Halfspace(1.0, -0.1),
    "BoxSection of one number": sets.BoxSection(1.0, 0.1, -0.2, 0.3),
}
SOLVED = [name for name, part in PARTS.items() if not (part.waits or part.separable or has_tensors(part))]


@pytest.mark.parametrize(("name", "tau"), pairs(SOLVED, [0.0, 1.0]))
def test_no_step_waits_for_a_root(name, tau):
    """Fixed iterations, with and without the root of the last step; every coordinate has a metric of its own."""
    options = {"tau": tau, PARTS[name]._kind: PARTS[name]}
    steps(lambda params: SuperAdam(params, **options), number=2, shapes=[(4, 3)])


def test_which_roots_are_found_without_waiting():
    assert {type(PARTS[name]).__name__ for name in SOLVED} == {
        *("L1Ball", "L2Ball", "Simplex", "CappedSimplex", "Halfspace", "Hyperplane", "BoxSection", "SecondOrderCone"),
        *("Sphere", "GroupLasso"),
    }


def test_no_vertex_waits():
    """H → 0, where line 9 is a linear problem over the set."""
    for part in (sets.L2Ball(0.3), sets.L1Ball(0.3), sets.Simplex(), sets.CappedSimplex(1.0, 0.5)):
        options = {"lr": 0.1, "matrix": "Zero", "constraint": part}
        steps(lambda params, options=options: SuperAdam(params, **options), shapes=[(4, 3)])


# ------------------------------------------------------------------------------------------------ schedules


@pytest.mark.parametrize("tau", [0.0, 1.0])
@pytest.mark.parametrize(
    "scheduler",
    [lambda opt: LambdaLR(opt, lambda n: 1 / (1 + n)), lambda opt: CosineAnnealingLR(opt, 10)],
    ids=["LambdaLR", "CosineAnnealingLR"],
)
def test_schedules_on_the_device(tau, scheduler):
    """γ is a tensor on the device, which a scheduler writes into, and which the host does not read."""

    def build(params):
        # torch has no fused kernel with a tensor as lr for fake tensors
        return SuperAdam(params, lr=torch.tensor(0.1, device="cuda"), tau=tau, fused=False)

    opt = steps(build, shapes=[(4, 8), (3, 2)], scheduler=scheduler)
    assert all(
        isinstance(group["lr"], torch.Tensor) and group["lr"].device.type == "cuda" for group in opt.param_groups
    )


def test_fake_tensors_would_notice():
    """The host looks at whether gradients have overflowed."""
    with pytest.raises(DataDependentOutputException, match="_local_scalar_dense"):
        steps(lambda params: SuperAdam(params), overflow=True)

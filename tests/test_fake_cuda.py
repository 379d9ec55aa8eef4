"""No step of the zoo waits for a GPU, or mixes devices: run on fake CUDA tensors, which have no values to wait for."""

import contextlib
from unittest import mock

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR
from torch.utils._python_dispatch import TorchDispatchMode

from equality.test_line_9 import PARTS
from pairs import pairs
from superadam import SuperAdam, create, matrices, penalties, sets, zoo
from superadam._step import compiled, tiles

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
# These decide by the step count on the host, and refuse CUDA graphs.
ON_HOST = {"sadagrad", "shampoo", "soap", "super_adam_plus", "kl_shampoo", "psgd_kron"}


def build(name, params, tau, **options):
    options = {**DEFAULTS.get(name, {}), **options}
    if name == "storm":
        return create(name, params, **options)  # τ is 1
    return create(name, params, **({} if name in NO_TAU else {"tau": tau}), **options)


def copy_(x, y):
    """The binding of Tensor.copy_ asks for a CUDA driver before it gets to the fake tensor; the operator does not."""
    return torch.ops.aten.copy_.default(x, y)


class NoCopies(TorchDispatchMode):
    """Refuses copies from the host to the device, which a CUDA graph would repeat from memory that is gone by then."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.name().startswith(("aten::_to_copy", "aten::copy_")):
            target, source = (args[0], args[1]) if func.name().startswith("aten::copy_") else (out, args[0])
            assert not (source.device.type == "cpu" and target.device.type == "cuda"), func
        return out


def steps(build, *, number=3, overflow=False, shapes=((3, 2), ()), scheduler=None):
    """Some steps on fake tensors in float32 and bfloat16, and the end of training."""
    with mock.patch.object(torch.Tensor, "copy_", copy_), FakeTensorMode():
        params = [
            torch.zeros(shape, device="cuda", dtype=dtype, requires_grad=True)
            for dtype in (torch.float32, torch.bfloat16)
            for shape in shapes
        ]
        opt = build(params)
        graph = NoCopies() if opt.defaults["capturable"] else contextlib.nullcontext()
        schedule = None if scheduler is None else scheduler(opt)

        def closure():
            for p in params:
                p.grad = torch.ones_like(p)
            return torch.ones((), device="cuda")

        for _ in range(number):
            with graph:
                if overflow:
                    closure()
                    opt.grad_scale, opt.found_inf = torch.ones(2, device="cuda")
                    opt.step()
                else:
                    opt.step(closure)
            if schedule is not None:
                schedule.step()
        with graph:
            opt.flush()
        kept = [v for p in params for v in opt.state[p].values() if isinstance(v, torch.Tensor)]
        assert all(v.device.type == "cuda" for v in kept)
        return opt


# Slices by index ask for a CUDA driver, though the tensor is fake.
SLICED = {"psgd_kron"}


@pytest.mark.parametrize(
    ("name", "tau", "how"), pairs(sorted(set(zoo.METHODS) - SLICED), [0.0, 1.0], ["master", "stochastic"], one_in=3)
)
def test_no_step_waits(name, tau, how):
    """Either way of rounding concerns the bfloat16 parameters only."""
    if tau > 0 and name in NO_TAU:
        pytest.skip("no τ to choose")
    foreach = False if how == "master" else None
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


@pytest.mark.parametrize("name", PARTS)
def test_a_set_or_penalty_that_waits_is_refused_and_no_other_waits(name):
    part = PARTS[name]
    options = {"capturable": True, "matrix": "GradientNorm", part._kind: part}
    if part.waits:
        told = rf"the step of {type(part).__name__} looks at numbers on the host.*use capturable=False, or "
        with pytest.raises(
            ValueError, match=told + ("Affine, Box, " if part._kind == "constraint" else "ElasticNet, ")
        ):
            SuperAdam([torch.zeros(4, 3, requires_grad=True)], **options)
    elif not has_tensors(part):
        steps(lambda params: SuperAdam(params, **options), number=1, shapes=[(4, 3)])


def has_tensors(part):
    """Whether an option is a tensor: it has values, and those of a fake one cannot be checked."""
    return any(isinstance(value, torch.Tensor) for value in part.spec().values())


PARTS = {
    **PARTS,
    "Halfspace of one number": sets.Halfspace(1.0, -0.1),
    "BoxSection of one number": sets.BoxSection(1.0, 0.1, -0.2, 0.3),
}
SOLVED = [name for name, part in PARTS.items() if not (part.waits or part.separable or has_tensors(part))]


@pytest.mark.parametrize(("name", "tau", "capturable"), pairs(SOLVED, [0.0, 1.0], [False, True], one_in=3))
def test_no_step_waits_for_a_root(name, tau, capturable):
    """Fixed iterations, with and without the root of the last step; every coordinate has a metric of its own."""
    options = {"tau": tau, PARTS[name]._kind: PARTS[name], "capturable": capturable}
    steps(lambda params: SuperAdam(params, **options), number=2, shapes=[(4, 3)])


def test_which_roots_are_found_without_waiting():
    assert {type(PARTS[name]).__name__ for name in SOLVED} == {
        *("L1Ball", "L2Ball", "Simplex", "CappedSimplex", "Halfspace", "Hyperplane", "BoxSection", "SecondOrderCone"),
        *("Sphere", "GroupLasso"),
    }


def test_no_vertex_waits():
    """H → 0, where line 9 is a linear problem over the set."""
    for part in (sets.L2Ball(0.3), sets.L1Ball(0.3), sets.Simplex(), sets.CappedSimplex(1.0, 0.5)):
        options = {"lr": 0.1, "matrix": "Zero", "constraint": part, "capturable": True}
        steps(lambda params, options=options: SuperAdam(params, **options), shapes=[(4, 3)])


# ------------------------------------------------------------------------------------ kernels, graphs, schedules


@pytest.fixture
def made(monkeypatch):
    """The functions that kernels would be made of. They run as they are."""
    functions = []
    monkeypatch.setattr(compiled, "_kernels", {})
    monkeypatch.setattr(compiled, "_compile", lambda function, example: functions.append(function) or function)
    monkeypatch.setattr(tiles, "SMALL", 16)
    return functions


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize(
    ("options", "kernels"),
    [
        ({"matrix": "Yogi"}, 1),
        ({"tau": 1.0}, 3),
        ({"matrix": matrices.GradientNorm(), "tau": 1.0}, 2),
        ({"matrix": "Belief", "constraint": sets.Box(-1.0, 1.0)}, 1),
    ],
    ids=str,
)
def test_no_compiled_step_waits(options, kernels, capturable, made):
    """Large tensors by kernels, the others (small ones, or of an odd length, or in bfloat16) as lists."""
    opt = steps(
        lambda params: SuperAdam(params, compile=True, capturable=capturable, **options),
        shapes=[(4, 8), (3, 2), (33,), ()],
    )
    assert opt.ways()[0].endswith(": compiled")
    assert len(made) == kernels


@pytest.mark.parametrize("tau", [0.0, 1.0])
@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize(
    "scheduler",
    [lambda opt: LambdaLR(opt, lambda n: 1 / (1 + n)), lambda opt: CosineAnnealingLR(opt, 10)],
    ids=["LambdaLR", "CosineAnnealingLR"],
)
def test_schedules_on_the_device(tau, compile, scheduler, made):
    """γ is a tensor on the device, which a scheduler writes into: a graph that is replayed reads the new one."""

    def build(params):
        return SuperAdam(params, lr=torch.tensor(0.1, device="cuda"), tau=tau, capturable=True, compile=compile)

    opt = steps(build, shapes=[(4, 8), (3, 2)], scheduler=scheduler)
    assert all(
        isinstance(group["lr"], torch.Tensor) and group["lr"].device.type == "cuda" for group in opt.param_groups
    )


def test_a_copy_from_the_host_would_be_noticed():
    """γ as a tensor on the CPU: a graph would hold its value and not its place."""
    with pytest.raises(AssertionError, match="_to_copy"):
        steps(lambda params: SuperAdam(params, lr=torch.tensor(0.1, device="cpu"), capturable=True))


def test_a_set_of_ones_own_says_whether_it_waits():
    class Balanced(sets.ConvexSet):
        waits = False

        def argmin(self, y, d):
            return y - y.mean()

    class Narrower(Balanced):  # whose methods may wait
        pass

    try:
        steps(lambda params: SuperAdam(params, constraint=Balanced(), capturable=True))
        with pytest.raises(ValueError, match=r"Narrower looks at numbers.* or Affine, Balanced, Box, "):
            SuperAdam([torch.zeros(2, requires_grad=True)], constraint=Narrower(), capturable=True)
    finally:
        del sets.ConvexSet._names["Balanced"], sets.ConvexSet._names["Narrower"]


@pytest.mark.parametrize("name", sorted(zoo.METHODS))
def test_graphs_are_refused_only_where_the_host_decides(name):
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
    steps(lambda params: build(name, params, 0.0, capturable=True), number=2, overflow=True)


def test_fake_tensors_would_notice():
    """Without capturable, the host looks at whether gradients have overflowed."""
    with pytest.raises(DataDependentOutputException, match="_local_scalar_dense"):
        steps(lambda params: SuperAdam(params), overflow=True)

"""torch's fused kernels run the step where they coincide with it, and only there."""

import copy
import functools
import warnings
from unittest import mock

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from superadam import SuperAdam, bucket, create, list_methods, matrices, penalties, schedules, sets, step
from superadam.matrices import fused
from ways import MATRICES, VARIANTS, Problem, equal, result, tiny, train

assert tiny  # a fixture is used by its name

N = 1000
NO_MOMENTUM = schedules.Constant(alpha=1.0)
# Compositions that have a kernel: their options, the kernel, and what else goes over whole tensors.
WITH_KERNEL = {
    "case 1": ({}, "_fused_adamw_", set()),
    "Adam": (
        {"matrix": matrices.SecondMoment(bias_correction=True), "schedule": "bias_corrected", "weight_decay": 0.1},
        "_fused_adamw_",
        set(),
    ),
    "decay in the gradient": (VARIANTS["decay in the gradient, maximize"], "_fused_adam_", set()),
    "AMSGrad": ({"matrix": "AMSGrad"}, "_fused_adamw_", set()),
    "AdaGrad": ({"matrix": "AdaGrad", "schedule": NO_MOMENTUM}, "_fused_adagrad_", {"_foreach_copy_"}),
    "AdaFom": (
        {"matrix": matrices.AdaGrad(mean=True), "schedule": schedules.Constant(alpha=1.0, power=0.5)},
        "_fused_adagrad_",
        {"_foreach_copy_"},
    ),
    "Identity": ({"matrix": "Identity"}, "_fused_sgd_", set()),
    "SGD with decay": ({"matrix": "Identity", "weight_decay": 0.1}, "_fused_sgd_", {"_foreach_mul_"}),
}


class Varying(schedules.Constant):
    def alpha_t(self, t, tau):
        return 0.5


class Odd(schedules.Schedule):
    """Weights outside of (0, 1), which line 11 does not forbid."""

    alpha: float = 0.0

    def mu_t(self, t, tau):
        return 0.1

    def alpha_t(self, t, tau):
        return self.alpha


class OwnMoment(matrices.SecondMoment):
    def update(self, s, grad):
        s.v.mul_(self.beta).addcmul_(grad, grad, value=2 * (1 - self.beta))


WITHOUT_KERNEL = {
    "subclass": {"matrix": OwnMoment()},
    "power": {"matrix": matrices.AMSGrad(power=0.25)},
    "τ": {"tau": 1.0},
    "estimator": {"estimator": "Nesterov"},
    "case 2": {"matrix": "GradientNorm"},  # its norm is known only when all of x has been seen
    "AccumulatedNorm": {"matrix": "AccumulatedNorm"},
    "clip": {"clip": 1.0},
    "Storm": {"matrix": "AccumulatedNorm", "schedule": "storm"},
    "momentum": {"matrix": "AdaGrad"},
    "varying momentum": {"matrix": "AdaGrad", "schedule": Varying(alpha=1.0)},
    "first": {"matrix": "AdaGrad", "schedule": schedules.Constant(alpha=1.0, first=0.5)},
    "set, one learning rate": {"matrix": "GradientNorm", "constraint": sets.Box(-1, 1)},
    "penalty, AdaGrad": {"matrix": "AdaGrad", "schedule": NO_MOMENTUM, "penalty": penalties.L1(0.1)},
    "Belief": {"matrix": "Belief"},
    "Yogi": {"matrix": "Yogi"},
    "EstimateNorm": {"matrix": "EstimateNorm"},
}


class Whole(TorchDispatchMode):
    """The operators that go over a tensor of N coordinates. Views do not."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        touched = [t for t in tree_leaves((args, kwargs, out)) if isinstance(t, torch.Tensor)]
        if any(t.numel() >= N for t in touched) and not func.is_view and "split" not in str(func):
            self.names.append(func.overloadpacket.__name__)
        return out


def operators(params=None, steps=3, **options):
    """Those of the last step."""
    params = [torch.randn(N).requires_grad_() for _ in range(2)] if params is None else params
    opt = SuperAdam(params, **options)
    for _ in range(steps):

        def closure():
            for p in params:
                p.grad = torch.ones_like(p)
            return 0.0

        with Whole() as seen:
            closure()
            seen.names.clear()
            opt.step(closure)
    return [name for name in seen.names if name not in ("ones_like", "new_full")]  # gradients, and a 0-d step count


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("name", WITH_KERNEL)
def test_kernel_runs_the_step(name):
    """One kernel for all tensors, and hardly another operation that goes over a whole one."""
    options, kernel, others = WITH_KERNEL[name]
    for way in ({}, {"fused": True}):
        names = operators(**options, **way)
        assert names.count(kernel) == 1
        assert set(names) == {kernel} | others
    assert kernel not in operators(fused=False, **options)
    assert kernel not in operators(foreach=True, **options)
    assert operators(foreach=False, **options).count(kernel) == 2  # for each tensor by itself


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("name", WITHOUT_KERNEL)
def test_no_kernel_where_it_would_be_another_step(name):
    assert not any(op.startswith("_fused") for op in operators(**WITHOUT_KERNEL[name]))


NO_KERNEL = r"torch has no fused kernel for this composition .*run by torch's other operations, as without fused=True"


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("name", WITHOUT_KERNEL)
def test_fused_without_a_kernel_is_a_warning_and_no_change(name):
    """In the constructor and in a group; a checkpoint says nothing more."""
    options = WITHOUT_KERNEL[name]
    p = torch.zeros(3, requires_grad=True)
    with pytest.warns(UserWarning, match=NO_KERNEL):
        asked = operators(fused=True, **options)
    assert asked == operators(**options)
    opt = SuperAdam([torch.ones(1, requires_grad=True)], fused=True)
    with pytest.warns(UserWarning, match=NO_KERNEL):
        opt.add_param_group({"params": [p], **options})
    opt.load_state_dict(opt.state_dict())
    copy.deepcopy(opt)


@pytest.mark.parametrize("name", list_methods())
def test_every_method_takes_fused(name):
    """The same steps, with at most one kind of warning."""
    results = []
    for options in ({}, {"fused": True}):
        x = torch.ones(3, dtype=torch.float64, requires_grad=True)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="fused=True: torch has no fused kernel")
            opt = create(name, [x], lr=0.1, **options)

        def closure(x=x, opt=opt):
            opt.zero_grad()
            loss = (x.exp() - x).sum()
            loss.backward()
            return loss

        for _ in range(3):
            opt.step(closure)
        results.append(x.detach())
    assert torch.equal(*results)


def test_the_warning_about_fused_comes_once():
    """For each composition, by the registry of `warnings`."""
    x = torch.zeros(3, requires_grad=True)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for _ in range(5):
            create("yogi", [x], fused=True, initial_accumulator=0.123)
    assert len(seen) == 1
    with pytest.warns(UserWarning, match="by torch.compile"):
        create("yogi", [x], fused=True, compile=True)


def test_ways_that_exclude_each_other_are_refused():
    p = torch.zeros(3, requires_grad=True)
    with pytest.raises(ValueError, match="foreach=True and fused=True are two ways to run a step: choose one"):
        SuperAdam([p], foreach=True, fused=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p.t().contiguous().t(),
        lambda p: p.to(torch.bfloat16),
    ],
    ids=["transposed", "bfloat16"],
)
def test_no_kernel_for_tensors_it_would_misread(change):
    p = change(torch.randn(40, 50)).requires_grad_()
    assert not any(op.startswith("_fused") for op in operators([p], fused=True))


@pytest.mark.parametrize("cls", [matrices.SecondMoment, matrices.AMSGrad])
def test_kernel_for_a_convolution_in_channels_last(cls):
    """Its weight is in one order in memory, its bias in another: each lies as its gradient and state do."""
    results = []
    for option in (None, False):
        torch.manual_seed(0)
        layer = torch.nn.Conv2d(3, 4, 3).double().to(memory_format=torch.channels_last)
        opt = SuperAdam(layer, matrix=cls(), fused=option)
        for _ in range(3):
            opt.zero_grad()
            inputs = torch.randn(2, 3, 6, 6, dtype=torch.float64)
            layer(inputs.to(memory_format=torch.channels_last)).square().sum().backward()
            opt.step()
        assert ("runs by torch's fused kernel" in repr(opt)) == (option is None)
        results.append([p.detach() for p in layer.parameters()])
    equal(*results)


@pytest.mark.parametrize("alpha", [0.0, 1e-17, 1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("matrix", ["case 1", "AMSGrad", "case 2", "Identity", "AdaGrad"])
def test_any_weight(matrix, alpha):
    """Adam's kernel divides by 1 - β₁^t, with β₁ = 1 - α, which is 0 or not finite for some of these."""
    for schedule in (Odd(alpha), *([schedules.Constant(first=alpha)] if alpha > 0 else [])):
        options = {"matrix": MATRICES[matrix], "schedule": schedule}
        equal(result(**options), result(foreach=True, **options))


@pytest.mark.parametrize("matrix", ["case 1", "AMSGrad", "case 2", "AdaGrad"])
def test_restarted_step(matrix):
    """After restart() the weight is α_1 again."""
    points = []
    for way in ({}, {"foreach": True}):
        problem = Problem()
        opt = train(problem, matrix=MATRICES[matrix], schedule=schedules.Constant(first=0.7), **way)
        opt.restart()
        train(problem, opt=opt, start=6)
        points.append(problem.params)
    equal(*points)


@pytest.mark.parametrize(
    "options",
    [
        *(VARIANTS[name] for name in ("box", "L1", "elastic net on a box")),
        {"constraint": sets.Box(-0.2, 0.3), "weight_decay": 0.1},
        {"constraint": sets.Box(-0.2, 0.3), "schedule": schedules.Constant(mu=0.3)},
        {"constraint": sets.L2Ball(1.0)},
        {"constraint": sets.Simplex(), "weight_decay": 0.1},
        {"penalty": penalties.GroupLasso(0.1, dim=0)},
    ],
    ids=["box", "L1", "elastic net on a box", "small box", "part of the way", "ball", "simplex", "group lasso"],
)
def test_line_9_after_the_kernel(options, monkeypatch):
    """The kernel makes x_t - γ H_t⁻¹ g_t, and the set sees it: whole where it must, in pieces where it may."""
    for module, name, value in ((step, "CHUNK", 64), (step, "SMALL", 16), (bucket, "SMALL", 16)):
        monkeypatch.setattr(module, name, value)
    parameters = [((150,), "contiguous", "alike", ()), ((12, 11), "contiguous", "alike", ())]
    for matrix in ("case 1", "case 1, corrected", "AMSGrad, corrected"):
        with mock.patch.object(fused, "_adamw", wraps=fused._adamw) as kernel:
            actual = result(parameters=parameters, matrix=MATRICES[matrix], **options)
        clips = "penalty" not in options and options["constraint"].separable and "schedule" not in options
        assert kernel.called == clips
        equal(actual, result(parameters=parameters, matrix=MATRICES[matrix], foreach=True, **options))


def test_a_box_of_ones_own_is_asked():
    """It may do more than to clip."""

    class Rounded(sets.Box):
        def argmin(self, y, d):
            return super().argmin(y, d).round(decimals=1)

    try:
        for part, rounded in ((sets.Box(-0.25, 0.25), False), (Rounded(-0.25, 0.25), True)):
            x = torch.linspace(-1, 1, 9).requires_grad_()
            opt = SuperAdam([x], lr=0.1, matrix="SecondMoment", constraint=part)
            x.grad = torch.linspace(0.3, -1, 9)
            opt.step()
            assert bool(x.detach().abs().max() <= 0.25)
            assert torch.equal(x.detach(), x.detach().round(decimals=1)) == rounded
    finally:
        del sets.ConvexSet._names["Rounded"]


def test_float32_kernel_is_as_exact_as_the_operations():
    """After 200 steps, both are as far from float64: what a kernel does with β = 0.999 in float32 does no harm."""
    far = {}
    for dtype in (torch.float64, torch.float32):
        for way in ({}, {"fused": False}):
            problem = Problem((dtype,), [((500,), "contiguous", "alike", ())])
            problem.params[0].data.copy_(torch.linspace(-1, 1, 500))
            train(problem, steps=200, matrix=MATRICES["case 1, corrected"], lr=0.01, **way)
            far[dtype, bool(way)] = problem.params[0].detach().double()
    exact = far[torch.float64, False]
    equal(far[torch.float64, True], exact, 1e-10)
    by_kernel, by_hand = ((far[torch.float32, way] - exact).abs().max() for way in (False, True))
    assert by_kernel < max(2 * by_hand, 1e-5)


# ------------------------------------------------------------------------------------------------ devices


def recorder(log, name, *lists, lr, **options):
    """A kernel's stand-in, which looks where its tensors are: on one device, which lr may not be read from."""
    devices = {t.device for tensors in lists for t in tensors}
    assert len(devices) == 1
    (device,) = devices
    assert not isinstance(lr, torch.Tensor) or lr.device == device
    assert all(not isinstance(v, torch.Tensor) for v in options.values())
    log.append((name, device.type))


@pytest.mark.parametrize("tensor_lr", [False, True])
@pytest.mark.parametrize("devices", [["cuda"], ["cuda:0", "cuda:1"]])
@pytest.mark.parametrize("name", WITH_KERNEL)
def test_no_synchronisation_with_a_device(name, devices, tensor_lr, monkeypatch):
    """A fake tensor has no value that could be read. The kernels have no fake form, so another function is called."""
    options, kernel, _ = WITH_KERNEL[name]
    log = []
    for attribute in ("_adam", "_adamw", "_sgd", "_adagrad"):
        monkeypatch.setattr(fused, attribute, functools.partial(recorder, log, attribute))
    # The binding of Tensor.copy_ asks for a CUDA driver before it gets to the fake tensor; the operator does not.
    monkeypatch.setattr(torch.Tensor, "copy_", lambda x, y: torch.ops.aten.copy_.default(x, y))
    with FakeTensorMode():
        params = [torch.zeros(s, device=d, requires_grad=True) for d in devices for s in ((3, 2), ())]
        lr = torch.tensor(0.1, device="cuda:0") if tensor_lr else 0.1
        opt = SuperAdam(params, lr=lr, **options)
        for _ in range(3):
            for p in params:
                p.grad = torch.ones_like(p)
            opt.step()
    used = kernel in ("_fused_adam_", "_fused_adamw_")  # the others on CPUs alone
    assert log == [(kernel.removeprefix("_fused").removesuffix("_"), "cuda")] * 3 * len(devices) * used


def test_fake_tensors_leave_nothing_behind():
    """A step on fake tensors (to estimate memory, say) and then on real ones, and the other way round."""
    for _ in range(2):
        with FakeTensorMode():
            p = torch.ones(5, requires_grad=True)
            opt = SuperAdam([p])
            p.grad = torch.ones(5)
            opt.step()
        p = torch.ones(5, requires_grad=True)
        opt = SuperAdam([p], lr=0.1)
        p.grad = torch.ones(5)
        opt.step()
        assert (p < 1).all()

"""What torch asks of its own optimizers, asked of every composition: the same inputs, through the same machinery."""

import copy
import functools
import io
import pickle
import re
import warnings
from unittest import mock

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim.lr_scheduler import ConstantLR, ExponentialLR, LinearLR, ReduceLROnPlateau, StepLR
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_optimizers import (
    ErrorOptimizerInput,
    OptimizerErrorEnum,
    OptimizerInfo,
    OptimizerInput,
    get_error_inputs_for_all_optims,
    optims,
)
from torch.testing._internal.common_utils import TestCase
from torch.utils._python_dispatch import TorchDispatchMode

from superadam import SuperAdam, matrices, schedules

# One of each case, and a γ at which it moves by about 0.01 to 0.1 in a step.
MATRICES = {
    matrices.SecondMoment(): 0.003,
    matrices.GradientNorm(): 0.002,
    matrices.BarzilaiBorwein(lam=0.1): 0.05,
    matrices.Belief(): 0.003,
    matrices.BeliefNorm(): 0.002,
}


def optim_inputs(matrix, tau, device, dtype=None):
    """The options that torch calls global-friendly, alone and together, and those of Algorithm 1."""
    lr = MATRICES[matrix]

    def tensor_lr():
        return torch.tensor(lr, device=device, dtype=torch.float64)

    choices = {
        "default": {},
        "weight decay": {"weight_decay": 0.1},
        "maximize, weight decay": {"maximize": True, "weight_decay": 0.1},
        "clip": {"clip": 0.5},
        "schedule": {"schedule": schedules.Constant(mu=0.1, alpha=0.2)},
        "tensor lr": {"lr": tensor_lr()},
        "tensor lr, everything": {"lr": tensor_lr(), "weight_decay": 0.1, "clip": 0.5},
    }
    return [
        OptimizerInput(params=None, kwargs={"lr": lr, "matrix": matrix, "tau": tau, **kwargs}, desc=desc)
        for desc, kwargs in choices.items()
    ]


def error_inputs(matrix, tau, device, dtype):
    """torch's own, with those of Algorithm 1."""

    def bad(regex, kind=ValueError, params=None, on=OptimizerErrorEnum.CONSTRUCTION_ERROR, **kwargs):
        kwargs = {"matrix": matrix, "tau": tau, **kwargs}
        return ErrorOptimizerInput(
            OptimizerInput(params, kwargs, regex), error_on=on, error_type=kind, error_regex=regex
        )

    def broken(part, **fields):
        """A part whose options come from a file, as a spec."""
        return {"type": part, **fields}

    nan = float("nan")
    leaf = torch.zeros(2, device=device, dtype=dtype, requires_grad=True)
    sparse = torch.zeros(2, device=device, dtype=dtype, requires_grad=True)
    sparse.grad = torch.sparse_coo_tensor([[0]], [1.0], (2,), device=device, dtype=dtype, check_invariants=False)
    errors = [
        bad("Invalid learning rate: -0.1", lr=-0.1),
        bad("Invalid learning rate: nan", lr=nan),
        bad("Tensor lr must be 1-element", lr=torch.tensor([0.1, 0.1])),
        bad("Invalid weight_decay value: -0.1", weight_decay=-0.1),
        bad("Invalid weight_decay value: nan", weight_decay=nan),
        bad("Invalid weight_decay value: inf", weight_decay=float("inf")),
        *(bad(f"Invalid tau parameter: {t}", tau=t) for t in (-0.1, 1.1, nan)),
        *(bad(f"Invalid clip parameter: {c}", clip=c) for c in (0.0, -1.0, nan)),
        *(bad("Invalid lam parameter", matrix=broken(type(matrix).__name__, lam=lam)) for lam in (-1e-3, nan)),
        *(bad("Invalid k parameter", schedule=broken("Paper", k=k)) for k in (0.0, -1.0, nan)),
        bad("Invalid m parameter", schedule=broken("Paper", m=-1.0)),
        bad("Invalid c parameter", schedule=broken("Paper", c=0.0)),
        *(bad("Invalid cap parameter", schedule=broken("Paper", cap=cap)) for cap in (0.0, 1.5)),
        *(bad("Invalid mu parameter", schedule=broken("Constant", mu=mu)) for mu in (0.0, nan)),
        *(bad("Invalid alpha parameter", schedule=broken("Constant", alpha=alpha)) for alpha in (0.0, 1.1)),
        bad("optimizer got an empty parameter list", params=[]),
        bad("can't optimize a non-leaf Tensor", params=[leaf * 2]),
        bad("optimizer can only optimize Tensors", kind=TypeError, params=[1.0]),
        bad("foreach=True and fused=True are two ways to run a step", foreach=True, fused=True),
        bad("capturable=True is not supported", capturable=True),
        bad("does not support sparse gradients", kind=RuntimeError, params=[sparse], on=OptimizerErrorEnum.STEP_ERROR),
    ]
    for name in ("beta", "beta1", "beta2"):
        if hasattr(matrix, name):
            errors += [
                bad(f"Invalid {name} parameter", matrix=broken(type(matrix).__name__, **{name: value}))
                for value in (-0.1, 1.0, nan)
            ]
    return errors + get_error_inputs_for_all_optims(device, dtype)


class Composition(OptimizerInfo):
    """torch's record of an optimizer; SuperAdam has one for each composition, so the class name does not name it."""

    def __init__(self, matrix, tau):
        self.matrix, self.tau = matrix, tau
        super().__init__(
            SuperAdam,
            optim_inputs_func=functools.partial(optim_inputs, matrix, tau),
            optim_error_inputs_func=functools.partial(error_inputs, matrix, tau),
            scheduler_inputs=(
                [lambda opt: StepLR(opt, gamma=0.9, step_size=10)],
                [lambda opt: ReduceLROnPlateau(opt)],
                [lambda opt: LinearLR(opt, start_factor=0.4, total_iters=4), lambda opt: ExponentialLR(opt, gamma=0.9)],
                [lambda opt: ConstantLR(opt, factor=0.4), lambda opt: ReduceLROnPlateau(opt)],
            ),
            step_requires_closure=tau > 0 or matrix.two_point,
        )

    @property
    def name(self):
        return f"{type(self.matrix).__name__}_tau{self.tau:g}"


COMPOSITIONS = [Composition(matrix, tau) for matrix in MATRICES for tau in (0.0, 1.0)]
DIAGONAL = [info for info in COMPOSITIONS if not info.matrix.scalars]
SHAPES = [(3, 2), (4,), (), (2, 1, 3)]


def make_params(device, dtype, shapes=SHAPES, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=generator, dtype=dtype).to(device).requires_grad_() for s in shapes]


def clones(params):
    return [p.detach().clone(memory_format=torch.preserve_format).requires_grad_() for p in params]


def loss_of(params, k=0, first=0):
    """f(x; ξ_k), non-convex, in double precision whatever the parameters are, on real and imaginary parts."""
    total = torch.zeros((), dtype=torch.float64)
    for i, p in enumerate(params, start=first):
        x = torch.view_as_real(p) if p.is_complex() else p
        a = torch.arange(x.numel(), dtype=torch.float64, device=x.device).add(i + 10 * k).cos().reshape(x.shape)
        total = total + (1 + (x.double() - 2 * a).square()).log().sum().to(total.device)
    return total


def closure_of(opt, params, k=0):
    def closure():
        opt.zero_grad()
        loss = loss_of(params, k)
        loss.backward()
        return loss

    return closure


def run(opt, params, batches=range(3)):
    for k in batches:
        opt.step(closure_of(opt, params, k))


def finish(opt, params, batches=range(3)):
    """Run on, take the pending moves, and return x and what the optimizer would save."""
    run(opt, params, batches)
    opt.flush()
    return [p.detach().clone() for p in params], copy.deepcopy(opt.state_dict())


def saved_and_loaded(state_dict):
    file = io.BytesIO()
    torch.save(state_dict, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def plain(value):
    """Tensors as (dtype, values), so that == means identical."""
    if isinstance(value, torch.Tensor):
        return "tensor", value.dtype, tuple(value.shape), value.tolist()
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value


def close(actual, expected, tol):
    torch.testing.assert_close(actual, expected, rtol=tol, atol=tol)


class NoHostSync(TorchDispatchMode):
    """Refuses every operator whose result the host must wait for."""

    FORBIDDEN = ("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "unique")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name not in self.FORBIDDEN, f"{name} waits for the device"
        return func(*args, **(kwargs or {}))


class TestConformance(TestCase):
    def both_ways(self, optim_info, device, dtype=None, **kwargs):
        """Every input, by turns in a loop and by foreach. pytest shows the last line printed with a failure."""
        for i, optim_input in enumerate(optim_info.optim_inputs_func(device=device, dtype=dtype)):
            foreach = i % 2 == 1
            print(optim_input.desc, foreach)
            yield {**optim_input.kwargs, "foreach": foreach, **kwargs}

    # ----------------------------------------------------------------------------------------------- direction

    def check_direction(self, params, kwargs, schedulers=()):
        opt = SuperAdam(params, **kwargs)
        schedulers = [make(opt) for make in schedulers]
        before = loss_of(params).item()
        for _ in range(12):
            if opt.two_point:
                loss = opt.step(closure_of(opt, params))
            else:
                loss = closure_of(opt, params)()
                opt.step()
            for scheduler in schedulers:
                scheduler.step(loss.item()) if isinstance(scheduler, ReduceLROnPlateau) else scheduler.step()
        after = loss_of(params).item()
        if kwargs.get("maximize"):
            assert after > before
        else:
            assert after < before

    @optims(COMPOSITIONS, dtypes=[torch.float32])
    def test_goes_the_right_direction(self, device, dtype, optim_info):
        for kwargs in self.both_ways(optim_info, device, dtype):
            self.check_direction(make_params(device, dtype), kwargs)

    @optims(COMPOSITIONS, dtypes=[torch.float32])
    def test_goes_the_right_direction_with_schedulers(self, device, dtype, optim_info):
        for i, schedulers in enumerate(optim_info.scheduler_inputs):
            for optim_input in optim_info.optim_inputs_func(device=device, dtype=dtype)[:: i + 3]:
                print(i, optim_input.desc)
                self.check_direction(make_params(device, dtype), {**optim_input.kwargs, "foreach": i % 2}, schedulers)

    @optims(COMPOSITIONS, dtypes=[torch.float32])
    def test_each_group_goes_the_right_direction(self, device, dtype, optim_info):
        for kwargs in self.both_ways(optim_info, device, dtype):
            p, q, r, s = make_params(device, dtype)
            groups = [{"params": [p, q], "lr": 0.5 * float(kwargs["lr"])}, {"params": [r, s], "weight_decay": 0.01}]
            opt = SuperAdam(groups, **kwargs)
            before = loss_of([p, q]).item(), loss_of([r, s], first=2).item()
            for _ in range(12):
                opt.step(closure_of(opt, [p, q, r, s]))
            after = loss_of([p, q]).item(), loss_of([r, s], first=2).item()
            for old, new in zip(before, after, strict=True):
                assert (new > old) == bool(kwargs.get("maximize"))

    # --------------------------------------------------------------------- the same result, however it is computed

    @optims(COMPOSITIONS, dtypes=[torch.float32, torch.complex128])
    def test_foreach_equals_for_loop(self, device, dtype, optim_info):
        tol = 1e-4 if dtype is torch.float32 else 1e-11
        for optim_input in optim_info.optim_inputs_func(device=device, dtype=dtype):
            results = []
            for foreach in (False, True):
                params = make_params(device, dtype)
                opt = SuperAdam(params, **copy.deepcopy(optim_input.kwargs), foreach=foreach)
                results.append(finish(opt, params))
            (x, state), (x_foreach, state_foreach) = results
            close(x_foreach, x, tol)
            close(state_foreach["state"], state["state"], tol)

    @optims(COMPOSITIONS, dtypes=[torch.complex64, torch.complex128])
    def test_complex_equals_the_pair_of_reals(self, device, dtype, optim_info):
        """A complex parameter is its real and imaginary parts: in x, and in the state. (torch's kernels, which round
        otherwise, would take the pairs only.)"""
        for kwargs in self.both_ways(optim_info, device, dtype, fused=False):
            params = make_params(device, dtype)
            pairs = clones([torch.view_as_real(p) for p in params])
            opt, twin = SuperAdam(params, **copy.deepcopy(kwargs)), SuperAdam(pairs, **kwargs)
            (x, state), (x_pairs, state_pairs) = finish(opt, params), finish(twin, pairs)
            assert plain([torch.view_as_real(p) for p in x]) == plain(x_pairs)
            assert plain(state["state"]) == plain(state_pairs["state"])

    @optims(COMPOSITIONS, dtypes=[torch.complex128])
    def test_lazily_conjugated_gradients(self, device, dtype, optim_info):
        """autograd returns conjugates as views: Re Σ w p̄ has the gradient w, the parts of which are Re w and Im w."""
        w = torch.tensor([1 + 2j, -0.5j], device=device, dtype=dtype)
        results = []
        for lazy in (False, True):
            p = torch.tensor([1 + 1j, 2 - 1j], device=device, dtype=dtype, requires_grad=True)
            opt = SuperAdam([p], lr=0.1, matrix=optim_info.matrix, tau=optim_info.tau)

            def closure(p=p, opt=opt, lazy=lazy):
                opt.zero_grad()
                loss = (p.conj() * w).sum().real
                loss.backward()
                assert p.grad.is_conj()
                if not lazy:
                    p.grad = p.grad.resolve_conj()
                return loss

            for _ in range(3):
                opt.step(closure)
            results.append(p.detach())
        assert plain(results[1]) == plain(results[0])

    @optims(COMPOSITIONS, dtypes=[torch.float64])
    def test_a_tensor_lr_changes_nothing(self, device, dtype, optim_info):
        lr = MATRICES[optim_info.matrix]
        options = {"matrix": optim_info.matrix, "tau": optim_info.tau, "weight_decay": 0.1, "clip": 2.0}
        expected, _ = self.finished(device, dtype, lr=lr, **options)
        for value in (torch.tensor(lr, dtype=dtype), torch.tensor([lr], dtype=dtype)):
            for foreach in (False, True):
                print(value, foreach)
                x, _ = self.finished(device, dtype, **options, lr=value, foreach=foreach)
                close(x, expected, 1e-11)

    @optims(COMPOSITIONS, dtypes=[torch.float64])
    def test_an_lr_of_one_element_is_a_number(self, device, dtype, optim_info):
        """On the device as well, and for 0-d parameters: γ of shape (1,) is γ."""
        options = {"matrix": optim_info.matrix, "tau": optim_info.tau, "weight_decay": 0.1}
        lr = torch.tensor([MATRICES[optim_info.matrix]], dtype=dtype, device=device)
        expected, _ = self.finished(device, dtype, lr=lr[0].clone(), **options)
        for foreach in (False, True):
            x, _ = self.finished(device, dtype, lr=lr, **options, foreach=foreach)
            close(x, expected, 1e-12)

    def finished(self, device, dtype, **kwargs):
        params = make_params(device, dtype)
        return finish(SuperAdam(params, **kwargs), params)

    # ------------------------------------------------------------------------------------- kinds of parameters

    MIXED = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64, torch.complex128)

    def mixed_params(self):
        return [p for i, dtype in enumerate(self.MIXED) for p in make_params("cpu", dtype, [(3, 2)], seed=i)]

    @optims(DIAGONAL)
    def test_mixed_dtypes_do_not_touch_each_other(self, device, dtype, optim_info):
        """With a diagonal H, a parameter moves as if it were alone, and stays in its dtype."""
        for kwargs in self.both_ways(optim_info, device, clip=None):
            params = [p.detach().to(device).requires_grad_() for p in self.mixed_params()]
            alone = clones(params)
            finish(SuperAdam(params, **copy.deepcopy(kwargs)), params)
            opts = [SuperAdam([p], **copy.deepcopy(kwargs)) for p in alone]

            def evaluate(alone=alone):
                for p in alone:
                    p.grad = None
                loss = loss_of(alone, evaluate.k)
                loss.backward()
                return loss

            # f is a sum over the parameters, so the gradients of one do not depend on where the others are
            for k in range(3):
                evaluate.k = k
                for opt in opts:
                    opt.step(evaluate)
            for opt in opts:
                opt.flush()
            for p, q, kind in zip(params, alone, self.MIXED, strict=True):
                assert p.dtype == kind
                close(p, q, 1e-12 if kind in (torch.float64, torch.complex128) else 1e-6)

    @optims(COMPOSITIONS)
    def test_mixed_dtypes_share_one_matrix(self, device, dtype, optim_info):
        """With any H, a lower precision for some parameters is the same algorithm, up to that precision. Case 3 gets
        no half precision: a difference of two such gradients is mostly rounding, and so is a curvature made of it."""
        half = () if optim_info.matrix.two_point else (torch.bfloat16, torch.float16)
        for kwargs in self.both_ways(optim_info, device):
            params = [p.detach().to(device).requires_grad_() for p in self.mixed_params()]
            params = [p for p in params if p.dtype.itemsize > 2 or p.dtype in half]
            double = [p.detach().clone().to(torch.complex128 if p.is_complex() else torch.float64) for p in params]
            double = [p.requires_grad_() for p in double]
            (x, state), (x_double, _) = (finish(SuperAdam(ps, **copy.deepcopy(kwargs)), ps) for ps in (params, double))
            for p, q in zip(x, x_double, strict=True):
                close(p.to(q.dtype), q, 0.1 if p.dtype is torch.bfloat16 else 0.02)
            for kept, p in zip(state["state"].values(), params, strict=True):
                wide = torch.float64 if p.dtype in (torch.float64, torch.complex128) else torch.float32
                assert {kept[name].dtype for name in ("g", "v", "m") if name in kept} == {wide}

    @optims([info for info in COMPOSITIONS if info.matrix.scalars])
    def test_mixed_dtypes_survive_a_checkpoint(self, device, dtype, optim_info):
        """The scalar that all parameters share comes back in the precision it was saved in, whoever is first."""
        for kinds in ([torch.float32, torch.float64], [torch.float64, torch.float32]):
            params = [p for i, d in enumerate(kinds) for p in make_params(device, d, [(3,)], seed=i)]
            opt = SuperAdam(params, lr=MATRICES[optim_info.matrix], matrix=optim_info.matrix, tau=optim_info.tau)
            run(opt, params)
            twins = clones(params)
            loaded = SuperAdam(twins, matrix=optim_info.matrix, tau=optim_info.tau)
            loaded.load_state_dict(saved_and_loaded(opt.state_dict()))
            assert plain(loaded.state_dict()) == plain(opt.state_dict())
            (x, _), (y, _) = finish(opt, params, range(5, 7)), finish(loaded, twins, range(5, 7))
            assert plain(x) == plain(y)

    @optims(COMPOSITIONS)
    def test_parameters_on_several_devices(self, device, dtype, optim_info):
        """One optimizer for parameters here and there equals one for parameters that are all here."""
        elsewhere = "cpu" if torch.device(device).type != "cpu" else None
        if elsewhere is None:
            self.skipTest("there is but one device; the fake ones are several")
        for kwargs in self.both_ways(optim_info, device):
            here = make_params(device, torch.float64)
            there = [p.detach().to(elsewhere if i % 2 else device).requires_grad_() for i, p in enumerate(here)]
            (x, _), (y, _) = (finish(SuperAdam(ps, **copy.deepcopy(kwargs)), ps) for ps in (here, there))
            close([p.cpu() for p in y], [p.cpu() for p in x], 1e-11)

    @optims(COMPOSITIONS, dtypes=[torch.float64])
    def test_layout_does_not_matter(self, device, dtype, optim_info):
        """Empty, 0-d, transposed, strided and channels-last parameters, and gradients laid out otherwise than them."""
        dense = make_params(device, dtype, [(0, 3), (), (4, 3), (5,), (2, 3, 2, 2), (2, 3, 2, 2)])
        laid_out = [
            lambda p: p,
            lambda p: p,
            lambda p: p.t().contiguous().t(),
            lambda p: torch.stack([p, p], dim=-1)[..., 0],
            lambda p: p.contiguous(memory_format=torch.channels_last),
            lambda p: p,
        ]
        for kwargs in self.both_ways(optim_info, device, dtype):
            params = clones(dense)
            odd = [f(p.detach().clone()).requires_grad_() for f, p in zip(laid_out, dense, strict=True)]
            strides = [p.stride() for p in odd]
            opt, twin = SuperAdam(params, **copy.deepcopy(kwargs)), SuperAdam(odd, **kwargs)
            for k in range(5):
                opt.step(closure_of(opt, params, k))

                def closure(k=k, twin=twin, odd=odd):
                    loss = closure_of(twin, odd, k)()
                    odd[2].grad = odd[2].grad.contiguous()
                    odd[5].grad = odd[5].grad.contiguous(memory_format=torch.channels_last)
                    return loss

                twin.step(closure)
            close(odd, params, 1e-12)
            assert [p.stride() for p in odd] == strides

    @optims(COMPOSITIONS, dtypes=[torch.float64])
    def test_parameters_without_gradient_are_left_alone(self, device, dtype, optim_info):
        """Neither moved, nor decayed, nor given a state."""
        for kwargs in self.both_ways(optim_info, device, dtype):
            params, idle = make_params(device, dtype), make_params(device, dtype, [(3,)])[0]
            start = idle.detach().clone()
            opt = SuperAdam([*params, idle], **kwargs)
            finish(opt, params)
            assert plain(idle) == plain(start)
            assert idle not in opt.state

    @optims([info for info in COMPOSITIONS if not info.step_requires_closure], dtypes=[torch.float64])
    def test_a_step_without_gradients_is_none(self, device, dtype, optim_info):
        for kwargs in self.both_ways(optim_info, device, dtype):
            params = make_params(device, dtype)
            start = clones(params)
            opt = SuperAdam(params, **kwargs)
            opt.step()
            assert plain(params) == plain(start)
            assert len(opt.state) == 0

    @optims(COMPOSITIONS, dtypes=[torch.float64])
    def test_zero_gradients_only_decay(self, device, dtype, optim_info):
        """g = 0 moves nothing but what weight decay moves: x_6 = Π (1 - γ μ_t w) x_1."""
        for kwargs in self.both_ways(optim_info, device, dtype):
            params = make_params(device, dtype)
            kwargs = {"schedule": "Paper", **kwargs}
            schedule = schedules.Schedule.find(kwargs["schedule"])
            factor = 1.0
            for t in range(1, 6):
                mu = schedule.mu_t(t, optim_info.tau)
                factor *= 1 - float(kwargs["lr"]) * mu * kwargs.get("weight_decay", 0.0)
            expected = [p.detach() * factor for p in params]
            opt = SuperAdam(params, **kwargs)

            def closure(params=params):
                for p in params:
                    p.grad = torch.zeros_like(p)
                return 0.0

            for _ in range(5):
                opt.step(closure)
            opt.flush()
            close(params, expected, 1e-12)

    @optims(COMPOSITIONS, dtypes=[torch.bfloat16, torch.float16])
    def test_low_precision_keeps_its_state_in_float32(self, device, dtype, optim_info):
        """Also through a checkpoint, where torch would cast it; the run then goes on bit by bit as it would have."""
        for kwargs in self.both_ways(optim_info, device, dtype):
            params = make_params(device, dtype)
            opt = SuperAdam(params, **copy.deepcopy(kwargs))
            run(opt, params)
            twins = clones(params)
            loaded = SuperAdam(twins, **kwargs)
            loaded.load_state_dict(saved_and_loaded(opt.state_dict()))
            for p in twins:
                assert p.dtype == dtype
                for name in {"g", "v", "m", "b"} & loaded.state[p].keys():
                    assert loaded.state[p][name].dtype == torch.float32
            (x, _), (y, _) = finish(opt, params, range(5, 7)), finish(loaded, twins, range(5, 7))
            assert plain(x) == plain(y)

    @optims(COMPOSITIONS, dtypes=[torch.float64])
    def test_named_parameters(self, device, dtype, optim_info):
        """Names are kept and saved, change nothing, and do not stand between a checkpoint and an unnamed optimizer."""
        names = [f"layer.{i}" for i in range(len(SHAPES))]
        kwargs = {"lr": MATRICES[optim_info.matrix], "matrix": optim_info.matrix, "tau": optim_info.tau}

        def built(named, params):
            return SuperAdam(zip(names, params, strict=True) if named else params, **kwargs)

        results = []
        for first in (False, True):
            for second in (False, True):
                params = make_params(device, dtype)
                opt = built(first, params)
                run(opt, params)
                state_dict = saved_and_loaded(opt.state_dict())
                assert state_dict["param_groups"][0].get("param_names") == (names if first else None)
                opt = built(second, params)
                opt.load_state_dict(state_dict)
                assert opt.param_groups[0].get("param_names") == (names if first or second else None)
                results.append(finish(opt, params, range(5, 7))[0])
        for x in results[1:]:
            assert plain(x) == plain(results[0])

    def test_a_module_names_its_parameters(self, device):
        module = nn.Linear(2, 1).to(device)
        group = SuperAdam(module).param_groups[0]
        assert group["param_names"] == ["weight", "bias"]
        assert group["params"][0] is module.weight

    # ------------------------------------------------------------------------------------------- state dicts

    @optims(COMPOSITIONS, dtypes=[torch.float64])
    def test_state_dict_is_deterministic(self, device, dtype, optim_info):
        """Equal runs have equal states, and to look at one changes nothing."""
        for kwargs in self.both_ways(optim_info, device, dtype):
            runs = []
            for look in (False, True):
                params = make_params(device, dtype)
                opt = SuperAdam(params, **copy.deepcopy(kwargs))
                for k in range(3):
                    opt.step(closure_of(opt, params, k))
                    if look:
                        assert plain(opt.state_dict()) == plain(opt.state_dict())
                runs.append(plain(opt.state_dict()))
            assert runs[0] == runs[1]

    @optims(COMPOSITIONS, dtypes=[torch.float64, torch.complex64])
    def test_save_and_load(self, device, dtype, optim_info):
        """After any number of steps a loaded optimizer continues as the saved one, with its options."""
        for kwargs in self.both_ways(optim_info, device, dtype):
            for done in (1, 3):
                params = make_params(device, dtype)
                opt = SuperAdam(params, **copy.deepcopy(kwargs))
                run(opt, params, range(done))
                state_dict = saved_and_loaded(opt.state_dict())
                assert plain(state_dict) == plain(opt.state_dict())
                before = plain(state_dict)
                twins = clones(params)
                schedule = kwargs.get("schedule")
                loaded = SuperAdam(twins, matrix=optim_info.matrix, tau=optim_info.tau, schedule=schedule)
                loaded.load_state_dict(state_dict)
                assert plain(loaded.state_dict()) == before
                result = finish(opt, params, range(done, done + 2))
                assert plain(finish(loaded, twins, range(done, done + 2))) == plain(result)
                assert loaded.gradient_evaluations == opt.gradient_evaluations
                assert plain(state_dict) == before, "the checkpoint was written to"

    @optims(COMPOSITIONS, dtypes=[torch.float64])
    def test_load_an_older_state_dict(self, device, dtype, optim_info):
        """Options that a checkpoint does not know yet are those the optimizer was constructed with."""
        new = ("tau", "matrix", "schedule", "weight_decay", "clip", "maximize", "foreach", "capturable")
        for kwargs in self.both_ways(optim_info, device, dtype):
            params = make_params(device, dtype)
            opt = SuperAdam(params, **copy.deepcopy(kwargs))
            run(opt, params)
            old = saved_and_loaded(opt.state_dict())
            del old["gradient_evaluations"]
            for group in old["param_groups"]:
                for name in new:
                    del group[name]
            twins = clones(params)
            loaded = SuperAdam(twins, **kwargs)
            loaded.load_state_dict(old)
            (x, state), (y, state_loaded) = finish(opt, params, range(5, 7)), finish(loaded, twins, range(5, 7))
            assert plain(x) == plain(y)
            assert plain(state["state"]) == plain(state_loaded["state"])
            assert plain(state["param_groups"]) == plain(state_loaded["param_groups"])

    @optims(COMPOSITIONS, dtypes=[torch.float64])
    def test_deepcopy_and_pickle_continue_identically(self, device, dtype, optim_info):
        for kwargs in self.both_ways(optim_info, device, dtype):
            params = make_params(device, dtype)
            opt = SuperAdam(params, **kwargs)
            run(opt, params)
            copies = [copy.deepcopy((params, opt)), pickle.loads(pickle.dumps((params, opt)))]
            public = {name: value for name, value in vars(opt).items() if not name.startswith("_")}
            result = plain(finish(opt, params, range(5, 7)))
            for twins, twin in copies:
                assert vars(twin).keys() - public.keys() == {n for n in vars(twin) if n.startswith("_")}
                assert plain(finish(twin, twins, range(5, 7))) == result
                assert twin.gradient_evaluations == opt.gradient_evaluations

    @optims(COMPOSITIONS, dtypes=[torch.float64])
    def test_another_composition_is_refused_and_changes_nothing(self, device, dtype, optim_info):
        for other in COMPOSITIONS:
            if other is optim_info:
                continue
            params = make_params(device, dtype)
            opt = SuperAdam(params, matrix=optim_info.matrix, tau=optim_info.tau)
            run(opt, params, range(2))
            strangers = make_params(device, dtype)
            stranger = SuperAdam(strangers, matrix=other.matrix, tau=other.tau)
            run(stranger, strangers, range(2))
            before = plain(opt.state_dict())
            with pytest.raises(ValueError, match="another composition"):
                opt.load_state_dict(stranger.state_dict())
            assert plain(opt.state_dict()) == before

    # -------------------------------------------------------------------------------------------------- hooks

    @optims(COMPOSITIONS, dtypes=[torch.float64])
    def test_step_hooks(self, device, dtype, optim_info):
        """Once for every step(), even if the closure runs twice, in torch's order; a pre-hook may replace it."""
        params = make_params(device, dtype)
        opt = SuperAdam(params, matrix=optim_info.matrix, tau=optim_info.tau)
        calls = []

        def log(name):
            return lambda o, args, kwargs: calls.append((name, o is opt, len(args)))

        handles = [
            opt.register_step_post_hook(log("post")),
            register_optimizer_step_pre_hook(log("global pre")),
            opt.register_step_pre_hook(log("pre")),
            register_optimizer_step_post_hook(log("global post")),
        ]
        try:
            run(opt, params, range(3))
        finally:
            for handle in handles:
                handle.remove()
        once = [(name, True, 2) for name in ("global pre", "pre")] + [(n, True, 2) for n in ("post", "global post")]
        assert calls == once * 3

        replaced = []

        def replace(o, args, kwargs):
            return (args[0], lambda: replaced.append(1) or args[1]()), kwargs

        with_hook = opt.register_step_pre_hook(replace)
        run(opt, params, range(1))
        with_hook.remove()
        assert len(replaced) == (2 if opt.two_point else 1)
        assert len(calls) == 12

    @optims(COMPOSITIONS, dtypes=[torch.bfloat16])
    def test_state_dict_hooks(self, device, dtype, optim_info):
        """A post-hook may add to what is saved; a load pre-hook may take it out again, and has the last word."""
        params = make_params(device, dtype)
        opt = SuperAdam(params, matrix=optim_info.matrix, tau=optim_info.tau)
        run(opt, params)
        order = []
        opt.register_state_dict_pre_hook(lambda o: order.append("pre"))
        opt.register_state_dict_post_hook(lambda o, sd: order.append("post") or {**sd, "epoch": 7})
        state_dict = saved_and_loaded(opt.state_dict())
        assert (order, state_dict["epoch"]) == (["pre", "post"], 7)

        twins = clones(params)
        loaded = SuperAdam(twins, matrix=optim_info.matrix, tau=optim_info.tau)
        epochs = []

        def pre(o, sd):
            epochs.append(sd.pop("epoch"))
            sd["param_groups"] = [{**group, "lr": 0.5} for group in sd["param_groups"]]
            return sd

        loaded.register_load_state_dict_pre_hook(pre)
        loaded.load_state_dict(state_dict)
        assert (epochs, loaded.param_groups[0]["lr"]) == ([7], 0.5)
        assert plain(loaded.state_dict()["state"]) == plain(state_dict["state"])

    @optims(COMPOSITIONS, dtypes=[torch.bfloat16])
    def test_load_state_dict_post_hook_finds_the_loaded_optimizer(self, device, dtype, optim_info):
        """It sees the state as it was saved, float32 included, and what it changes stays changed."""
        params = make_params(device, dtype)
        opt = SuperAdam(params, matrix=optim_info.matrix, tau=optim_info.tau)
        run(opt, params)
        twins = clones(params)
        loaded = SuperAdam(twins, matrix=optim_info.matrix, tau=optim_info.tau)
        seen = []

        def post(o):
            seen.append((o is loaded, plain(o.state[twins[0]]["g"]), o.gradient_evaluations))
            o.state[twins[0]]["g"].zero_()

        loaded.register_load_state_dict_post_hook(post)
        loaded.load_state_dict(saved_and_loaded(opt.state_dict()))
        assert seen == [(True, plain(opt.state[params[0]]["g"]), opt.gradient_evaluations)]
        assert loaded.state[twins[0]]["g"].count_nonzero().item() == 0

    # --------------------------------------------------------------------------------------- printing and errors

    @optims(COMPOSITIONS)
    def test_repr_shows_the_composition(self, device, dtype, optim_info):
        params = make_params(device, dtype)
        groups = [{"params": params[:2]}, {"params": params[2:], "lr": 0.2, "schedule": schedules.Constant(alpha=0.3)}]
        options = {"matrix": optim_info.matrix, "tau": optim_info.tau, "schedule": "Paper"}
        opt = SuperAdam(groups, lr=0.1, weight_decay=0.01, **options)
        bytes_each = 4 * (1 + len(optim_info.matrix.buffers)) * (2 if dtype is torch.float64 else 1)
        expected = f"""\
SuperAdam(
  group 0:
  (11) g: Recursive(tau={optim_info.tau})
  (4)  H: {optim_info.matrix!r}
  (10) mu, alpha: Paper(k=1.0, m=100.0, c=None, cap=0.9)
  lr=0.1, weight_decay=0.01, clip=None, maximize=False
  2 tensors, 10 parameters, {bytes_each} bytes of state for each
  group 1:
  (10) mu, alpha: Constant(mu=1.0, alpha=0.3, first=1.0, decay=0.0, power=0.0)
  lr=0.2, weight_decay=0.01, clip=None, maximize=False
  2 tensors, 7 parameters, {bytes_each} bytes of state for each
)"""
        lines = repr(opt).splitlines()
        assert [line for line in lines if not line.startswith("  runs by ")] == expected.splitlines()
        assert sum(line.startswith("  runs by ") for line in lines) == 2

    @optims(COMPOSITIONS)
    def test_errors(self, device, dtype, optim_info):
        for error_input in optim_info.optim_error_inputs_func(device=device, dtype=dtype):
            given, regex = error_input.optimizer_error_input, error_input.error_regex
            params = make_params(device, dtype) if given.params is None else given.params

            with warnings.catch_warnings():
                warnings.simplefilter("error")
                if error_input.error_on is OptimizerErrorEnum.CONSTRUCTION_ERROR:
                    with pytest.raises(error_input.error_type, match=regex):
                        SuperAdam(params, **given.kwargs)
                else:
                    opt = SuperAdam(params, **given.kwargs)
                    grads = [p.grad for p in params]

                    def closure(params=params, grads=grads):
                        for p, grad in zip(params, grads, strict=True):
                            p.grad = grad

                    with pytest.raises(error_input.error_type, match=regex):
                        opt.step(closure)

    def test_a_negative_tensor_lr_is_refused(self, device):
        """As torch.optim does, and as a negative number is."""
        with pytest.raises(ValueError, match="Invalid learning rate"):
            SuperAdam(make_params(device, torch.float32), lr=torch.tensor(-0.1))

    @optims(COMPOSITIONS)
    def test_bad_options_of_a_group_are_refused(self, device, dtype, optim_info):
        """As those of the constructor are."""
        for error_input in optim_info.optim_error_inputs_func(device=device, dtype=dtype):
            given = error_input.optimizer_error_input
            if given.params is not None:
                continue
            p, q = make_params(device, dtype, [(2,), (2,)])
            opt = SuperAdam([p])
            with pytest.raises(error_input.error_type, match=error_input.error_regex):
                opt.add_param_group({"params": [q], **given.kwargs})
            assert len(opt.param_groups) == 1

    @optims([info for info in COMPOSITIONS if info.step_requires_closure])
    def test_two_gradients_cannot_be_forgotten(self, device, dtype, optim_info):
        """step() without closure, and a closure without backward, say what to write instead and change nothing."""
        params = make_params(device, dtype)
        opt = SuperAdam(params, matrix=optim_info.matrix, tau=optim_info.tau)
        run(opt, params, range(2))
        before = plain(params), plain(opt.state_dict()["state"])
        with pytest.raises(RuntimeError, match=re.escape("opt.step(closure)")):
            opt.step()
        opt.zero_grad()
        with pytest.raises(RuntimeError, match="No parameter has a gradient"):
            opt.step(lambda: loss_of(params))
        assert (plain(params), plain(opt.state_dict()["state"])) == before

    @optims(COMPOSITIONS)
    def test_there_is_no_graph(self, device, dtype, optim_info):
        for kwargs in self.both_ways(optim_info, device, dtype):
            if isinstance(kwargs["lr"], torch.Tensor):
                kwargs["lr"].requires_grad_()
            params = make_params(device, dtype)
            opt = SuperAdam(params, **kwargs)
            finish(opt, params)
            for p in params:
                assert p.is_leaf
                for value in opt.state[p].values():
                    assert not (isinstance(value, torch.Tensor) and value.requires_grad)

    # -------------------------------------------------------------------------------------------- the device

    @optims(COMPOSITIONS, dtypes=[torch.float32, torch.bfloat16])
    def test_no_host_sync(self, device, dtype, optim_info):
        """A step never waits for the device. A host lr may be read, which is free, so its inputs are left out; so may
        H, by SGD's kernel, which is used on CPUs alone."""
        for kwargs in self.both_ways(optim_info, device, dtype, fused=False):
            if isinstance(kwargs["lr"], torch.Tensor):
                continue
            params = make_params(device, dtype)
            opt = SuperAdam(params, **kwargs)
            with NoHostSync():
                run(opt, params, range(3))
                opt.flush()

    def fake_steps(self, devices, lr, **kwargs):
        def copy_(x, y):
            return torch.ops.aten.copy_.default(x, y)

        # The binding of Tensor.copy_ asks for a CUDA driver before it gets to the fake tensor; the operator does not.
        with mock.patch.object(torch.Tensor, "copy_", copy_), FakeTensorMode():
            params = [
                torch.zeros(shape, device=d, dtype=dtype, requires_grad=True)
                for d in devices
                for dtype in (torch.float32, torch.bfloat16)
                for shape in ((3, 2), ())
            ]
            away = next(d for d in devices if d != "cpu")
            lr = torch.tensor(lr, device=away) if kwargs.pop("tensor_lr") else lr
            opt = SuperAdam(params, lr=lr, **kwargs)

            def closure():
                for p in params:
                    p.grad = torch.ones_like(p)
                return torch.ones((), device=devices[0])

            for _ in range(2):
                opt.step(closure)
            opt.flush()
            for p in params:
                for name, value in opt.state[p].items():
                    if name in ("g", "v", "m"):
                        assert value.device == p.device

    @optims(COMPOSITIONS)
    def test_fake_cuda(self, device, dtype, optim_info):
        """On CUDA no step reads a value, since fake tensors have none, nor mixes devices."""
        for foreach, tensor_lr, clip in ((False, False, 1.0), (True, True, None), (None, True, 1.0)):
            print(foreach, tensor_lr, clip)
            how = {"foreach": foreach, "tensor_lr": tensor_lr, "clip": clip}
            self.fake_steps(["cuda"], 0.1, matrix=optim_info.matrix, tau=optim_info.tau, weight_decay=0.1, **how)

    def fake_on_two_devices(self, optim_info, tensor_lr):
        for devices, foreach in ((["cuda", "cpu"], None), (["cpu", "cuda"], True), (["cuda:0", "cuda:1"], False)):
            print(devices, foreach)
            how = {"foreach": foreach, "tensor_lr": tensor_lr, "clip": 1.0}
            self.fake_steps(devices, 0.1, matrix=optim_info.matrix, tau=optim_info.tau, **how)

    @optims(COMPOSITIONS)
    def test_fake_cuda_on_several_devices(self, device, dtype, optim_info):
        self.fake_on_two_devices(optim_info, tensor_lr=False)

    @optims(COMPOSITIONS)
    def test_fake_cuda_on_several_devices_with_tensor_lr(self, device, dtype, optim_info):
        """γ is on one of the devices, and needed on both."""
        self.fake_on_two_devices(optim_info, tensor_lr=True)


instantiate_device_type_tests(TestConformance, globals())


def mark_slow(kinds):
    """In the quick suite each matrix has one τ, in turns; the other one is slow.

    A function, because pytest would collect a loop's variables: a class a second time, and a method without its class.
    """
    slow = [f"_{info.name}_" for n, info in enumerate(COMPOSITIONS) if (n // 2 + n) % 2]
    for kind in kinds:
        for name, method in list(vars(kind).items()):
            if any(part in name for part in slow):
                setattr(kind, name, pytest.mark.slow(method))


mark_slow([found for name, found in globals().items() if name.startswith("TestConformance")])

"""`compile=True` takes the same steps, by kernels that are made once.

A kernel takes seconds to make (torch keeps it on disk afterwards): the fast tests share a few, and the product of all
compositions is slow.
"""

import copy
import math

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR

from superadam import SuperAdam, estimators, iterates, matrices, penalties, schedules, sets, zoo
from superadam._step import compiled, tiles
from superadam.matrices import Matrix
from versions import needs_grad_dtype
from ways import IN_PAIRS, MATRICES, PARAMETERS, VARIANTS, Problem, equal, made, result, tiny, train

assert made, tiny  # fixtures are used by their names
# torch's inductor, as it is imported
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
KERNELS = {}  # of rows of 8
ALWAYS = [p for p in PARAMETERS if not p[3]]
YOGI = {"matrix": matrices.Yogi(), "weight_decay": 0.1}
CASE_1 = {"tau": 1.0}


class Cubes(Matrix):
    """A matrix of the user's own."""

    buffers = ("v",)
    elementwise = True

    def update(self, s, grad):
        s.v = 0.9 * s.v + 0.1 * grad.abs() ** 3

    def H(self, s):
        return s.v ** (1 / 3) / (1 - s.at_age(lambda t: 0.9**t)) + 1e-3


@pytest.fixture(autouse=True)
def _shared_kernels(tiny, monkeypatch):
    monkeypatch.setattr(compiled, "_kernels", KERNELS)


def check(tol=1e-12, parameters=ALWAYS, **options):
    actual = result(parameters=parameters, compile=True, **options)
    equal(actual, result(parameters=parameters, foreach=True, **options), tol)


# ----------------------------------------------------------------------------------------------- the same steps


@pytest.mark.parametrize("options", [YOGI, CASE_1, {"matrix": "GradientNorm"}, {"matrix": Cubes()}])
def test_same_steps(options):
    before = len(KERNELS)
    check(**options)
    assert len(KERNELS) > before


@pytest.mark.slow
@pytest.mark.parametrize(("matrix", "variant", "tau"), [p.values for p in IN_PAIRS if not p.marks])
def test_same_steps_in_every_composition(matrix, variant, tau):
    """One combination in four: each takes four seconds, and each matrix is there with every fourth variant."""
    if not MATRICES[matrix].on_host:
        check(matrix=MATRICES[matrix], tau=tau, parameters=PARAMETERS, **VARIANTS[variant])


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in zoo.list_methods() if n not in ("super_adam", "sadagrad", "sdlbfgs")])
def test_same_steps_of_every_method(name):
    check(build=getattr(zoo, name), parameters=PARAMETERS)
    check(5e-6, build=getattr(zoo, name), dtypes=(torch.float32,))


def test_scalar_of_another_precision():
    """‖g‖ is one number for all parameters, in float64 if one of them is: float32 ones have another kernel then."""
    options = {"matrix": matrices.EstimateNorm()}
    long, short = [((200,), "contiguous", "alike", ())], [((10,), "contiguous", "alike", ())]
    check(5e-6, long, dtypes=(torch.float32,), **options)
    points = []
    for way in ({"compile": True}, {"foreach": True}):
        single, double = Problem((torch.float32,), long), Problem((torch.float64,), short)
        opt = SuperAdam([*single.params, *double.params], lr=0.1, **options, **way)
        for n in range(3):
            single.closure(n)(), double.closure(n)()
            opt.step()
        assert opt.state[single.params[0]]["b"].dtype is torch.float64
        points.append(single.params)
    equal(*points, 5e-6)


def test_learning_rate_of_zero():
    """A warm-up may start at γ = 0, where line 9 is x̃ = x and its metric H/γ is infinite."""
    problem = Problem(parameters=ALWAYS)
    opt = SuperAdam(problem.params, lr=0.0, penalty=penalties.ElasticNet(0.1, 0.1), compile=True)
    for n in range(2):
        opt.step(problem.closure(n))
    equal(problem.params, Problem(parameters=ALWAYS).params, 0)


def test_capturable():
    """γ and the formulas of t do not lose digits on their way into a kernel."""
    for parameters in (ALWAYS[:1], ALWAYS):
        check(parameters=parameters, capturable=True, **YOGI)


@needs_grad_dtype
def test_gradients_of_another_precision():
    points = []
    for way in ({"compile": True}, {"foreach": True}):
        p = torch.linspace(-1, 1, 200, dtype=torch.float64).requires_grad_()
        p.grad_dtype = torch.float32
        opt = SuperAdam([p], lr=0.1, **YOGI, **way)
        for n in range(3):
            p.grad = (p.detach() - n).float()
            opt.step()
        points.append(p.detach())
    equal(*points)


def test_parameters_that_come_and_go():
    """Other step counts in one group, and none: the formulas of t are not part of the kernel."""
    check(parameters=PARAMETERS, **YOGI)


# ------------------------------------------------------------------------------------------------- made once


def sized(*sizes):
    return [((n,), "contiguous", "alike", ()) for n in sizes]


@pytest.mark.parametrize(("options", "expected"), [(YOGI, 1), (CASE_1, 3), ({"matrix": "GradientNorm"}, 0)])
def test_kernels_are_made_once(options, expected, made):
    """Not for another t, γ (a number or a tensor), or size; nor for another optimizer."""
    for sizes, lr in (([100, 130], 0.1), ([40], torch.tensor(0.1)), ([1000, 17, 5], torch.tensor(0.1).double())):
        problem = Problem(parameters=sized(*sizes))
        opt = SuperAdam(problem.params, lr=lr, compile=True, **options)
        scheduler = LambdaLR(opt, lambda n: 1 / (1 + n))
        for n in range(50):
            opt.step(problem.closure(n % 7))
            scheduler.step()
        opt.flush()
        assert len(made) == expected


def test_another_composition_is_another_kernel(made):
    """The control: what is part of a kernel is part of its name."""
    for options in (YOGI, {**YOGI, "weight_decay": 0.0}, {**YOGI, "maximize": True}):
        check(parameters=sized(100), **options)
    assert len(made) == 3


def test_kernel_keeps_no_tensor_of_the_users(made):
    problem = Problem(parameters=sized(100))
    opt = train(problem, compile=True, **YOGI)
    known = {t.data_ptr() for t in (*problem.params, *(opt.state[problem.params[0]][name] for name in ("g", "v")))}
    (kernel,) = compiled._kernels.values()
    held = [t for t in vars(kernel).values() if isinstance(t, torch.Tensor)]
    held += [cell.cell_contents for f, _ in kernel.formulas for cell in getattr(f, "__closure__", None) or ()]
    held += [p for c in held if hasattr(c, "params") for p in c.params]
    assert not known & {t.data_ptr() for t in held if isinstance(t, torch.Tensor)}


# --------------------------------------------------------------------------------------------------- promises


@pytest.mark.parametrize("options", [YOGI, CASE_1])
def test_resumed_run_is_the_same_bit_by_bit(options):
    through, before, after = (Problem(parameters=ALWAYS) for _ in range(3))
    train(through, steps=6, compile=True, **options)
    saved = train(before, steps=3, compile=True, **options).state_dict()
    with torch.no_grad():
        for p, q in zip(after.params, before.params, strict=True):
            p.copy_(q)
    opt = SuperAdam(after.params, lr=torch.tensor(1.0), compile=True, **options)
    opt.load_state_dict(saved)
    train(after, opt=opt, steps=3, start=4)
    equal(after.params, through.params, 0)


def test_autograd_is_told_of_the_step():
    p = torch.linspace(-1, 1, 300, dtype=torch.float64).requires_grad_()
    opt = SuperAdam([p], compile=True, **YOGI)
    loss = p.square().sum()
    p.grad = torch.ones_like(p)
    opt.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize(
    "options",
    [
        {
            "estimator": estimators.Summed(),
            "iterate": iterates.Staged(),
            "matrix": "AdaGrad",
            "schedule": schedules.Constant(),
        },
    ],
)
def test_part_on_the_host_runs_without_a_kernel(options):
    opt = SuperAdam([torch.zeros(3, requires_grad=True)], compile=True, **options)
    assert "  not compiled: a part decides by the step count on the host" in opt.ways()


@pytest.mark.parametrize(
    "options",
    [
        {"estimator": estimators.Corrected(), "matrix": "Yogi"},
        {"matrix": "BarzilaiBorwein"},
        {"matrix": "Yogi", "constraint": sets.L2Ball(1.0)},
        {"matrix": "Yogi", "constraint": sets.Box(-1, torch.ones(()))},
    ],
)
def test_what_is_not_elementwise_runs_without_a_kernel(options, made):
    check(**options)
    assert not made


def test_where_torch_has_a_kernel_none_is_made(made):
    check(parameters=sized(100, 200))
    check(parameters=sized(100, 200), matrix="AMSGrad")
    assert not made


def test_small_and_short_tensors_go_without_a_kernel(made):
    check(parameters=sized(5, tiles.SMALL), **YOGI)
    check(2**-8, sized(200), dtypes=(torch.bfloat16,), matrix="Yogi")
    check(5e-6, sized(200), dtypes=(torch.complex64,), **YOGI)
    assert not made


SHAPES_OF_SMALL = [((), "contiguous"), ((0, 3), "contiguous"), ((3,), "contiguous"), ((2, 2), "contiguous")]
SHAPES_OF_SMALL += [((1, 2, 2, 3), "channels last"), ((2, 7), "contiguous"), ((16,), "contiguous")]
MIXED = [((150,), "contiguous", "alike", ()), *((shape, how, "alike", ()) for shape, how in 2 * SHAPES_OF_SMALL)]


@pytest.mark.parametrize("options", [YOGI, CASE_1, {**CASE_1, **YOGI, "decoupled_weight_decay": False}])
def test_small_tensors_take_the_same_steps_in_one_call(options, made):
    """x is copied, the state is not; the second half of line 11 needs x only if a weight decay is in the gradient."""
    check(parameters=MIXED, **options)
    assert made


def test_one_kernel_of_inductor_takes_small_and_large_tensors():
    check(parameters=MIXED, **CASE_1)


def _lots(opt):
    return [(lot, layout) for layout in opt._plans[0].layouts for lot in layout.__dict__.get("end_to_end", ())]


def _moved(problem, how, **options):
    """Steps between which the state of small tensors is put elsewhere, with equal numbers."""
    opt = SuperAdam(problem.params, lr=0.1, **options)
    for n in range(6):
        opt.step(problem.closure(n))
        for p in problem.params:
            for name, t in opt.state[p].items():
                if how == "data" and name in ("g", "v"):
                    t.data = t.data.clone()
        if how == "checkpoint":
            opt.load_state_dict(copy.deepcopy(opt.state_dict()))
        elif how == "copy":
            problem, opt = copy.deepcopy((problem, opt))
    return problem, opt


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("how", ["data", "checkpoint", "copy"])
def test_state_of_small_tensors_that_is_put_elsewhere(how):
    """A step never writes into vectors that are the state no longer."""
    problem, opt = _moved(Problem(parameters=MIXED), how, compile=True, **CASE_1)
    expected, _ = _moved(Problem(parameters=MIXED), "", foreach=True, **CASE_1)
    equal(problem.params, expected.params)
    opt.step(problem.closure(9))
    lots = _lots(opt)
    assert sum(len(which) for (which, *_), _ in lots) == len(MIXED) - 1
    for (which, _, vectors), layout in lots:
        for name in ("g", "v"):
            ends = {vectors[name].untyped_storage().data_ptr()}
            assert {layout.states[i][name].untyped_storage().data_ptr() for i in which} == ends


def test_sums_do_not_lose_what_is_left_of_the_last_row():
    """A length that is no multiple of a row: ‖∇f‖² has all coordinates."""
    p = torch.ones(8 * 5 + 3, dtype=torch.float64, requires_grad=True)
    opt = SuperAdam([p], matrix=matrices.GradientNorm(beta=0.0), compile=True)
    p.grad = torch.arange(43.0, dtype=torch.float64)
    opt.step()
    assert opt.state[p]["b"].item() == pytest.approx(math.sqrt(sum(n * n for n in range(43))), rel=1e-14)

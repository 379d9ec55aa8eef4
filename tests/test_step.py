"""However a step runs, it is the same step: by lists, in pieces, by torch's kernels, on tensors of every layout."""

import functools
import pickle
import subprocess
import sys

import pytest
import torch

from problems import CASES, LR, Stochastic
from problems import train as train_on
from superadam import SuperAdam, penalties, reference, sets, zoo
from versions import needs_grad_dtype
from ways import IN_PAIRS, MATRICES, PARAMETERS, PRODUCT, VARIANTS, Problem, equal, has_kernel, result, tiny, train

pytestmark = pytest.mark.usefixtures("tiny")
assert tiny  # a fixture is used by its name

BY_LIST = {"foreach": True}
# After five steps on numbers around 1.
SINGLE = 5e-6


def composition(matrix, tau, variant):
    return {"matrix": MATRICES[matrix], "tau": tau, **VARIANTS[variant]}


def check(ways, tol=1e-12, **options):
    expected = result(**BY_LIST, **options)
    for way in ways:
        equal(result(**way, **options), expected, tol)
    start = Problem(options.get("dtypes", (torch.float64,))).params
    assert (expected[0][0] - start[0]).abs().max() > 1e-5  # it is no standstill that is compared


# ------------------------------------------------------------------------------------------- one way or another


@pytest.mark.parametrize(("matrix", "variant", "tau"), IN_PAIRS)
def test_default_way_is_that_of_whole_tensors(matrix, tau, variant):
    check([{}], **composition(matrix, tau, variant))


@pytest.mark.parametrize("tau", [0.0, 1.0])
@pytest.mark.parametrize("matrix", MATRICES)
def test_ways_agree(matrix, tau):
    """Each tensor by itself; in pieces where torch has a kernel; in single precision, to 5e-6."""
    options = composition(matrix, tau, "plain")
    check([{"foreach": False}, {"fused": False}], **options)
    check([{}, {"fused": False}], SINGLE, dtypes=(torch.float32,), **options)


@pytest.mark.slow
@pytest.mark.parametrize(("matrix", "tau", "variant"), PRODUCT)
def test_ways_agree_in_every_composition(matrix, tau, variant):
    options = composition(matrix, tau, variant)
    ways = [{}, {"foreach": False}, {"fused": False}]
    if has_kernel(SuperAdam([torch.zeros(1, requires_grad=True)], **options)):
        ways.append({"fused": True})
    check(ways, **options)
    check(ways, SINGLE, dtypes=(torch.float32,), **options)


@pytest.mark.parametrize("name", [name for name in zoo.list_methods() if name != "super_adam"])
def test_ways_agree_for_every_method(name):
    # two that would begin with steps of 1e-6
    farther = {"dog": {"reps_rel": 0.01}, "prodigy": {"d0": 0.01}}.get(name, {})
    build = functools.partial(getattr(zoo, name), **farther)
    check([{}, {"foreach": False}, {"fused": False}], build=build)
    if has_kernel(build([torch.zeros(1, requires_grad=True)])):
        check([{"fused": True}], build=build)


@pytest.mark.parametrize("tau", [0.0, 1.0])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("line_9", ["free", "box", "l1"])
def test_pieces_equal_reference(case, tau, line_9):
    """One vector of 300 coordinates, cut up by the optimizer, is Algorithm 1 on it."""
    argmins = {
        "free": (reference.unconstrained, {}),
        "box": (lambda g, x, H, gamma: (x - gamma * g / H).clamp(-2, 2), {"constraint": sets.Box(-2, 2)}),
        "l1": (
            lambda g, x, H, gamma: torch.nn.functional.softshrink(H * (x - gamma * g / H), 0.3 * gamma) / H,
            {"penalty": penalties.L1(0.3)},
        ),
    }
    argmin, options = argmins[line_9]
    problem = Stochastic(shapes=[(200,), (9, 10), (10,)], samples=20)
    problem.x_1.clamp_(-2, 2)
    samples = range(20)
    run = reference.super_adam(problem.grad, problem.x_1, samples, case=case, tau=tau, gamma=LR[case], argmin=argmin)
    for way in ({}, {"fused": False}):
        params = problem.params()
        opt = SuperAdam(params, lr=LR[case], tau=tau, matrix=CASES[case], schedule="Paper", **way, **options)
        equal(train_on(problem, opt, params, samples)[1], run.x[21], 1e-10)


# ------------------------------------------------------------------------------------------ kinds of numbers


@pytest.mark.parametrize("tau", [0.0, 1.0])
@pytest.mark.parametrize("matrix", ["case 1", "case 2", "case 4a", "AdaGrad"])
def test_kinds_of_numbers(matrix, tau):
    """Complex ones; short ones, to their last digits; and both precisions in one group, which share b."""
    options = composition(matrix, tau, "decay")
    check([{}, {"foreach": False}], dtypes=(torch.complex128,), **options)
    check([{}, {"foreach": False}], SINGLE, dtypes=(torch.float32, torch.float64, torch.complex64), **options)
    # decay by 1 - ηw is rounded to a short number, in other ways otherwise
    short = composition(matrix, tau, "plain") | {"schedule": "Paper"}
    check([{}, {"foreach": False}], 2**-8, dtypes=(torch.bfloat16, torch.float32), **short)
    check([{}, {"foreach": False}], 2**-11, dtypes=(torch.float16,), **short)


@needs_grad_dtype
@pytest.mark.parametrize("matrix", ["case 1", "case 2", "AdaGrad", "Yogi"])
@pytest.mark.parametrize("precision", [torch.float64, torch.bfloat16])
def test_gradients_of_another_precision(matrix, precision):
    """`grad_dtype` of a parameter may be other than its own."""
    points = []
    for way in ({}, BY_LIST, {"fused": False}):
        p = torch.linspace(-1, 1, 200).requires_grad_()
        p.grad_dtype = precision
        opt = SuperAdam([p], lr=0.1, matrix=MATRICES[matrix], **way)
        for n in range(3):
            p.grad = (p.detach() - n).to(precision)
            opt.step()
        points.append(p.detach())
    equal(points[0], points[1], SINGLE)
    equal(points[2], points[1], SINGLE)


# ------------------------------------------------------------------------------------------------- promises


@pytest.mark.parametrize("way", [{}, {"fused": False}, {"foreach": False}])
@pytest.mark.parametrize("tau", [0.0, 1.0])
@pytest.mark.parametrize("matrix", ["case 1", "case 2", "AdaGrad", "Yogi"])
def test_resumed_run_is_the_same_bit_by_bit(matrix, tau, way):
    options = {"matrix": MATRICES[matrix], "tau": tau, **way}
    through = Problem()
    train(through, steps=6, **options)
    before, after = Problem(), Problem()
    saved = pickle.loads(pickle.dumps(train(before, steps=3, **options).state_dict()))
    with torch.no_grad():
        for p, q in zip(after.params, before.params, strict=True):
            p.copy_(q)
    opt = SuperAdam(after.params, lr=torch.tensor(1.0, dtype=torch.float64), **options)
    opt.load_state_dict(saved)
    train(after, opt=opt, steps=3, start=4)
    equal(after.params, through.params, 0)


@pytest.mark.parametrize("way", [{}, {"fused": False}, BY_LIST, {"foreach": False}])
@pytest.mark.parametrize("matrix", ["case 1", "case 2", "AdaGrad", "Yogi"])
def test_autograd_is_told_of_the_step(matrix, way):
    """A graph that has saved a parameter is void after a step, and says so."""
    p = torch.linspace(-1, 1, 300).requires_grad_()
    opt = SuperAdam([p], matrix=MATRICES[matrix], **way)
    loss = p.square().sum()
    p.grad = torch.ones_like(p)
    opt.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("way", [{}, {"fused": False}, BY_LIST, {"foreach": False}])
@pytest.mark.parametrize(("matrix", "tau", "variant"), [p for p in PRODUCT if p[2] in ("plain", "box")][::3])
def test_gradients_are_left_alone(matrix, tau, variant, way):
    problem = Problem()
    opt = SuperAdam(problem.params, **composition(matrix, tau, variant), **way)
    seen = []

    def closure():
        problem.closure(4)()
        seen[:] = [(p.grad, p.grad.clone(), p.grad.stride()) for p in problem.params]
        return 0.0

    for _ in range(2):
        opt.step(closure)
        for p, (grad, value, stride) in zip(problem.params, seen, strict=True):
            assert p.grad is grad
            assert grad.stride() == stride
            assert torch.equal(grad, value)


@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_layout_of_parameters_and_state_is_kept(tau):
    problem = Problem()
    strides = [p.stride() for p in problem.params]
    opt = train(problem, tau=tau)
    assert [p.stride() for p in problem.params] == strides
    for p in problem.params:
        for name in ("g", "v"):
            assert opt.state[p][name].stride() == torch.empty_like(p).stride()


def test_checkpoint_from_before_these_options_loads():
    problem = Problem()
    saved = train(problem).state_dict()
    for group in saved["param_groups"]:
        del group["fused"], group["compile"]
    opt = SuperAdam(problem.params, lr=torch.tensor(1.0))
    opt.load_state_dict(saved)
    assert (opt.param_groups[0]["fused"], opt.param_groups[0]["compile"]) == (None, False)
    train(problem, opt=opt, start=6)


def test_unpickled_part_hashes_as_one_made_here():
    """Strings have other hashes in another process, and a part is looked up by its hash."""
    script = (
        "import pickle, sys; from superadam import matrices, sets\n"
        "parts = [matrices.SecondMoment(beta=0.5), sets.Box(-1, 1)]; list(map(hash, parts))\n"
        "sys.stdout.buffer.write(pickle.dumps(parts))"
    )
    sent = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True).stdout
    for part, own in zip(pickle.loads(sent), (MATRICES["case 1"].__class__(beta=0.5), sets.Box(-1, 1)), strict=True):
        assert part == own
        assert {own: 1}[part] == 1
        assert hash(pickle.loads(pickle.dumps(part))) == hash(own)


def test_every_layout_is_there():
    """The control: what `aligned` shall tell apart is among the parameters."""
    problem = Problem()
    problem.closure(4)()
    assert sum(not p.is_contiguous() for p in problem.params) == 3
    assert any(0 in p.grad.stride() and p.dim() == 2 for p in problem.params)
    assert sum(p.grad.stride() != p.stride() for p in problem.params) >= 3
    assert len(problem.params) == len(PARAMETERS)

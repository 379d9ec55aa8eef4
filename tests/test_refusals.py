"""What a step refuses leaves no trace, and training goes on: resized parameters, NaN, matrices that are none."""

import math

import pytest
import torch
from torch import nn

from pairs import pairs
from problems import CASES
from superadam import SuperAdam, create, matrices, penalties, sets, twice
from test_bad_input import Setup, Unchanged, identical
from ways import MATRICES

WAYS = {
    "default": {},
    "foreach": {"foreach": True},
    "loop": {"foreach": False, "fused": False},
    "compiled": {"compile": True},
}
SETS = {
    "box": {"constraint": sets.Box(-3.0, 3.0)},
    "l2 ball": {"constraint": sets.L2Ball(5.0)},
    "simplex": {"constraint": sets.Simplex()},
    "L1": {"penalty": penalties.L1(0.01)},
}


def filled(p, value):
    p.grad = torch.full_like(p, value)


def halves(opt, params, first, second):
    """A batch of a `twice` loop with these gradients."""
    for i, _ in enumerate(twice([None])):
        for p in params:
            filled(p, (first, second)[i])
        opt.step()


# ------------------------------------------------------------------------------------------------ resized parameters

RESIZED = {
    "larger": lambda x: torch.cat([x, x]),
    "smaller": lambda x: x[:1],
    "reshaped": lambda x: x.t(),
    "one more dimension": lambda x: x[None],
}


@pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")
@pytest.mark.parametrize("change", RESIZED)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("tau", [0.0, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_resized_parameter_is_refused_in_every_way(change, way, tau, dtype):
    """No kernel runs on a parameter and a state of different shapes."""
    if way == "compiled" and (change != "larger" or dtype != torch.float32):
        pytest.skip("one kernel is enough")
    shape = (300, 300) if way == "compiled" else (3, 4)  # large tensors are compiled
    p, other = (nn.Parameter(torch.ones(shape, dtype=dtype)) for _ in range(2))
    opt = SuperAdam([("resized", p), ("other", other)], lr=1e-3, tau=tau, **WAYS[way])

    def closure():
        filled(p, 1.0), filled(other, 1.0)
        return torch.zeros(())

    for _ in range(2):
        opt.step(closure)
    p.data = RESIZED[change](p.data)
    before = opt.state_dict()["state"], p.clone(), other.clone()
    for use in (lambda: opt.step(closure), opt.flush):
        if tau == 0 and use is opt.flush:
            continue
        with pytest.raises(RuntimeError, match=r"resized has shape .* its state was created for another shape"):
            use()
        assert identical((opt.state_dict()["state"], p, other), before)
    del opt.state[p]
    opt.step(closure)  # this parameter starts anew
    assert p.isfinite().all()


def test_resized_after_a_restart():
    """g is gone, but H is not."""
    p = nn.Parameter(torch.ones(3))
    opt = SuperAdam([p], lr=1e-3)
    filled(p, 1.0)
    opt.step()
    opt.restart()
    p.data = torch.ones(5)
    filled(p, 1.0)
    with pytest.raises(RuntimeError, match="0 of group 0 has shape"):
        opt.step()


def test_gradient_of_the_old_shape():
    p = nn.Parameter(torch.ones(3))
    opt = SuperAdam([p], lr=1e-3)
    filled(p, 1.0)
    p.data = torch.ones(5)
    with pytest.raises(RuntimeError, match=r"has shape \(5,\), but its gradient has shape \(3,\)"):
        opt.step()


@pytest.mark.parametrize("name", ["default", "adamw", "sgd", "adagrad", "yogi"])
@pytest.mark.parametrize("change", ["strided", "transposed"])
def test_a_parameter_that_lies_otherwise_takes_the_same_steps(name, change):
    """And nothing is written beside it."""
    around = torch.zeros(8, 8)
    results = []
    for moved in (False, True):
        p = nn.Parameter(torch.zeros(4, 4))
        opt = SuperAdam([p], lr=0.1) if name == "default" else create(name, [p], lr=0.1)
        for n in range(4):
            if n == 2 and moved:
                p.data = around[::2, ::2].copy_(p.data) if change == "strided" else p.data.t().contiguous().t()
            p.grad = torch.arange(16.0).reshape(4, 4) + n
            opt.step()
        results.append(p.detach().clone())
    torch.testing.assert_close(results[0], results[1], rtol=1e-6, atol=1e-6)
    if change == "strided":
        assert around.count_nonzero() == around[::2, ::2].count_nonzero()


@pytest.mark.parametrize("way", ["default", "foreach", "loop"])
def test_state_of_another_shape_or_precision_is_refused(way):
    p = nn.Parameter(torch.ones(64, 32))
    opt = SuperAdam([p], lr=1e-3, **WAYS[way])
    for _ in range(2):
        filled(p, 1.0)
        opt.step()
    kept = opt.state[p]["v"]
    opt.state[p]["v"] = torch.zeros(2, 2)
    with pytest.raises(RuntimeError, match=r"'v' is \(2, 2\) torch.float32, expected \(64, 32\)"):
        opt.step()
    opt.state[p]["v"] = kept
    p.data = p.data.double()
    filled(p, 1.0)
    with pytest.raises(RuntimeError, match=r"is torch.float64, but its state .* torch.float32, expected"):
        opt.step()


# ------------------------------------------------------------------------------------------------ NaN

NOT_USABLE = [math.nan, math.inf, -math.inf, 1e19]  # the square of the last is not finite


@pytest.mark.parametrize(("where", "case", "tau", "value"), pairs(SETS, CASES, [0.0, 1.0], NOT_USABLE))
def test_refused_batch_leaves_no_trace_on_a_set(where, value, case, tau):
    """The next batch finds all as if the refused one had not been there."""
    setup, twin = (_float32(case, tau, SETS[where]) for _ in range(2))

    def spoilt():
        loss = setup.closure(3)()
        setup.params[0].grad.view(-1)[0] = value
        return loss

    with Unchanged(setup, ValueError, "gradient of parameter 0 of group 0 is not finite, or too large"):
        setup.opt.step(spoilt)
    for s in (setup, twin):
        s.opt.step(s.closure(4))
    assert identical(setup.all(), twin.all())
    assert setup.x.isfinite().all()


def _float32(case, tau, options):
    setup = Setup(case, tau=tau, batches=0, **options)
    setup.problem = type(setup.problem)(dtype=torch.float32)
    setup.params = setup.problem.params()
    setup.opt = SuperAdam(setup.params, lr=1e-3, tau=tau, matrix=CASES[case], **options)
    for i in range(3):
        setup.opt.step(setup.closure(i))
    return setup


@pytest.mark.parametrize("where", SETS)
@pytest.mark.parametrize("half", [0, 1])
def test_refused_half_drops_its_batch_and_the_loop_goes_on(where, half):
    """In the first half nothing has happened; in the second, x is at x_t and the next gradient is g."""
    p = nn.Parameter(torch.full((4,), 0.25))
    opt = SuperAdam([p], lr=1e-2, tau=1.0, **SETS[where])
    for value in (1.0, 2.0):
        halves(opt, [p], value, value)
    messages = []
    for i, batch in enumerate(twice([0, 1])):
        filled(p, math.nan if i == half else 1.0)
        try:
            opt.step()
        except ValueError as error:
            messages.append(str(error))
            assert batch == 0
    assert len(messages) == 1
    opt.flush()
    assert all(t.isfinite().all() for t in (p, opt.state[p]["g"], opt.state[p]["v"]))
    assert (opt.state[p]["g"] == 1).all() == (half == 1)


# Identity keeps nothing, and Shampoo refuses what is not finite: tests/matrices/test_per_tensor.py.
@pytest.mark.parametrize("name", [name for name in MATRICES if name not in ("Identity", "Shampoo")])
@pytest.mark.parametrize("tau", [0.0, 1.0])
@pytest.mark.parametrize("evaluation", ["first", "second"])
def test_restart_heals_every_matrix(name, tau, evaluation):
    """Without a set, NaN spreads into g and H. restart() drops it: x is what it was, and training goes on."""
    setup = Setup("1", tau=tau, matrix=MATRICES[name], lr=1e-3)
    if not setup.opt.two_point and evaluation == "second":
        pytest.skip("one evaluation per batch")
    calls = []

    def spoilt():
        loss = setup.closure(3)()
        calls.append(1)
        if (len(calls) == 1) == (evaluation == "first"):
            for p in setup.params:
                p.grad.fill_(math.nan)
        return loss

    setup.opt.step(spoilt)
    setup.opt.restart()
    state = [v for s in setup.opt.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
    assert all(v.isfinite().all() for v in state)
    if setup.opt.two_point:  # the move that NaN would make was pending
        assert setup.x.isfinite().all()
    else:
        for p, x in zip(setup.params, setup.problem.params(), strict=True):
            p.data.copy_(x)
    for i in range(4, 8):
        setup.opt.step(setup.closure(i))
    assert setup.x.isfinite().all()


def test_restart_keeps_an_H_that_is_finite():
    setup = Setup()
    v = setup.joined("v")
    setup.opt.restart()
    assert torch.equal(setup.joined("v"), v)
    assert setup.opt.state[setup.params[0]]["step"] == 3


def test_healed_parameter_starts_anew_alone():
    """What was finite goes on."""
    good, bad = (nn.Parameter(torch.ones(2)) for _ in range(2))
    opt = SuperAdam([good, bad], lr=1e-3)
    for value in (1.0, 1.0, math.nan):
        filled(good, 1.0), filled(bad, value)
        opt.step()
    opt.restart()
    assert opt.state[good]["step"] == 3
    assert opt.state[good]["v"].min() > 0
    bad.data.fill_(1.0)
    filled(good, 1.0), filled(bad, 1.0)
    opt.step()
    assert (opt.state[good]["step"], opt.state[bad]["step"]) == (4, 1)
    assert torch.equal(opt.state[bad]["v"], torch.full((2,), 1e-3))


# ------------------------------------------------------------------------------------------------ sets that change


@pytest.mark.parametrize("tau", [0.0, 1.0])
@pytest.mark.parametrize("by", ["assignment", "option"])
def test_parameters_are_put_into_a_set_that_was_tightened(tau, by):
    p = nn.Parameter(torch.tensor([3.0, 4.0]))
    opt = SuperAdam([p], lr=1e-6, tau=tau, constraint=sets.L2Ball(5.0))

    def closure():
        filled(p, 1.0)
        return torch.zeros(())

    opt.step(closure)
    if by == "assignment":
        opt.param_groups[0]["constraint"] = sets.L2Ball(1.0)
    else:
        opt.param_groups[0]["constraint"]["r"] = 1.0
    opt.step(closure)
    assert opt.feasibility() < 1e-6
    torch.testing.assert_close(p.detach(), torch.tensor([0.6, 0.8]), rtol=1e-4, atol=0)
    opt.param_groups[0]["constraint"] = None
    opt.step(closure)
    opt.param_groups[0]["constraint"] = sets.Box(0.7, 1.0)
    opt.step(closure)
    assert p.min() >= 0.7


def test_loading_does_not_project():
    """Training goes on bit for bit from an x that rounding has put a little out of its set."""
    p = nn.Parameter(torch.tensor([0.6, 0.8]))
    opt = SuperAdam([p], lr=1e-3, constraint=sets.L2Ball(1.0))
    saved = opt.state_dict()
    p.data.mul_(1.1)
    opt.load_state_dict(saved)
    opt.buckets()  # where a set that was given to the group since would be entered
    assert torch.equal(p.data, torch.tensor([0.6, 0.8]) * 1.1)


# ------------------------------------------------------------------------------------------------ matrices of one's own


class Signed(matrices.Diagonal):
    """Its author has forgotten the absolute value."""

    power: float = 1.0
    buffers = ("v",)

    def update(self, s, grad):
        s.v = grad * self.power

    def H(self, s):
        return s.v


class Negated(matrices.Joint):
    def solve(self, s, g):
        return -g


class Elementwise(Signed):
    elementwise = True


@pytest.mark.parametrize("matrix", [Signed(), Signed(power=0.0), Elementwise(), Negated()])
@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"constraint": sets.Box(-1.0, 1.0)}, {"tau": 1.0}])
def test_matrix_of_ones_own_that_is_not_positive(matrix, options):
    if matrix.joint and "constraint" in options:
        pytest.skip("refused at construction")
    p = nn.Parameter(torch.tensor([0.5, -0.5]))
    opt = SuperAdam([p], lr=1e-3, matrix=matrix, **options)

    def closure():
        p.grad = p.detach().clone()
        return torch.zeros(())

    def three_steps():
        for _ in range(3):
            opt.step(closure)

    with pytest.raises(RuntimeError, match=r"H that is not positive definite: (its least|gᵀH⁻¹g)"):
        three_steps()
    assert torch.equal(p.data, torch.tensor([0.5, -0.5]))

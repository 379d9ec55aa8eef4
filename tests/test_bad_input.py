"""What goes wrong is said, and leaves parameters and state as they were, or as documented."""

import copy
import dataclasses
import math
import re

import pytest
import torch
from torch import nn

from problems import CASES, LR, Stochastic, SuperAdam, train
from superadam import matrices, reference, schedules, sets, twice
from superadam.bucket import RESTARTED

every_case = pytest.mark.parametrize("case", CASES)


class Setup:
    """A problem under way: three batches of τ = 1 have been taken in, and a move is pending."""

    def __init__(self, case="1", tau=1.0, batches=3, half_steps=False, **options):
        self.problem = Stochastic()
        self.params = self.problem.params()
        options = {"lr": LR[case], "tau": tau, "matrix": CASES[case], "schedule": "Paper", **options}
        self.opt = SuperAdam(self.params, **options)
        for i in range(batches):
            if half_steps:
                self.halves(i)
            else:
                self.opt.step(self.closure(i))

    def closure(self, i):
        return self.problem.closure(self.opt, self.params, i)

    def halves(self, i):
        for j in twice([i]):
            self.closure(j)()
            self.opt.step()

    @property
    def x(self):
        return self.problem.join(self.params).detach().clone()

    def joined(self, name):
        return self.problem.join([self.opt.state[p][name] for p in self.params]).clone()

    def all(self):
        """Parameters and state, to the last bit."""
        state = [dict(self.opt.state[p]) if p in self.opt.state else None for p in self.params]
        return copy.deepcopy(([p.detach() for p in self.params], state))


def identical(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(identical(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(identical, a, b))
    return type(a) is type(b) and a == b


class Unchanged:
    """pytest.raises, and afterwards all is as before."""

    def __init__(self, setup, error, match):
        self.setup, self.raises = setup, pytest.raises(error, match=match)

    def __enter__(self):
        self.before = self.setup.all()
        return self.raises.__enter__()

    def __exit__(self, *exc):
        swallowed = self.raises.__exit__(*exc)
        assert identical(self.setup.all(), self.before)
        return swallowed


def equal(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-11)


def failing(closure, call, error):
    """The closure, but evaluation `call` (from 1) raises before it has computed anything."""
    calls = []

    def wrapped():
        calls.append(1)
        if len(calls) == call:
            raise error
        return closure()

    return wrapped


def without_backward(setup, closure, call):
    """The closure, but evaluation `call` leaves no gradient."""
    calls = []

    def wrapped():
        loss = closure()
        calls.append(1)
        if len(calls) == call:
            setup.opt.zero_grad()
        return loss

    return wrapped


def left_out(closure, call, loss):
    """The closure, but evaluation `call` (from 1) computes nothing, and returns a loss without a graph."""
    calls = []

    def wrapped():
        calls.append(1)
        return loss if len(calls) == call else closure()

    return wrapped


def check_restart(setup, x, v, step, case, half_steps=False):
    """From x on, with v of the steps so far: the next gradient is g, H and the step count go on, and the move after it
    is line 9's. Only case 1 has a formula here; the others are checked for g and the count."""
    assert all(setup.opt.state[p]["phase"] == RESTARTED for p in setup.params)
    assert not any(setup.opt.state[p]["g"].any() for p in setup.params)
    assert all(setup.opt.state[p]["step"] == step for p in setup.params)
    assert torch.equal(setup.x, x)
    before = setup.opt.gradient_evaluations
    if half_steps:
        setup.halves(7)
    else:
        setup.opt.step(setup.closure(7))
        assert setup.opt.gradient_evaluations == before + 1
    fresh = setup.problem.grad(x, 7)
    assert torch.equal(setup.x, x)
    assert torch.equal(setup.joined("g"), fresh)
    assert all(setup.opt.state[p]["step"] == step + 1 for p in setup.params)
    if case == "1":
        v = 0.999 * v + 0.001 * fresh**2
        equal(setup.joined("v"), v)
        mu = (100 + step + 1) ** (-1 / 3)
        setup.opt.flush()
        equal(setup.x, x - LR[case] * mu * fresh / (v.sqrt() + 5e-4))


# ------------------------------------------------------------------------------------------------ failed evaluations


class OopsError(Exception):
    pass


@every_case
@pytest.mark.parametrize("tau", [0.0, 1.0])
@pytest.mark.parametrize("batches", [0, 3])
def test_closure_that_raises_at_first_changes_nothing(case, tau, batches):
    """Neither now nor later."""
    setup, twin = Setup(case, tau, batches), Setup(case, tau, batches)
    with Unchanged(setup, OopsError, "first"):
        setup.opt.step(failing(setup.closure(3), 1, OopsError("first")))
    assert setup.opt.gradient_evaluations == twin.opt.gradient_evaluations
    for i in range(3, 6):
        setup.opt.step(setup.closure(i))
        twin.opt.step(twin.closure(i))
    assert identical(setup.all(), twin.all())


@every_case
@pytest.mark.parametrize("error", [OopsError("second"), KeyboardInterrupt("second")], ids=["exception", "interrupt"])
def test_closure_that_raises_at_second_voids_the_batch(case, error):
    """x_t, where the move led, is kept; of g one half is there, so it is dropped, and α = 1 for the next gradient."""
    setup = Setup(case)
    v = setup.joined("v") if case == "1" else None
    run = reference.super_adam(setup.problem.grad, setup.problem.x_1, [0, 1, 2, 3], case=case, tau=1.0, gamma=LR[case])
    with pytest.raises(type(error), match="second"):
        setup.opt.step(failing(setup.closure(3), 2, error))
    equal(setup.x, run.x[4])
    assert setup.opt.gradient_evaluations == 6
    check_restart(setup, setup.x, v, 3, case)


@every_case
def test_failed_evaluation_leaves_no_trace_but_the_restart(case):
    """A voided batch is the same as flush() and restart() in its place."""
    setup, twin = Setup(case), Setup(case)
    with pytest.raises(OopsError):
        setup.opt.step(failing(setup.closure(3), 2, OopsError()))
    twin.opt.restart()
    for i in range(4, 8):
        setup.opt.step(setup.closure(i))
        twin.opt.step(twin.closure(i))
    assert identical(setup.all(), twin.all())


@every_case
@pytest.mark.parametrize("batches", [0, 3])
def test_first_evaluation_without_gradients_changes_nothing(case, batches):
    setup = Setup(case, batches=batches)
    with Unchanged(setup, RuntimeError, r"No parameter has a gradient.*does the closure call loss\.backward\(\)"):
        setup.opt.step(without_backward(setup, setup.closure(3), 1))


@every_case
@pytest.mark.parametrize("loss", [None, 0.5, torch.tensor(0.5)])
def test_a_batch_that_the_closure_leaves_out_changes_nothing(case, loss):
    """As trainers do that skip `backward`: no gradient, and no loss that it was forgotten for."""
    setup = Setup(case)
    before = setup.all()
    assert setup.opt.step(left_out(setup.closure(3), 1, loss)) is loss
    assert identical(setup.all(), before)
    assert setup.opt.gradient_evaluations == 5
    assert Setup(case, batches=0).opt.step(lambda: None) is None


@pytest.mark.parametrize("loss", [0.5, torch.tensor(0.5)])
def test_a_first_batch_without_gradients_is_a_forgotten_backward(loss):
    """However the closure returns its loss: it would never train."""
    setup = Setup(batches=0)
    with Unchanged(setup, RuntimeError, r"does the closure call loss\.backward\(\)"):
        setup.opt.step(lambda: loss)


@every_case
def test_a_second_evaluation_that_the_closure_leaves_out_voids_the_batch(case):
    setup, twin = Setup(case), Setup(case)
    setup.opt.step(left_out(setup.closure(3), 2, None))
    twin.opt.restart()
    assert identical(setup.all(), twin.all())
    assert setup.opt.gradient_evaluations == 6


@every_case
def test_second_evaluation_without_gradients_voids_the_batch(case):
    setup = Setup(case)
    v = setup.joined("v") if case == "1" else None
    flushed = Setup(case)
    flushed.opt.flush()
    with pytest.raises(RuntimeError, match="No parameter has a gradient"):
        setup.opt.step(without_backward(setup, setup.closure(3), 2))
    assert torch.equal(setup.x, flushed.x)
    check_restart(setup, setup.x, v, 3, case)


def test_parameter_that_loses_its_gradient_restarts_alone():
    """q without its counterpart is no estimate: this parameter forgets g and the batch, the others do not."""
    setup, twin = Setup(), Setup()
    lost = setup.params[1]
    calls = []

    def closure():
        loss = setup.closure(3)()
        calls.append(1)
        if len(calls) == 2:
            lost.grad = None
        return loss

    setup.opt.step(closure)
    twin.opt.step(twin.closure(3))
    assert setup.opt.state[lost]["phase"] == RESTARTED
    assert setup.opt.state[lost]["step"] == 3
    for p, q in zip(setup.params, twin.params, strict=True):
        assert torch.equal(p, q)
        assert p is lost or identical(dict(setup.opt.state[p]), dict(twin.opt.state[q]))
    setup.opt.step(setup.closure(4))
    assert setup.opt.state[lost]["step"] == 4
    assert torch.equal(setup.opt.state[lost]["g"], lost.grad)


def test_missing_gradients_are_nothing_new_with_one_evaluation():
    """As in torch.optim: τ = 0 and no gradient is a step that does nothing."""
    setup = Setup(tau=0.0)
    before = setup.all()
    setup.opt.zero_grad()
    setup.opt.step()
    assert identical(setup.all(), before)


@pytest.mark.parametrize("tau", [0.0, 1.0])
@pytest.mark.parametrize("case", ["1", "2"])
def test_nan_gradients_propagate(case, tau):
    """Documented: nothing looks for them. Case 1 has them in their own coordinates, a norm spreads them to all."""
    setup = Setup(case, tau, batches=0)

    def closure():
        loss = setup.closure(0)()
        setup.params[0].grad[1] = math.nan
        return loss

    setup.opt.step(closure)
    setup.opt.flush()
    assert setup.x.isnan().tolist() == [case == "2" or i == 1 for i in range(setup.problem.dim)]


# ------------------------------------------------------------------------------------------------ sparse gradients


def embedding(tau, named, **options):
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 1)).double()
    return model, SuperAdam(model if named else model.parameters(), tau=tau, **options)


@pytest.mark.parametrize(("named", "message"), [(True, r"parameter 0\.weight"), (False, "parameter 0 of group 0")])
@pytest.mark.parametrize("tau", [0.0, 1.0])
@pytest.mark.parametrize("foreach", [False, True])
def test_sparse_gradients_are_refused_by_name(tau, named, message, foreach):
    model, opt = embedding(tau, named, foreach=foreach)
    before = [p.detach().clone() for p in model.parameters()]

    def closure():
        opt.zero_grad()
        loss = model(torch.tensor([1, 2])).square().sum()
        loss.backward()
        return loss

    with pytest.raises(RuntimeError, match=f"does not support sparse gradients.*{message}.*sparse=False"):
        opt.step(closure)
    if tau == 0.0:
        closure()
        with pytest.raises(RuntimeError, match=message):
            opt.step()
    else:
        for _ in twice([0]):
            closure()
            with pytest.raises(RuntimeError, match=message):
                opt.step()
            break
    assert all(map(torch.equal, before, model.parameters()))
    assert not opt.state


def test_sparse_gradient_in_the_second_evaluation_voids_the_batch():
    setup = Setup()
    v, calls = setup.joined("v"), []

    def closure():
        loss = setup.closure(3)()
        calls.append(1)
        if len(calls) == 2:
            setup.params[0].grad = setup.params[0].grad.to_sparse()
        return loss

    with pytest.raises(RuntimeError, match="does not support sparse gradients"):
        setup.opt.step(closure)
    check_restart(setup, setup.x, v, 3, "1")


# ------------------------------------------------------------------------------------------------ half-steps


@every_case
def test_step_outside_of_a_loop_is_refused(case):
    """With two gradients of every batch, step() must know which one this is."""
    setup = Setup(case)
    setup.closure(3)()
    with Unchanged(setup, RuntimeError, r"two gradients of every batch.*opt\.step\(closure\).*twice\(loader\)"):
        setup.opt.step()


def test_step_after_the_loop_is_refused():
    setup = Setup(half_steps=True)
    setup.closure(3)()
    with Unchanged(setup, RuntimeError, "two gradients of every batch"):
        setup.opt.step()


def test_step_after_a_loop_that_raised_is_refused():
    """A loop that was left by an exception is over."""
    setup = Setup()

    def loop():
        for _ in twice([3]):
            raise OopsError

    with pytest.raises(OopsError):
        loop()
    setup.closure(3)()
    with Unchanged(setup, RuntimeError, "two gradients of every batch"):
        setup.opt.step()


@pytest.mark.filterwarnings("ignore:A `twice` loop has ended without")
def test_second_without_first_is_refused():
    setup = Setup()
    for n, i in enumerate(twice([3])):
        if n == 0:
            continue
        setup.closure(i)()
        with Unchanged(setup, RuntimeError, "out of order: this batch's first turn had no step()"):
            setup.opt.step()


def test_skipped_second_is_refused_at_the_next_first():
    setup = Setup()
    for n, i in enumerate(twice([3, 4])):
        setup.closure(i)()
        if n == 1:
            continue
        if n == 0:
            setup.opt.step()
        else:
            with Unchanged(setup, RuntimeError, r"the last batch's second turn had no step\(\).*opt\.restart\(\)"):
                setup.opt.step()
            break


def test_two_steps_in_one_turn_are_refused():
    """And the message does not say that a step is missing."""
    setup, messages = Setup(), []
    for i in twice([3]):
        setup.closure(i)()
        setup.opt.step()
        with Unchanged(setup, RuntimeError, "Half-steps out of order") as info:
            setup.opt.step()
        messages.append(str(info.value))
    assert not any("had no step()" in message for message in messages)
    assert not setup.opt._batch.open
    assert setup.opt.state[setup.params[0]]["step"] == 4


def leave_half_done(setup, i=3):
    for j in twice([i]):
        setup.closure(j)()
        setup.opt.step()
        break


@every_case
def test_loop_that_was_left_half_done(case):
    """The next loop is refused until restart() drops the batch; x_t is kept and the next gradient is g."""
    setup = Setup(case)
    v = setup.joined("v") if case == "1" else None
    flushed = Setup(case)
    flushed.opt.flush()
    leave_half_done(setup)
    assert torch.equal(setup.x, flushed.x)
    for i in twice([4]):
        setup.closure(i)()
        with Unchanged(setup, RuntimeError, r"second turn had no step\(\).*restart\(\) to drop a batch"):
            setup.opt.step()
        break
    setup.opt.restart()
    check_restart(setup, flushed.x, v, 3, case, half_steps=True)


@every_case
@pytest.mark.parametrize("when", [0, 1])
def test_half_step_without_gradients_can_be_made_good(case, when):
    """Refused with nothing changed, so that the turn can be done again; the trajectory is that of no mistake."""
    setup, twin = Setup(case, half_steps=True), Setup(case, half_steps=True)
    for n, i in enumerate(twice([3])):
        if n == when:
            setup.opt.zero_grad()
            with Unchanged(setup, RuntimeError, "No parameter has a gradient.*in both turns"):
                setup.opt.step()
        setup.closure(i)()
        setup.opt.step()
    twin.halves(3)
    assert identical(setup.all(), twin.all())
    assert setup.opt.gradient_evaluations == twin.opt.gradient_evaluations


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("closure", r"step\(closure\) was called between the two half-steps of a batch.*opt\.restart\(\)"),
        ("state_dict", r"state_dict\(\) was called between the two half-steps"),
    ],
)
def test_nothing_comes_between_the_half_steps(name, message):
    setup, twin = Setup(), Setup()
    for n, i in enumerate(twice([3])):
        setup.closure(i)()
        setup.opt.step()
        if n == 0:
            call = {"closure": lambda: setup.opt.step(setup.closure(9))}.get(name) or getattr(setup.opt, name)
            with Unchanged(setup, RuntimeError, message):
                call()
    twin.halves(3)
    assert identical(setup.all(), twin.all())


def test_two_optimizers_in_one_loop():
    """Each takes its own half-steps: as if it were alone."""
    together, apart = [Setup("1"), Setup("3")], [Setup("1"), Setup("3")]
    for i in twice([3, 4, 5]):
        for setup in together:
            setup.closure(i)()
            setup.opt.step()
    for one, other in zip(together, apart, strict=True):
        train(other.problem, other.opt, other.params, [3, 4, 5], half_steps=True)
        one.opt.flush()
        assert identical(one.all(), other.all())


def test_nested_loops():
    """An optimizer that is trained inside a turn of another's loop: as if each were alone."""
    outer, inner = Setup("1"), Setup("2")
    alone, alone_inner = Setup("1"), Setup("2")
    for i in twice([3, 4]):
        outer.closure(i)()
        for j in twice([i + 1]):
            inner.closure(j)()
            inner.opt.step()
        outer.opt.step()
    for i in (3, 4):
        alone.halves(i)
    for i in (4, 4, 5, 5):
        alone_inner.halves(i)
    assert identical(outer.all(), alone.all())
    assert identical(inner.all(), alone_inner.all())


def test_a_batch_is_not_finished_by_another_loops_turn():
    setup = Setup()
    for n, i in enumerate(twice([3])):
        setup.closure(i)()
        if n == 0:
            setup.opt.step()
            for j in twice([4]):
                setup.closure(j)()
                with Unchanged(setup, RuntimeError, "Half-steps out of order"):
                    setup.opt.step()
    assert setup.opt._batch.open is not None


@every_case
@pytest.mark.parametrize("named", [False, True])
def test_flush_after_a_loop_that_was_left_in_mid_batch(case, named):
    """Whether or not somebody still holds the loop: the batch is dropped as by restart(), with a warning."""
    setup, restarted = Setup(case), Setup(case)
    for one in (setup, restarted):
        turns = twice([3, 4])
        for i in turns if named else twice([3, 4]):
            one.closure(i)()
            one.opt.step()
            break
    restarted.opt.restart()
    with pytest.warns(UserWarning, match=r"flush\(\) after the first of the two half-steps.*dropped"):
        setup.opt.flush()
    assert torch.equal(setup.x, restarted.x)
    setup.opt.flush()  # there is nothing left to drop
    for one in (setup, restarted):
        for i in twice([5, 6]):
            one.closure(i)()
            one.opt.step()
        one.opt.flush()
    assert identical(setup.all(), restarted.all())


def test_flush_between_the_turns_drops_the_batch_for_both():
    setup = Setup()
    for n, i in enumerate(twice([3])):
        setup.closure(i)()
        if n == 0:
            setup.opt.step()
            with pytest.warns(UserWarning, match="the batch is dropped"):
                setup.opt.flush()
        else:
            with Unchanged(setup, RuntimeError, r"dropped by opt\.restart\(\) or opt\.flush\(\)"):
                setup.opt.step()


@every_case
@pytest.mark.parametrize("batches", [1, 3])
def test_restart(case, batches):
    """The pending move is taken, the next gradient is g; H and the step counts stay."""
    setup, flushed = Setup(case, batches=batches), Setup(case, batches=batches)
    v = setup.joined("v") if case == "1" else None
    flushed.opt.flush()
    setup.opt.restart()
    for p, q in zip(setup.params, flushed.params, strict=True):
        restarted = {"phase": RESTARTED, "g": torch.zeros_like(q)}
        assert identical(dict(setup.opt.state[p]), {**flushed.opt.state[q], **restarted})
    check_restart(setup, flushed.x, v, batches, case)


@every_case
def test_restart_with_one_evaluation(case):
    """τ = 0: g is the next gradient, and the step is taken with it at once."""
    setup = Setup(case, tau=0.0)
    setup.opt.restart()
    if setup.opt.two_point:
        setup.opt.flush()
    x = setup.x
    setup.opt.step(setup.closure(5))
    assert torch.equal(setup.joined("g"), setup.problem.grad(x, 5))
    assert setup.opt.state[setup.params[0]]["step"] == 4


def test_restart_twice_is_restart():
    once, more = Setup(), Setup()
    once.opt.restart()
    more.opt.restart()
    more.opt.restart()
    assert identical(once.all(), more.all())
    fresh = Setup(batches=0)
    fresh.opt.restart()
    assert not fresh.opt.state


# ------------------------------------------------------------------------------------------------ options


def x():
    return [torch.ones(2, dtype=torch.float64, requires_grad=True)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -0.5}, "Invalid learning rate: -0.5"),
        ({"lr": math.nan}, "Invalid learning rate: nan"),
        ({"lr": torch.tensor([1.0, 2.0])}, "Tensor lr must be 1-element"),
        ({"lr": torch.tensor(-0.5)}, "Invalid learning rate: -0.5"),
        ({"tau": -0.5}, "Invalid tau parameter: -0.5 (expected 0 <= tau <= 1)"),
        ({"tau": 1.5}, "Invalid tau parameter: 1.5"),
        ({"tau": math.nan}, "Invalid tau parameter: nan"),
        ({"weight_decay": -0.5}, "Invalid weight_decay value: -0.5"),
        ({"weight_decay": math.nan}, "Invalid weight_decay value: nan"),
        ({"weight_decay": math.inf}, "Invalid weight_decay value: inf"),
        ({"clip": 0.0}, "Invalid clip parameter: 0.0 (expected clip > 0, or None)"),
        ({"clip": -2.5}, "Invalid clip parameter: -2.5"),
        ({"clip": math.nan}, "Invalid clip parameter: nan"),
        ({"foreach": True, "fused": True}, "foreach=True and fused=True are two ways to run a step: choose one"),
        ({"capturable": True}, "capturable=True is not supported: step counts and their weights are on the host"),
        ({"matrix": {"type": "SecondMoment", "beta": 1.0}}, "Invalid beta parameter: 1.0 (expected 0 <= beta < 1)"),
        ({"schedule": {"type": "Paper", "k": 0.0}}, "Invalid k parameter: 0.0"),
    ],
)
def test_options_are_checked(options, message):
    """In the constructor, in a param group, and in a group that is added later, which is then not added."""
    with pytest.raises(ValueError, match=re.escape(message)):
        SuperAdam(x(), **options)
    with pytest.raises(ValueError, match=re.escape(message)):
        SuperAdam([{"params": x(), **options}])
    opt = SuperAdam(x())
    with pytest.raises(ValueError, match=re.escape(message)):
        opt.add_param_group({"params": x(), **options})
    assert len(opt.param_groups) == 1


@pytest.mark.parametrize(
    ("part", "names"),
    [
        (matrices.SecondMoment, ["beta"]),
        (matrices.GradientNorm, ["beta"]),
        (matrices.BarzilaiBorwein, []),
        (matrices.Belief, ["beta1", "beta2"]),
        (matrices.BeliefNorm, ["beta1", "beta2"]),
    ],
)
def test_options_of_matrices_are_checked(part, names):
    for name in names:
        for value in (-0.1, 1.0, 1.5, math.nan):
            with pytest.raises(ValueError, match=f"Invalid {name} parameter: {value} .expected 0 <= {name} < 1"):
                part(**{name: value})
    for value in (-0.1, math.nan):
        with pytest.raises(ValueError, match=f"Invalid lam parameter: {value} .expected lam >= 0"):
            part(lam=value)


@pytest.mark.parametrize(
    ("part", "name", "values"),
    [
        (schedules.Paper, "k", [0.0, -1.0, math.inf, math.nan]),
        (schedules.Paper, "m", [-1.0, math.inf, math.nan]),
        (schedules.Paper, "c", [0.0, -1.0, math.nan]),
        (schedules.Paper, "cap", [0.0, -0.1, 1.1, math.nan]),
        (schedules.Constant, "mu", [0.0, -1.0, math.inf, math.nan]),
        (schedules.Constant, "alpha", [0.0, -0.1, 1.1, math.nan]),
    ],
)
def test_options_of_schedules_are_checked(part, name, values):
    for value in values:
        with pytest.raises(ValueError, match=re.escape(f"Invalid {name} parameter: {value} (expected ")):
            part(**{name: value})


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"matrix": "SecondMomment"}, ValueError, "Unknown matrix 'SecondMomment': did you mean 'SecondMoment'?"),
        ({"matrix": "gradientnorm"}, ValueError, "Unknown matrix 'gradientnorm': did you mean 'GradientNorm'?"),
        ({"matrix": "xyz"}, ValueError, "Unknown matrix 'xyz': known: AMSGrad, AccumulatedNorm, AdaBound"),
        ({"schedule": "papr"}, ValueError, "Unknown schedule 'papr': did you mean 'Paper'?"),
        ({"schedule": "SecondMoment"}, ValueError, "Unknown schedule 'SecondMoment': known: BiasCorrected, "),
        ({"matrix": {"type": "Belief", "beta": 0.9}}, ValueError, "Belief has no option 'beta': did you mean 'beta"),
        ({"schedule": {"type": "Paper", "caps": 0.9}}, ValueError, "Paper has no option 'caps': did you mean 'cap'?"),
        ({"matrix": 3}, TypeError, "Invalid matrix: 3; expected one of AMSGrad, "),
        ({"matrix": {"beta": 0.9}}, TypeError, "Invalid matrix: {'beta': 0.9}; expected one of"),
        ({"matrix": schedules.Paper()}, TypeError, "Invalid matrix: Paper("),
        ({"matrix": matrices.SecondMoment}, TypeError, "(an instance is expected, not the class)"),
        ({"schedule": schedules.Constant}, TypeError, "(an instance is expected, not the class)"),
    ],
)
def test_unknown_parts_are_named(options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        SuperAdam(x(), **options)
    with pytest.raises(error, match=re.escape(message)):
        SuperAdam([{"params": x(), **options}])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wieght_decay", "did you mean 'weight_decay'?"),
        ("Tau", "did you mean 'tau'?"),
        ("shedule", "did you mean 'schedule'?"),
        ("qqqq", "known: capturable, clip, "),
    ],
)
def test_unknown_options_are_named(name, message):
    with pytest.raises(TypeError, match=re.escape(f"unknown option {name!r}: {message}")):
        SuperAdam(x(), **{name: 0.1})


def test_misspelt_options_of_a_part_are_named():
    with pytest.raises(TypeError, match=re.escape("SecondMoment has no option 'bta': did you mean 'beta'?")):
        matrices.SecondMoment(bta=0.9)


def test_a_part_cannot_change_and_says_what_to_write():
    box = sets.Box(0, 1)
    with pytest.raises(AttributeError, match=re.escape("dataclasses.replace(part, lo=...)")):
        box.lo = 2
    assert dataclasses.replace(box, lo=0.5) == sets.Box(0.5, 1)

    class WithInit(sets.ConvexSet, abstract=True):
        r: float

        def __init__(self, r, s):
            setattr(self, s, r)

    for name in "rs":  # annotated or not
        with pytest.raises(AttributeError, match=f"annotated fields .*`{name}: float = 1.0`; write no __init__"):
            WithInit(1.0, name)


@pytest.mark.parametrize("name", ["wieght_decay", "weight-decay", "shedule", "taus", "matrx"])
def test_misspelt_options_of_a_group_are_named(name):
    with pytest.raises(ValueError, match=f"Unknown option '{name}' in a param group: did you mean"):
        SuperAdam([{"params": x(), name: 0.1}])


def test_own_keys_of_a_group_are_kept():
    opt = SuperAdam([{"params": x(), "who": "head", "initial_lr": 0.5, "max_lr": 1.0}])
    assert opt.param_groups[0]["who"] == "head"


def test_option_that_is_made_invalid_later_is_refused_before_the_step():
    for change, message in (
        ({"tau": 2.0}, "Invalid tau parameter: 2.0"),
        ({"matrix": "SecondMomment"}, "did you mean 'SecondMoment'"),
        ({"schedule": {"type": "Paper", "cap": 2.0}}, "Invalid cap parameter: 2.0"),
    ):
        setup = Setup()
        setup.opt.param_groups[0].update(change)
        with Unchanged(setup, ValueError, message):
            setup.opt.step(setup.closure(3))


@pytest.mark.parametrize("tau", [0.0, 1.0])
@pytest.mark.parametrize("case", ["1", "2", "4a", "4b"])
def test_option_of_the_matrix_that_is_changed_between_steps_is_used(case, tau):
    """As lr and betas of torch's optimizers: the state goes on, with the new number from now on."""
    setup = Setup(case, tau)
    setup.opt.flush()
    name = "beta2" if case.startswith("4") else "beta"
    setup.opt.param_groups[0]["matrix"][name] = 0.5
    state = setup.opt.state[setup.params[0]]
    kept = "v" if case in ("1", "4a") else "b"
    before = state[kept].clone()
    point = setup.x
    setup.opt.step(setup.closure(3))
    grad = setup.problem.grad(point, 3)
    if case == "1":
        equal(state["v"], 0.5 * before + 0.5 * grad[:3] ** 2)
    elif case == "4a":
        equal(state["v"], 0.5 * before + 0.5 * (grad[:3] - state["m"]) ** 2)
    else:
        size = grad.norm() if case == "2" else (grad - setup.joined("m")).norm()
        equal(state["b"], 0.5 * before + 0.5 * size)


# ------------------------------------------------------------------------------------------------ params


def message_of(make):
    with pytest.raises((TypeError, ValueError, KeyError)) as info:
        make()
    return type(info.value), str(info.value)


def leaf():
    return torch.ones(2, requires_grad=True)


shared = leaf()


@pytest.mark.parametrize(
    "params",
    [
        None,
        3,
        leaf(),
        [],
        [None],
        [3.0],
        ["weight"],
        [leaf() * 2],
        [("a", leaf()), leaf()],
        [{"params": {leaf()}}],
        [{"params": [None]}],
        [{"lr": 0.1}],
        [{"params": [shared]}, {"params": [shared]}],
    ],
    ids=lambda p: re.sub(r"tensor\(.*?\)", "tensor", str(p).replace("\n", ""))[:60],
)
def test_bad_params_are_refused_as_by_torch(params):
    assert message_of(lambda: SuperAdam(params)) == message_of(lambda: torch.optim.Adam(params))


def test_module_without_parameters_is_refused_as_by_torch():
    expected = message_of(lambda: torch.optim.Adam(nn.ReLU().parameters()))
    assert message_of(lambda: SuperAdam(nn.ReLU())) == expected


@pytest.mark.parametrize("group", [[leaf()], None, {"params": [3.0]}, {"params": [shared]}, {"params": {leaf()}}])
def test_bad_group_is_refused_as_by_torch_and_not_added(group):
    ours, adam = SuperAdam([shared]), torch.optim.Adam([shared])
    assert message_of(lambda: ours.add_param_group(group)) == message_of(lambda: adam.add_param_group(group))
    assert len(ours.param_groups) == 1

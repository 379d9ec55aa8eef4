"""What holds for every composition: the same again, when resumed, in another order, after a refusal, in float32."""

import math

import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from fuzz.compositions import FUZZ, STEPS, Training, cases, far, size
from trust.compositions import REGIONS, furthest
from trust.test_refused_steps import counted, identical

CLOSE = 1e-7  # in float64: eigenvectors and powers enlarge rounding errors
FEASIBLE = {torch.float64: 1e-8, torch.float32: 1e-4}
SETS = [label for label in REGIONS if label.startswith("set ")]


@FUZZ
@given(cases())
def test_equal_runs_are_equal_bit_for_bit(case):
    one, other = (Training(case).steps() for _ in range(2))
    assert identical(one.end(), other.end())
    assert identical(one.opt.state_dict(), other.opt.state_dict())


@FUZZ
@given(cases(), st.integers(1, STEPS - 1))
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(case, at):
    whole = Training(case).steps(0, at)
    resumed = Training(case).loaded(whole.x(), whole.saved())
    whole.points.clear()
    assert identical(whole.steps(at).end(), resumed.steps(at).end())
    assert identical(whole.opt.state_dict(), resumed.opt.state_dict())


@FUZZ
@given(cases(dtypes=[torch.float64]), st.randoms(use_true_random=False))
def test_the_order_of_parameters_and_their_groups_change_nothing(case, draw):
    def groups(params):
        mixed = draw.sample(params, len(params))
        cuts = sorted(draw.sample(range(1, len(params)), draw.randrange(len(params))))
        return [{"params": mixed[i:j]} for i, j in zip([0, *cuts], [*cuts, len(params)], strict=True)]

    expected, actual = Training(case).steps().end(), Training(case, groups=groups).steps().end()
    assume(not far(expected))
    assert furthest(actual, expected) < CLOSE


@FUZZ
@given(
    cases(halves=False), st.integers(0, STEPS - 2), st.integers(0, 5), st.sampled_from([math.nan, math.inf, -math.inf])
)
def test_a_step_that_refuses_a_gradient_changes_nothing(case, at, which, value):
    """And training goes on as if its batch had not been there."""
    training, twin = (Training(case).steps(0, at) for _ in range(2))

    def spoil(params):
        p = params[which % len(params)]
        if p.grad is not None and p.numel():
            p.grad.view(-1)[-1] = value

    try:
        training.opt.step(training.closure(at, spoil))
    except (ValueError, RuntimeError):
        assert goes_on_as(training, twin, at + 1)


@FUZZ
@given(cases(halves=False), st.integers(1, STEPS - 2), st.integers(0, 5), st.sampled_from([0, 2]))
def test_a_parameter_of_another_shape_is_refused_and_changes_nothing(case, at, which, factor):
    training, twin = (Training(case).steps(0, at) for _ in range(2))
    which %= len(training.params)
    p = training.params[which]
    assume(p in training.opt.state)
    x = p.data
    p.data = torch.cat([x.reshape(-1)] * factor) if factor else x.new_zeros(0)
    assume(p.shape != x.shape and (at, which) not in case.missing)
    shape = p.shape
    try:
        training.opt.step(training.closure(at))
    except (ValueError, RuntimeError):
        p.data = x
        assert goes_on_as(training, twin, at + 1)
    else:
        assert p.shape == shape
        kept = [value.shape for value in training.opt.state[p].values() if torch.is_tensor(value)]
        assert x.shape == () or x.shape not in kept


def goes_on_as(training, twin, first):
    """Whether a training that has refused a batch is at the place of one that has not seen it, and stays there.

    A parameter that has not moved yet may have got its state, as it does in a first step without gradients.
    """
    refused, before = (one.opt.state_dict() for one in (training, twin))
    refused["state"] = {i: refused["state"][i] for i in before["state"]}
    assert identical(counted([training.x(), refused]), counted([twin.x(), before]))
    return identical(*(one.steps(first).end()[-STEPS + first - 1 :] for one in (training, twin)))


@FUZZ
@given(cases(regions=SETS))
def test_x_is_feasible_after_every_step(case):
    training = Training(case)
    for n in range(STEPS):
        training.steps(n, n + 1)
        if not far(training.points):
            with training.opt.at_x():
                assert violation(training) < FEASIBLE[case.dtype]
    training.opt.flush()
    assert far(training.points) or violation(training) < FEASIBLE[case.dtype]


def violation(training):
    part = REGIONS[training.case.region][1]["constraint"]()
    return max(float(part.relative_violation(x)) for x in training.x())


@FUZZ
@given(cases(dtypes=[torch.float32]))
def test_float32_is_near_float64(case):
    """SOAP divides by the size of the gradients in a direction: where there were none, rounding decides."""
    assume(not any("SOAP" in str(label) or label in ("soap", "super_adam_plus") for label in case.parts.values()))
    single, double = Training(case).steps().end(), Training(case, dtype=torch.float64).steps().end()
    assume(not far(double))
    assert furthest([[x.double() for x in row] for row in single], double) < 1e-3 * max(1.0, size(double))

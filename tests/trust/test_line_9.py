"""Line 9 on lists of tensors: x is in its set after every step, and how parameters are listed changes nothing."""

import pytest

from equality import net
from trust.compositions import (
    CHOICES,
    OPTIONS,
    REGIONS,
    Noisy,
    RefusedError,
    furthest,
    one_group_each,
    optimizer,
    options_of,
    points,
    tensors,
)

TAUS = (0.0, 1.0)
MULTIPLY = [choice for choice in CHOICES if choice[0] in ("stepsize", "iterate")]  # most of them multiply γ
OTHERS = [choice for choice in CHOICES if choice not in MULTIPLY]


def in_parts(choices, place, one_in):
    """Return one choice in so many, others for every place."""
    return list(choices)[place % one_in :: one_in]


# ------------------------------------------------------------------------------------------------ feasible


def violation_of_a_run(label, kind, choice, tau):
    """Return the largest violation of the set after any step, for two tensors of each of two shapes."""
    named, make = net.SETS[label]
    params = tensors([net.SHAPES[name] for name in named[:2]])
    more = {} if kind == "estimator" else {"tau": tau}
    opt = optimizer(params, options_of(kind, choice, constraint=make, **more))
    problem, worst = Noisy(params), 0.0
    for n in range(5):
        opt.step(problem.closure(n))
        with opt.at_x():
            worst = max([worst, *(float(make().violation(p.detach())) for p in params)])
    return worst


def infeasible(label, choices):
    found, ran = [], 0
    for i, (kind, choice) in enumerate(choices):
        try:
            worst = violation_of_a_run(label, kind, choice, TAUS[i % 2])
        except RefusedError:
            continue
        ran += 1
        if not worst < 1e-8:
            found.append(f"{kind} {choice}, tau={TAUS[i % 2]}: {worst:g}")
    assert ran, "every composition was refused"
    return found


@pytest.mark.parametrize("label", net.SETS)
def test_x_is_feasible_after_every_step(label):
    place = list(net.SETS).index(label)
    assert not infeasible(label, [*in_parts(MULTIPLY, place, 3), *in_parts(OTHERS, place, 29)])


@pytest.mark.slow
@pytest.mark.parametrize("label", net.SETS)
def test_x_is_feasible_after_every_step_of_all_compositions(label):
    assert not infeasible(label, [*CHOICES, *CHOICES[1:]])  # of odd length: the second time with the other τ


# ------------------------------------------------------------------------------------------------ lists of tensors


def start(label):
    return tensors([net.SHAPES[name] for name in REGIONS[label][0][:2]])


def differing(label, choices, changed):
    """Return the compositions whose points `changed(options)` changes: a pair of a grouping and more options."""
    groups, options = changed
    found = []
    for i, (kind, choice) in enumerate(choices):
        more = {} if kind == "estimator" else {"tau": TAUS[i % 2]}
        if kind == "option" and OPTIONS[choice].keys() & options:
            continue  # it says itself how its step runs
        try:
            expected = points(start(label), options_of(kind, choice, **REGIONS[label][1], **more))
            actual = points(
                start(label), options_of(kind, choice, **REGIONS[label][1], **more, **options), groups=groups
            )
        except RefusedError:
            continue
        if not (off := furthest(actual, expected)) < 1e-7:  # eigenvectors enlarge rounding errors
            found.append(f"{kind} {choice}, {more}: {off:g}")
    return found


CHANGES = {"a group for each tensor": (one_group_each, {}), "tensor by tensor": (None, {"foreach": False})}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("label", REGIONS)
def test_a_list_of_tensors_moves_as_each_of_them(label, change):
    """A set or a penalty is applied to every tensor of a list, whatever multiplies γ."""
    place = list(REGIONS).index(label)
    few = [*in_parts(MULTIPLY, place, 9), *in_parts(OTHERS, place, 83)]
    assert not differing(label, few, CHANGES[change])


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("label", REGIONS)
def test_a_list_of_tensors_moves_as_each_of_them_in_all_compositions(label, change):
    assert not differing(label, [*CHOICES, *CHOICES[1:]], CHANGES[change])

"""`check_theory` says which theorem applies to an optimizer, and why not."""

import pytest
import torch

from superadam import SuperAdam, iterates, matrices, penalties, schedules, sets, theory
from superadam.theory import Problem

PROBLEM = Problem(L=0.1, sigma=1.0, rho=None, gap=1.0)


def optimizer(**options):
    return SuperAdam([torch.nn.Parameter(torch.ones(3))], **{"lr": 1e-3, "schedule": "Paper", **options})


def test_check_theory_reads_the_optimizer():
    opt = optimizer(tau=1.0, matrix=matrices.SecondMoment(lam=1e-3), schedule=schedules.Paper(1.0, 100.0, 10.0))
    stated = opt.check_theory(PROBLEM)
    assert stated
    assert stated.theorem == "Theorem 1"
    known = Problem(L=0.1, sigma=1.0, rho=1e-3, gap=1.0)
    assert stated.conditions == theory.conditions(known, tau=1, lr=1e-3, k=1.0, m=100.0, c=10.0).conditions
    assert optimizer().check_theory(PROBLEM).theorem == "Theorem 2 with the cap 0.9"
    assert not optimizer(lr=10.0).check_theory(PROBLEM)
    assert not optimizer(schedule=schedules.Paper(m=0.0)).check_theory(PROBLEM)
    assert not optimizer(lr=torch.tensor(10.0)).check_theory(PROBLEM)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedule": schedules.Constant()}, "schedule Constant"),
        ({"tau": 0.5}, "tau = 0.5"),
        ({"iterate": iterates.Nigt()}, "iterate Nigt"),
        ({"clip": 1.0}, "clip = 1"),
        ({"lr": 0.0}, "lr = 0"),
        ({"weight_decay": 0.1}, "decoupled weight decay"),
        ({"matrix": matrices.AdaDelta()}, "give Problem.rho"),
    ],
)
def test_check_theory_says_what_is_outside(options, message):
    stated = optimizer(**options).check_theory(PROBLEM)
    assert not stated
    assert any(message in text for text in stated.outside)
    assert f"OUTSIDE {stated.outside[0]}" in str(stated)
    assert str(stated).startswith(f"{stated.theorem} {'does not apply' if stated.conditions else 'applies'}\n")


def test_check_theory_sees_schedulers_and_groups():
    opt = optimizer()
    torch.optim.lr_scheduler.StepLR(opt, 10)
    assert any("scheduler" in text for text in opt.check_theory(PROBLEM).outside)
    opt = optimizer(matrix="SecondMoment")
    opt.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))], "matrix": matrices.SecondMoment(lam=1e-5)})
    assert "rho = 1e-05, from the matrix" in opt.check_theory(PROBLEM).notes
    opt.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))], "lr": 1e-4})
    assert "the groups differ in lr: a theorem has one" in opt.check_theory(PROBLEM).outside


def test_check_theory_notes_what_the_problem_must_then_be():
    opt = optimizer(
        constraint=sets.Box(-1.0, 1.0), penalty=penalties.L1(0.1), weight_decay=0.1, decoupled_weight_decay=False
    )
    stated = opt.check_theory(Problem(L=0.1, sigma=1.0, rho=0.1, gap=1.0))
    assert stated
    for text in ("gap must be that of f + h", "X = R^d", "f + 0.1/2 ‖x‖²", "rho = 0.1 is an assumption"):
        assert text in str(stated)

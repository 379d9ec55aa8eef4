"""On real data every composition of the paper learns."""

import pytest

from superadam import matrices
from superadam_lab.comparison.worker import Light
from superadam_lab.runs.folders import Config

# A sensible learning rate: γ scales with H, which for the scalar matrices is a norm over all parameters.
SETTINGS = [
    (matrices.SecondMoment(), 0.0, 1e-2),
    (matrices.SecondMoment(), 1.0, 1e-2),
    (matrices.GradientNorm(), 0.0, 0.3),
    (matrices.GradientNorm(), 1.0, 0.1),
    (matrices.BarzilaiBorwein(lam=1.0), 0.0, 10.0),
    (matrices.BarzilaiBorwein(lam=1.0), 1.0, 3.0),
    (matrices.Belief(), 0.0, 1e-2),
    (matrices.Belief(), 1.0, 1e-2),
    (matrices.BeliefNorm(), 0.0, 0.3),
    (matrices.BeliefNorm(), 1.0, 0.1),
]


@pytest.mark.parametrize(("evaluations", "accuracy"), [(300, 0.9), pytest.param(1500, 0.95, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("matrix", "tau", "lr"), SETTINGS, ids=lambda v: getattr(type(v), "__name__", v))
def test_learns_digits(matrix, tau, lr, evaluations, accuracy):
    """Above 90 % test accuracy in 300 gradient evaluations of 32 images, above 95 % in 1,500."""
    options = {"matrix": matrix, "tau": tau, "lr": lr}
    run = Light(Config("digits-mlp", "super_adam", options=options, budget_evals=evaluations))
    assert run.train() == "finished"
    assert run.folder.rows[-1]["test_accuracy"] > accuracy

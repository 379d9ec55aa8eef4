"""SUPER-ADAM for PyTorch: every adaptive gradient method as one algorithm with four choices."""

from superadam import estimators, matrices, payoff, penalties, reference, schedules, sets, zoo
from superadam.optimizer import SuperAdam
from superadam.probing import ProbeReport, probe
from superadam.replay import twice
from superadam.zoo import create, list_methods

__all__ = [
    "ProbeReport",
    "SuperAdam",
    "create",
    "estimators",
    "list_methods",
    "matrices",
    "payoff",
    "penalties",
    "probe",
    "reference",
    "schedules",
    "sets",
    "twice",
    "zoo",
]
__version__ = "0.1.0"

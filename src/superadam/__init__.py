"""SUPER-ADAM for PyTorch: every adaptive gradient method as one algorithm with four choices."""

from superadam import estimators, iterates, matrices, penalties, reference, schedules, sets, theory, zoo
from superadam._state.replay import twice
from superadam.checkpoint import Resumable, load_checkpoint, save_checkpoint
from superadam.monitor import Monitor
from superadam.optimizer import SuperAdam
from superadam.probe import ProbeReport, payoff, probe
from superadam.zoo import create, list_methods

__all__ = [
    "Monitor",
    "ProbeReport",
    "Resumable",
    "SuperAdam",
    "create",
    "estimators",
    "iterates",
    "list_methods",
    "load_checkpoint",
    "matrices",
    "payoff",
    "penalties",
    "probe",
    "reference",
    "save_checkpoint",
    "schedules",
    "sets",
    "theory",
    "twice",
    "zoo",
]
__version__ = "0.1.0"

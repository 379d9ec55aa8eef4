"""SUPER-ADAM for PyTorch: adaptive gradient methods as compositions of parts."""

from superadam import estimators, iterates, matrices, penalties, reference, schedules, sets, stepsizes, theory, zoo
from superadam.checkpoint import Resumable, load_checkpoint, save_checkpoint
from superadam.checks import NotFiniteError
from superadam.evaluations import anchored, twice
from superadam.monitor import Monitor
from superadam.optimizer import SuperAdam
from superadam.probe import LrReport, ProbeReport, check_pairs, find_lr, noise_model, probe
from superadam.zoo import create, list_methods

__all__ = [
    "LrReport",
    "Monitor",
    "NotFiniteError",
    "ProbeReport",
    "Resumable",
    "SuperAdam",
    "anchored",
    "check_pairs",
    "create",
    "estimators",
    "find_lr",
    "iterates",
    "list_methods",
    "load_checkpoint",
    "matrices",
    "noise_model",
    "penalties",
    "probe",
    "reference",
    "save_checkpoint",
    "schedules",
    "sets",
    "stepsizes",
    "theory",
    "twice",
    "zoo",
]
__version__ = "0.1.0"

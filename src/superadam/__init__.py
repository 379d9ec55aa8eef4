"""SUPER-ADAM for PyTorch: every adaptive gradient method as one algorithm with four choices."""

from superadam import estimators, matrices, penalties, reference, schedules, sets, theory, zoo
from superadam.monitor import Monitor
from superadam.optimizer import SuperAdam
from superadam.replay import twice
from superadam.zoo import create, list_methods

__all__ = [
    "Monitor",
    "SuperAdam",
    "create",
    "estimators",
    "list_methods",
    "matrices",
    "penalties",
    "reference",
    "schedules",
    "sets",
    "theory",
    "twice",
    "zoo",
]
__version__ = "0.1.0"

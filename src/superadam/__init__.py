"""SUPER-ADAM for PyTorch: every adaptive gradient method as one algorithm with four choices."""

from superadam import estimators, matrices, reference, schedules
from superadam.optimizer import SuperAdam
from superadam.replay import twice

__all__ = ["SuperAdam", "estimators", "matrices", "reference", "schedules", "twice"]
__version__ = "0.1.0"

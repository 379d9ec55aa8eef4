"""`probe` predicts whether variance reduction would pay for a model. `find_lr` suggests a learning rate."""

from superadam.probe import noise_model
from superadam.probe.range_test import LrReport, find_lr
from superadam.probe.report import ProbeReport, probe

__all__ = ["LrReport", "ProbeReport", "find_lr", "noise_model", "probe"]

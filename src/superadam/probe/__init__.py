"""`probe`: whether variance reduction would pay on a model at hand, from gradients of its own batches."""

from superadam.probe import payoff
from superadam.probe.report import ProbeReport, probe

__all__ = ["ProbeReport", "payoff", "probe"]

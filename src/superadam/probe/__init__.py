"""Measurements before training: does variance reduction pay, which learning rate, and is a closure right for τ > 0."""

from superadam.probe import noise_model
from superadam.probe.pairs import check_pairs
from superadam.probe.range_test import LrReport, find_lr
from superadam.probe.report import ProbeReport, probe

__all__ = ["LrReport", "ProbeReport", "check_pairs", "find_lr", "noise_model", "probe"]

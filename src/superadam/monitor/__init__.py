"""Quantities to watch while training: of g_t, of H_t, of the step, and of the two gradients of a batch."""

from superadam.monitor.alarms import MonitorWarning
from superadam.monitor.monitor import Monitor
from superadam.monitor.sinks import TensorBoard

__all__ = ["Monitor", "MonitorWarning", "TensorBoard"]

"""Reports during training: about g_t, H_t, the step, and the two gradients of a batch."""

from superadam.monitor.alarms import MonitorWarning
from superadam.monitor.monitor import Monitor
from superadam.monitor.sinks import TensorBoard

__all__ = ["Monitor", "MonitorWarning", "TensorBoard"]

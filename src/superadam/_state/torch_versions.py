"""What differs between the versions of torch, from 2.6 on: each difference is looked up here, once."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

__all__ = ["check_capture"]

# Its name now, and in torch 2.6 to 2.9, where CUDA was the only accelerator with graphs.
_NAMES = ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check")
# A version without either checks nothing.
check_capture: Any = next((getattr(Optimizer, name) for name in _NAMES if hasattr(Optimizer, name)), lambda opt: None)

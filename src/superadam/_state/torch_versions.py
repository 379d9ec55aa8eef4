"""What differs between the versions of torch, from 2.6 on: each difference is looked up here, once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

__all__ = ["FSDP2_ON_CPUS", "check_capture", "check_fsdp2", "dimension_to_cut"]

# Its name now, and in torch 2.6 to 2.9, where CUDA was the only accelerator with graphs.
_NAMES = ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check")
# A version without either checks nothing.
check_capture: Any = next((getattr(Optimizer, name) for name in _NAMES if hasattr(Optimizer, name)), lambda opt: None)

# FSDP2 records events, which the streams of a CPU have since torch 2.7.
FSDP2_ON_CPUS = hasattr(torch.cpu.Stream, "record_event")


def check_fsdp2(modules: Iterable[nn.Module], able: bool = FSDP2_ON_CPUS) -> None:
    """Refuse modules of FSDP2 on a CPU where torch would fail in their first forward pass."""
    for module in () if able else modules:
        sharded = any(base.__name__ == "FSDPModule" for base in type(module).__mro__)
        if sharded and any(p.device.type == "cpu" for p in module.parameters()):
            raise RuntimeError(
                f"FSDP2 on a CPU needs torch 2.7 or newer, and this is {torch.__version__}: install a newer one, or "
                "use DistributedDataParallel."
            )


def dimension_to_cut(shape: torch.Size, parts: int) -> int:
    """The dimension along which a tensor is saved as a DTensor: the longest of those that the parts divide evenly.

    full_tensor() cuts off what was added to parts of unequal size, which leaves gaps, unless by the first dimension.
    torch 2.9 sends such a tensor from rank 0 with its gaps.
    """
    even = [d for d, size in enumerate(shape) if size % parts == 0]
    return max(even, key=shape.__getitem__) if even else next((d for d, size in enumerate(shape) if size > 1), 0)

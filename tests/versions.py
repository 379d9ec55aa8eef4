"""What the torch that is installed lacks, for tests that need it. The library itself runs without."""

import importlib
import sys

import pytest
import torch

# FSDP2 records events, which the streams of a CPU have since torch 2.7.
FSDP2_ON_CPUS = hasattr(torch.cpu.Stream, "record_event")

tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")  # pytest brings the second
needs_muon = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
needs_grad_dtype = pytest.mark.skipif(
    not hasattr(torch.Tensor, "grad_dtype"), reason="this torch has gradients of the parameter's dtype only"
)
needs_recorded_decay = pytest.mark.skipif(
    "decoupled_weight_decay" not in torch.optim.Adam([torch.zeros(1)]).defaults,
    reason="checkpoints of this torch's Adam and AdamW look the same",
)
needs_no_dist = pytest.mark.skipif(not FSDP2_ON_CPUS, reason="this torch cannot save without processes (no_dist)")
WITHOUT_FSDP2 = "this torch cannot run FSDP2 on CPUs"
# What errors say then: torch's own, where there is no module; that of a checkpoint without processes.
SAID_WITHOUT_FSDP2 = ("_fully_shard", "no_dist")

"""What the torch that is installed lacks, for tests that need it. The library itself runs without."""

import pytest
import torch

needs_grad_dtype = pytest.mark.skipif(
    not hasattr(torch.Tensor, "grad_dtype"), reason="this torch has gradients of the parameter's dtype only"
)
needs_recorded_decay = pytest.mark.skipif(
    "decoupled_weight_decay" not in torch.optim.Adam([torch.zeros(1)]).defaults,
    reason="checkpoints of this torch's Adam and AdamW look the same",
)
# FSDP2 records events, which the streams of a CPU have since torch 2.7.
FSDP2_ON_CPUS = hasattr(torch.cpu.Stream, "record_event")
WITHOUT_FSDP2 = "this torch cannot run FSDP2 on CPUs"

"""What the torch that is installed lacks, for tests that need it. The library itself runs without."""

import sys

import pytest
import torch

from superadam._state.torch_versions import FSDP2_ON_CPUS as FSDP2_ON_CPUS

if sys.version_info >= (3, 11):
    import tomllib as tomllib
else:
    pass  # pytest brings it

needs_grad_dtype = pytest.mark.skipif(
    not hasattr(torch.Tensor, "grad_dtype"), reason="this torch has gradients of the parameter's dtype only"
)
needs_recorded_decay = pytest.mark.skipif(
    "decoupled_weight_decay" not in torch.optim.Adam([torch.zeros(1)]).defaults,
    reason="checkpoints of this torch's Adam and AdamW look the same",
)
WITHOUT_FSDP2 = "this torch cannot run FSDP2 on CPUs"
# What errors say then: torch's own, where there is no module; that of a checkpoint without processes; ours.
SAID_WITHOUT_FSDP2 = ("_fully_shard", "no_dist", "needs torch 2.7")

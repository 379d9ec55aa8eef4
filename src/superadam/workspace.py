"""Memory that is kept from step to step, where a CPU would spend longer on getting fresh memory than on the step.

Each thread has its own. It grows to the largest piece that line 9 works on: for sets that couple all coordinates of a
tensor, two tensors of that size; otherwise a megabyte or two.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

__all__ = ["scratch"]

_kept = threading.local()


def scratch(name: str, like: Tensor) -> Tensor:
    """A tensor like another one, with anything in it. The next call with the same name returns the same memory."""
    if (
        like.device.type != "cpu"
        or not like.is_contiguous()
        or torch.is_grad_enabled()
        or type(like.data) is not Tensor
    ):
        return torch.empty_like(like)
    key = f"{name}, {like.dtype}"
    flat = getattr(_kept, key, None)
    if flat is None or flat.numel() < like.numel():
        flat = torch.empty(like.numel(), dtype=like.dtype)
        setattr(_kept, key, flat)
    return flat[: like.numel()].view(like.shape)

"""Memory that is kept from step to step: on a CPU, allocating new memory takes longer than the step itself.

Each thread has its own. It grows to the largest piece that line 9 works on. For sets that couple all coordinates of a
tensor that is two tensors of its size, otherwise a few megabytes.
"""

from __future__ import annotations

import functools
import threading

import torch
from torch import Tensor

__all__ = ["keep_small_blocks", "scratch"]

_kept = threading.local()


def scratch(name: str, like: Tensor) -> Tensor:
    """An uninitialised tensor like another one. The next call with the same name returns the same memory."""
    plain = like.device.type == "cpu" and like.is_contiguous() and type(like.data) is Tensor
    if not plain or torch.is_grad_enabled():
        return torch.empty_like(like)
    keep_small_blocks()
    key = f"{name}, {like.dtype}"
    flat = getattr(_kept, key, None)
    if flat is None or flat.numel() < like.numel():
        flat = torch.empty(like.numel(), dtype=like.dtype)
        setattr(_kept, key, flat)
    return flat[: like.numel()].view(like.shape)


@functools.cache
def keep_small_blocks() -> None:
    """Have malloc keep the memory of freed temporaries, instead of getting it from the system again page by page.

    glibc keeps up to 64 MB once a program has freed a block of almost 32 MB. This frees one.
    """
    torch.empty(31 << 20, dtype=torch.uint8)

"""Memory that is kept from step to step, where a CPU would spend longer on getting fresh memory than on the step.

Each thread has its own. It grows to the largest piece that line 9 works on: for sets that couple all coordinates of a
tensor, two tensors of that size; otherwise a megabyte or two.
"""

from __future__ import annotations

import functools
import threading

import torch
from torch import Tensor

__all__ = ["keep_memory", "scratch"]

_kept = threading.local()


@functools.cache
def keep_memory() -> None:
    """Have malloc keep what is freed, up to 64 MB, rather than give it back to the system and fetch it page by page.

    glibc does so once a program has freed a block of almost 32 MB, as most that train networks have. This is one.
    """
    torch.empty(31 << 20, dtype=torch.uint8)


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

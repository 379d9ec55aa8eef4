"""`rounding`: updates that are too small for low-precision parameters.

A bfloat16 has eight bits: 1 - 10⁻³ is rounded to 1. Rounding to nearest loses every update of less than half a unit in
the last place, however often it comes. "stochastic" rounds up or down at random, such that the mean is right:

$$\\Pr(\\text{up}) = \\frac{x - \\lfloor x \\rfloor}{\\lceil x \\rceil - \\lfloor x \\rfloor}$$

The random bits are a hash of the parameter's number, its step count and the position in it, and no generator is used.
So a resumed run takes the same steps, and so do all processes of DDP, and those of FSDP2 whatever their number.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from superadam.bucket import Bucket, State
from superadam.distributed import positions
from superadam.lists import TensorList, state_dtype

__all__ = ["ROUNDINGS", "objection", "stochastic", "widened"]

ROUNDINGS = ("nearest", "stochastic")


def objection(rounding: str, p: Tensor) -> str | None:
    """Return why a parameter cannot be rounded so, or None."""
    if rounding == "stochastic" and p.dtype not in (torch.bfloat16, state_dtype(p), torch.complex64, torch.complex128):
        return f"stochastic rounding is for bfloat16, not {p.dtype}: use rounding='nearest'"
    return None


@contextmanager
def widened(s: Bucket) -> Iterator[None]:
    """Give `s.x` of low-precision parameters in the dtype of the state, and round it afterwards."""
    if not s.wide:
        yield
        return
    narrow, own = s.x, s.__dict__
    own["x"] = TensorList([x.to(state_dtype(x)) for x in narrow])
    yield
    for p, x, new, state in zip(s.params, narrow, s.x, s.states, strict=True):
        if s.group["rounding"] == "stochastic":
            if s.sharding is None:
                places = positions(x) + s.offset
            else:
                places = positions(p).flatten()[s.offset : s.offset + x.numel()].view_as(x)
            new = stochastic(new, random_bits(places, state) & 0xFFFF)
        x.copy_(new)
    own["x"] = narrow


def stochastic(x: Tensor, bits: Tensor) -> Tensor:
    """Return x in bfloat16: cut off after `bits`, 16 random ones, have been added to the 16 that must go.

    >>> stochastic(torch.tensor([1.001, 1.001, 1.0]), torch.tensor([0, 65535, 65535]))
    tensor([1.0000, 1.0078, 1.0000], dtype=torch.bfloat16)
    """
    cut = (x.view(torch.int32) + bits.to(torch.int32)).bitwise_and_(~0xFFFF).view(torch.float32)
    return torch.where(x.isfinite(), cut, x).to(torch.bfloat16)


def random_bits(places: Tensor, state: State) -> Tensor:
    """Return 32 random bits for the coordinates at these places in a parameter."""
    seed = _mixed(_mixed(state["step"]) + state["number"])
    bits: Tensor = places.to(torch.int32)
    bits.bitwise_xor_(_signed(seed))
    for factor in (0x7FEB352D, 0x45D9F3B, 1):  # the products wrap around, and a shift copies the sign
        bits.bitwise_xor_((bits >> 16).bitwise_and_(0xFFFF)).mul_(factor)
    return bits


def _mixed(x: int) -> int:
    """Return a hash of 32 bits of a number."""
    x = (x ^ (x >> 32)) & 0xFFFFFFFF
    for factor in (0x7FEB352D, 0x45D9F3B, 0x6C8E9CF5):
        x = (((x >> 16) ^ x) * factor) & 0xFFFFFFFF
    return (x >> 16) ^ x


def _signed(x: int) -> int:
    """Return the int32 that has these bits."""
    return x - (1 << 32) if x >> 31 else x

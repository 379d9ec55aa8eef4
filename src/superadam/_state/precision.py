"""`rounding`: updates that are too small for low-precision parameters.

A bfloat16 has eight bits: 1 - 10⁻³ is rounded to 1. Rounding to nearest loses every update of less than half a unit in
the last place, however often it comes. Either keep x in float32 beside the parameters (`"master"`), or round up or down
at random, such that the mean is right (`"stochastic"`):

$$\\Pr(\\text{up}) = \\frac{x - \\lfloor x \\rfloor}{\\lceil x \\rceil - \\lfloor x \\rfloor}$$

The random bits are a hash of the parameter's number, its step count and the position in it, and no generator is used.
So a resumed run takes the same steps, and so do all processes of DDP, and those of FSDP2 whatever their number.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from superadam._state.sharding import local, positions
from superadam._step.view import Line, Sums, View
from superadam.lists import Scalar, each, join, real, state_dtype

__all__ = ["ROUNDINGS", "objection", "precisely", "prepare", "round_after", "round_state", "stochastic"]

ROUNDINGS = ("nearest", "stochastic", "master")


def round_after(line: Line, s: View, gamma: Scalar) -> Sums:
    """Run a line on a bound view, which has the tensors of a `narrow` state in float32, and round them."""
    sums = line(s, gamma)
    round_state(s, line.__name__)
    return sums


def round_state(s: View, after: str) -> None:
    """Write the tensors of a `narrow` state, which a bound view has in float32, back into the state."""
    for p, state, *wide in zip(s.params, s.states, *(each(getattr(s, name)) for name in s.narrow), strict=True):
        bits = None
        for k, (name, new) in enumerate(zip(s.narrow, wide, strict=True)):
            # 32 bits at a time, for two tensors. Lines that follow each other may have the same step count.
            bits = _random(p, state, zlib.crc32(f"{after} {k}".encode())) if bits is None else bits >> 16
            local(state[name]).copy_(stochastic(new, bits & 0xFFFF))
            bits = None if k % 2 else bits


def _matters(group: dict[str, Any], p: Tensor) -> bool:
    return group["rounding"] != "nearest" and real(p).dtype != state_dtype(p)


def objection(group: dict[str, Any], p: Tensor) -> str | None:
    """Why a parameter cannot be rounded so, or None."""
    if not _matters(group, p):
        return None
    if group["differentiable"]:
        return "autograd does not follow the rounding: use rounding='nearest'"
    if group["rounding"] == "stochastic" and p.dtype != torch.bfloat16:
        return f"stochastic rounding is for bfloat16, not {p.dtype}: use rounding='master'"
    return None


def prepare(group: dict[str, Any], p: Tensor, state: dict[str, Any], number: int) -> None:
    """Add to the state what rounding needs: x in float32, or the parameter's number, for the random bits."""
    matters = _matters(group, p)
    if matters and group["rounding"] == "master" and "master" not in state:
        state["master"] = real(p).detach().to(state_dtype(p))
    narrow = group["state_dtype"] is not None and state_dtype(p) is torch.float32
    at_random = narrow or (matters and group["rounding"] == "stochastic")
    if at_random and "number" not in state:
        state["number"] = number


def precisely(s: View, change: Callable[[], None]) -> None:
    """Apply a change of `s.x`; where `rounding` asks for it, in float32, and round afterwards."""
    if s.group["rounding"] == "nearest" or not _matters(s.group, s.params[0]):
        change()
        return
    master, narrow = s.group["rounding"] == "master", s.x
    if master:
        wide = [_up_to_date(local(state["master"]), x) for state, x in zip(s.states, each(narrow), strict=True)]
    else:
        wide = [x.to(state_dtype(x)) for x in each(narrow)]
    s.x = join(wide)
    change()
    s.x = narrow
    for p, x, new, state in zip(s.params, each(narrow), wide, s.states, strict=True):
        x.copy_(new if master else stochastic(new, _random(p, state) & 0xFFFF))


def _up_to_date(master: Tensor, x: Tensor) -> Tensor:
    """The master copy, with the coordinates of x that the user has changed since (by loading weights, say)."""
    return master.copy_(torch.where(master.to(x.dtype) == x, master, x.to(master.dtype)))


def stochastic(x: Tensor, bits: Tensor) -> Tensor:
    """x in bfloat16: cut off after `bits`, 16 random ones, have been added to the 16 that must go.

    >>> stochastic(torch.tensor([1.001, 1.001, 1.0]), torch.tensor([0, 65535, 65535]))
    tensor([1.0000, 1.0078, 1.0000], dtype=torch.bfloat16)
    """
    cut = (x.view(torch.int32) + bits.to(torch.int32)).bitwise_and_(~0xFFFF).view(torch.float32)
    return torch.where(x.isfinite(), cut, x).to(torch.bfloat16)


def _random(p: Tensor, state: dict[str, Any], salt: int = 0) -> Tensor:
    """32 random bits for every coordinate, of p or of the piece of it that begins at `offset`."""
    seed = _mixed(_mixed(state["step"]) + state["number"] + salt)
    x: Tensor = (positions(real(p)) + state.get("offset", 0)).to(torch.int32)
    x.bitwise_xor_(seed.to(torch.int32) if isinstance(seed, Tensor) else _signed(seed))
    for factor in (0x7FEB352D, 0x45D9F3B, 1):  # the products wrap around, and a shift copies the sign
        x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF)).mul_(factor)
    return x


def _mixed(x: Any) -> Any:
    """A hash of 32 bits, of a number or of each element of a tensor. No product is larger than an int64."""
    x = x.to(torch.int64) if isinstance(x, Tensor) else int(x)
    x = (x ^ (x >> 32)) & 0xFFFFFFFF
    for factor in (0x7FEB352D, 0x45D9F3B, 0x6C8E9CF5):
        x = (((x >> 16) ^ x) * factor) & 0xFFFFFFFF
    return (x >> 16) ^ x


def _signed(x: int) -> int:
    """The int32 that has these bits."""
    return x - (1 << 32) if x >> 31 else x

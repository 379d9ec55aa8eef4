"""Updates of low-precision parameters that are too small for them.

A bfloat16 has eight bits: 1 - 10⁻³ is 1 again. With rounding to nearest, an update of less than half a unit in the last
place is lost, however often it comes. Either keep x in float32 beside the parameters (`"master"`), or round up or down
at random, such that the mean is right (`"stochastic"`):

$$\\Pr(\\text{up}) = \\frac{x - \\lfloor x \\rfloor}{\\lceil x \\rceil - \\lfloor x \\rfloor}$$

The random bits are a hash of the parameter's number, its step count and the position in it: no generator is used, so
that a resumed run takes the same steps, all processes of DDP do, and those of FSDP2 do whatever their number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from superadam._state.sharding import local, positions
from superadam._step.view import View, each, join, real, state_dtype

__all__ = ["ROUNDINGS", "objection", "precisely", "prepare", "stochastic"]

ROUNDINGS = ("nearest", "stochastic", "master")


def _matters(group: dict[str, Any], p: Tensor) -> bool:
    return group["rounding"] != "nearest" and real(p).dtype != state_dtype(p)


def objection(group: dict[str, Any], p: Tensor) -> str | None:
    """Why a parameter cannot be rounded so, if it cannot."""
    if not _matters(group, p):
        return None
    if group["differentiable"]:
        return "autograd does not follow the rounding: use rounding='nearest'"
    if group["rounding"] == "stochastic" and p.dtype != torch.bfloat16:
        return f"stochastic rounding is for bfloat16, not {p.dtype}: use rounding='master'"
    return None


def prepare(group: dict[str, Any], p: Tensor, state: dict[str, Any], number: int) -> None:
    """What a parameter must keep: x in float32, or its number, for the random bits."""
    if not _matters(group, p):
        return
    if group["rounding"] == "master" and "master" not in state:
        state["master"] = real(p).detach().to(state_dtype(p))
    if group["rounding"] == "stochastic" and "number" not in state:
        state["number"] = number


def precisely(s: View, change: Callable[[], None]) -> None:
    """Apply a change of `s.x`: in float32, and then rounded, where that has been asked for."""
    if s.group["rounding"] == "nearest" or not _matters(s.group, s.params[0]):
        return change()
    master, narrow = s.group["rounding"] == "master", s.x
    if master:
        wide = [_up_to_date(local(state["master"]), x) for state, x in zip(s.states, each(narrow), strict=True)]
    else:
        wide = [x.to(state_dtype(x)) for x in each(narrow)]
    s.x = join(wide)
    change()
    s.x = narrow
    for p, x, new, state in zip(s.params, each(narrow), wide, s.states, strict=True):
        x.copy_(new if master else stochastic(new, _bits(p, state)))
    return None


def _up_to_date(master: Tensor, x: Tensor) -> Tensor:
    """What the user has changed in x since, as by loading weights, holds."""
    return master.copy_(torch.where(master.to(x.dtype) == x, master, x.to(master.dtype)))


def stochastic(x: Tensor, bits: Tensor) -> Tensor:
    """x in bfloat16: cut off after `bits`, 16 random ones, have been added to the 16 that must go.

    >>> stochastic(torch.tensor([1.001, 1.001, 1.0]), torch.tensor([0, 65535, 65535]))
    tensor([1.0000, 1.0078, 1.0000], dtype=torch.bfloat16)
    """
    cut = ((x.view(torch.int32) + bits.to(torch.int32)) & ~0xFFFF).view(torch.float32)
    return torch.where(x.isfinite(), cut, x).to(torch.bfloat16)


def _bits(p: Tensor, state: dict[str, Any]) -> Tensor:
    """16 bits for every coordinate that is here."""
    seed = _mixed(_mixed(state["step"]) + state["number"])
    return cast(Tensor, _mixed(positions(p) ^ seed)) & 0xFFFF


def _mixed(x: Any) -> Any:
    """A hash of 32 bits, of a number or of each element of a tensor. No product is larger than an int64."""
    x = x.to(torch.int64) if isinstance(x, Tensor) else int(x)
    x = (x ^ (x >> 32)) & 0xFFFFFFFF
    for factor in (0x7FEB352D, 0x45D9F3B, 0x6C8E9CF5):
        x = (((x >> 16) ^ x) * factor) & 0xFFFFFFFF
    return (x >> 16) ^ x

"""Whether the two gradients of a batch are a pair: of the same batch, and unchanged. Found out in the first batches.

Line 11 takes their difference. If they differ by more than the move from x_{t-1} to x_t, no noise cancels in it.
"""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from superadam._state.sharding import local

__all__ = ["Pairing"]

# Batches that are watched. The host looks after each on a CPU; on an accelerator, which it waits for, after the last.
WATCHED = 10


class Pairing:
    """Watches the first batches, and warns once of what it finds.

    The first batch finds x where it is: evaluated twice, it must give the same gradient twice. From the second batch
    on, one parameter is watched for what happens to its gradient between `backward` and `step`: both gradients of a
    batch must be scaled by the same factor, or by one that a `GradScaler` may have changed, by a power of two.
    """

    def __init__(self) -> None:
        self.batches = 0  # that have begun
        self._watched = False  # whether this one is
        self._first: list[tuple[Tensor, Tensor]] = []
        self.compared = False  # two gradients at one point
        self._apart: Tensor | None = None  # ‖difference‖ / ‖gradient‖ of two evaluations at one point
        self._witness: weakref.ref[Tensor] | None = None
        self._told = False  # that they differ by a factor
        self._raw: dict[str, Tensor] = {}  # its gradient as `backward` has left it
        self._factors: list[Tensor] = []  # of the evaluations of this batch
        self._octaves: list[Tensor] = []  # log2 of the ratio of the two factors of a batch

    def begin(self, *, watched: bool) -> None:
        """A batch begins."""
        self.batches += 1
        self._watched = watched
        self._first, self._factors = [], []

    @property
    def watching(self) -> bool:
        return self._watched and self.batches <= WATCHED and not self._told

    def keep(self, params: list[Tensor]) -> bool:
        """These gradients will come again, of the same batch at the same point. Asked for once only."""
        if self.compared or not self.watching:
            return False
        self.compared = True
        self._first = [(p, local(p.grad).detach().clone()) for p in params if p.grad is not None]
        return True

    @torch.no_grad()
    def compare(self) -> None:
        """The gradients are there again."""
        if self._first:
            apart = [grad if p.grad is None else local(p.grad) - grad for p, grad in self._first]
            self._apart = _norm(apart) / _norm([grad for _, grad in self._first])
            self._first = []

    @torch.no_grad()
    def arrived(self, params: list[Tensor]) -> None:
        """An evaluation is done, and `step` has its gradients, before a scale is taken off them."""
        if self._witness is None:
            self._watch(params)
            return
        p, raw = self._witness(), self._raw.pop("grad", None)
        if p is not None and p.grad is not None and raw is not None:
            # <grad, sign(raw)> / <raw, sign(raw)>, in which no square underflows
            self._factors.append((p.grad.float() * raw.float().sign()).sum() / raw.float().abs().sum())

    def _watch(self, params: list[Tensor]) -> None:
        """Choose the smallest parameter, whose gradient costs next to nothing to keep."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return  # DDP writes the mean over the processes into a gradient, after `backward` has left it
        able = [
            p
            for p in params
            if p.grad is not None and p.is_leaf and p.requires_grad and p.numel() and not p.is_complex()
        ]
        if not able:
            return
        raw = self._raw
        p = min(able, key=Tensor.numel)
        register: Callable[..., Any] = p.register_post_accumulate_grad_hook
        handle = register(lambda p: raw.update(grad=p.grad.detach().clone()))
        self._witness, self._unhook = weakref.ref(p), weakref.finalize(self, handle.remove)

    def end(self) -> None:
        """The batch is done."""
        watching, self._watched = self.watching, False
        if not watching:
            return
        if len(self._factors) == 2:
            self._octaves.append((self._factors[0] / self._factors[1]).log2())
        last = self.batches == WATCHED
        if last and self._witness is not None:
            self._unhook()
        found = [t for t in (self._apart, *self._octaves) if t is not None]
        if found and (last or found[0].device.type == "cpu"):
            self._look()

    def _look(self) -> None:
        apart, self._apart = self._apart, None
        if apart is not None and apart > 0.01:  # not if it is NaN: gradients that are zero, or not finite
            warnings.warn(
                "The two evaluations of the first batch, at the same point, have given two gradients that differ by "
                f"{float(apart):.0%}. With tau > 0 both must see the same batch, and start from cleared gradients "
                "(opt.zero_grad() in each turn of a `twice` loop). Does the closure (or the body of the loop) "
                "fetch a batch, or draw from a torch.Generator of its own? Fetch the batch before "
                "step(closure), or loop over `superadam.twice(loader)`, and set such a generator to the same state "
                "in both evaluations.",
                stacklevel=6,
            )
        octaves, self._octaves = self._octaves, []
        if octaves and self._witness is not None:
            p = self._witness()
            tolerance = 1e-3 if p is None else max(1e-3, 4 * torch.finfo(p.dtype).eps)
            worst = max((x for x in map(float, octaves) if math.isfinite(x)), key=_off, default=0.0)
            if _off(worst) > tolerance:
                self._unhook()
                self._told = True
                warnings.warn(
                    "The two gradients of a batch were changed between backward() and step(), one by "
                    f"{2**worst:.4g} times the factor of the other: clip_grad_norm_, or a trainer's gradient_clip_val "
                    "or max_grad_norm? With tau > 0 line 11 takes their difference, which must be one of gradients of "
                    "the same function. Switch this clipping off, and give the optimizer clip=, which bounds g_t.",
                    stacklevel=6,
                )


def _off(octave: float) -> float:
    """How far a factor is from a power of two."""
    return abs(octave - round(octave))


def _norm(tensors: list[Tensor]) -> Tensor:
    norms = [torch.linalg.vector_norm(t.to(torch.promote_types(t.dtype, torch.float32))) for t in tensors]
    return torch.stack([norm.to(norms[0].device, torch.float32) for norm in norms]).square().sum().sqrt()

"""Checks in the first batches that the two gradients of a batch are a pair: of the same batch, and not changed since.

Line 11 takes their difference. Noise cancels in it only if they differ by nothing but the move from x_{t-1} to x_t.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from superadam._state.sharding import local
from superadam.messages import warn

__all__ = ["WATCHED", "Pairing"]

# How many batches are watched. On a CPU results are read after each; on an accelerator after the last, to wait once.
WATCHED = 10


class Pairing:
    """Watches the first batches, and warns once of what it finds.

    The first batch is evaluated twice at the same point: the gradients must be equal. From the second batch on, the
    gradient of one parameter is watched between `backward` and `step`. In both evaluations it may only be scaled, and
    by the same factor, up to a power of two (of a `GradScaler`).
    """

    def __init__(self) -> None:
        self._batches = 0  # how many have begun
        self.watching = False  # whether this batch is watched
        self.compared = False  # whether two gradients at one point have been compared, or are about to be
        self._first: list[tuple[Tensor, Tensor]] = []  # the first of these two, by parameter
        self._apart: Tensor | None = None  # ‖difference‖ / ‖gradient‖ of the two
        self._witness: weakref.ref[Tensor] | None = None  # the parameter whose gradient is watched
        self._raw: dict[str, Tensor] = {}  # its gradient as `backward` has left it
        self._factors: list[Tensor] = []  # by which it was scaled since, in the evaluations of this batch
        self._octaves: list[Tensor] = []  # log2 of the ratio of the two factors of a batch
        self._warned = False  # of two different factors

    def begin(self, *, watched: bool) -> None:
        """One of the first batches begins."""
        self._batches += 1
        self.watching = watched and not self._warned
        self._first, self._factors = [], []

    def keep(self, params: list[Tensor]) -> bool:
        """Keep these gradients: the next evaluation is of the same batch at the same point. False except once."""
        if self.compared or not self.watching:
            return False
        self.compared = True
        self._first = [(p, local(p.grad).detach().clone()) for p in params if p.grad is not None]
        return True

    @torch.no_grad()
    def compare(self) -> None:
        """Compare the gradients with those that were kept."""
        if self._first:
            apart = [grad if p.grad is None else local(p.grad) - grad for p, grad in self._first]
            self._apart = _norm(apart) / _norm([grad for _, grad in self._first])
            self._first = []

    @torch.no_grad()
    def arrived(self, params: list[Tensor]) -> None:
        """`step` has the gradients of an evaluation, and has not unscaled them yet."""
        if self._witness is None:
            self._watch(params)
            return
        p, raw = self._witness(), self._raw.pop("grad", None)
        if p is not None and p.grad is not None and raw is not None:
            # ⟨grad, sign(raw)⟩ / ⟨raw, sign(raw)⟩: no square that could underflow
            self._factors.append((p.grad.float() * raw.float().sign()).sum() / raw.float().abs().sum())

    def _watch(self, params: list[Tensor]) -> None:
        """Watch the smallest parameter: a copy of its gradient costs next to nothing."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return  # DDP changes a gradient after `backward`, to the mean over the processes
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
        """The batch, which was watched, is done."""
        self.watching = False
        if len(self._factors) == 2:
            self._octaves.append((self._factors[0] / self._factors[1]).log2())
        last = self._batches == WATCHED
        if last and self._witness is not None:
            self._unhook()
        found = [t for t in (self._apart, *self._octaves) if t is not None]
        if found and (last or found[0].device.type == "cpu"):
            self._report()

    def _report(self) -> None:
        apart, self._apart = self._apart, None
        if apart is not None and apart > 0.01:  # NaN, of gradients that are zero or not finite, is not
            warn(
                "The two evaluations of the first batch, at the same point, gave gradients that differ by "
                f"{float(apart):.0%}. With tau > 0 both must use the same batch and start from cleared gradients "
                "(opt.zero_grad() in each turn of a `twice` loop). Does the closure (or the body of the loop) "
                "fetch a batch, or draw from a torch.Generator of its own? Fetch the batch before "
                "step(closure), or loop over `superadam.twice(loader)`, and set such a generator to the same state "
                "in both evaluations."
            )
        octaves, self._octaves = self._octaves, []
        if octaves and self._witness is not None:
            p = self._witness()
            tolerance = 1e-3 if p is None else max(1e-3, 4 * torch.finfo(p.dtype).eps)
            worst = max((x for x in map(float, octaves) if math.isfinite(x)), key=_off, default=0.0)
            if _off(worst) > tolerance:
                self._unhook()
                self._warned = True
                warn(
                    "The two gradients of a batch were scaled between backward() and step(), one by "
                    f"{2**worst:.4g} times the factor of the other: clip_grad_norm_, or a trainer's gradient_clip_val "
                    "or max_grad_norm? With tau > 0, line 11 uses the difference of the two gradients, so both must be "
                    "unclipped. Turn this clipping off and use clip=, which bounds g_t."
                )


def _off(octave: float) -> float:
    """How far a factor is from a power of two."""
    return abs(octave - round(octave))


def _norm(tensors: list[Tensor]) -> Tensor:
    norms = [torch.linalg.vector_norm(t.to(torch.promote_types(t.dtype, torch.float32))) for t in tensors]
    return torch.stack([norm.to(norms[0].device, torch.float32) for norm in norms]).square().sum().sqrt()

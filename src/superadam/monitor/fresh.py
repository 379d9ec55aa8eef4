"""Gradients of fresh batches for the monitor, computed without changing training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from superadam.evaluations import aside, generators_of, put_back
from superadam.monitor.reading import Gradients, Points, buffered, parameters
from superadam.probe.gradients import gradients

__all__ = ["Fresh"]

SEED = 20211206
HIDDEN = " (FSDP2's fully_shard hides its parameters from these functions: watch without them.)"


class Fresh:
    """Evaluate the user's functions with random numbers of its own.

    It restores parameters, buffers of the optimizer's modules, and generators, and does not touch `p.grad`.
    """

    def __init__(
        self,
        opt: Any,
        loss: Callable[[Any], Tensor] | None,
        batches: Iterable[Any] | None,
        full: Callable[[], Tensor | Iterable[Tensor]] | None,
    ) -> None:
        if (loss is None) != (batches is None):
            raise ValueError("loss= and batches= go together: the loss of a batch, and batches that g has not seen")
        for name, given in (("loss", loss), ("full", full)):
            if given is not None and not callable(given):
                raise TypeError(f"Invalid {name}: {given!r} (expected a function that returns a loss)")
        if batches is not None and not isinstance(batches, Iterable):
            raise TypeError(f"Invalid batches: {batches!r} (expected an iterable of batches, such as the loader)")
        if (loss or full) and opt.defaults.get("differentiable"):
            raise ValueError("loss= and full= move the parameters, which differentiable=True does not allow")
        self.opt, self.loss, self.batches, self.full = opt, loss, batches, full
        self._iterator: Iterator[Any] = iter(())
        self._seed = SEED

    def halves(self, *places: Points | None) -> list[tuple[Gradients, Gradients]]:
        """Return ∇f(·; ξ) and ∇f(·; ξ') at every point (None: as it is), for the same fresh ξ and ξ'."""
        assert self.loss is not None
        with self._aside() as replay:
            batches, taken = (self._next(), self._next()), []
            for place in places:
                with self._at(place):
                    both = []
                    for i, batch in enumerate(batches):
                        replay(i)
                        both.append(self._gradient(self.loss(batch)))
                    taken.append((both[0], both[1]))
        return taken

    def whole(self, place: Points | None) -> Gradients:
        """Return ∇f at a point, from the function `full`."""
        assert self.full is not None
        total: Gradients = {}
        with self._aside(), self._at(place):
            losses = self.full()
            for loss in losses if isinstance(losses, Iterable) and not isinstance(losses, Tensor) else [losses]:
                for p, grad in self._gradient(loss).items():
                    total[p] = total[p] + grad if p in total else grad
        return total

    def _next(self) -> Any:
        for _ in range(2):
            for batch in self._iterator:
                return batch
            assert self.batches is not None
            self._iterator = iter(self.batches)
        raise ValueError("batches= has no batch left. An iterator can be used only once: pass the loader itself.")

    def _gradient(self, loss: Tensor) -> Gradients:
        params = [p for p in parameters(self.opt) if p.requires_grad]
        grads = gradients(loss, params, "loss= or full=", HIDDEN)
        return {p: grad for p, grad in zip(params, grads, strict=True) if grad is not None}

    @contextmanager
    def _aside(self) -> Iterator[Callable[[int], None]]:
        """Draw random numbers from own seeds inside. Yield a function that sets the i-th seed."""
        self._seed += 2
        with aside(buffered(self.opt), self.batches) as kept, torch.enable_grad():

            def replay(i: int) -> None:
                kept.restore()
                torch.default_generator.manual_seed(self._seed + i)

            replay(0)
            for generator in generators_of(self.batches):
                generator.manual_seed(self._seed)
            yield replay

    @contextmanager
    def _at(self, place: Points | None) -> Iterator[None]:
        """Let the parameters hold another point inside."""
        with put_back(place or ()):
            with torch.no_grad():
                for p, x in (place or {}).items():
                    p.copy_(x)
            yield

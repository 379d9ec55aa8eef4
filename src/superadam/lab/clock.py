"""The time that training takes."""

from __future__ import annotations

import time

import torch

__all__ = ["Clock"]


class Clock:
    """Seconds of training, without those while it is paused."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.total = device, 0.0
        self._since: float | None = None

    def go(self) -> None:
        self._since = time.perf_counter()

    def pause(self) -> None:
        if self._since is not None and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.total, self._since = self.seconds, None

    @property
    def seconds(self) -> float:
        return self.total + (0.0 if self._since is None else time.perf_counter() - self._since)

"""The time that training takes."""

from __future__ import annotations

import time

import torch

__all__ = ["Clock"]


class Clock:
    """Seconds of training, without those while it is paused.

    A run on one thread of a CPU, as the workers of a comparison make them, counts CPU time: what else runs on the
    machine then matters little. All others count the time that passes.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.total = device, 0.0
        alone = device.type == "cpu" and torch.get_num_threads() == 1
        self.now = time.process_time if alone else time.perf_counter
        self.total_passed = 0.0
        self._since: tuple[float, float] | None = None

    def go(self) -> None:
        self._since = self.now(), time.perf_counter()

    def pause(self) -> None:
        if self._since is not None and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.total, self.total_passed, self._since = self.seconds, self.passed, None

    @property
    def seconds(self) -> float:
        return self.total + (0.0 if self._since is None else self.now() - self._since[0])

    @property
    def passed(self) -> float:
        """The time that has passed, for limits."""
        return self.total_passed + (0.0 if self._since is None else time.perf_counter() - self._since[1])

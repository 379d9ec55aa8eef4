"""The time that training takes."""

from __future__ import annotations

import time

import torch

__all__ = ["Clock"]


class Clock:
    """Seconds of training, without pauses.

    A run on one CPU thread, such as a run of a comparison, counts CPU time, so that other work on the machine matters
    little. All other runs count wall-clock time.
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
        """The wall-clock time, for limits."""
        return self.total_passed + (0.0 if self._since is None else time.perf_counter() - self._since[1])

"""Measurements of time, bandwidth and memory."""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["interleaved", "peak_temporary_bytes", "ratios", "streams", "summary", "timed"]

Times = dict[str, list[float]]
LARGE = 1 << 27  # floats: half a gigabyte, which no cache holds


def timed(run: Callable[[], Any]) -> float:
    """Wall-clock seconds."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def interleaved(runs: Mapping[str, Callable[[], Any]], rounds: int, warm_up: int = 3) -> Times:
    """Seconds of each run in each round. All take turns, in a different order in each round, because the order affects
    the caches."""
    times: Times = {name: [] for name in runs}
    order, shuffle = list(runs), random.Random(0).shuffle
    for i in range(warm_up + rounds):
        shuffle(order)
        for name in order:
            seconds = timed(runs[name])
            if i >= warm_up:
                times[name].append(seconds)
    return times


def summary(times: list[float]) -> dict[str, float]:
    """Milliseconds: the median, and the minimum.

    >>> summary([0.003, 0.001, 0.002])
    {'median_ms': 2.0, 'minimum_ms': 1.0}
    """
    return {"median_ms": short(1e3 * statistics.median(times)), "minimum_ms": short(1e3 * min(times))}


def ratios(row: Mapping[str, float], base: Mapping[str, float]) -> dict[str, float]:
    """The ratio of the medians, and that of the minima.

    >>> ratios({"median_ms": 3.0, "minimum_ms": 2.0}, {"median_ms": 2.0, "minimum_ms": 1.0})
    {'median': 1.5, 'minimum': 2.0}
    """
    return {of: short(row[f"{of}_ms"] / base[f"{of}_ms"]) for of in ("median", "minimum")}


def short(x: float) -> float:
    """Four digits: times are no more precise."""
    return float(f"{x:.4g}")


def streams(n: int) -> tuple[dict[str, Callable[[], Any]], dict[str, int]]:
    """Plain loops through as much memory as Adam holds for n parameters (x, gradient, m, v; at most half a gigabyte),
    and the bytes that each of them moves: one tensor scaled; x += c y; torch's fused SGD with momentum.

    None needs more than one multiplication per number, so memory limits them. Which one is fastest depends on the
    machine; the bandwidth is that of the fastest.
    """
    n = min(4 * n, LARGE)
    memory = torch.ones(n)  # not zeros, whose pages would not exist
    x, y = memory.view(2, -1)
    a, b, c = memory[: n - n % 3].view(3, -1)
    step: Any = torch._fused_sgd_
    options = {"weight_decay": 0.0, "momentum": 0.9, "lr": 1e-3, "dampening": 0.0, "nesterov": False}

    def sgd() -> None:
        step([a], [b], [c], **options, maximize=False, is_first_step=False)

    runs: dict[str, Callable[[], Any]] = {
        "stream: scale": lambda: memory.mul_(1.0),
        "stream: add": lambda: x.add_(y, alpha=0.5),
        "stream: sgd": sgd,
    }
    return runs, dict(zip(runs, (2 * memory.nbytes, 3 * y.nbytes, 5 * a.nbytes), strict=True))


def bandwidth(times: Times, moved: Mapping[str, int]) -> dict[str, float]:
    """Bytes per second of the fastest stream, by medians and by minima."""
    return {
        "median": short(max(moved[name] / statistics.median(times[name]) for name in moved)),
        "minimum": short(max(moved[name] / min(times[name]) for name in moved)),
    }


@contextmanager
def _silenced() -> Iterator[None]:
    """Silence stderr: Kineto writes its own lines there."""
    kept = os.dup(2)
    with tempfile.TemporaryFile() as sink:
        os.dup2(sink.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def peak_temporary_bytes(run: Callable[[], Any]) -> int:
    """The largest memory held during `run` beyond that held before, from torch's profiler of the CPU allocator.

    >>> x = torch.zeros(1000)
    >>> peak_temporary_bytes(lambda: ((x + 1) * 2).sum()) >= 8000
    True
    >>> peak_temporary_bytes(lambda: x.add_(1)) < 100
    True
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    with _silenced(), torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        run()
    results: Any = profiler.profiler.kineto_results
    changes = [event for event in results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(changes, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak

"""Where reports go: a file of JSON lines, TensorBoard, any function of a dict."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

__all__ = ["TensorBoard", "sinks"]

Report = dict[str, Any]
Sink = Callable[[Report], object]


def sinks(to: Any) -> list[Sink]:
    """Return the functions that receive the reports, from `to`."""
    if to is None:
        return []
    if isinstance(to, str | os.PathLike):
        return [_json_lines(Path(to))]
    if hasattr(to, "add_scalar"):
        return [TensorBoard(to)]
    if callable(to):
        return [to]
    if isinstance(to, Iterable):
        return [sink for one in to for sink in sinks(one)]
    raise TypeError(
        f"Invalid to: {to!r} (expected the path of a .jsonl file, a SummaryWriter, a function of a dict such as "
        "wandb.log, or a list of those)"
    )


def _json_lines(path: Path) -> Sink:
    """Return a function that appends a report to a file as a line of JSON, with null for infinity and NaN."""
    if path.suffix != ".jsonl":
        raise ValueError(
            f"Invalid to: {str(path)!r} (expected a file name that ends in .jsonl; for TensorBoard write "
            "to=superadam.monitor.TensorBoard(directory))"
        )
    path.parent.mkdir(parents=True, exist_ok=True)

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items()}
        return None if isinstance(value, float) and not math.isfinite(value) else value

    def append(report: Report) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(plain(report), allow_nan=False) + "\n")

    return append


class TensorBoard:
    """Write every number of a report as a scalar `superadam/…`, and alarms as text.

    Args:
        log: a directory, or your own `SummaryWriter`.

    >>> class Writer:
    ...     def add_scalar(self, name, value, step):
    ...         print(step, name, value)
    >>> TensorBoard(Writer())({"step": 50, "g_norm": 0.5})
    50 superadam/g_norm 0.5
    """

    def __init__(self, log: Any) -> None:
        if not hasattr(log, "add_scalar"):
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as missing:
                raise ImportError("TensorBoard is not installed: pip install tensorboard") from missing
            log = SummaryWriter(log)
        self.writer = log

    def __call__(self, report: Report) -> None:
        self._add("superadam", {name: value for name, value in report.items() if name != "step"}, report["step"])

    def _add(self, name: str, value: Any, step: int) -> None:
        if isinstance(value, dict):
            for key, part in value.items():
                self._add(f"{name}/{key}", part, step)
        elif isinstance(value, str):
            self.writer.add_text(name, value, step)
        else:
            self.writer.add_scalar(name, value, step)

"""The progress of a comparison in the terminal."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from superadam_lab.comparison.engine import plan_size
from superadam_lab.comparison.plan.jobs import best, scores
from superadam_lab.comparison.queue import Queue
from superadam_lab.comparison.records import Plan, Record

__all__ = ["Shown"]

LINE = 10.0  # seconds between lines, where there is no terminal


class Shown:
    """A table of methods and tasks that is updated; plain lines if the output is not a terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._first: tuple[float, int] | None = None
        self._said = 0.0

    def __enter__(self) -> Shown:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, queue: Queue, records: list[Record]) -> None:
        plan = queue.plan  # another process may have extended it
        now, done, all_ = time.monotonic(), len(records), max(plan_size(plan), len(records))
        if self._first is None or done == self._first[1]:
            self._first = (now, done)  # what came before this process is not its pace
        begun, at = self._first
        left = "" if done == at else f", about {_time((now - begun) / (done - at) * (all_ - done))} left"
        line = f"{done} of {all_} runs{left}"
        if self._live is not None:
            self._live.update(Group(table(plan, records), Text(line)), refresh=True)
        elif now - self._said > LINE or done == all_:
            self._said = now
            self.console.print(line, highlight=False)


def table(plan: Plan, records: list[Record]) -> Table:
    """The table: finished trials, the best of them, and finished report seeds."""
    shown = Table("method", *plan.tasks, title="trials · best lr → validation loss · final runs")
    for method in plan.methods:
        cells = []
        for task in plan.tasks:
            mine = [r for r in records if (r.task, r.method) == (task, method)]
            cells.append(_cell(plan, mine))
        shown.add_row(method, *cells)
    return shown


def _cell(plan: Plan, records: list[Record]) -> str:
    found = scores(plan, records)
    if not found:
        return "…"
    options, loss = min(found.values(), key=lambda pair: pair[1])
    tuned = best(plan, records) is not None
    reported = sum(r.phase == "report" for r in records)
    values = ", ".join(_option(k, v) for k, v in options.items())
    text = f"{len(found)}/{plan.trials} · {values} → {loss:.4g}"
    return f"{text} · {reported}/{len(plan.report_seeds)}" if tuned else text


def _option(name: str, value: Any) -> str:
    return f"{value:.2g}" if name == "lr" else f"{name}={value:.2g}"


def _time(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 100
        else f"{seconds / 60:.0f} min"
        if seconds < 6000
        else f"{seconds / 3600:.1f} h"
    )

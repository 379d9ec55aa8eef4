"""`Monitor.plot` and `Monitor.frame`: reports as a figure or as a table."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Sequence
from typing import Any

__all__ = ["draw", "panels", "tabulate"]

# The title of a panel, what it shows, and whether on a logarithmic axis.
PANELS = (
    ("loss", ("loss",), True),
    ("norms", ("grad_norm", "g_norm", "gradient_mapping", "estimator_error"), True),
    ("cosine of g_t and the newest gradient", ("cosine",), False),
    ("entries of H_t", ("H_min", "H_q10", "H_median", "H_q90", "H_max"), True),
    ("cond(H_t)", ("condition",), True),
    ("length of a step over ‖x_t‖", ("update_ratio",), True),
    ("‖x_t‖", ("x_norm",), False),
    ("γ, μ_t, α_t", ("lr", "mu", "alpha"), True),
    ("variance of differences over that of gradients", ("variance_ratio", "difference_ratio"), True),
    ("noise scale, in batches", ("noise_scale",), True),
    ("local smoothness", ("smoothness",), True),
    ("M_t", ("M", "M_error"), True),
    ("distance to the set", ("feasibility",), True),
    ("seconds for eigenvectors", ("refresh_seconds",), False),
)
COLUMNS = 3


def panels(reports: Sequence[dict[str, Any]]) -> list[tuple[str, list[str], bool]]:
    """Return the panels that have data, each with its quantities. A logarithmic axis needs positive numbers.

    >>> panels([{"step": 1, "cosine": 0.5}, {"step": 2, "cosine": 0.7, "condition": 9.0}])
    [('cosine of g_t and the newest gradient', ['cosine'], False), ('cond(H_t)', ['condition'], True)]
    """
    found = []
    for title, names, logarithmic in PANELS:
        there = [name for name in names if any(name in report for report in reports)]
        values = [report[name] for report in reports for name in there if name in report]
        if there:
            found.append((title, there, logarithmic and any(value > 0 for value in values)))
    return found


def draw(reports: Sequence[dict[str, Any]], path: str | os.PathLike[str] | None = None) -> Any:
    """Return a matplotlib figure of all reported quantities against the steps, with alarms as red lines."""
    try:
        from matplotlib.figure import Figure  # no display is needed, nor pyplot's global state
    except ImportError as missing:
        raise ImportError("Monitor.plot() needs matplotlib: pip install matplotlib") from missing
    if not reports:
        raise ValueError("No report to plot yet: a Monitor reports on every `every`-th batch")
    shown = panels(reports)
    rows = math.ceil(len(shown) / COLUMNS)
    figure = Figure(figsize=(4.0 * COLUMNS, 2.6 * rows), layout="constrained")
    for ax, (title, names, logarithmic) in zip(figure.subplots(rows, COLUMNS, squeeze=False).flat, shown, strict=False):
        for name in names:
            ax.plot(*zip(*((r["step"], r[name]) for r in reports if name in r), strict=True), label=name)
        for report in reports:
            if report.get("alarms"):
                ax.axvline(report["step"], color="tab:red", linestyle=":", linewidth=0.8)
        ax.set(title=title, xlabel="step", yscale="log" if logarithmic else "linear")
        if len(names) > 1:
            ax.legend(fontsize="small")
    for ax in figure.axes[len(shown) :]:
        ax.remove()
    if path is not None:
        figure.savefig(path)
    return figure


def tabulate(reports: Sequence[dict[str, Any]]) -> Any:
    """Return a pandas DataFrame with one row per report, by step. Nested values get one column per number."""
    try:
        pandas = importlib.import_module("pandas")
    except ImportError as missing:
        hint = "pip install pandas. Without it, the reports are dicts in monitor.history"
        raise ImportError(f"Monitor.frame() needs pandas: {hint}") from missing
    return pandas.json_normalize(list(reports), sep="/").set_index("step") if reports else pandas.DataFrame()

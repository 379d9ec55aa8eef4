"""The paper's panels for any runs: PNG and SVG for a paper, interactive HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from superadam_lab.disk import whole, write_text
from superadam_lab.errors import nearest
from superadam_lab.methods.by_name import PAPER
from superadam_lab.runs.folders import Config, Folder, rows

__all__ = ["FORMATS", "Curve", "curves", "panels", "plot"]

FORMATS = ("png", "svg", "html")
AXES = {"epoch": "epochs", "gradient_evaluations": "gradient evaluations", "seconds": "seconds"}
WORDS = {
    "loss": "loss",
    "accuracy": "accuracy",
    "perplexity": "perplexity",
    "distance": "distance to the true weights",
    "relative_error": "relative error",
    "condition": "cond(H_t)",
    "full_gradient_norm": "‖∇f(x_t)‖",
}
LARGEST = 1e100  # the ends of an axis are computed from it
LABEL = 100  # characters
SPLITS = ("train", "valid", "test")
LOGARITHMIC = {"loss", "perplexity", "condition", "full_gradient_norm", "distance", "relative_error"}


class Curve(NamedTuple):
    """The measurements of a run, by name; None where a value is missing or not finite."""

    label: str
    values: dict[str, list[float | None]]


def curves(folders: Iterable[str | Path], labels: Sequence[str] = ()) -> list[Curve]:
    """The curves of runs, with these labels, or labelled by how the runs differ."""
    found = [(Folder(f).read(), rows(f)) for f in folders]
    if not found:
        raise ValueError("No runs to plot: give their folders")
    if labels and len(labels) != len(found):
        raise ValueError(f"{len(labels)} labels for {len(found)} runs: give one --label for each run, in their order")
    made = []
    for (_, measured), label in zip(found, labels or _labels([config for config, _ in found]), strict=True):
        flat = [row.get("monitor", {}) | {k: v for k, v in row.items() if k != "monitor"} for row in measured]
        names = dict.fromkeys(name for row in flat for name in row)
        made.append(Curve(label, {name: [_number(row.get(name)) for row in flat] for name in names}))
    return made


def _number(value: Any) -> float | None:
    """The value if it can be drawn, or None."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if number and abs(value) < LARGEST else None


def _labels(configs: list[Config]) -> list[str]:
    """The method's name, followed by the settings in which the runs differ."""
    labels = [PAPER.get(c.method, c.method) for c in configs]
    for field in ("task", "scale", "preset", "options", "seed"):
        if len({repr(getattr(c, field)) for c in configs}) > 1:
            extras = (getattr(c, field) for c in configs)
            labels = [f"{label}, {_words(field, x)}" for label, x in zip(labels, extras, strict=True)]
    return [label if len(label) <= LABEL else f"{label[:LABEL]}…" for label in labels]


def _words(field: str, value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{k}={v}" for k, v in value.items()) or "as it is"
    return str(value) if field in ("task", "scale") else f"{field} {value}"


def panels(shown: list[Curve]) -> list[str]:
    """Loss and score on each split, cond(H_t) and ‖∇f(x_t)‖, as far as some run has them."""
    scores = [w for w in WORDS if any(f"train_{w}" in curve.values for curve in shown)]
    wanted = [f"{split}_{score}" for score in scores for split in SPLITS]
    return [p for p in (*wanted, "condition", "full_gradient_norm") if any(p in curve.values for curve in shown)]


def plot(
    folders: Iterable[str | Path], out: str | Path, formats: Iterable[str] = FORMATS, labels: Sequence[str] = ()
) -> list[Path]:
    """Write the figure of runs as `out`.png, .svg, .html, and return the paths. Every panel against every axis."""
    shown, formats = curves(folders, labels), list(formats)
    if not panels(shown):
        raise ValueError("No losses to plot: the runs have measured none. `superadam resume` continues them")
    for f in formats:
        if f not in FORMATS:
            raise ValueError(f"Unknown format {f!r}: {nearest(f, FORMATS)}")
    paths = [Path(f"{out}.{f}") for f in formats]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
    if flat := [path for path in paths if path.suffix != ".html"]:
        _matplotlib(shown, flat)
    for path in paths:
        if path.suffix == ".html":
            _plotly(shown, path)
    return paths


def _title(panel: str) -> str:
    split, _, quantity = panel.partition("_")
    return f"{split} {WORDS[quantity]}" if quantity in WORDS else WORDS[panel]


def _logarithmic(panel: str) -> bool:
    return bool({panel, panel.partition("_")[2]} & LOGARITHMIC)


def scale(shown: list[Curve], panel: str) -> str:
    """The scale of a panel's axis. Below a factor of ten it is linear, because a logarithmic axis would have one label
    or none."""
    values = [y for curve in shown for y in _points(curve, "epoch", panel)[1]]
    return "log" if values and _logarithmic(panel) and 0 < 10 * min(values) < max(values) else "linear"


def _matplotlib(shown: list[Curve], paths: list[Path]) -> None:
    from matplotlib.figure import Figure  # no display is needed, nor pyplot's global state

    names = panels(shown)
    figure = Figure(figsize=(3.4 * len(AXES), 2.4 * len(names) + 0.6), layout="constrained")  # narrow enough for a page
    grid = figure.subplots(len(names), len(AXES), squeeze=False)
    for line, panel in zip(grid, names, strict=True):
        for ax, (axis, words) in zip(line, AXES.items(), strict=True):
            for i, curve in enumerate(shown):
                points = _points(curve, axis, panel)
                ax.plot(
                    *points,
                    label=curve.label.replace("$", r"\$"),
                    color=f"C{i % 10}",
                    linestyle="-" if i < 10 else "--",
                )
            ax.set(title=_title(panel), xlabel=words, yscale=scale(shown, panel))
            if limits := _limits(shown, panel):
                ax.set_ylim(*limits)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 5))
    for path in paths:
        with whole(path) as file:
            figure.savefig(file, format=path.suffix[1:], dpi=100)


def _limits(shown: list[Curve], panel: str) -> tuple[float, float] | None:
    """The range of the values, with a margin. The first values are left out, because they would compress the rest."""
    values = [y for curve in shown for y in _points(curve, "epoch", panel)[1][1:]]
    if not values or min(values) == max(values):
        return None
    low, high = min(values), max(values)
    if scale(shown, panel) == "log":
        margin = (high / low) ** 0.05
        return low / margin, high * margin
    return low - 0.05 * (high - low), high + 0.05 * (high - low)


def _plotly(shown: list[Curve], path: Path) -> None:
    from plotly.colors import qualitative
    from plotly.subplots import make_subplots

    names = panels(shown)
    figure = make_subplots(len(AXES), len(names), subplot_titles=[_title(p) for p in names] * len(AXES))
    for i, (axis, words) in enumerate(AXES.items(), start=1):
        for j, panel in enumerate(names, start=1):
            for k, curve in enumerate(shown):
                x, y = _points(curve, axis, panel)
                color = qualitative.D3[k % len(qualitative.D3)]
                figure.add_scatter(
                    x=x,
                    y=y,
                    name=curve.label,
                    legendgroup=str(k),
                    showlegend=(i, j) == (1, 1),
                    line={"color": color},
                    row=i,
                    col=j,
                )
            figure.update_xaxes(title_text=words, row=i, col=j)
            figure.update_yaxes(type=scale(shown, panel), row=i, col=j)
    figure.update_layout(height=320 * len(AXES), legend={"orientation": "h"})
    write_text(path, figure.to_html(include_plotlyjs=True))  # to be opened without a network


def _points(curve: Curve, axis: str, panel: str) -> tuple[list[float], list[float]]:
    """The points at which both coordinates are known."""
    pairs = zip(curve.values.get(axis, []), curve.values.get(panel, []), strict=False)
    known = [(x, y) for x, y in pairs if x is not None and y is not None]
    return [x for x, _ in known], [y for _, y in known]

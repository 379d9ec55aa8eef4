"""A report as tables of strings. The command prints them, and research/speed/bench_page.py writes them to a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["Table", "tables"]


class Table(NamedTuple):
    """Rows of strings under a head."""

    title: str
    head: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        """The table in Markdown.

        >>> print(Table("t", ["a", "b"], [["1", "2"]]).markdown())
        | a | b |
        |---|---|
        | 1 | 2 |
        """
        lines = [self.head, ["---"] * len(self.head), *self.rows]
        return "\n".join(
            "|---" * len(line) + "|" if i == 1 else f"| {' | '.join(line)} |" for i, line in enumerate(lines)
        )


def tables(report: Mapping[str, Any]) -> dict[str, Table]:
    """Every table of a report, by key: "times of …" and "memory of …" a model, "matrices of …" one, then "sizes",
    "import", "compile" and "end_to_end"."""
    made = {}
    for name, model in report["models"].items():
        made[f"times of {name}"], made[f"memory of {name}"] = _times(name, model), _memory(name, model)
    for name, model in report.get("matrices", {}).items():
        made[f"matrices of {name}"] = _matrices(name, model)
    if "sizes" in report:
        made["sizes"] = _sizes(report["sizes"])
    if "import" in report:
        made["import"] = _import(report["import"])
    if "compile" in report:
        made["compile"] = _compile(report["compile"])
    if "end_to_end" in report:
        made["end_to_end"] = _end_to_end(report["end_to_end"])
    return made


def _times(name: str, model: Mapping[str, Any]) -> Table:
    limit, bandwidth = model["limit"], model["bandwidth"]
    title = (
        f"{name}: {model['tensors']} tensors, {model['parameters']:,} parameters; memory limit of Adam "
        f"{_pair(limit, '_ms', ms)} ms, at {_pair(bandwidth, '', lambda b: f'{b / 1e9:.0f}')} GB/s"
    )
    head = ["method", "way", "gradients", "ms", "/ AdamW fused", "/ AdamW foreach", "/ limit", "/ torch's own"]
    rows = []
    for method, row in model["rows"].items():
        cells = [method, row["way"]]
        if "skipped" in row:
            rows.append([*cells, "", row["skipped"], "", "", "", ""])
            continue
        cells += [str(row["evaluations"]), _pair(row, "_ms", ms)]
        over = ("to_fused", "to_foreach", "to_limit", "to_peer")
        rows.append([*cells, *(_pair(row[key]) if key in row else "" for key in over)])
    return Table(title, head, rows)


def _memory(name: str, model: Mapping[str, Any]) -> Table:
    head = ["method", "state, bytes per parameter", "temporary, MB", "first step / later"]
    rows = [
        [
            method,
            f"{row['state_bytes_per_parameter']:.3g}",
            f"{row['temporary_bytes'] / 1e6:.2f}",
            f"{row['first_step']:.1f}" if "first_step" in row else "",
        ]
        for method, row in model["rows"].items()
        if "skipped" not in row
    ]
    return Table(f"{name}: memory and first step", head, rows)


def _matrices(name: str, model: Mapping[str, Any]) -> Table:
    ratio = "superadam / package"
    head = ["method", "package", "ms", "mean", "slowest step", f"{ratio}, median", f"{ratio}, mean"]
    rows = []
    for method, times in model["methods"].items():
        own = times["superadam"]
        for package, row in times.items():
            ratios = (
                ["", ""]
                if package == "superadam"
                else [f"{own[f'{of}_ms'] / row[f'{of}_ms']:.2f}" for of in ("median", "mean")]
            )
            rows.append([method, package, _pair(row, "_ms", ms), ms(row["mean_ms"]), ms(row["maximum_ms"]), *ratios])
    return Table(f"{name}: {model['tensors']} tensors, {model['parameters']:,} parameters", head, rows)


def _sizes(columns: Mapping[str, Any]) -> Table:
    names = list(dict.fromkeys(name for column in columns.values() for name in column))
    rows = [[name, *(_pair(c[name], "", ms) if name in c else "" for c in columns.values())] for name in names]
    return Table(
        "nanoseconds per parameter, in tensors of up to 10⁶", ["method", *(f"{int(n):,}" for n in columns)], rows
    )


def _import(times: Mapping[str, Any]) -> Table:
    base = times["torch"]
    kinds = ("torch", "superadam", "superadam after torch")
    rows = [[f"`import {kind}`", _pair(times[kind], "_s"), _over(times[kind], base)] for kind in kinds]
    return Table(f"import, in {times['rounds']} new processes each", ["what", "seconds", "/ import torch"], rows)


def _over(times: Mapping[str, float], base: Mapping[str, float]) -> str:
    return _pair({of: times[f"{of}_s"] / base[f"{of}_s"] for of in ("median", "minimum")})


def _compile(times: Mapping[str, Any]) -> Table:
    rows = [[name, *(f"{row[kind]:.2f}" for kind in ("eager_s", "cold_s", "warm_s"))] for name, row in times.items()]
    head = ["method", "not compiled", "compiled, empty cache", "compiled, warm cache"]
    return Table("seconds of the first four steps in a new process", head, rows)


def _end_to_end(tasks: Mapping[str, Any]) -> Table:
    rows = [
        [task["what"], label, _pair(row["step"], "_ms", ms), _pair(row["optimizer"], "_ms", ms), f"{row['share']:.1%}"]
        for task in tasks.values()
        for label, row in task["rows"].items()
    ]
    return Table("training steps", ["task", "optimizer", "step, ms", "optimizer, ms", "share"], rows)


def ms(x: float) -> str:
    """Three digits, without an exponent.

    >>> ms(1234.5), ms(12.345), ms(0.012345)
    ('1234', '12.3', '0.0123')
    """
    return f"{x:.0f}" if x >= 100 else f"{x:.3g}"


def _pair(of: Mapping[str, float], suffix: str = "", shown: Any = lambda x: f"{x:.2f}") -> str:
    """The median, and the minimum in brackets."""
    return f"{shown(of['median' + suffix])} ({shown(of['minimum' + suffix])})"

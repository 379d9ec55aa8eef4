"""The leaderboard as one HTML file: Python writes the table, and board.js sorts and filters it in the browser."""

from __future__ import annotations

import math
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from superadam_lab.comparison.leaderboard.board import Board, Cell, Row, critical
from superadam_lab.comparison.report.page import json_of, shared
from superadam_lab.comparison.statistics.outcomes import TIMES
from superadam_lab.comparison.verdict.words import change, figure, label

__all__ = ["page"]

SIGNS = {
    "better": "▲",
    "worse": "▼",
    "insufficient": "?",
    "lost": "✕",
    "same": "·",
    "none": "",
    "baseline": "",
}


def page(board: Board, title: str) -> str:
    """The page."""
    ours, report = files("superadam_lab.comparison.leaderboard"), files("superadam_lab.comparison.report")
    heads = ["method", "mean rank", "evaluations score", "seconds score", *board.tasks]
    head = "".join(f'<th scope="col"><button type="button">{escape(h)}</button></th>' for h in heads)
    return Template((ours / "board.html").read_text(encoding="utf-8")).substitute(
        title=escape(title),
        subtitle=escape(_subtitle(board)),
        baseline=escape(label(board.baseline)),
        style=(report / "page.css").read_text(encoding="utf-8"),
        head=head,
        rows="\n".join(_tr(board, row) for row in board.rows),
        made="".join(f"<dt>{escape(task)}</dt><dd>{escape(text)}</dd>" for task, text in board.made.items()),
        notes="".join(f"<li>{escape(note)}.</li>" for note in board.notes),
        data=json_of(_data(board)),
        **shared(),
        script=(ours / "board.js").read_text(encoding="utf-8"),
    )


def _subtitle(board: Board) -> str:
    when = f" Made {board.when}." if board.when else ""
    return f"{len(board.rows)} methods on {len(board.tasks)} tasks, each against {label(board.baseline)}.{when}"


def _tr(board: Board, row: Row) -> str:
    kind = ' class="baseline"' if row.method == board.baseline else ""
    cells = [f"<td>{row.rank:.2f}</td>", *(_score(row.scores[axis]) for axis in TIMES)]
    cells += [_td(row.cells.get(task)) for task in board.tasks]
    name = escape(label(row.method))
    return f'<tr{kind}><th scope="row" title="{escape(row.composition or row.method)}">{name}</th>{"".join(cells)}</tr>'


def _score(value: float) -> str:
    return "<td>–</td>" if math.isnan(value) else f"<td>{value:.2f}</td>"


def _td(cell: Cell | None) -> str:
    if cell is None:
        return '<td class="none">–</td>'
    if not math.isfinite(cell.ratio):
        text = "–" if cell.finished else "no run finished"
    else:
        text = figure(cell.loss) if cell.outcome == "baseline" else change(cell.ratio)
    loss = "" if cell.outcome == "baseline" or not math.isfinite(cell.loss) else figure(cell.loss)
    few = f", {cell.finished} of {cell.runs} finished" if cell.finished < cell.runs else ""
    needs = f' title="Not enough to tell. Needed: {escape(", ".join(cell.needs))}"' if cell.needs else ""
    return f'<td class="{cell.outcome}"{needs}>{SIGNS[cell.outcome]} {escape(text)}<small>{loss}{few}</small></td>'


def _data(board: Board) -> dict[str, Any]:
    """The data to rank a selection of tasks and methods."""
    n = len(board.rows)
    return {
        "baseline": board.baseline,
        "tasks": board.tasks,
        "methods": [{"id": row.method, "label": label(row.method)} for row in board.rows],
        "cells": [[_plain(row.cells.get(task)) for task in board.tasks] for row in board.rows],
        "critical": [_finite(critical(k, 1)) for k in range(n + 1)],
    }


def _plain(cell: Cell | None) -> dict[str, Any] | None:
    if cell is None:
        return None
    return {
        "ratio": _finite(cell.ratio),
        "ranks": cell.ranks,
        "times": [[_finite(t) for t in cell.times[axis]] for axis in TIMES],
    }


def _finite(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None

"""Several comparisons as one page: tasks × methods, ranks, times to a target."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from superadam_lab.comparison.leaderboard.board import Board, csv_of
from superadam_lab.comparison.leaderboard.merging import merged
from superadam_lab.comparison.leaderboard.page import page
from superadam_lab.comparison.records import Results
from superadam_lab.disk import write_text

__all__ = ["write"]


def write(folders: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str], title: str = "Leaderboard") -> Board:
    """Write index.html and leaderboard.csv, a self-contained site, from the results.json in some folders."""
    found: dict[str, Results] = {}
    for folder in map(Path, folders):
        file = folder / "results.json" if folder.is_dir() else folder
        if not file.is_file():
            raise ValueError(f"{folder} holds no comparison: there is no results.json")
        name = file.resolve().parent.name
        found[name if name not in found else str(folder)] = Results.read(file)
    board = Board.of(merged(found))
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "index.html", page(board, title))
    write_text(out / "leaderboard.csv", csv_of(board))
    return board

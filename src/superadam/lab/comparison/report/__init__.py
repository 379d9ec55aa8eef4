"""The report of a comparison: report.html for a browser, report.md for a repository, results.json for programs."""

from __future__ import annotations

import os
from pathlib import Path

from superadam.lab.comparison.records import Results
from superadam.lab.comparison.report.markdown import markdown
from superadam.lab.comparison.report.page import page
from superadam.lab.comparison.statistics import analyse
from superadam.lab.comparison.verdict import Verdict, verdict

__all__ = ["write"]


def write(results: Results, folder: str | os.PathLike[str]) -> Verdict:
    """Write report.html, report.md and results.json into the folder; return what a terminal is to say."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    found = analyse(results)
    words = verdict(results, found)
    results.write(folder / "results.json")
    (folder / "report.md").write_text(markdown(results, found, words), encoding="utf-8")
    (folder / "report.html").write_text(page(results, found, words), encoding="utf-8")
    return words

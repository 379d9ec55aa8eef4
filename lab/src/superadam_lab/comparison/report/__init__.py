"""The report of a comparison: report.html for a browser, report.md for a repository, results.json for programs."""

from __future__ import annotations

import os
from pathlib import Path

from superadam_lab.comparison.records import Results
from superadam_lab.comparison.report.markdown import markdown
from superadam_lab.comparison.report.page import page
from superadam_lab.comparison.statistics.analysis import analyse
from superadam_lab.comparison.verdict.words import Verdict, verdict
from superadam_lab.disk import write_text

__all__ = ["write"]


def write(
    results: Results, folder: str | os.PathLike[str], *, source: Path | None = None, per_task: bool = False
) -> Verdict:
    """Write report.html, report.md and results.json into the folder; return the verdict.

    With `per_task`, single tasks have verdicts, too.

    If the results.json in the folder is the `source` of these results, it is not written again, because a running
    comparison may have written a newer one. If it holds runs that are not in these results, an error is raised and
    nothing is written.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    found = analyse(results, per_task=per_task)
    words = verdict(results, found)
    files = {"report.md": markdown(results, found, words), "report.html": page(results, found, words)}
    there = folder / "results.json"
    if source is not None and there.exists() and (lost := results.lacks(Results.read(there))):
        seeds = ", ".join(map(str, sorted({r.seed for r in lost})))
        raise ValueError(
            f"{there} holds {len(lost)} runs that this report leaves out (seeds {seeds}). It is not replaced. "
            "Give another folder with --out"
        )
    if source is None or not (there.exists() and there.samefile(source)):
        results.write(there)
    for name, text in files.items():
        write_text(folder / name, text)
    return words

"""The table of the search in docs/results.md is that of docs/data/search.json, computed here by hand."""

import math
from pathlib import Path
from statistics import fmean

from superadam.lab.comparison.records import Results
from superadam.lab.comparison.verdict import verdict

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_has_the_ratios_of_the_runs():
    results = Results.read(DOCS / "data" / "search.json")
    final = {
        (r.task, r.method, r.seed): r.rows[-1]["valid_loss"]
        for r in results.records
        if r.phase == "report" and r.status == "finished"
    }
    assert len(final) == 4 * 3 * 5
    assert {seed for *_, seed in final}.isdisjoint(results.plan.tuning_seeds)
    page = (DOCS / "results.md").read_text()
    for task in results.plan.tasks:
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{task}` |")]
        cells = [cell.strip(" *") for cell in row.split("|")[2:4]]
        for method, cell in zip(("nesterov", "adamw β₂=0.99"), cells, strict=True):
            seeds = results.plan.report_seeds
            ratio = math.exp(fmean(math.log(final[task, method, s] / final[task, "adamw", s]) for s in seeds))
            change = 100 * abs(ratio - 1)
            shown = f"{change:.1f}" if change < 10 else f"{change:.0f}"
            assert cell.startswith(f"{shown} % {'lower' if ratio < 1 else 'higher'}"), (task, method)
    assert "0.40 (0.28 to 0.54) times the" in page
    assert any("0.40 (0.28 to 0.54) times the evaluations" in f.text for f in verdict(results).tasks["pydoc-lstm"])

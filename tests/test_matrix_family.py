"""The table of the matrix family in docs/results.md says what the stored runs say."""

import json
import math
from pathlib import Path
from statistics import fmean, median

import pytest

import copies

ROOT = Path(__file__).resolve().parents[1]
COMPARISONS = json.loads((ROOT / "docs" / "data" / "matrix_family.json").read_text())
RECORDS = [record for comparison in COMPARISONS for record in comparison["records"]]


def runs(task, method):
    found = [r for r in RECORDS if (r["task"], r["method"], r["phase"]) == (task, method, "report")]
    return {r["seed"]: r["rows"] for r in found if r["rows"]}


def cells(method):
    lines = (ROOT / "docs" / "results.md").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"| `{method}` |") and line.count("|") == 11]
    return [cell.strip() for cell in line.split("|")[2:-1]]


def test_the_table_is_that_of_the_runs():
    for place, task in enumerate(("digits-autoencoder", "digits-vit", "ratings")):
        ours, theirs = runs(task, "soap"), runs(task, "adamw")
        target = median(rows[-1]["valid_loss"] for rows in theirs.values())
        ratio = math.exp(fmean(math.log(ours[s][-1]["valid_loss"] / theirs[s][-1]["valid_loss"]) for s in ours))
        loss, evaluations, _ = cells("soap")[3 * place : 3 * place + 3]
        assert loss.split()[-1] == ("lower" if ratio < 1 else "higher")
        assert abs(float(loss.split()[0]) - 100 * abs(ratio - 1)) < 0.6
        reached = sum(any(row["valid_loss"] <= target for row in rows) for rows in ours.values())
        if reached == 0:
            assert evaluations == "never"
        elif reached < len(ours):
            assert evaluations == f"∞ ({reached} of {len(ours)})"
        else:
            assert 0 < float(evaluations) < 1


def test_the_page_is_up_to_date():
    pytest.importorskip("typer", reason="comes with superadam[lab]")
    copies.check(ROOT / "scripts" / "matrix_family.py", "--check")

"""The table of the matrix family says what the stored runs say."""

import math
from pathlib import Path
from statistics import fmean, median

import pytest

from research.kept import read
from research.matrix_family import matrix_family
from research.tables import stored

HERE = Path(__file__).resolve().parent
COMPARISONS = stored(HERE / "matrix_family.json.gz")
RECORDS = [record for comparison in COMPARISONS for record in comparison["records"]]
TASKS = list(dict.fromkeys(record["task"] for record in RECORDS))
METHODS = [name for name in dict.fromkeys(record["method"] for record in RECORDS) if name != "adamw"]


def runs(task, method):
    found = [r for r in RECORDS if (r["task"], r["method"], r["phase"]) == (task, method, "report")]
    return {r["seed"]: r["rows"] for r in found if r["rows"]}


def cells(method):
    """Of each task: loss, gradients and seconds."""
    page = (HERE / "README.md").read_text()
    head, _, *lines = page.split("<!-- matrix family -->")[1].split("<!-- end -->")[0].strip().splitlines()
    names = [cell.split("`")[1] for cell in head.split("|")[2:-1:3]]
    (line,) = [line for line in lines if line.startswith(f"| `{method}` |")]
    found = [cell.strip() for cell in line.split("|")[2:-1]]
    return {name: found[3 * i : 3 * i + 3] for i, name in enumerate(names)}


@pytest.mark.parametrize("method", METHODS)
def test_the_table_is_that_of_the_runs(method):
    shown = cells(method)
    assert sorted(shown) == sorted(TASKS)
    for task, (loss, evaluations, seconds) in shown.items():
        ours, theirs = runs(task, method), runs(task, "adamw")
        if not ours:
            assert (loss, evaluations, seconds) == ("–", "–", "–")
            continue
        target = median(rows[-1]["valid_loss"] for rows in theirs.values())
        ratio = math.exp(fmean(math.log(ours[s][-1]["valid_loss"] / theirs[s][-1]["valid_loss"]) for s in ours))
        assert loss.split()[-1] == ("lower" if ratio < 1 else "higher")
        assert abs(float(loss.split()[0]) - 100 * abs(ratio - 1)) < 0.6
        reached = sum(any(row["valid_loss"] <= target for row in rows) for rows in ours.values())
        if reached == 0:
            assert evaluations == "never"
        elif reached < len(ours):
            assert evaluations.endswith(f" ({reached} of {len(ours)})")
        else:
            assert 0 < float(evaluations) < 1 or ratio >= 1


def test_the_page_is_up_to_date():
    assert matrix_family.PAGE.read_text(encoding="utf-8") == matrix_family.page()


def test_a_run_of_one_task_keeps_the_others(monkeypatch, tmp_path):
    made = read(matrix_family.DATA)[0]
    asked = []

    def compare(tasks, methods, *, budget_evals=None, **options):
        asked.append((tasks, budget_evals))
        return made

    monkeypatch.setattr(matrix_family.lab, "compare", compare)
    stored, new = len(COMPARISONS), matrix_family.run(["pydoc-transformer"], tmp_path, 1)
    assert asked == [(["pydoc-transformer"], 250)]
    assert new[-1] is made
    kept = [record for results in new[:-1] for record in results.records]
    assert len(kept) == sum(r["task"] != "pydoc-transformer" for r in RECORDS)
    again = matrix_family.run(["ratings"], tmp_path, 1)
    assert not any("ratings" in results.plan.tasks for results in again[:-1])
    assert len(again) <= stored + 1

"""What differs between versions of torch, and the pages and results about it."""

import json

import pytest
import torch

import test_versions as script
from superadam.distributed import _dimension_to_cut


@pytest.mark.parametrize(("shape", "parts", "dim"), [((6, 4), 2, 0), ((3, 4), 2, 1), ((4, 8), 4, 1), ((1, 5), 2, 1)])
def test_parts_are_of_equal_size_where_that_can_be(shape, parts, dim):
    assert _dimension_to_cut(torch.Size(shape), parts) == dim


# ------------------------------------------------------------------------------------------------------------ the page


def test_the_tables_are_those_of_the_results():
    page, rows = script.PAGE.read_text(), json.loads(script.RESULTS.read_text())
    for (begin, end), lines in zip((script.MARKS, script.MARKS_LOWEST), script.tables(rows), strict=True):
        assert page.split(begin)[1].split(end)[0].strip() == "\n".join(lines)


def test_rows_with_failures_say_what_became_of_them():
    rows = json.loads(script.RESULTS.read_text())
    assert [row for row in rows if row["failed"] and not row.get("since")] == []


def test_no_test_failed_with_any_version():
    rows = json.loads(script.RESULTS.read_text())
    assert {(row["torch"], row["python"]) for row in rows if "extra" not in row} >= {
        tuple(version.split("@")) for version in script.DEFAULT
    }
    assert {row["extra"] for row in rows if "extra" in row} == set(script.EXTRAS)
    assert [row for row in rows if row["failed"]] == []
    assert all(row["passed"] > 0 for row in rows)


def test_lower_bounds_are_those_of_the_wheel(tmp_path):
    import zipfile

    text = (
        "Requires-Dist: torch>=2.6\n"
        "Requires-Dist: rich>=13.9; extra == 'docs'\n"
        "Requires-Dist: heavyball<4,>=3.2; extra == 'docs'\n"
        "Requires-Dist: psycopg[binary]>=3.2; extra == 'base'\n"
    )
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        wheel.writestr("a.dist-info/METADATA", text)
    assert script.lowest(tmp_path / "a.whl", "docs") == ["rich==13.9", "heavyball==3.2"]
    assert script.lowest(tmp_path / "a.whl", "base") == ["psycopg[binary]==3.2"]
    assert script.lowest(tmp_path / "a.whl") == ["torch==2.6"]

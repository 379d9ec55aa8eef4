"""What is kept of the runs behind a page: one file for some comparisons; and their place on the page."""

import dataclasses
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from superadam_lab.comparison.records import Record, Results

COLUMNS = ("gradient_evaluations", "seconds", "train_loss", "valid_loss", "test_loss")


def of_the_report(record: Record) -> bool:
    return record.phase == "report"


def write(path: Path, found: list[Results], command: str, whole: Callable[[Record], bool] = of_the_report) -> None:
    """All rows of the runs that are kept `whole`; of the others, the last one."""
    for results in found:
        results.plan.data_dir = None
        for environment in (results.environment, *results.environment.get("earlier", [])):
            environment["command"] = command
            if "reused" in environment:  # folders, whose place on this machine says nothing
                environment["reused"] = [Path(folder).name for folder in environment["reused"]]
        for record in results.records:
            rows = record.rows if whole(record) else record.rows[-1:]
            record.rows = [{k: _short(row[k]) for k in COLUMNS if k in row} for row in rows]
    path.parent.mkdir(exist_ok=True)
    lines = [json.dumps(dataclasses.asdict(r), ensure_ascii=False).replace('{"task":', '\n{"task":') for r in found]
    pack(path, "[" + ",\n".join(lines) + "]\n")


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def read(path: Path) -> list[Results]:
    return [Results.of(found) for found in unpack(path)]


def pack(path: Path, text: str) -> None:
    """Write a `.json.gz` file: an eighth of the text's size, and the same bytes for the same text."""
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def unpack(path: Path) -> Any:
    """Read a `.json.gz` file."""
    return json.loads(gzip.decompress(path.read_bytes()))


def filled(text: str, mark: str, content: str) -> str:
    """A page with other content between `<!-- mark -->` and the next `<!-- end -->`.

    >>> filled("A\\n<!-- b -->\\n\\nold\\n\\n<!-- end -->", "b", "new")
    'A\\n<!-- b -->\\n\\nnew\\n\\n<!-- end -->'
    """
    before, after = f"<!-- {mark} -->\n\n", "\n\n<!-- end -->"
    start = text.index(before) + len(before)
    return text[:start] + content + text[text.index(after, start) :]

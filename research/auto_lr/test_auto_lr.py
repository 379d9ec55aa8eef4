"""The table of the page is that of the stored losses, which have the seeds that the page names."""

import json
from pathlib import Path

from research.auto_lr import auto_lr

HERE = Path(__file__).resolve().parent


def test_the_table_is_that_of_the_losses():
    found = json.loads((HERE / "auto_lr.json").read_text())["tasks"]
    assert auto_lr.table(found) in (HERE / "README.md").read_text()
    for task, losses in found.items():
        lists = [*losses["adamw"].values(), *(losses[name] for name in auto_lr.OTHERS)]
        assert {len(values) for values in lists} == {auto_lr.SEEDS.get(task, 1)}

"""What the page says of runs on real data is what was stored."""

import json
from pathlib import Path

from research.lab_results import lab_results
from superadam_lab.methods.by_name import PAPER
from superadam_lab.tasks import find
from superadam_lab.tasks.settings import LAPTOP

HERE = Path(__file__).resolve().parent


def test_the_tables_are_those_of_the_runs():
    """Of the scale that `superadam train` has now, of every optimizer of the paper, with the settings it has now."""
    results, text = (json.loads((HERE / "lab_results.json").read_text()), lab_results.PAGE.read_text())
    assert text == lab_results.page(text, results)
    assert {"cifar10-resnet18", "wikitext2-lstm"} <= set(results)
    for task, found in results.items():
        assert found["sizes"] == find(task).sizes("laptop")
        assert {m: one["lr"] for m, one in found["methods"].items()} == {m: LAPTOP[task][m]["lr"] for m in PAPER}


def test_equal_budgets_are_equal():
    for found in json.loads((HERE / "lab_results.json").read_text()).values():
        epochs = found["sizes"]["epochs"]
        assert {end["epoch"] for one in found["methods"].values() for end in one["epochs"]} == {epochs}
        used = [end["gradient_evaluations"] for one in found["methods"].values() for end in one["evaluations"]]
        assert max(used) - min(used) <= 1  # two gradients of each batch but the first

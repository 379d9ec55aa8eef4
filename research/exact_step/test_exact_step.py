"""The table of the page is that of the stored runs."""

import json
from pathlib import Path

HERE = Path(__file__).resolve().parent


def test_the_table_is_that_of_the_runs():
    sets = json.loads((HERE / "exact_step.json").read_text())["sets"]
    lines = [
        f"| {name} | " + " | ".join(f"{m['last']:.1e} ({m['gamma']:g})" for m in methods.values()) + " |"
        for name, methods in sets.items()
    ]
    assert len(lines) == 3
    assert "\n".join(lines) in (HERE / "README.md").read_text(encoding="utf-8")

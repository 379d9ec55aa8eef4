"""The page of the leaderboard is that of its table, and the script makes a page."""

import json
import subprocess
import sys

import pytest

from research.leaderboard import leaderboard


def test_the_page_is_up_to_date():
    assert leaderboard.PAGE.read_text(encoding="utf-8") == leaderboard.page()


@pytest.mark.slow  # worker processes
def test_the_script_of_the_projects_leaderboard_makes_a_page(tmp_path):
    """Stopped before it has begun, then task by task: the page has all that is there."""
    few = ["--trials", "2", "--seeds", "2", "--budget-evals", "20", "--methods", "adamw", "--methods", "adam"]
    muon = ["--methods", "torch.optim.Muon + torch.optim.AdamW"]
    places = ["--out", str(tmp_path / "board"), "--site", str(tmp_path / "site")]

    def run(*more):
        command = [sys.executable, "-m", "research.leaderboard.leaderboard", *few, *muon, *places, *more]
        return subprocess.run(command, check=True, cwd=leaderboard.ROOT, capture_output=True, text=True).stdout

    assert "Stopped: the same command goes on" in run("--tasks", "digits-mlp", "--stop-after", "0.01")
    run("--tasks", "digits-mlp")
    said = run("--tasks", "digits-cnn")
    assert "torch.optim.Muon + torch.optim.AdamW is left out on digits-cnn: The model has no hidden matrix" in said
    lines = (tmp_path / "site" / "leaderboard.csv").read_text().splitlines()
    assert len(lines) == 1 + 3 + 2
    assert "digits-cnn: 2 methods, 8 runs, 160 evaluations" in run("--tasks", "digits-cnn", "--size")
    made = json.loads((tmp_path / "board" / "digits-mlp" / "results.json").read_text())["environment"]["began"][:10]
    assert f"3 methods on 2 tasks, each against AdamW. Made {made}" in (tmp_path / "site" / "index.html").read_text()

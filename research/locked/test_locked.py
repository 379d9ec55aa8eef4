"""The tables of the four tests are those of the stored runs, computed by hand; other pages claim what is in them."""

import csv
import itertools
import math
import re
from pathlib import Path
from statistics import fmean, median

import pytest

from research.locked import locked
from research.tables import RESEARCH, ROOT, files, mean_ratio, reports, rows

HERE = Path(__file__).resolve().parent
DATA = HERE / "data"
NAME = "SUPER-ADAM⁺"

on_unseen_tasks = pytest.mark.parametrize("name", files(DATA))


def runs_of(name):
    return reports(DATA / f"{name}.json.gz")


def by_task(name):
    """The table of SUPER-ADAM⁺ by task, and its last row, which takes the tasks as a sample."""
    _, body = rows("locked", f"{name} tasks")
    return body, body.pop("mean of 4 tasks, as a sample of all")


def test_the_locked_tasks_are_those_that_were_written_down_and_had_no_part_in_the_search():
    after = "after the first test"
    rounds = files(RESEARCH / "search" / "data")
    searched = {task for name, path in rounds.items() if name != after for task in reports(path)}
    written = {}
    for name in ("locked", "locked again", "locked third", "locked fourth"):
        path = HERE / f"{name.replace(' ', '_')}_tasks.py"
        written[name] = set(re.findall(r'"(locked-\w+)"', path.read_text()))
        assert len(written[name]) == 4
        assert written[name].isdisjoint(searched)
        if (DATA / f"{name}.json.gz").exists():
            assert set(runs_of(name)) == written[name]
    assert len(set.union(*written.values())) == 16
    assert set(reports(rounds[after])) < written["locked"]


@on_unseen_tasks
def test_the_locked_losses_are_those_of_the_runs(name):
    body, sample = by_task(name)
    runs = runs_of(name)
    assert set(body) == set(runs)
    ratios = [mean_ratio(runs[task][NAME], runs[task]["AdamW"]) for task in runs]
    assert sample[0].startswith(f"{math.exp(fmean(map(math.log, ratios))):.2f} (")
    for task, cells in body.items():
        ratio = mean_ratio(runs[task][NAME], runs[task]["AdamW"])
        number, direction = re.match(r"([\d.]+) % (lower|higher)", cells[0]).groups()
        assert direction == ("lower" if ratio < 1 else "higher")
        assert abs(float(number) - 100 * abs(ratio - 1)) < 0.6


@on_unseen_tasks
def test_the_locked_gradients_are_those_of_the_runs(name):
    """The geometric mean over the seeds of what both need to AdamW's median final loss. Between two rows, which
    are a twelfth of a run apart, the logarithm of the loss is linear."""
    body, _ = by_task(name)
    runs = runs_of(name)
    for task, cells in body.items():
        target = median(rows[-1]["valid_loss"] for rows in runs[task]["AdamW"].values())

        def reached(rows, target=target):
            for above, below in itertools.pairwise(rows):
                (x, y), (end, low) = ((row["gradient_evaluations"], row["valid_loss"]) for row in (above, below))
                if low <= target:
                    return x + (end - x) * math.log(y / target) / math.log(y / low)
            return None

        ours = [reached(rows) for rows in runs[task][NAME].values()]
        if None in ours:
            assert cells[1].startswith("∞")
            continue
        theirs = [reached(rows) or rows[-1]["gradient_evaluations"] for rows in runs[task]["AdamW"].values()]
        ratio = math.exp(fmean(math.log(a / b) for a, b in zip(ours, theirs, strict=True)))
        told = float(cells[1].split()[0])
        assert abs(told - ratio) < 0.006


def test_the_claims_of_the_pages_are_those_of_the_third_test():
    (_, third), (_, again) = rows("locked", "locked third"), rows("locked", "locked again")
    tasks, _ = by_task("locked third")
    results, readme, choosing, index = (
        (ROOT / page).read_text() for page in ("docs/results.md", "README.md", "docs/choosing.md", "docs/index.md")
    )
    (_, gradients, seconds), (_, smaller, longer) = third[NAME], again[NAME]
    for page in (readme, choosing):
        assert f"gradients {gradients}, seconds {seconds}" in page
    assert f"On four smaller networks, 4 seeds: gradients {smaller}, seconds {longer}" in readme
    value, low, high = re.findall(r"[\d.]+", gradients)
    taken, least, most = re.findall(r"[\d.]+", seconds)
    words = " ".join(results.split())
    assert (
        f"{value} of the gradients (95 % interval {low} to {high}) and {taken} of the CPU seconds ({least} to {most})"
        in words
    )
    for page in (readme, index):
        words = " ".join(page.split())
        assert f"final loss with {value} of its gradient evaluations, averaged over four tasks" in words
        soap, muon = (third[name][1].split()[0] for name in ("SOAP", "Muon"))
        assert f"SOAP needed {soap} and Muon {muon} of AdamW's gradients" in words
        assert f"needed {taken} of AdamW's seconds here, and {longer.split()[0]} times as many on four smaller" in words
    changes = sorted(float(re.match(r"([\d.]+) % lower", cells[0])[1]) for cells in tasks.values())
    for page in (readme, results):
        assert f"lower on all four, by {changes[0]:.0f} % to {changes[-1]:.0f} %" in page
    (_, fourth), (_, rivals), (kinds, _) = (
        *(rows("locked", f"locked fourth{of}") for of in ("", " rivals")),
        by_task("locked fourth"),
    )
    _, gradients, seconds = fourth[NAME]
    lower = sorted(float(re.match(r"([\d.]+) % lower", cells[0])[1]) for cells in kinds.values())
    muon = rivals["Muon"]
    assert f"On four more tasks, 5 seeds: gradients {gradients}, seconds {seconds}, lower on all four, " in readme
    assert f"by {lower[0]:g} % to {lower[-1]:g} %, and {float(muon[-1].split()[0]):.0f} % above Muon's" in readme
    assert f"and gradients {gradients}, seconds {seconds} on four more" in choosing
    words = " ".join(results.split())
    assert f"{gradients.replace(' (', ' of the gradients (')} and {seconds.replace(' (', ' of the seconds (')}" in words
    assert (
        f"lower than AdamW's on all four, by {lower[0]:g} % to {lower[-1]:g} %. Muon's was lower still on three"
        in words
    )
    assert sum("higher (" in cell for cell in muon[:-1]) == 3
    for page in (readme, index):
        assert f"and with {gradients.split()[0]} on four more" in " ".join(page.split())
    _, rivals = rows("locked", "locked third rivals")
    assert all(" % lower (" in cell for cells in rivals.values() for cell in cells)
    open_ = [(name, i) for name, cells in rivals.items() for i, cell in enumerate(cells) if "higher" in cell]
    assert open_ == [("SOAP", list(tasks).index("locked-rotations"))]  # the one within noise
    first = [cells[0] for cells in by_task("locked")[0].values()]
    assert sum("lower (" in cell for cell in first) == 3
    assert "lower on three, 9 % higher on one" in readme
    assert [cell.split(" %")[0] for cell in first if "higher (" in cell] == ["9.3"]


def test_what_the_results_say_of_the_leaderboards_texts_is_what_it_has():
    words = " ".join((HERE / "README.md").read_text().split())
    with (RESEARCH / "leaderboard" / "leaderboard.csv").open() as file:
        board = [row for row in csv.DictReader(file) if row["method"] != "adamw lr=0.0001:0.1"]
    texts = [[row for row in board if row["task"] == task] for task in ("pydoc-lstm", "pydoc-transformer")]
    sgd = [100 - 100 * float(row["ratio"]) for rows in texts for row in rows if row["method"].startswith("sgd")]
    below = [sum(float(row["ratio"]) < 1 for row in rows) for rows in texts]
    assert {len(rows) for rows in texts} == {58}
    assert f"Plain SGD ends {sgd[0]:.1f} % and {sgd[1]:.1f} % below AdamW, and {below[0]} and {below[1]} of" in words
    for place, found in zip((49, 53), texts, strict=True):
        losses = {row["method"]: float(row["final_loss"]) for row in found}
        ours = losses["super_adam_plus lr=0.001:1"]
        assert sum(loss < ours for loss in losses.values()) == place - 2  # AdamW, which is lower too, is left out here
    assert "By final loss it is 49th and 53rd of 59 there." in words
    (_, body), (_, averages) = rows("search", "round: embeddings"), rows("search", "round: betas")
    lower = [100 - 100 * float(cell.split()[0]) for cell in body[NAME][:2]]
    assert f"it is {lower[0]:.1f} % (`pydoc-transformer`) and {lower[1]:.1f} % (WikiText-2) [below AdamW]" in words
    assert averages["β₁ = 0.95, β₂ = 0.95"][0].startswith("1.005")
    assert "on a tiny LSTM 0.5 % [above]" in words


def test_the_page_is_up_to_date():
    assert locked.PAGE.read_text(encoding="utf-8") == locked.page()

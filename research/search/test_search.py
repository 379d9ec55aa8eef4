"""The tables of the page are those of the stored runs, computed here by hand."""

import math
import re
from pathlib import Path
from statistics import fmean, median

import pytest

from research.search import partial, search
from research.tables import ROOT, files, mean_ratio, reports, rows

HERE = Path(__file__).resolve().parent
DATA = HERE / "data"
NAME = "SUPER-ADAM⁺"
ROUNDS = re.findall(r"<!-- round: (.+) -->", (HERE / "README.md").read_text(encoding="utf-8"))


def runs_of(name, budget="gradients"):
    return reports(DATA / f"{name}.json.gz", budget)


def test_the_page_has_every_round():
    others = {"learning rates", "defaults", "warm-up 0", "warm-up 0.05"}  # on the page of sensitivity
    assert set(ROUNDS) == files(DATA).keys() - others | {"finalists, equal seconds"}


@pytest.mark.parametrize("name", [*ROUNDS, "learning rates"])
def test_the_tables_of_the_rounds_are_those_of_the_runs(name):
    head, body = rows("sensitivity" if name == "learning rates" else "search", f"round: {name}")
    base, seconds, _ = name.partition(", equal seconds")
    runs = runs_of(base, "seconds" if seconds else "gradients")
    assert head == [*runs, "mean"]
    baseline = "SOAP" if name == "after the first test" else "AdamW"
    for method, cells in body.items():
        ratios = {task: mean_ratio(runs[task][method], runs[task][baseline]) for task in runs if method in runs[task]}
        told = [f"{ratios[task]:.3f}" if task in ratios else "–" for task in runs]
        assert runs.keys() - ratios.keys() <= ({"cifar10-resnet18"} if method == "Muon of torch, AdamW" else set())
        assert [cell.split()[0] for cell in cells[:-1]] == told
        whole = len(ratios) == len(runs)
        assert cells[-1] == (f"{math.exp(fmean(map(math.log, ratios.values()))):.3f}" if whole else "–")
    means = [math.inf if cells[-1] == "–" else float(cells[-1]) for cells in body.values()]
    assert means == sorted(means)


def test_methods_had_as_many_seconds_as_adamw():
    """The CPU seconds of the final runs with equal seconds: AdamW's, but for what the cost of a step varies."""
    theirs, ours = runs_of("finalists"), runs_of("finalists", "seconds")
    for task, methods in ours.items():
        assert set(methods) == set(theirs[task])
        budget = median(rows[-1]["seconds"] for rows in theirs[task]["AdamW"].values())
        for runs in methods.values():
            assert 0.7 < median(rows[-1]["seconds"] for rows in runs.values()) / budget < 1.4


def test_what_the_page_says_of_the_averages_is_what_the_runs_have():
    head, body = rows("search", "round: betas")
    default, other = (
        {task: float(cell.split()[0]) for task, cell in zip(head, body[f"β₁ = {pair}"], strict=True) if task != "mean"}
        for pair in ("0.95, β₂ = 0.95", "0.9, β₂ = 0.99")
    )
    ratios = {task: other[task] / default[task] for task in default}
    assert ratios.pop("pinn-poisson") == pytest.approx(7.7, abs=0.05)
    lower = [ratio for ratio in ratios.values() if ratio < 1]
    assert (len(ratios), len(lower), round(1 / max(lower), 2), round(1 - min(lower), 2)) == (8, 6, 1.01, 0.08)
    means = [math.exp(fmean(math.log(pair[task]) for task in ratios)) for pair in (other, default)]
    assert means == pytest.approx([0.839, 0.860], abs=6e-4)
    assert {task for task in default if default[task] >= 1} == {"pydoc-lstm", "ratings"}


def test_what_the_page_says_of_the_finalists_is_what_the_runs_have():
    head, body = rows("search", "round: finalists")
    _, timed = rows("search", "round: finalists, equal seconds")
    equal, seconds = (
        {
            m: {t: float(c.split()[0]) for t, c in zip(head[:-1], cells, strict=False) if c != "–"}
            for m, cells in of.items()
        }
        for of in (body, timed)
    )
    ours = equal[NAME]
    assert sorted(ours, key=ours.get)[-1] == "ratings"
    assert sum(loss < 1 for loss in ours.values()) == 7
    assert ours["ratings"] == pytest.approx(1, abs=0.01)
    means = [
        math.exp(fmean(math.log(equal[method][task]) for task in ours if task != "pinn-poisson"))
        for method in (NAME, f"{NAME}, every 10", "SOAP")
    ]
    assert means == pytest.approx([0.885, 0.896, 0.900], abs=1e-3)
    ahead = {m: sum(equal[m][t] < ours[t] for t in equal[m]) for m in ("Muon of torch, AdamW", "NAdamW")}
    assert ahead == {"Muon of torch, AdamW": 3, "NAdamW": 2}
    level = {"pydoc-transformer", "wikitext2-transformer", "cifar10-resnet18"}
    assert {task for task, loss in seconds[NAME].items() if abs(loss - 1) < 0.01} == level
    assert {task for task, loss in seconds[NAME].items() if loss < 0.9} == {"pinn-poisson"}
    runs, costs = runs_of("finalists"), {}
    for task, methods in runs.items():
        for name in (NAME, "AdamW"):
            last = [rows[-1] for rows in methods[name].values()]
            costs[task, name] = median(1000 * row["seconds"] / row["gradient_evaluations"] for row in last)
    tiny = [costs[task, "AdamW"] for task in runs if task not in level]
    larger = [costs[task, "AdamW"] for task in level]
    assert [round(x, 1) for x in (min(tiny), max(tiny))] == [0.3, 2.3]
    assert [round(x) for x in (min(larger), max(larger))] == [5, 38]
    times = [costs[task, NAME] / costs[task, "AdamW"] for task in runs]
    assert (round(min(times), 1), round(max(times), 1)) == pytest.approx((1.2, 5.9), abs=0.11)


def test_what_the_page_says_of_batches_of_256_is_what_the_runs_have():
    runs = runs_of("batches of 256")
    coded, seen = runs["digits-autoencoder"], runs["digits-vit"]
    lowest = {seed: min(row["valid_loss"] for row in rows) for seed, rows in coded[NAME].items()}
    for rival in (f"{NAME}, Muon's matrix", "Muon of torch, AdamW"):
        assert all(rows[-1]["valid_loss"] < lowest[seed] for seed, rows in coded[rival].items())
    train = {method: median(rows[-1]["train_loss"] for rows in by.values()) for method, by in coded.items()}
    assert min(train, key=train.get) == NAME
    assert all(rows[-1]["train_loss"] < 0.002 for by in seen.values() for rows in by.values())
    ends = {method: [rows[-1]["valid_loss"] for rows in by.values()] for method, by in seen.items()}
    best = {method: [min(row["valid_loss"] for row in rows) for rows in by.values()] for method, by in seen.items()}
    for losses in (ends, best):
        assert sum(a > b for a, b in zip(losses[NAME], losses["AdamW"], strict=True)) == 2
    assert round(max(max(losses) / min(losses) for losses in ends.values()), 1) == 2.4


def test_the_chooser_says_what_the_runs_by_batch_size_say():
    _, body = rows("search", "partial")
    small, large, tuning = body["τ = 1, all"]
    chooser = (ROOT / "docs" / "choosing.md").read_text()
    assert f"τ = 1 ends at {small} times the loss of τ = 0 at the same cost (batches of 8)" in chooser
    assert f"at {tuning} times when fine-tuning (batches of 4)" in chooser
    assert f"τ = 1 ends at {large} times the loss of τ = 0 at the same cost, three seeds" in chooser
    _, large = rows("search", "round: batches of 256")
    muon, ours = ([float(cell.split()[0]) for cell in large[name][:2]] for name in (f"{NAME}, Muon's matrix", NAME))
    assert f"Muon's matrix ends {100 - 100 * muon[0]:.0f} % and {100 - 100 * muon[1]:.0f} % below AdamW" in chooser
    assert f"SUPER-ADAM⁺ is level on one and {100 * ours[1] - 100:.0f} % above on the other" in chooser
    assert ours[0] == pytest.approx(1, abs=0.01)
    _, embeddings = rows("search", "round: embeddings")
    third = {name: float(embeddings[name][2].split()[0]) for name in (NAME, "Muon of torch, AdamW")}
    assert f"torch's Muon [{100 - 100 * third['Muon of torch, AdamW']:.0f} % below]" in chooser
    assert third[NAME] == pytest.approx(1, abs=0.01)
    _, conditions = rows("first_search", "search: conditions")
    losses = {name: [float(cell) for cell in cells[3:]] for name, cells in conditions.items()}
    assert all(losses[name][2] == max(losses[name]) for name in ("batches of 10", "as before", "batches of 40"))


def test_the_pages_are_up_to_date():
    for path, text in search.pages().items():
        assert path.read_text(encoding="utf-8") == text
    assert partial.PAGE.read_text(encoding="utf-8") == partial.page()

"""The tables of the first search are those of the stored runs, computed here by hand."""

import math
from pathlib import Path
from statistics import fmean

import pytest

from research.first_search import first_search
from research.tables import stored

HERE = Path(__file__).resolve().parent
PAGE = (HERE / "README.md").read_text()


def studies(name):
    return stored(HERE / "data" / f"{name}.json.gz")


def rows(name):
    """The table of a round: its head, and its rows by their first cell."""
    table = PAGE.split(f"<!-- search: {name} -->\n\n")[1].split("\n\n<!-- end -->")[0].splitlines()
    head, _, *body = [[cell.strip(" *`") for cell in line.strip("|").split("|")] for line in table]
    return head[1:], {cells[0]: cells[1:] for cells in body}


def ratio(study, task, method, baseline="adamw", seeds=None):
    """The geometric mean over the seeds of the report; a run that did not end would be missing here."""
    ends = {
        (r["method"], r["seed"]): r["rows"][-1]["valid_loss"]
        for r in study["records"]
        if (r["task"], r["phase"], r["status"]) == (task, "report", "finished")
    }
    seeds = study["plan"]["report_seeds"] if seeds is None else seeds
    return math.exp(fmean(math.log(ends[method, s] / ends[baseline, s]) for s in seeds))


@pytest.mark.parametrize("name", ["parts", "combined"])
def test_the_tables_of_the_rounds_are_those_of_the_runs(name):
    head, body = rows(name)
    found = {task: study for study in studies(name) for task in study["plan"]["tasks"]}
    assert head == [*found, "mean"]
    for study in found.values():
        assert set(study["plan"]["methods"]) == set(body)
    for method, cells in body.items():
        ratios = [ratio(found[task], task, method) for task in found]
        mean = math.exp(fmean(map(math.log, ratios)))
        assert cells == [f"{r:.3f}" for r in (*ratios, mean)]
    means = [float(cells[-1]) for cells in body.values()]
    assert means == sorted(means)


def test_what_was_reported_is_what_was_best_on_other_seeds():
    _, body = rows("combined")
    best = next(iter(body))
    (report,) = studies("report")
    assert best == "transport, λ, β₂ = 0.99"
    assert report["plan"]["compositions"].get("super_adam_plus", "super_adam_plus") == "super_adam_plus"
    chosen_with = {
        seed
        for name in ("parts", "combined")
        for study in studies(name)
        for seed in (*study["plan"]["tuning_seeds"], *study["plan"]["report_seeds"])
    }
    assert chosen_with.isdisjoint(report["plan"]["report_seeds"])


HELD_OUT = ["wikitext2-transformer"]
FIRST, LATER = range(300, 305), range(305, 320)


def of_report(name):
    """The report's runs, their tasks and seeds: the first ones, and those that were run later."""
    (report,) = studies("report")
    tasks = report["plan"]["tasks"]
    assert report["plan"]["report_seeds"] == [*FIRST, *LATER]
    for again in studies("adamw again") if name == "report" else ():
        (task,), old = again["plan"]["tasks"], report["records"]
        mine = [r for r in old if (r["task"], r["method"]) == (task, "adamw")]
        both = [[r for r in runs if r["phase"] == "report" and r["seed"] in LATER] for runs in (mine, again["records"])]
        before, after = (math.prod(r["rows"][-1]["valid_loss"] for r in runs) for runs in both)
        assert [len(runs) for runs in both] == [len(LATER)] * 2
        if after < before:
            report["records"] = [r for r in old if r not in mine] + again["records"]
    return report, *(([t for t in tasks if t not in HELD_OUT], FIRST) if name == "first" else (tasks, LATER))


@pytest.mark.parametrize("name", ["report", "first"])
def test_the_verdict_is_that_of_the_runs(name):
    report, tasks, seeds = of_report(name)
    head, body = rows(name)
    methods = report["plan"]["methods"][1:]
    together = f"all {len(tasks)}"
    assert list(body) == [*tasks, together]
    assert head[:2] == [f"{m}: final loss" for m in methods]
    for i, method in enumerate(methods):
        found = {task: ratio(report, task, method, seeds=seeds) for task in tasks}
        found[together] = math.prod(found.values()) ** (1 / len(tasks))
        for task, r in found.items():
            percent = abs(100 * (r - 1))
            shown = f"{percent:.0f}" if percent >= 9.95 else f"{percent:.1f}"
            assert body[task][i].startswith(f"{shown} % {'lower' if r < 1 else 'higher'} ("), (task, method)


@pytest.mark.parametrize(("row", "name"), [("5 first seeds", "first"), ("15 later seeds", "report")])
def test_the_ranks_are_those_of_the_runs(row, name):
    report, tasks, seeds = of_report(name)
    ends = {}
    for r in report["records"]:
        if r["phase"] == "report" and r["task"] in tasks and r["seed"] in seeds:
            ends.setdefault((r["task"], r["seed"]), {})[r["method"]] = r["rows"][-1]["valid_loss"]
    blocks = [sorted(losses, key=losses.get) for losses in ends.values()]
    assert len(blocks) == len(tasks) * len(seeds)
    means = [fmean(block.index(m) + 1 for block in blocks) for m in report["plan"]["methods"]]
    critical = 2.344 * math.sqrt(3 * 4 / (6 * len(blocks)))  # q at 0.05 for three methods: Demšar 2006, table 5
    cells = rows("ranks")[1][row]
    assert cells[:4] == [f"{value:.2f}" for value in (*means, critical)]
    assert cells[-1] == str(len(blocks))


def test_the_ranks_of_the_tasks_are_those_of_their_means():
    report, tasks, seeds = of_report("report")
    methods = report["plan"]["methods"]
    ranks = []
    for task in tasks:
        means = {m: ratio(report, task, m, seeds=seeds) for m in methods}
        ranks.append([sorted(means.values()).index(means[m]) + 1 for m in methods])
    cells = rows("ranks")[1]["means of the tasks"]
    assert cells[:3] == [f"{fmean(column):.2f}" for column in zip(*ranks, strict=True)]
    assert cells[3] == f"{2.344 * math.sqrt(3 * 4 / (6 * len(tasks))):.2f}"


def test_the_first_search_is_remembered_right():
    (first,) = studies("first")
    assert f"{100 * (1 - ratio(first, 'pydoc-lstm', 'nesterov')):.1f} % lower loss on `pydoc-lstm`" in PAGE


def test_the_script_would_write_the_same_page():
    assert first_search.PAGE.read_text() == first_search.page()

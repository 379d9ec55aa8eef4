"""When runs are not enough for a verdict: what is said then, and what would be enough."""

import csv
import dataclasses
import math
import re

import pytest

from studies import run, study
from superadam_lab.comparison import leaderboard, report
from superadam_lab.comparison.leaderboard.board import Board
from superadam_lab.comparison.leaderboard.merging import merged
from superadam_lab.comparison.records import Plan, Results
from superadam_lab.comparison.statistics.analysis import analyse
from superadam_lab.comparison.verdict.words import verdict

TRIED = {  # of the nine trials, of which the sixth is the best
    "inside": range(9),
    "lowest": range(5, 9),
    "highest": range(6),
    "only": range(5, 6),
}


def tuned(factors, tried, tasks=("task",), **more):
    """A comparison in which methods were tuned with some of nine learning rates. `tried` has them by method, or by
    task and method."""
    results = study(factors, tasks=tasks, trials=9, rows=6, **more)
    kept = {(t, m): TRIED[tried.get((t, m), tried.get(m, "inside"))] for t in tasks for m in factors}
    results.records = [r for r in results.records if r.phase == "report" or r.trial in kept[r.task, r.method]]
    return results


def outcomes(findings):
    return {f.method: f.outcome for f in findings}


# ------------------------------------------------------------------------------------------------ seeds


@pytest.mark.parametrize(
    ("seeds", "said"),
    [(1, ["insufficient"] * 3), (2, ["insufficient"] * 3), (3, ["better", "worse", "same"])],
)
def test_fewer_than_three_seeds_are_not_enough_however_large_the_difference(seeds, said):
    found = verdict(study({"adamw": 1.0, "a": 0.01, "b": 100.0, "c": 1.0}, seeds=seeds, noise=1e-3))
    assert [outcomes(found.findings)[m] for m in "abc"] == said
    if seeds < 3:
        whether = "Not enough to tell whether a, c and b are better or worse than tuned AdamW on task."
        assert found.headline == f"{whether} Needed: at least 3 seeds ({seeds} here)."
        assert all(f.text.endswith(f". Needed to tell: at least 3 seeds ({seeds} here)") for f in found.findings)
        assert "Not enough to tell:\n  a  final loss" in found.text


def test_seeds_on_which_a_run_was_lost_do_not_count():
    """Two of five pairs are left: they say nothing, but that the method loses runs is a fact of five seeds."""

    def ended(method, finals):
        return [run("task", method, s, [8.0, f], status="finished" if f else "diverged") for s, f in enumerate(finals)]

    plan = Plan(["task"], ["adamw", "a", "b"], trials=0)
    theirs, ours = ended("adamw", [2.0, 2.01, None, None, None]), ended("a", [1.0, 1.0, None, None, None])
    both = verdict(Results(plan, {}, [*theirs, *ours]))
    assert outcomes(both.findings)["a"] == "insufficient"
    assert "Needed: at least 3 seeds on which both runs finish (2 here)." in both.headline
    plain = verdict(Results(plan, {}, [*ended("adamw", [2.0] * 5), *ours]))
    assert outcomes(plain.findings)["a"] == "lost"


# ------------------------------------------------------------------------------------------------ learning rates


@pytest.mark.parametrize(
    ("tried", "better", "worse", "same"),
    [
        ({}, "better", "worse", "same"),
        ({"adamw": "highest"}, "insufficient", "worse", "insufficient"),
        ({"adamw": "lowest"}, "insufficient", "worse", "insufficient"),
        ({"a": "highest", "b": "highest"}, "better", "insufficient", "same"),
        ({"a": "lowest", "b": "lowest"}, "better", "insufficient", "same"),
        ({"adamw": "lowest", "a": "highest", "b": "highest"}, "insufficient", "insufficient", "insufficient"),
        ({"adamw": "only"}, "insufficient", "worse", "insufficient"),
        ({"c": "highest"}, "better", "worse", "insufficient"),
    ],
    ids=str,
)
def test_a_better_learning_rate_beyond_the_edge_could_undo_the_verdict(tried, better, worse, same):
    """A better one of the baseline could undo "better", one of the method "worse", and either of them "same"."""
    found = verdict(tuned({"adamw": 1.0, "a": 0.5, "b": 2.0, "c": 1.0}, tried))
    assert outcomes(found.findings) == {"a": better, "b": worse, "c": same}


def test_what_would_be_enough_names_method_and_side():
    found = verdict(tuned({"adamw": 1.0, "a": 0.5, "b": 2.0, "c": 4.0}, {"adamw": "lowest", "b": "highest"}))
    texts = {f.method: f.text for f in found.findings}
    lr = study({"adamw": 1.0}, trials=9).records[5].options["lr"]
    assert texts["a"].endswith(f". Needed to tell: values of lr below {lr:.2g} for AdamW")
    assert texts["b"].endswith(f". Needed to tell: values of lr above {lr:.2g} for b")
    assert "Needed" not in texts["c"]
    assert found.headline == "c is worse than tuned AdamW on task."
    assert found.undecided == (
        "Not enough to tell whether a and b are better or worse than tuned AdamW on task. "
        f"Needed: values of lr below {lr:.2g} for AdamW and values of lr above {lr:.2g} for b."
    )
    only = verdict(tuned({"adamw": 1.0, "a": 0.5}, {"adamw": "only"}))
    assert "Needed: more than one value of lr for AdamW." in only.headline


def test_a_method_that_loses_runs_at_the_edge_may_not_do_so_beyond_it():
    for tried, expected in (({}, "lost"), ({"a": "lowest"}, "insufficient")):
        results = tuned({"adamw": 1.0, "a": 1.0}, tried)
        lost = next(r for r in results.records if (r.method, r.phase) == ("a", "report"))
        lost.status = "diverged"
        assert outcomes(verdict(results).findings) == {"a": expected}


@pytest.mark.parametrize(("key", "expected"), [("AdamW.lr", "insufficient"), ("clip", "better")])
def test_of_the_tuned_options_learning_rates_alone_stand_against_a_verdict(key, expected):
    results = tuned({"adamw": 1.0, "a": 0.5}, {})
    results.plan.spaces = {"adamw": {key: (1e-3, 1e3)}}
    for r in results.records:
        if r.method == "adamw":
            r.options[key] = 10.0 if r.phase == "report" or r.trial == 5 else 1.0
    found = verdict(results)
    assert outcomes(found.findings) == {"a": expected}
    (caution,) = [c for c in found.cautions if "tried" in c]
    assert f"the best {key} is the highest one tried for AdamW. A better one may lie above it" in caution
    assert f"with {key.removeprefix('AdamW.')}=LOW:HIGH behind its name" in caution


def test_over_all_tasks_an_edge_on_one_of_them_leaves_it_open():
    results = tuned({"adamw": 1.0, "a": 0.5}, {("u", "adamw"): "highest"}, tasks=("t", "u"))
    found = verdict(results, analyse(results, per_task=True))
    assert outcomes(found.findings) == outcomes(found.tasks["u"]) == {"a": "insufficient"}
    assert outcomes(found.tasks["t"]) == {"a": "better"}
    assert re.search(r"Needed: values of lr above [\d.]+ for AdamW on u\.", found.headline)


def test_many_missing_things_are_in_the_list_and_not_in_the_headline():
    methods = ["a", "b", "c", "d"]
    found = verdict(tuned({"adamw": 1.0, **dict.fromkeys(methods, 3.0)}, dict.fromkeys(methods, "lowest")))
    assert found.headline.endswith("Needed: see the list below.")
    assert all("Needed to tell: values of lr below" in f.text for f in found.findings)


# ------------------------------------------------------------------------------------------------ where it is said


def test_only_a_verdict_is_in_bold(tmp_path):
    few = report.write(study({"adamw": 1.0, "a": 0.5}, seeds=2), tmp_path / "few")
    assert not few.decided
    text, page = ((tmp_path / "few" / f"report.{end}").read_text() for end in ("md", "html"))
    assert f"\n{few.headline}\n" in text
    assert f"**{few.headline}" not in text
    assert f'<p class="headline undecided">{few.headline}</p>' in page
    assert '<h3 class="insufficient">Not enough to tell</h3>' in page

    some = report.write(tuned({"adamw": 1.0, "a": 0.5, "b": 2.0}, {"b": "lowest"}), tmp_path / "some")
    assert some.decided
    text, page = ((tmp_path / "some" / f"report.{end}").read_text() for end in ("md", "html"))
    assert "**a is better than tuned AdamW on task.**" in text
    assert f"\n{some.undecided}\n" in text
    assert '<p class="headline">a is better than tuned AdamW on task.</p>' in page
    assert f'<p class="undecided">{some.undecided}</p>' in page
    assert some.text.splitlines()[:2] == [some.headline, some.undecided]


def test_with_equal_epochs_the_same_rules_hold():
    results = study({"adamw": 1.0, "a": 1.0}, seeds=2)
    more = [
        dataclasses.replace(r, budget="epochs", rows=[{**row, "valid_loss": row["valid_loss"] / 9} for row in r.rows])
        for r in results.records
        if (r.method, r.phase) == ("a", "report")
    ]
    found = verdict(dataclasses.replace(results, records=results.records + more))
    assert outcomes(found.budgets["epochs"]) == {"a": "insufficient"}


def test_the_leaderboard_says_the_same(tmp_path):
    results = tuned({"adamw": 1.0, "a": 0.5, "b": 2.0, "c": 4.0}, {"adamw": "lowest", "b": "highest"})
    results.write(tmp_path / "results.json")
    leaderboard.write([tmp_path], tmp_path / "site")
    lines = list(csv.DictReader((tmp_path / "site" / "leaderboard.csv").read_text().splitlines()))
    said = {line["method"]: line["outcome"] for line in lines if line["method"] != "adamw"}
    assert said == outcomes(verdict(results).findings) == {"a": "insufficient", "b": "insufficient", "c": "worse"}
    needed = {line["method"]: line["needed"] for line in lines}
    assert re.sub(r"[\d.]+", "…", needed["a"]) == "values of lr below … for AdamW"
    assert re.sub(r"[\d.]+", "…", needed["b"]) == "values of lr above … for b"
    assert needed["c"] == needed["adamw"] == ""
    page = (tmp_path / "site" / "index.html").read_text()
    assert re.search(
        r'<td class="insufficient" title="Not enough to tell. Needed: values of lr below [\d.]+ for AdamW">\? \d', page
    )
    assert "? not enough to tell" in page


def test_the_leaderboard_knows_the_learning_rates_that_one_method_alone_tunes():
    results = tuned({"adamw": 1.0, "a": 2.0}, {})
    results.plan.spaces = {"a": {"AdamW.lr": (1e-3, 1e3)}}
    for r in results.records:
        if r.method == "a":
            r.options["AdamW.lr"] = 10.0 if r.phase == "report" or r.trial == 5 else 1.0
    (row,) = [row for row in Board.of(merged({"x": results})).rows if row.method == "a"]
    assert row.cells["task"].outcome == "insufficient"
    assert row.cells["task"].needs == ("values of AdamW.lr above 10 for a",)
    assert math.isfinite(row.cells["task"].ratio)


def test_the_terminal_names_whose_learning_rate_is_open():
    found = verdict(tuned({"adamw": 1.0, "adam": 0.5}, {"adamw": "highest"}))
    assert re.search(r"Needed for Adam: values of lr above [\d.]+ for AdamW\.", found.short)
    found = verdict(tuned({"adamw": 1.0, "adam": 3.0}, {"adam": "lowest"}))
    assert re.search(r"Needed for Adam: values of lr below [\d.e-]+\.\n", found.short)

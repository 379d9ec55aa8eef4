"""Several comparisons as one page."""

import csv
import dataclasses
import math
import re

import pytest
from typer.testing import CliRunner

from browsing import opened, saved, until
from studies import study
from superadam_lab.cli import app
from superadam_lab.comparison import leaderboard
from superadam_lab.comparison.leaderboard.board import Board, score
from superadam_lab.comparison.leaderboard.merging import merged
from superadam_lab.comparison.leaderboard.page import page
from superadam_lab.comparison.statistics.analysis import analyse
from superadam_lab.methods.by_name import label

METHODS = {
    "adamw": 1.0,
    "adam": 1.02,
    "storm": 3.0,
    "super_adam tau=0": 0.6,
    "torch.optim.Muon + torch.optim.AdamW": 0.8,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("comparisons")
    for name, tasks in (("a", ("digits-mlp", "digits-vit")), ("b", ("ratings",))):
        (place / name).mkdir()
        study(METHODS, tasks=tasks, trials=3, rows=9).write(place / name / "results.json")
    return [place / "a", place / "b"]


@pytest.fixture(scope="module")
def board(folders, tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    return leaderboard.write(folders, out), out


def test_it_has_the_tasks_of_all_comparisons_and_the_ranks_that_statistics_have(board):
    found, _ = board
    assert found.tasks == ["digits-mlp", "digits-vit", "ratings"]
    whole = analyse(study(METHODS, tasks=("t",), trials=3, rows=9))
    one = Board.of(merged({"one": study(METHODS, tasks=("t",), trials=3, rows=9)}))
    assert {row.method: row.rank for row in one.rows} == pytest.approx(whole.ranks.means)
    assert [row.rank for row in found.rows] == sorted(row.rank for row in found.rows)
    assert found.rows[0].method == "super_adam tau=0"


def test_the_score_is_the_area_under_the_profile():
    assert score([1.0]) == 1.0
    assert score([4.0, math.inf]) == 0.0
    assert score([1.0, 2.5]) == 0.75


def test_a_task_with_other_rules_stands_beside_and_other_methods_come_to_the_same_task():
    first, second = study({"adamw": 1.0, "a": 0.5}), study({"adamw": 1.0, "b": 2.0})
    found = Board.of(merged({"x": first, "y": second}))
    assert found.tasks == ["task"]
    assert {row.method for row in found.rows} == {"adamw", "a", "b"}
    second.plan.decay = "none"
    assert merged({"x": first, "y": second}).plan.tasks == ["task", "task (y)"]
    second.plan.baseline = "b"
    with pytest.raises(ValueError, match=r"different baselines \(adamw, b\)"):
        merged({"x": first, "y": second})


def mine(text, **more):
    """A study in which the method "mine" is something."""
    found = study({"adamw": 1.0, "mine": 0.5}, trials=2)
    found.plan.compositions, found.plan.spaces = {"mine": text}, more.get("space", {})
    found.plan.packages = more.get("packages", {})
    return found


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (mine("adam"), mine("lion"), "mine is adam in x, and lion in y: that one is called mine (y) here"),
        (
            mine("adam"),
            mine("adam", space={"mine": {"eps": (1e-8, 1e-3)}}),
            "mine is adam in x, and adam, eps from 1e-08 to 0.001 in y: that one is called mine (y) here",
        ),
        (
            mine("/here/m.py:Mine", packages={"/here/m.py": "sha256 a"}),
            mine("/there/m.py:Mine", packages={"/there/m.py": "sha256 b"}),
            "mine is sha256 a:Mine in x, and sha256 b:Mine in y: that one is called mine (y) here",
        ),
    ],
)
def test_one_name_of_two_methods_is_two_methods(first, second, words):
    found = merged({"x": first, "y": second})
    assert found.plan.methods == ["adamw", "mine", "mine (y)"]
    assert found.environment["notes"] == [words]
    board = Board.of(found)
    assert {row.method for row in board.rows} == {"adamw", "mine", "mine (y)"}
    assert words in page(board, "title")


def test_the_same_file_at_another_path_is_the_same_method():
    first = mine("/here/m.py:Mine", packages={"/here/m.py": "sha256 a"})
    second = mine("/there/m.py:Mine", packages={"/there/m.py": "sha256 a"})
    assert merged({"x": first, "y": second}).plan.methods == ["adamw", "mine"]


def test_a_baseline_of_two_meanings_is_refused():
    first, second = mine("adam"), mine("lion")
    first.plan.baseline = second.plan.baseline = "mine"
    with pytest.raises(ValueError, match=r"different baselines \(adam, lion\)"):
        merged({"x": first, "y": second})


def test_a_method_has_one_run_for_each_seed_and_runs_of_other_options_are_left_out():
    few, more = study({"adamw": 1.0, "adam": 0.9}, seeds=3, trials=2), study({"adamw": 1.0, "adam": 0.9}, trials=2)
    more.plan.report_seeds = few.plan.report_seeds = [0, 1, 2, 3, 4]
    found = merged({"few": few, "more": more})
    report = [(r.method, r.seed) for r in found.records if r.phase == "report"]
    assert report == [(m, s) for m in ("adamw", "adam") for s in range(5)]
    assert found.environment["notes"] == []
    few.records = [dataclasses.replace(r, seed=r.seed + 5) if r.phase == "report" else r for r in few.records]
    few.plan.report_seeds = [5, 6, 7]
    found = merged({"few": few, "more": more})
    assert [r.seed for r in found.records if (r.phase, r.method) == ("report", "adam")] == list(range(8))
    for r in few.records:
        if r.method == "adam" and r.phase == "report":
            r.options, r.trial = {"lr": 0.7}, r.trial + 1
    found = merged({"few": few, "more": more})
    assert [r.seed for r in found.records if (r.phase, r.method) == ("report", "adam")] == list(range(5))
    assert [r.seed for r in found.records if (r.phase, r.method) == ("report", "adamw")] == list(range(8))
    assert found.environment["notes"] == ["task: few tuned adam to other options, and its runs are left out"]


def test_versions_that_differ_are_named_where_they_are_compared():
    first, second, other = (
        study({"adamw": 1.0}),
        study({"adamw": 1.0, "adam": 1.0}),
        study({"adamw": 1.0}, tasks=("b",)),
    )
    second.environment |= {"torch": "3", "code": "0.1.0 sha256 b"}
    first.environment["code"] = "0.1.0 sha256 a"
    second.plan.packages, first.plan.packages = {"them": "2 sha256 d"}, {"them": "1 sha256 c"}
    other.environment["torch"] = "4"
    found = merged({"x": first, "y": second, "z": other})
    assert found.environment["notes"] == [
        "task: runs were made with different versions of the code of superadam: 0.1.0 sha256 a (x) and "
        "0.1.0 sha256 b (y)",
        "task: runs were made with different versions of torch: 2.13.0 (x) and 3 (y)",
        "task: runs were made with different versions of them: 1 sha256 c (x) and 2 sha256 d (y)",
    ]
    assert "torch 2.13.0 and 3" in found.environment["made"]["task"]


def test_two_folders_of_one_name_both_count(tmp_path):
    for place, method in (("p", "adam"), ("q", "lion")):
        (tmp_path / place / "same").mkdir(parents=True)
        study({"adamw": 1.0, method: 0.9}).write(tmp_path / place / "same" / "results.json")
    found = leaderboard.write([tmp_path / "p" / "same", tmp_path / "q" / "same"], tmp_path / "site")
    assert {row.method for row in found.rows} == {"adamw", "adam", "lion"}


def test_the_page_says_when_it_was_made(board):
    assert board[0].when == "2026-11-16"
    first, second = study({"adamw": 1.0}), study({"adamw": 1.0}, tasks=("other",))
    second.environment["began"] = "2026-11-18T07:00:00+0000"
    assert Board.of(merged({"x": first, "y": second})).when == "2026-11-16 to 2026-11-18"


def test_the_numbers_are_in_a_file(board):
    found, out = board
    lines = list(csv.DictReader((out / "leaderboard.csv").read_text().splitlines()))
    assert len(lines) == 3 * len(METHODS)
    line = next(row for row in lines if (row["method"], row["task"]) == ("storm", "ratings"))
    cell = next(row for row in found.rows if row.method == "storm").cells["ratings"]
    assert float(line["ratio"]) == pytest.approx(cell.ratio, rel=1e-5)
    assert line["outcome"] == "worse"


def test_the_command_writes_a_site(folders, tmp_path):
    ended = CliRunner().invoke(app, ["leaderboard", *map(str, folders), "--out", str(tmp_path / "site")])
    assert ended.exit_code == 0, ended.output
    assert "1. super_adam tau=0: mean rank" in ended.output
    assert (tmp_path / "site" / "index.html").exists()
    ended = CliRunner().invoke(app, ["leaderboard", str(tmp_path)])
    assert (ended.exit_code, "holds no comparison" in ended.output) == (2, True)


@pytest.mark.parametrize("width", [380, 1600])
@pytest.mark.parametrize("colors", ["light", "dark"])
def test_page_fits_in_both_colours(board, browser, width, colors):
    with opened(browser, board[1] / "index.html", width, colors) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("#board tbody tr").count() == len(METHODS)
        assert page.locator("#rank-chart circle").count() == len(METHODS)
        assert page.locator("#profile-chart path[data-method]").count() == len(METHODS)
        assert page.locator("#legend button").all_inner_texts()[:2] == ["AdamW", "SUPER-ADAM τ=0"]
        inside = "[...document.querySelectorAll('figure svg text')].map(t => t.getBoundingClientRect())"
        assert page.evaluate(f"{inside}.every(b => b.left >= -1 && b.right <= innerWidth + 1)")
        last = page.locator("#board thead th").last.bounding_box()
        assert (last["x"] + last["width"] <= width) is (width == 1600)
        assert page.locator(".hint").is_visible() is (width == 380)


def test_it_is_filtered_and_sorted_and_the_address_keeps_it(board, browser):
    first = "#board tbody tr:not([hidden]) th"
    with opened(browser, board[1] / "index.html") as page:
        assert page.locator(first).first.inner_text() == "SUPER-ADAM τ=0"
        ranks = page.locator("#board tbody tr td:nth-child(2)").all_inner_texts()
        assert ranks == sorted(ranks, key=float)
        page.locator("#board thead button", has_text="ratings").click()
        page.locator("#board thead button", has_text="ratings").click()
        assert page.locator(first).first.inner_text() == "STORM"
        page.locator("#tasks label", has_text="digits-vit").locator("input").uncheck()
        assert not page.locator("#board thead th", has_text="digits-vit").is_visible()
        page.fill("#wanted", "adam, muon")
        names = page.locator(first).all_inner_texts()
        assert "STORM" not in names
        address = page.url
        assert "methods=adam" in address
        name, content = saved(page, page.locator("#csv"))
        text = content.decode()
        assert name == "leaderboard-view.csv"
        assert text.splitlines()[0].startswith('"method","mean rank"')
        assert "STORM" not in text
    path = board[1] / "index.html"
    with opened(browser, path, view=address.removeprefix(path.as_uri())) as page:
        assert page.locator(first).all_inner_texts() == names
        assert not page.locator("#board thead th", has_text="digits-vit").is_visible()


def test_the_link_is_copied_or_shown_where_there_is_no_clipboard(board, browser):
    clipboard = "Object.defineProperty(navigator, 'clipboard', {{ value: {}, configurable: true }})"
    with opened(browser, board[1] / "index.html") as page:
        page.evaluate(clipboard.format("{ writeText: async (text) => { window.copied = text; } }"))
        page.fill("#wanted", "muon")
        page.click("#copy")
        until(page, "document.getElementById('copied').textContent === 'Copied.'")
        assert page.evaluate("window.copied") == page.url
        page.evaluate(clipboard.format("undefined"))
        page.fill("#wanted", "adam")
        assert page.locator("#copied").inner_text() == ""
        page.click("#copy")
        assert page.locator("#copied input").input_value() == page.url
        assert page.evaluate("getSelection().toString() || document.activeElement.value") == page.url


def shares(page):
    """Of each line of the profiles: the share within a factor of 1, and within 4, by its label."""
    drawn = page.locator("#profile-chart path[data-method]")
    lines = drawn.evaluate_all("lines => lines.map((line) => [line.textContent, line.getAttribute('d')])")
    ticks = page.locator("#profile-chart .tick").evaluate_all(
        "ticks => ticks.map((tick) => [tick.textContent, tick.previousElementSibling.getAttribute('y1')])"
    )
    bottom, top = (float(dict(ticks)[text]) for text in ("0 %", "100 %"))
    ends = {name: [re.split(r"[ML ]", d)[i] for i in (2, -1)] for name, d in lines}
    return {name: [(float(y) - bottom) / (top - bottom) for y in found] for name, found in ends.items()}


@pytest.mark.parametrize("axis", ["gradient_evaluations", "seconds"])
def test_the_profiles_are_of_the_times_and_their_area_is_the_score(board, browser, axis):
    found, out = board
    with opened(browser, out / "index.html", view="#time=seconds" if axis == "seconds" else "") as page:
        drawn = shares(page)
        name, content = saved(page, page.locator("#profile-chart .exports button", has_text="CSV"))
        assert name == "profile-chart.csv"
    lines = list(csv.DictReader(content.decode().splitlines()))
    for row in found.rows:
        cells = list(row.cells.values())
        for end, within in enumerate((1.0, 4.0)):
            expected = sum(sum(t <= within for t in c.times[axis]) / len(c.times[axis]) for c in cells) / len(cells)
            assert drawn[label(row.method)][end] == pytest.approx(expected, abs=0.01)
        times = [float(list(line.values())[1]) for line in lines if line["method"] == row.method]
        assert score(times) == pytest.approx(row.scores[axis], abs=1e-4)  # five seeds of each task


def test_of_many_methods_the_profiles_of_the_best_have_a_colour(browser, tmp_path):
    many = {"adamw": 1.0, **{f"m{i}": 0.5 + i / 20 for i in range(14)}}
    (tmp_path / "a").mkdir()
    study(many, trials=3, rows=9, noise=0.0).write(tmp_path / "a" / "results.json")
    leaderboard.write([tmp_path / "a"], tmp_path / "site")
    with opened(browser, tmp_path / "site" / "index.html") as page:
        assert page.locator("#profile-chart path[data-method]").count() == 15
        assert page.locator("#legend button").all_inner_texts() == ["AdamW", *(f"m{i}" for i in range(10))]
        assert page.locator("#profile-rest").is_visible()
        page.locator("#legend button", has_text="m3").click()
        assert page.locator("#profile-chart path[data-method]").count() == 14
        page.fill("#wanted", "m13, adamw")
        assert page.locator("#legend button").all_inner_texts() == ["AdamW", "m13"]
        assert not page.locator("#profile-rest").is_visible()


def test_a_method_that_lacks_a_task_has_no_critical_difference(browser, tmp_path):
    """Its mean rank is of other tasks than those of the others, so Nemenyi's difference says nothing of it."""
    for name, methods in (("a", METHODS), ("b", {m: f for m, f in METHODS.items() if m != "storm"})):
        (tmp_path / name).mkdir()
        study(methods, tasks=(name,), trials=3, rows=9).write(tmp_path / name / "results.json")
    leaderboard.write([tmp_path / "a", tmp_path / "b"], tmp_path / "site")
    bars = "all => all.filter((row) => row.querySelector('line')).map((row) => row.querySelector('title').textContent)"
    with opened(browser, tmp_path / "site" / "index.html") as page:
        drawn = page.locator("#rank-chart g[data-method]").evaluate_all(bars)
        assert len(drawn) == 4
        assert not any("STORM" in text for text in drawn)
        _, content = saved(page, page.locator("#rank-chart .exports button", has_text="CSV"))
    lines = csv.DictReader(content.decode().splitlines())
    assert [line["method"] for line in lines if not line["critical difference"]] == ["storm"]


def test_the_page_says_how_small_a_difference_it_could_show(board):
    found, out = board
    (said,) = found.notes
    assert re.fullmatch(
        r"With 4 other methods and 5 seeds, a true difference of [\d.]+ % on these 3 tasks together is detected in "
        r"80 of 100 cases; smaller ones less often",
        said,
    )
    assert f"<li>{said}.</li>" in (out / "index.html").read_text(encoding="utf-8")

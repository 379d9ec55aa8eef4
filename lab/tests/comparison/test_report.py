"""The report, as files and in a real browser."""

import json
import math
import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from browsing import opened, saved, until
from studies import run, study
from superadam_lab.comparison import report
from superadam_lab.comparison.records import Plan, Results
from superadam_lab.comparison.report import paper
from superadam_lab.comparison.statistics.analysis import analyse

METHODS = {
    "adamw": 1.0,
    "sgd": 1.6,
    "adam": 1.02,
    "amsgrad": 1.1,
    "adagrad_norm": 2.5,
    "adam_plus": 1.3,
    "storm": 3.0,
    "adabelief": 0.9,
    "super_adam tau=0": 0.6,
    "super_adam tau=1": 1.0,
}
EVIL = """sgd a="</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>" | *b*"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A report on all methods and two tasks, with some runs lost."""
    results = study(METHODS, tasks=("digits-mlp", "digits-cnn"), noise=0.04, common=0.05, trials=9, rows=21)
    for record in results.records:
        if (record.method, record.task, record.phase, record.seed) == ("storm", "digits-cnn", "report", 1):
            record.status, record.rows = "diverged", record.rows[:8]
            record.rows[-1] |= {"valid_loss": None, "train_loss": None, "test_loss": None}
    folder = tmp_path_factory.mktemp("report")
    return results, folder, report.write(results, folder)


# ------------------------------------------------------------------------------------------------ files


def test_three_files_and_the_verdict(made):
    results, folder, verdict = made
    assert {path.name for path in folder.iterdir()} == {"report.html", "report.md", "results.json"}
    read = Results.read(folder / "results.json")
    assert read.records == results.records
    assert report.write(read, folder / "again").text == verdict.text
    page, text = ((folder / f"report.{end}").read_text() for end in ("html", "md"))
    for words in (verdict.headline, "superadam compare digits-mlp --seeds 5", "torch 2.13.0", "lr from 0.0003 to 10"):
        assert words in page
        assert words.replace("_", "\\_") in text
    assert len(page) < 400_000
    for finding in verdict.findings:
        assert finding.text in page


def test_numbers_of_the_table_are_those_of_the_records(made):
    results, folder, _ = made
    finals = [
        r.rows[-1]["test_loss"]
        for r in results.records
        if (r.task, r.method, r.phase) == ("digits-cnn", "adabelief", "report")
    ]
    line = next(
        line
        for line in (folder / "report.md").read_text().split("## digits-cnn")[1].splitlines()
        if line.startswith("| AdaBelief")
    )
    assert f" {math.prod(finals) ** (1 / 5):.3f} (" in line


def test_page_has_nothing_to_fetch(made):
    page = (made[1] / "report.html").read_text()
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", page)
    assert not re.findall(r"@import|url\((?!#)", page.replace("url(#${id})", ""))


def test_no_user_text_becomes_markup(tmp_path):
    results = study({"adamw": 1.0, EVIL: 0.5}, tasks=("<b>task</b>",), trials=2)
    results.environment["command"] = "superadam compare '<i>x</i>'"
    report.write(results, tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert page.count("</script>") == 2
    for markup in ("<img", "<b>", "<i>"):
        assert markup not in page
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    assert data["methods"][1]["id"] == EVIL
    assert "<b>" not in (tmp_path / "report.md").read_text().replace("\\<b\\>", "")


EVILS = [
    "# a",
    "- a",
    "1. a",
    "a\n\n# b",
    "a\n\n    b",
    "<b>",
    "![a](b)",
    "&lt;a&gt;",
    "~~a~~",
    "a|b",
    "`a`",
    "\u2028# a",
]


@pytest.mark.parametrize("evil", EVILS, ids=range(len(EVILS)))
def test_names_and_errors_are_no_markdown(evil, tmp_path):
    """Wherever they stand, with line breaks: the document has the same blocks as with plain names."""

    def blocks(name):
        results = study({"adamw": 1.0, name: 0.5}, tasks=(f"{name} t",), trials=2, seeds=2)
        for record in results.records:
            if record.phase == "tune":
                record.status, record.error = "failed", name
        results.environment |= {"command": name, "cpu": name, "superadam": f"{name}\n```\n# c"}
        report.write(results, tmp_path)
        found = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse((tmp_path / "report.md").read_text())
        return [(t.type, [c.type for c in t.children or () if c.type not in ("text", "text_special")]) for t in found]

    assert blocks(evil) == blocks("plain")


def lone():
    plan = Plan(["task"], ["a"], report_seeds=[0, 1])
    return Results(plan, {}, [run("task", "a", seed, [8.0, 4.0, 2.0]) for seed in range(2)])


def one_seed():
    return study({"adamw": 1.0, "a": 0.5}, seeds=1)


def lost():
    results = study({"adamw": 1.0, "a": 0.5}, trials=3)
    for record in results.records:
        record.status = "failed"
        record.rows = [] if record.method == "a" else [{**row, "valid_loss": math.nan} for row in record.rows[:2]]
    return results


def training_only():
    results = study({"adamw": 1.0, "a": 0.5}, trials=3)
    for record in results.records:
        record.rows = [{k: v for k, v in row.items() if not k.startswith(("valid", "test"))} for row in record.rows]
    return results


def negative():
    results = study({"adamw": 1.0, "a": 0.5}, trials=3)
    for record in results.records:
        for row in record.rows:
            row["valid_loss"] = row["valid_loss"] and row["valid_loss"] - 1.0
    return results


ODD = {
    "nothing": lambda: Results(Plan([], []), {}, []),
    "planned only": lambda: Results(Plan(["task"], ["adamw", "a"]), {}, []),
    "no baseline": lone,
    "one seed": one_seed,
    "all lost": lost,
    "training loss only": training_only,
    "negative losses": negative,
}


@pytest.mark.parametrize("name", ODD)
def test_odd_studies_have_a_report(name, tmp_path):
    verdict = report.write(ODD[name](), tmp_path)
    assert verdict.headline in (tmp_path / "report.md").read_text()
    assert "nan" not in verdict.text
    assert "nan" not in (tmp_path / "report.md").read_text()


# ------------------------------------------------------------------------------------------------ in Chromium


@pytest.mark.parametrize("width", [380, 1600])
@pytest.mark.parametrize("colors", ["light", "dark"])
def test_page_fits_and_follows_the_colours(made, browser, width, colors):
    with opened(browser, made[1] / "report.html", width, colors) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert made[2].headline in page.inner_text(".headline")
        red = int(re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))[0])
        assert (red < 60) == (colors == "dark")
        other = "light" if colors == "dark" else "dark"
        page.check(f'input[name="theme"][value="{other}"]')
        red = int(re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))[0])
        assert (red < 60) == (other == "dark")
        inside = "[...document.querySelectorAll('figure svg text')].map(t => t.getBoundingClientRect())"
        assert page.evaluate(f"{inside}.every(b => b.left >= -1 && b.right <= innerWidth + 1)")


HIDDEN = "[...document.querySelectorAll('.scroll')].filter(b => b.scrollWidth > b.clientWidth + 1).length"


def visible_hints(page):
    """How many hints are seen, each within the window."""
    hints = [hint for hint in page.locator(".hint").all() if hint.is_visible()]
    boxes = [hint.bounding_box() for hint in hints]
    assert all(b["x"] >= 0 and b["x"] + b["width"] <= page.viewport_size["width"] for b in boxes)
    return len(hints)


def test_every_column_is_seen_at_1600_pixels_and_a_narrow_window_says_that_there_are_more(made, browser):
    last = "[...document.querySelectorAll('table')].map(t => t.rows[0].lastElementChild.getBoundingClientRect().right)"
    with opened(browser, made[1] / "report.html", 1600) as page:
        assert len(page.evaluate(last)) == 3
        assert all(right <= 1600 for right in page.evaluate(last))
        assert (page.evaluate(HIDDEN), visible_hints(page)) == (0, 0)
        page.check('input[name="moment"][value="best"]')
        assert all(right <= 1600 for right in page.evaluate(last))
        page.set_viewport_size({"width": 380, "height": 900})
        page.wait_for_selector(".hint:visible")
        assert (page.evaluate(HIDDEN), visible_hints(page)) == (2, 2)
    with opened(browser, made[1] / "report.html", 380) as page:
        assert page.evaluate(f"Math.max(...{last})") > 380
        assert (page.evaluate(HIDDEN), visible_hints(page)) == (2, 2)
        assert "Scroll the table sideways" in page.locator(".hint").first.inner_text()
        box = page.locator(".scroll").first
        assert "more" in box.get_attribute("class")
        box.evaluate("box => { box.scrollLeft = box.scrollWidth; }")
        until(page, "!document.querySelector('.scroll').classList.contains('more')")


def test_a_table_that_is_too_wide_for_any_window_has_the_hint_at_1600_pixels(browser, tmp_path):
    results = study({"adamw": 1.0, "a": 0.5}, trials=3, rows=3)
    for record in results.records:
        for row in record.rows:
            row |= {f"test_score_{i}": 0.5 for i in range(12)}
    report.write(results, tmp_path)
    with opened(browser, tmp_path / "report.html", 1600) as page:
        assert (page.evaluate(HIDDEN), visible_hints(page)) == (1, 1)
        assert page.evaluate("document.documentElement.scrollWidth") <= 1600


@pytest.mark.parametrize(("seeds", "weight"), [(2, "400"), (5, "600")])
def test_only_a_verdict_is_bold(browser, tmp_path, seeds, weight):
    report.write(study({"adamw": 1.0, "a": 0.5}, seeds=seeds, rows=3), tmp_path)
    with opened(browser, tmp_path / "report.html") as page:
        assert page.locator(".headline").evaluate("e => getComputedStyle(e).fontWeight") == weight


def test_switches_work(made, browser):
    with opened(browser, made[1] / "report.html") as page:
        chart = "#loss-chart"
        assert "gradient evaluations" in page.text_content(chart)
        assert page.locator(f"{chart} path[data-method]").count() == 10
        assert page.locator(f"{chart} .target").count() == 1

        page.check('input[name="curve-controls-axis"][value="seconds"]')
        assert "seconds" in page.text_content(chart)
        page.check('input[name="curve-controls-split"][value="train"]')
        page.check('input[name="curve-controls-task"][value="1"]')
        assert "digits-cnn: training loss" in page.text_content(chart)
        assert page.locator(f"{chart} .target").count() == 0
        before = page.get_attribute(f'{chart} path[data-method="1"]', "d")
        page.check('input[name="curve-controls-scale"][value="linear"]')
        assert page.get_attribute(f'{chart} path[data-method="1"]', "d") != before

        page.focus('input[name="curve-controls-axis"][value="seconds"]')
        page.keyboard.press("ArrowRight")
        assert "epochs" in page.text_content(chart)

        button = page.locator("#legend button", has_text="STORM")
        button.focus()
        page.keyboard.press("Enter")
        assert button.get_attribute("aria-pressed") == "false"
        for figure in (chart, "#profile-chart", "#trial-chart"):
            assert page.locator(f'{figure} path[data-method="6"]').count() == 0
        assert "STORM" not in page.text_content("#ratio-chart")
        button.click()
        assert page.locator(f'{chart} path[data-method="6"]').count() == 1

        assert page.locator("#ratio-chart g[data-method]").count() == 27
        page.check('input[name="ratio-controls-ratio"][value="gradient_evaluations"]')
        assert "∞" in page.text_content("#ratio-chart")

        assert page.locator("td.at-end").first.is_visible()
        page.check('input[name="moment"][value="best"]')
        assert not page.locator("td.at-end").first.is_visible()
        assert page.locator("td.at-best").first.is_visible()

        page.hover(f"{chart} svg")
        assert "AdamW" in page.inner_text(f"{chart} .tip")


def test_evil_names_are_shown_as_they_are(browser, tmp_path):
    report.write(study({"adamw": 1.0, EVIL: 0.5}, tasks=("<b>task</b>",), trials=2, rows=5), tmp_path)
    with opened(browser, tmp_path / "report.html", 380) as page:
        assert page.evaluate("window.hacked") is None
        assert page.get_attribute("#legend button:nth-child(2)", "title") == EVIL
        assert page.evaluate("document.documentElement.scrollWidth") <= 380
        assert "<b>task</b>" in page.inner_text("h1")


@pytest.mark.parametrize("name", ODD)
def test_odd_studies_open(name, browser, tmp_path):
    report.write(ODD[name](), tmp_path)
    with opened(browser, tmp_path / "report.html", 380) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 380
        assert not re.search(r"NaN|undefined|Infinity", page.evaluate("document.body.innerHTML.split('<script')[0]"))


def test_every_chart_can_be_had_as_svg_png_and_csv(made, browser):
    with opened(browser, made[1] / "report.html") as page:
        found = {}
        for chart in ("ratio-chart", "loss-chart", "profile-chart", "trial-chart"):
            for kind in ("SVG", "PNG", "CSV"):
                button = page.locator(f"#{chart} .exports button", has_text=kind)
                name, found[chart, kind] = saved(page, button)
                assert name == f"{chart}.{kind.lower()}"
    for (chart, kind), content in found.items():
        if kind == "SVG":
            assert content.startswith(b"<svg")
            assert b"AdaBelief" in content  # in the chart, or in its legend
            assert b'class="cross"' not in content
            assert b"var(--" not in content.replace(b'fill="none"', b"")
        if kind == "PNG":
            assert content.startswith(b"\x89PNG")
            assert len(content) > 5000
        if kind == "CSV":
            assert content.count(b"\n") > 9, chart
    assert b'"method","gradient evaluations","median","lowest","highest"' in found["loss-chart", "CSV"]


def test_a_paragraph_for_a_paper_says_what_was_done(made):
    for name in ("report.md", "report.html"):
        text = (made[1] / name).read_text()
        assert "For a paper" in text
        assert "with tuned AdamW on digits" in text.replace("\\", "")
        assert "Huang, Feihu and Li, Junyi and Huang, Heng" in text
        assert "Power: with" in text


def test_the_paragraph_for_a_paper_names_other_budgets_and_the_procedure():
    found = study({"adamw": 1.0, "adam": 1.1})
    said = paper.paragraph(found, analyse(found))
    assert paper.PROCEDURE.format(n=1) in said
    assert "We also ran" not in said
    found.plan.budgets = ["gradients", "epochs", "seconds"]
    assert (
        "We also ran the best options with the same number of batches for every method and with as many gradient "
        "evaluations as the training time of AdamW allows, unless that was the same run."
    ) in paper.paragraph(found, analyse(found))


def test_the_report_cites_what_citation_cff_does():
    """Names, title, volume, year and arXiv number."""
    cff = (Path(__file__).parents[3] / "CITATION.cff").read_text()
    cited = paper.citation(study({"adamw": 1.0, "a": 0.5}))
    entries = re.findall(
        r"(?:- name|preferred-citation:\n +type: [\w-]+\n +title|collection-title|volume|year): (.+)", cff
    )
    entries += re.findall(r'"arXiv:([\d.]+)"', cff)
    people = re.findall(r"family-names: (\w+)\n +given-names: (\w+)", cff)
    entries.append(" and ".join(f"{family}, {given}" for family, given in people))
    assert len(entries) == 7
    for entry in entries:
        assert f"{{{entry.strip(chr(34))}}}" in cited

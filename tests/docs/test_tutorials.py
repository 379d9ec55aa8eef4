"""The tutorials of the docs run, use what is public, and say what is true. The gallery has all examples."""

import ast
import hashlib
import importlib
import json
import re
import textwrap
from pathlib import Path

import pytest

import gallery
import superadam

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = {path.stem: path for path in sorted((ROOT / "docs" / "tutorials").glob("*.py"))}


ROOMS = {path.stem for path in Path(superadam.__file__).parent.iterdir() if path.stem[0] not in "_."}
PACKAGES = ("superadam", "superadam_lab")


def public(place):
    """What a module offers: what it exports; superadam itself, the modules that stand in it, too."""
    return {*importlib.import_module(place).__all__, *(ROOMS if place == "superadam" else ())}


def private_names(source):
    """What of superadam a source imports or reaches by a dot though it is not public."""
    tree, places, wrong = ast.parse(source), {}, []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in PACKAGES:
                    places[alias.asname or alias.name] = alias.name
                elif alias.name.startswith(tuple(f"{name}." for name in PACKAGES)):
                    wrong.append(f"import {alias.name}")  # the tutorials write from superadam import …
        elif isinstance(node, ast.ImportFrom) and re.match(r"superadam(_lab)?\b", node.module):
            place, _, room = node.module.partition(".")
            for alias in node.names:
                if (room and room not in ROOMS) or alias.name not in public(node.module):
                    wrong.append(f"{node.module}.{alias.name}")
                elif node.module == "superadam" and alias.name in ROOMS:
                    places[alias.asname or alias.name] = f"{place}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            place = places.get(node.value.id) if isinstance(node.value, ast.Name) else None
            if re.match(r"_[^_]", node.attr) or (place and node.attr not in public(place)):
                wrong.append(ast.unparse(node))
    return wrong


def test_private_names_are_found():
    assert private_names("import superadam\nsuperadam.create('adam', p)\nfrom superadam import sets\nsets.Box") == []
    assert private_names("import superadam_lab as lab\nlab.compare()\nfrom superadam.monitor import TensorBoard") == []
    assert private_names("from superadam.step import _move") == ["superadam.step._move"]
    assert private_names("from superadam_lab.comparison.engine import report") == [
        "superadam_lab.comparison.engine.report"
    ]
    assert private_names("import superadam_lab.runs.training") == ["import superadam_lab.runs.training"]
    assert private_names("from superadam import sets\nsets.base_of") == ["sets.base_of"]
    assert private_names("import superadam\nsuperadam.Optimizer(p)") == ["superadam.Optimizer"]
    assert private_names("opt._state") == ["opt._state"]


@pytest.mark.parametrize("name", TUTORIALS)
def test_tutorial_compiles_and_uses_what_is_public(name):
    source = TUTORIALS[name].read_text()
    compile(source, name, "exec")
    assert private_names(source) == []


@pytest.mark.parametrize("name", TUTORIALS)
def test_tutorial_is_a_short_notebook_in_the_navigation(name):
    source = TUTORIALS[name].read_text()
    assert source.startswith("# %% [markdown]\n# # ")
    assert len(source.splitlines()) < 150
    assert f"tutorials/{name}.md" in (ROOT / "mkdocs.yml").read_text()
    assert re.search(r'^# %% alt="[^"]{20,}"$', source, flags=re.M), "the cell that draws needs a description"


RECORD = json.loads((ROOT / "docs" / "data" / "tutorials.json").read_text())


def test_every_tutorial_has_a_record():
    assert RECORD.keys() == TUTORIALS.keys()


@pytest.mark.parametrize("name", TUTORIALS)
def test_the_recorded_run_is_of_the_source_as_it_is(name):
    source = TUTORIALS[name].read_text()
    again = f"python scripts/notebooks.py {name}"
    assert RECORD[name]["source"] == hashlib.sha256(source.encode()).hexdigest(), f"the tutorial has changed: {again}"
    printed = "".join(RECORD[name]["printed"])
    for number in re.findall(r"\b\d+\.\d%", "".join(re.findall(r"^# .*\n", source, flags=re.M))):
        assert number in printed, f"the text has {number}, which the recorded run did not print: {again}"


@pytest.mark.slow
@pytest.mark.parametrize("name", TUTORIALS)
def test_what_the_tutorial_says(name):
    """It is run as the site does, with one more cell: what its text says, as assertions."""
    pytest.importorskip("nbclient", reason="comes with superadam[docs]")
    pytest.importorskip("jupytext", reason="comes with superadam[docs]")
    import notebooks

    notebook = notebooks.executed(f"{TUTORIALS[name].read_text()}\n\n# %%\n{textwrap.dedent(SAID[name])}")
    text, files = notebooks.page(name, notebook)
    assert text.count(".output") >= 1
    pictures = [file for file in files if file.endswith(".svg")]
    assert pictures
    for file in pictures:
        assert "prefers-color-scheme: dark" in files[file]


SAID = {
    "train_a_network": """
        assert all(min(losses) < 0.3 for losses in final.values())  # both train
        assert max(losses[-1] for runs in curves.values() for losses in runs) < 0.3
        assert final["super_adam_plus"][2] > 10 * min(final["super_adam_plus"])  # at 0.003 it has hardly trained
        """,
    "portfolio": """
        assert found.success
        closest = {name: run[1][-1] for name, run in best.items()}
        assert 0 < closest["on the set"] < 0.5 * closest["projected"]
        for w, _ in (run for all_rates in runs.values() for run in all_rates):
            assert X.violation(w) < 1e-12
        """,
    "own_matrix": """
        for tau in (0.0, 1.0):
            assert (ours(tau) - expected(tau)).abs().max() < 1e-14 < (ours(tau) - x_1).norm()
        """,
    "is_mine_better": """
        assert "mine" in verdict.splitlines()[0]  # the headline
        assert "Not enough to tell" not in verdict  # as both valleys lie inside of the range
        assert "p = " in verdict and "Power" in verdict
        assert all(record.status == "finished" for record in results.records)
        """,
    "what_the_monitor_sees": """
        assert [warning.category.__name__ for warning in said[:1]] == ["MonitorWarning"]
        assert losses[-1] < 0.5 * losses[0]  # it trains
        assert max(r["variance_ratio"] for r in monitor.history if "variance_ratio" in r) < 0.2
        assert min(r["variance_ratio"] for r in wrong.history if "variance_ratio" in r) > 1
        assert not any(report["alarms"] for report in monitor.history)
        """,
}


def test_gallery_has_every_example():
    listed = [name for section in gallery.listed().values() for name in section]
    assert sorted(listed) == sorted(path.stem for path in gallery.EXAMPLES.glob("*.py"))
    assert gallery.PICTURES.keys() == set(listed)
    for draw in gallery.PICTURES.values():
        assert len(draw.__doc__) > 20


def test_page_of_an_example():
    """What it says of itself, with its commands as code; its code without that; what it printed, if it was run."""
    page = gallery.page("nmf", {"nmf.txt": "printed\n"})
    assert page.startswith("# Non-negative matrix factorisation of the digits\n")
    assert "```bash\npython examples/nmf.py    # a few seconds\n```" in page
    assert "](nmf.svg)" in page
    assert "\nprinted\n" in page
    assert page.count("Compared with scikit-learn's NMF") == 1
    assert "import torch\n" in page
    assert ".svg)" not in gallery.page("with_lightning", {})

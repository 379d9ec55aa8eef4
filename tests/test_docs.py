"""What the README and the docs print is true."""

import importlib
import os
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

import superadam
from superadam import zoo
from superadam._state.parts import Part

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SNIPPETS = [
    pytest.param(code, id=f"{page.stem}-{i}")
    for page in PAGES
    for i, code in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.M | re.S))
]


@pytest.fixture
def _registries():
    """Snippets define parts and methods of their own: forget them afterwards."""
    kept = [(d, dict(d)) for d in (zoo.METHODS, *(kind._names for kind in Part.__subclasses__()))]
    yield
    for registry, content in kept:
        registry.clear()
        registry.update(content)


@pytest.mark.usefixtures("_registries")
@pytest.mark.filterwarnings("ignore:.*does not have many workers")  # what Lightning says to any small loader
@pytest.mark.parametrize("code", SNIPPETS)
def test_snippet_runs(code, tmp_path, monkeypatch):
    for package in re.findall(r"^(?:import|from) (accelerate|lightning|transformers)\b", code, flags=re.M):
        pytest.importorskip(package, reason="comes with superadam[trainers]")
    monkeypatch.chdir(tmp_path)  # some save files
    exec(compile(code, "snippet", "exec"), {"__name__": "snippet"})


def test_snippets_were_found():
    assert len(SNIPPETS) >= 6


def test_zoo_page_is_up_to_date():
    """docs/zoo.md is what scripts/zoo_table.py writes, and every method in it is named by a test."""
    subprocess.run([sys.executable, ROOT / "scripts" / "zoo_table.py", "--check"], check=True)
    rows = [line for line in (ROOT / "docs" / "zoo.md").read_text().splitlines() if line.startswith("| `")]
    assert len(rows) >= len(zoo.METHODS)


def test_methods_are_counted():
    for page in ("README.md", "docs/comparison.md"):
        assert f"| optimizers | {len(zoo.METHODS)} |" in (ROOT / page).read_text()


def test_performance_page_is_up_to_date():
    """docs/performance.md is what scripts/bench_page.py makes of the report beside it, and no method is left out."""
    subprocess.run([sys.executable, ROOT / "scripts" / "bench_page.py", "--check"], check=True)
    page = (ROOT / "docs" / "performance.md").read_text()
    assert not [name for name in zoo.METHODS if f"\n| {name} |" not in page]


def test_traced_step_is_up_to_date():
    """docs/architecture.md has the calls of a step as scripts/step_trace.py counts them."""
    subprocess.run([sys.executable, ROOT / "scripts" / "step_trace.py", "--check"], check=True)


def prose(page):
    """A page without its code."""
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.M | re.S)


def anchors(page):
    """What can stand behind # in a link to a page: its headings, as mkdocs writes them, and the objects of the API."""
    headings = re.findall(r"^#+ (.+)$", prose(page), flags=re.M)
    ascii_only = (unicodedata.normalize("NFKD", h).encode("ascii", "ignore").decode() for h in headings)
    found = {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", h).strip().lower()) for h in ascii_only}
    for name in re.findall(r"^::: (\S+)$", page.read_text(), flags=re.M):
        found.update((name, *(f"{name}.{member}" for member in dir(resolved(name)))))
    return found


def resolved(name):
    """The object of a dotted name."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        return getattr(resolved(module), attribute)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", prose(page)):
        if not target.startswith("http"):
            linked = (page.parent / target) if target else page
            assert linked.exists(), f"{page}: {target}"
            assert not anchor or anchor in anchors(linked), f"{page}: {target}#{anchor}"


def test_every_page_is_in_the_navigation():
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    docs = ROOT / "docs"
    assert {page.relative_to(docs).as_posix() for page in docs.rglob("*.md")} == set(re.findall(r"\S+\.md", nav))


def code(text):
    """Lines without indentation, and without empty ones among them."""
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def test_excerpts_are_in_the_files_they_name():
    """Code that a page shows beside the paper is the code that runs."""
    page = (ROOT / "docs" / "paper.md").read_text()
    found = re.findall(r'^```py title="([^"]+)"\n(.*?)^```', page, flags=re.M | re.S)
    assert len(found) > 10
    for path, excerpt in found:
        assert code(excerpt) in code((ROOT / path).read_text()), path


@pytest.mark.slow
def test_site_builds(tmp_path):
    """Without a warning, with all formulas turned into MathML, and with nothing that is fetched from elsewhere."""
    pytest.importorskip("mkdocs", reason="comes with superadam[docs]")
    pytest.importorskip("latex2mathml", reason="comes with superadam[docs]")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path]
    subprocess.run(build, check=True, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    pages = {path: path.read_text() for path in tmp_path.rglob("*.html")}
    assert "<math" in pages[tmp_path / "paper" / "index.html"]
    for path, text in pages.items():
        assert "arithmatex" not in text, path
        assert not re.findall(r'<(?:script|img|link rel="stylesheet")[^>]+(?:src|href)="(?:https?:)?//', text), path


PUBLIC = (
    *("estimators", "iterates", "matrices", "monitor", "penalties", "probe", "probe.payoff"),
    *("reference", "schedules", "sets", "theory", "trainers", "zoo"),
)
EXPORTED = [
    (module.__name__, name)
    for module in (superadam, *(importlib.import_module(f"superadam.{name}") for name in PUBLIC))
    for name in module.__all__
    if callable(getattr(module, name))
]


@pytest.mark.parametrize(("module", "name"), EXPORTED, ids=lambda value: value.removeprefix("superadam."))
def test_every_exported_name_has_a_docstring_with_a_doctest(module, name):
    """pytest runs it: --doctest-modules."""
    assert ">>>" in (getattr(sys.modules[module], name).__doc__ or "")

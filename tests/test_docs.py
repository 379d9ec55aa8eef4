"""What the README and the docs print is true."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from superadam import zoo
from superadam.matrices import Matrix
from superadam.parts import Part

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
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
    """docs/zoo.md is what scripts/zoo_table.py writes, and every method in it is covered by a test."""
    subprocess.run([sys.executable, ROOT / "scripts" / "zoo_table.py", "--check"], check=True)
    rows = [line for line in (ROOT / "docs" / "zoo.md").read_text().splitlines() if line.startswith("| `")]
    assert len(rows) >= len(zoo.METHODS)
    assert not [row for row in rows if row.endswith("| none |")]


def test_performance_page_is_up_to_date():
    """docs/performance.md is what scripts/bench_page.py makes of the report beside it, and no method is left out."""
    subprocess.run([sys.executable, ROOT / "scripts" / "bench_page.py", "--check"], check=True)
    page = (ROOT / "docs" / "performance.md").read_text()
    assert not [name for name in zoo.METHODS if f"\n| {name} |" not in page]


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)\)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page}: {target}"


def test_every_public_part_has_a_docstring_with_a_doctest():
    for kind in Part.__subclasses__():
        for part in kind._names.values():
            if part.__module__.startswith("superadam."):
                assert ">>>" in (part.__doc__ or ""), part
    for name, build in zoo.METHODS.items():
        assert ">>>" in (build.__doc__ or ""), name
    assert ">>>" in (sys.modules[Matrix.__module__].__doc__ or "")

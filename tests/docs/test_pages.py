"""What the README and the docs print is true."""

import importlib
import os
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
import torch

import copies
import superadam
from superadam import sets, zoo
from superadam.parts import Part

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
ASKED = {"storm": {"k": 0.1, "omega": 1.0, "c": 10.0}}  # options without a default
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TUTORIALS = ROOT / "docs" / "tutorials"  # whose pages are made of them while the site is built
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
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # as many workers has a comparison, and each imports torch
    exec(compile(code, "snippet", "exec"), {"__name__": "snippet"})


LOGGERS = re.findall(
    r"^```py\n(.*?)^```", (ROOT / "docs" / "monitor.md").read_text(), flags=re.M | re.S
)  # `py`, not `python`: they use the reader's model and loop


@pytest.mark.slow
@pytest.mark.parametrize(("package", "code"), list(zip(("wandb", "tensorboard"), LOGGERS, strict=True)))
def test_snippets_for_loggers_run(package, code, tmp_path, monkeypatch):
    """With a model, an optimizer and a loop; each leaves what it logged in the folder."""
    pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    model = torch.nn.Linear(4, 1)

    def train(model, opt):
        for _ in range(100):
            opt.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            opt.step()

    names = {"__name__": "snippet", "model": model, "opt": superadam.SuperAdam(model), "train": train}
    exec(compile(code, "snippet", "exec"), names)
    assert [r["step"] for r in names["monitor"].history] == [50, 100]
    assert any(path.is_file() for path in tmp_path.rglob("*"))


def test_snippets_were_found():
    assert len(SNIPPETS) >= 6


def test_zoo_page_is_up_to_date():
    """docs/zoo.md is what scripts/zoo_table.py writes, and every method in it is named by a test."""
    copies.check(ROOT / "scripts" / "zoo_table.py", "--check")
    rows = [line for line in (ROOT / "docs" / "zoo.md").read_text().splitlines() if line.startswith("| `")]
    assert len(rows) >= len(zoo.METHODS)


def test_methods_are_counted():
    for page in ("README.md", "docs/comparison.md"):
        assert f"| optimizers | {len(zoo.METHODS)} |" in (ROOT / page).read_text()


def test_sets_are_counted():
    n = len(set(sets.__all__) - {"ConvexSet"})
    assert f"| constraints | {n} sets |" in (ROOT / "README.md").read_text()
    assert f"| sets to stay in | {n} |" in (ROOT / "docs" / "comparison.md").read_text()


def test_the_site_begins_as_the_readme():
    """Up to the two commands, with links from the folder docs."""
    first = README.partition("## Two commands")[0].replace("](docs/", "](").replace("](research/", "](../research/")
    assert (ROOT / "docs" / "index.md").read_text().startswith(first)


def refusing(option):
    """The methods that do not take an option."""
    params, refused = [torch.zeros(4, 3, requires_grad=True)], set()
    for name in zoo.METHODS:
        try:
            zoo.create(name, params, **{**ASKED.get(name, {}), option: True})
        except (TypeError, ValueError):
            refused.add(name)
    return refused


def test_the_readme_says_which_options_are_refused():
    (said,) = re.findall(r"`(\w+)` and `(\w+)` are refused", README)
    for option in said:
        assert refusing(option) == set(zoo.METHODS)


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
            if linked.resolve().parent == TUTORIALS:
                linked = linked.with_suffix(".py")
            assert linked.exists(), f"{page}: {target}"
            assert not anchor or anchor in anchors(linked), f"{page}: {target}#{anchor}"


def test_every_page_is_in_the_navigation():
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    docs = ROOT / "docs"
    pages = [*docs.rglob("*.md"), *(path.with_suffix(".md") for path in TUTORIALS.glob("*.py"))]
    found = {page.relative_to(docs).as_posix() for page in pages} | {"research/README.md"}
    assert found == set(re.findall(r"\S+\.md", nav))


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


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site, built without a warning."""
    for package in ("ipykernel", "jupytext", "latex2mathml", "mkdocs", "nbclient"):
        pytest.importorskip(package, reason="comes with superadam[docs]")
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    subprocess.run(build, check=True, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    return folder


CLIPPED = """() => {
    const width = document.documentElement.clientWidth, found = [];
    const scrolls = el => el !== document.body && el.getBoundingClientRect().right <= width + 1
        && ["auto", "scroll", "hidden"].includes(getComputedStyle(el).overflowX);
    if (document.documentElement.scrollWidth > width + 1) found.push("the page is wider than the window");
    for (const el of document.querySelectorAll(".md-content *")) {
        const { width: w, right } = el.getBoundingClientRect();
        if (!w || right <= width + 1) continue;
        let box = el;
        while (box && !scrolls(box)) box = box.parentElement;
        if (!box) found.push(`${el.tagName} ends at ${right}`);
    }
    for (const box of document.querySelectorAll(".formula"))
        if (box.scrollHeight > box.clientHeight + 1) found.push(`formula clipped: ${box.textContent}`);
    for (const cell of document.querySelectorAll(".md-content td, .md-content th"))
        if (getComputedStyle(cell).display === "none") found.push(`hidden: ${cell.textContent}`);
    return found.slice(0, 5);
}"""


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1000, 1600])
def test_nothing_is_clipped(site, width, scheme):
    """No page is wider than the window, no formula or column is cut off: what is too wide scrolls in its own box."""
    sync_api = pytest.importorskip("playwright.sync_api")
    if not Path("/usr/bin/chromium").exists():
        pytest.skip("needs Debian's chromium")
    found = {}
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        for path in sorted(site.rglob("*.html")):
            page.goto(path.as_uri())
            if wrong := page.evaluate(CLIPPED):
                found[path.relative_to(site).as_posix()] = wrong
        browser.close()
    assert found == {}


@pytest.mark.slow
def test_site_builds(site):
    """Without a warning, with all formulas turned into MathML, and with nothing that is fetched from elsewhere.

    Tutorials have been run, and what the gallery shows is there."""
    pages = {path: path.read_text() for path in site.rglob("*.html")}
    assert "<math" in pages[site / "paper" / "index.html"]
    for path, text in pages.items():
        assert "arithmatex" not in text, path
        assert not re.findall(r'<(?:script|img|link rel="stylesheet")[^>]+(?:src|href)="(?:https?:)?//', text), path
    for source in TUTORIALS.glob("*.py"):
        page = pages[site / "tutorials" / source.stem / "index.html"]
        assert 'class="text output' in page, source
        shown = re.findall(r'<img alt="[^"]{20,}" src="\.\./(\S+\.svg)"', page)
        assert shown, source
        for name in (*shown, f"{source.stem}.ipynb"):
            assert (site / "tutorials" / name).stat().st_size > 1000, name
    gallery = pages[site / "gallery" / "index.html"]
    cards = set(re.findall(r'<a href="(\w+)/">', gallery))
    assert cards == {path.stem for path in (ROOT / "examples").glob("*.py")}
    for name in re.findall(r'<img [^>]*src="([^"]+)"', gallery):
        assert (site / "gallery" / name).resolve().is_file(), name


PUBLIC = (
    *("estimators", "iterates", "matrices", "monitor", "penalties", "probe", "probe.noise_model"),
    *("reference", "schedules", "sets", "theory", "trainers", "zoo"),
)
EXPORTED = [
    (module.__name__, name)
    for module in (superadam, *(importlib.import_module(f"superadam.{name}") for name in PUBLIC))
    for name in module.__all__
    if callable(getattr(module, name)) and name not in zoo.METHODS  # an example of a method is create("adam", …)
]


@pytest.mark.parametrize(("module", "name"), EXPORTED, ids=lambda value: value.removeprefix("superadam."))
def test_every_exported_name_has_a_docstring_with_a_doctest(module, name):
    """pytest runs it: --doctest-modules."""
    assert ">>>" in (getattr(sys.modules[module], name).__doc__ or "")

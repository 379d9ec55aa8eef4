import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

import copies
from browsing import CHROMIUM, FLAGS
from patience import HANGS


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    """Archives in folders that are read-only are unpacked here, not into the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def copied_workers(monkeypatch):
    """The processes that plan and that make runs are copies of this one: a new interpreter imports for seconds. Who has
    started them looks more often whether they are done."""
    from superadam_lab.comparison import engine, planner, worker  # noqa: F401 - so that copies have them
    from superadam_lab.comparison.plan import minutes as timing  # noqa: F401 - so that copies have them

    def start(command, **options):
        assert command[0] == sys.executable
        return copies.start(*command[1:], **options)

    for module in (engine, planner):
        monkeypatch.setattr(module, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": start}))
    monkeypatch.setattr(engine, "POLL", 0.1)


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="the browser's tests need playwright")
    if not os.path.exists(CHROMIUM):
        pytest.skip(f"the browser's tests need {CHROMIUM}")
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=1000 * HANGS)
        yield browser
        browser.close()

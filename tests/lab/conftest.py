import os

import pytest
from browsing import CHROMIUM, FLAGS

from patience import HANGS


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    """Archives in folders that are read-only are unpacked here, not into the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="the browser's tests need playwright")
    if not os.path.exists(CHROMIUM):
        pytest.skip(f"the browser's tests need {CHROMIUM}")
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=1000 * HANGS)
        yield browser
        browser.close()

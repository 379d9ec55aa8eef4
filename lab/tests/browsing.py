"""Pages in a real browser."""

from contextlib import contextmanager
from urllib.request import urlopen

from patience import HANGS

CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


KEEP = "() => { window.kept = []; HTMLAnchorElement.prototype.click = function () { window.kept.push(this); }; }"


@contextmanager
def opened(browser, path, width=1600, colors="light", view=""):
    """The page, which must have nothing to complain about and nothing to ask for. `view` is the end of its address."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=colors)
    page.set_default_timeout(1000 * HANGS)
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri() + view)
    yield page
    assert said == []
    assert [url for url in asked if not url.startswith("data:")] == [path.as_uri()]
    page.close()


def until(page, condition):
    """Wait for it. The page's policy forbids Playwright's own way, which evaluates a string in the page."""
    for _ in range(20 * HANGS):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"still not so: {condition}")


def saved(page, button):
    """Name and content of what a button saves. The link is kept: the browser's own downloads hang at times."""
    page.evaluate(KEEP)
    button.click()
    until(page, "window.kept.length > 0")
    name, url = page.evaluate("() => { const link = kept.pop(); return [link.download, link.href]; }")
    assert url.startswith("data:")
    return name, urlopen(url).read()

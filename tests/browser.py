"""Fixtures for tests in a real browser: the system's Chromium, driven by Playwright.

Where one of the two is absent, the tests are skipped with the reason; with FRINGE_REQUIRE_BROWSER=1 they fail instead.
`make browser` installs Chromium.
"""

import importlib.util
import os
import shutil
from pathlib import Path

import pytest

#: No sandbox, because containers have no rights for it; nothing that asks machines of the browser's maker.
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SERIOUS = ("serious", "critical")
#: Milliseconds to wait for what a page will show.
PATIENCE = 120_000


def browser_path() -> str | None:
    """The program of the system's browser; FRINGE_BROWSER names another."""
    return os.environ.get("FRINGE_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)


def missing() -> str | None:
    """Why no browser can be driven."""
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed"
    return None if browser_path() else f"none of {', '.join(NAMES)} is installed; `make browser` installs one"


def expect(locator):
    """Playwright's assertions, which wait until they hold: on a busy machine that is later than its own 5 seconds."""
    from playwright.sync_api import expect as assertion

    assertion.set_options(timeout=PATIENCE)
    return assertion(locator)


@pytest.fixture(scope="session")
def browser():
    """A browser without a window."""
    reason = missing()
    if reason is not None:
        if os.environ.get("FRINGE_REQUIRE_BROWSER") == "1":
            pytest.fail(f"FRINGE_REQUIRE_BROWSER=1, but {reason}")
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=browser_path(), args=list(FLAGS))
        yield running
        running.close()


class Visit:
    """A page in a context of its own, with what went wrong on it.

    Attributes:
        page: Playwright's page.
        problems: Console errors, exceptions, and failed responses.
        requests: Addresses of the requests that left the page, without data in themselves.
    """

    def __init__(self, context):
        self.problems, self.requests = [], []
        context.set_default_timeout(PATIENCE)
        self.page = context.new_page()
        self.page.on("console", self._note_message)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", self._note_request)
        self.page.on("response", lambda r: r.status >= 400 and self.problems.append(f"{r.status} {r.url}"))

    def _note_message(self, message):
        if message.type == "error":
            self.problems.append(message.text)

    def _note_request(self, request):
        if not request.url.startswith(("data:", "blob:", "about:")):
            self.requests.append(request.url)

    def serious_findings(self, frame=None):
        """What axe-core finds on the page, or in a frame of it, that keeps people out."""
        import axe_playwright_python

        script = Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text(encoding="utf-8")
        target = frame or self.page
        target.evaluate(f"() => {{ const module = undefined; {script} }}")
        found = target.evaluate("() => axe.run(document, { resultTypes: ['violations'], iframes: false })")
        return [
            f"{v['id']}: {node['html'][:200]} {node['failureSummary'][:200]}"
            for v in found["violations"]
            if v["impact"] in SERIOUS
            for node in v["nodes"]
        ]


@pytest.fixture
def visit(browser):
    """Open pages; each call is another person with a browser of their own."""
    contexts = []

    def open_page(url, *, width=1400, height=1000, **options):
        contexts.append(browser.new_context(viewport={"width": width, "height": height}, **options))
        visited = Visit(contexts[-1])
        visited.page.goto(url)
        return visited

    yield open_page
    for context in contexts:
        context.close()

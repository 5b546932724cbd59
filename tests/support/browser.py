"""Headless Chromium for tests of pages, and what a page did while it was open."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)


#: What can be asked about a page, as a JavaScript object.
CHECKS = (Path(__file__).parent / "page_checks.js").read_text(encoding="utf-8").strip()

_IS_DRAWN = """[...document.querySelectorAll("figure .plot")].every((plot) => plot.children.length)
  && document.querySelectorAll("section").length"""


def find_chromium() -> str:
    """The browser of this machine. Without one tests are skipped, unless CI asks for them."""
    found = os.environ.get("FEEDLINE_CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), "")
    if not found and not os.environ.get("FEEDLINE_NEEDS_CHROMIUM"):
        pytest.skip("no Chromium is installed; set FEEDLINE_CHROMIUM to its path")
    assert found, "no Chromium is installed, and FEEDLINE_NEEDS_CHROMIUM is set"
    return found


@contextmanager
def launched() -> Iterator[Browser]:
    """A browser, gone with all of its processes and files in the end."""
    chromium = find_chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(_FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Opened:
    """An open page, and everything that it said, asked for and did wrong."""

    page: Page
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)

    def run(self, script: str) -> Any:
        """The value of a script in the page."""
        return self.page.evaluate(script)

    def check(self, question: str) -> Any:
        """The answer of a check in `page_checks.js`."""
        return self.run(f"{CHECKS}.{question}")

    def resize(self, width: int) -> None:
        """Make the window as wide as this, and wait until everything is drawn anew."""
        self.page.set_viewport_size({"width": width, "height": 900})
        # Pictures are drawn anew before the next frame but one.
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


@contextmanager
def opened(
    browser: Browser, path: Path, *, width: int = 1100, theme: str = "light"
) -> Iterator[Opened]:
    """A page from disk, after it has drawn itself."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
    page = context.new_page()
    found = Opened(page)
    page.on("console", lambda message: found.said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: found.said.append(f"error: {error}"))
    page.on("request", lambda request: found.asked.append(request.url))
    page.on("dialog", lambda dialog: (found.dialogs.append(dialog.message), dialog.dismiss()))
    try:
        page.goto(path.resolve().as_uri())
        page.wait_for_function(_IS_DRAWN)
        yield found
    finally:
        context.close()

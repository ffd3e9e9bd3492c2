"""Chromium for the tests of the page; they are skipped, with the reason, where it is not there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scripts.chromium import chromium, launched


def refuse_without() -> None:
    """Skip the test where there is no browser."""
    pytest.importorskip(
        "playwright", reason="Playwright drives the browser: pip install playwright"
    )
    if chromium() is None:
        pytest.skip("no chromium on the path: apt-get install chromium, or set CHROMIUM")


@contextmanager
def browser() -> Iterator[Any]:
    """A browser without a window."""
    refuse_without()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = launched(playwright)
        yield found
        found.close()


class Opened:
    """A page that was opened, and what it said in the console."""

    def __init__(self, browser: Any, path: Path, width: int = 1200, **options: Any) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 800}, **options)
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda asked: self.said.extend(_elsewhere(asked.url, path)))
        self.page.on("dialog", lambda dialog: self.said.append(f"dialog: {dialog.message}"))
        self.page.goto(path.resolve().as_uri())

    def rows(self) -> list[str]:
        """The texts of the rows in sight, from the top."""
        found: list[str] = self.page.evaluate(
            "[...document.querySelectorAll('.row')].map(row => row.textContent)"
        )
        return found

    def press(self, *keys: str) -> None:
        """Press keys in the list."""
        self.page.focus("#list")
        for key in keys:
            self.page.keyboard.press(key)

    def selected(self) -> str:
        """The text of the selected row."""
        found: str = self.page.evaluate(
            "(document.querySelector('.row[aria-selected=true]') || {}).textContent || ''"
        )
        return found

    def close(self) -> None:
        """Close it; what it said must be nothing."""
        self.context.close()
        assert self.said == []


def _elsewhere(url: str, path: Path) -> list[str]:
    is_own = url.startswith(("blob:", "data:", path.resolve().as_uri()))
    return [] if is_own else [f"asks for {url}"]

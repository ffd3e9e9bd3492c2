"""Debian's Chromium, driven by Playwright: it opens our pages in tests and scripts."""

from __future__ import annotations

import os
import shutil
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium() -> str | None:
    """Where the browser is: $CHROMIUM, or what is on the path; None where there is none."""
    named = os.environ.get("CHROMIUM")
    found = [named] if named else [shutil.which(name) for name in NAMES]
    return next((one for one in found if one), None)


def launched(playwright: Any) -> Any:
    """Return a browser without a window."""
    # In a container it has neither a sandbox of its own nor much shared memory.
    arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
    return playwright.chromium.launch(executable_path=chromium(), args=arguments)

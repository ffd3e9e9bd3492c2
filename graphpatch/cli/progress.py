"""A progress bar on stderr, for what takes longer than a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PATIENCE = 1.0  # seconds
INTERVAL = 0.05  # seconds between two redraws


class Bar:
    """Called with (what, done, total); shows nothing within the first second."""

    def __init__(self) -> None:
        self.started = self.drawn = time.monotonic()
        self.progress: Progress | None = None
        self.tasks: dict[str, TaskID] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        """Say how far a stage has come."""
        now = time.monotonic()
        if now - self.started < PATIENCE or (now - self.drawn < INTERVAL and done < total):
            return
        self.drawn = now
        if self.progress is None:
            self.progress = _started()
        task = self.tasks.get(what)
        if task is None:
            task = self.tasks[what] = self.progress.add_task(what, total=total)
        self.progress.update(task, completed=done, total=total)


def _started() -> Progress:
    from rich.console import Console
    from rich.progress import Progress

    progress = Progress(console=Console(stderr=True), transient=True)
    progress.start()
    return progress


@contextmanager
def bar() -> Iterator[Callable[[str, int, int], None] | None]:
    """A progress bar where somebody sees it; None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    shown = Bar()
    try:
        yield shown
    finally:
        if shown.progress is not None:
            shown.progress.stop()

"""Progress on stderr: a bar on a terminal after a second, elsewhere a line every ten seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from graphpatch.cli.say import say

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

SECONDS_BEFORE_BAR = 1.0  # seconds
INTERVAL = 0.05  # seconds between two redraws
SECONDS_BETWEEN_LINES = 10.0  # seconds between two lines, and before the first


class Bar:
    """Called with (what, done, total); shows nothing within the first second."""

    def __init__(self, of_many: bool = False) -> None:
        self.of_many = of_many
        self.started = self.drawn = time.monotonic()
        self.progress: Progress | None = None
        self.tasks: dict[str, TaskID] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        """Say how far a stage has come."""
        now = time.monotonic()
        if now - self.started < SECONDS_BEFORE_BAR or (
            now - self.drawn < INTERVAL and done < total
        ):
            return
        self.drawn = now
        if self.progress is None:
            self.progress = _started(self.of_many)
        task = self.tasks.get(what)
        if task is None:
            task = self.tasks[what] = self.progress.add_task(what, total=total, rate="")
        rate = f"{done / (now - self.started):.1f}/s"
        self.progress.update(task, completed=done, total=total, rate=rate)


class LogProgress:
    """The same where nobody redraws: a log, or a pipe. Work that is short prints nothing."""

    def __init__(self, of_many: bool = False) -> None:
        self.of_many = of_many
        self.said = time.monotonic()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Say how far a stage has come, now and then."""
        now = time.monotonic()
        if now - self.said < SECONDS_BETWEEN_LINES or not total:
            return
        if not done * 100 // total and not self.of_many:  # nothing to say yet
            return
        self.said = now
        far = f"{done} of {total}" if self.of_many else f"{done * 100 // total}%"
        say(f"{what}: {far}", err=True)


def _started(of_many: bool) -> Progress:
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = Progress.get_default_columns()
    if of_many:  # how many, how many a second, and how long yet
        rate = TextColumn("{task.fields[rate]}")
        columns = (*columns[:2], MofNCompleteColumn(), rate, TimeRemainingColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    progress.start()
    return progress


@contextmanager
def bar(of_many: bool = False) -> Iterator[Callable[[str, int, int], None]]:
    """Return a progress bar where stderr is a terminal, and lines now and then where it is not.

    One `of_many` counts things, and says how many a second.
    """
    if not sys.stderr.isatty():
        yield LogProgress(of_many)
        return
    shown = Bar(of_many)
    try:
        yield shown
    finally:
        if shown.progress is not None:
            shown.progress.stop()

"""Progress on stderr: a bar on a terminal after a second, elsewhere a line every ten seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from graphpatch.cli.say import say

if TYPE_CHECKING:
    from rich.progress import Progress

SECONDS_BEFORE_BAR = 1.0
SECONDS_BETWEEN_LINES = 10.0  # and before the first

Shows = Callable[[str, int, int], None]
"""Called with what is done, how much of it, and of how much."""


@contextmanager
def bar(of_many: bool = False) -> Iterator[Shows]:
    """Give what shows progress; of short work it shows nothing. One `of_many` counts things."""
    if not sys.stderr.isatty():
        yield _lines(of_many)
        return
    started = time.monotonic()
    shown: list[Progress] = []

    def redraw(label: str, done: int, total: int) -> None:
        if time.monotonic() - started < SECONDS_BEFORE_BAR:
            return
        if not shown:
            shown.append(_started(of_many))
        [progress] = shown
        task = next((task.id for task in progress.tasks if task.description == label), None)
        if task is None:
            task = progress.add_task(label, total=total)
        progress.update(task, completed=done, total=total)

    try:
        yield redraw
    finally:
        for progress in shown:
            progress.stop()


def _lines(of_many: bool) -> Shows:
    """Return the same where nobody redraws: a log, or a pipe."""
    printed = time.monotonic()

    def show(label: str, done: int, total: int) -> None:
        nonlocal printed
        is_due = time.monotonic() - printed >= SECONDS_BETWEEN_LINES
        if is_due and total and (of_many or done * 100 // total):  # else nothing to say yet
            printed = time.monotonic()
            says = f"{done} of {total}" if of_many else f"{done * 100 // total}%"
            say(f"{label}: {says}", err=True)

    return show


def _started(of_many: bool) -> Progress:
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    columns = Progress.get_default_columns()
    if of_many:
        columns = (*columns[:2], MofNCompleteColumn(), *columns[3:])
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    progress.start()
    return progress

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

SECONDS_BEFORE_BAR = 1.0
SECONDS_BETWEEN_LINES = 10.0  # and before the first

Shows = Callable[[str, int, int], None]
"""Called with what is done, how much of it, and of how much."""


@contextmanager
def bar(of_many: bool = False) -> Iterator[Shows]:
    """Give what shows progress; of short work it shows nothing. One `of_many` counts things."""
    started, is_terminal = time.monotonic(), sys.stderr.isatty()  # rich puts a proxy in its place
    printed = started
    progress: Progress | None = None
    tasks: dict[str, TaskID] = {}

    def show(label: str, done: int, total: int) -> None:
        nonlocal printed, progress
        now = time.monotonic()
        if not is_terminal:  # a log, or a pipe: nobody redraws
            percent = done * 100 // total if total else 0
            if now - printed >= SECONDS_BETWEEN_LINES and (of_many or percent):
                printed = now
                say(f"{label}: {f'{done} of {total}' if of_many else f'{percent}%'}", err=True)
        elif now - started >= SECONDS_BEFORE_BAR:
            progress = progress or _started(of_many)
            if label not in tasks:
                tasks[label] = progress.add_task(label, total=total)
            progress.update(tasks[label], completed=done, total=total)

    try:
        yield show
    finally:
        if progress is not None:
            progress.stop()


def _started(of_many: bool) -> Progress:
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    columns = Progress.get_default_columns()
    if of_many:
        columns = (*columns[:2], MofNCompleteColumn(), *columns[3:])
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    progress.start()
    return progress

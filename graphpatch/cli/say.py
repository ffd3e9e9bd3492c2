"""All that commands print goes through here, so that no name of a model steers the terminal.

Progress goes to stderr: a bar on a terminal after a second, elsewhere a line every ten seconds.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

import click

from graphpatch.shown import (
    IN_LIST,
    LONGEST_LINE,
    ROOM_TO_COUNT,
    and_more,
    json_text,
    one_line,
    shown,
)

if TYPE_CHECKING:
    import rich.progress

    from graphpatch.graph.graph import Progress

# Which words are coloured, and how; at most one of them in a line.
COLOURED: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"^(?:graphpatch|Error):"), "red"),
    (re.compile(r"^ *(?:error:|blocked\b)|(?<=: )differs(?=: \d)"), "red"),
    (re.compile(r"^ *note:|^ *near:|(?<=: )not compared(?=: \d)"), "yellow"),
    (re.compile(r"^ *fix\b|(?<=: )(?:verified|applied)$"), "green"),
)

GAP = re.compile(r"\S  +(?=\S)")  # between columns


def is_coloured(stream: TextIO) -> bool:
    """Return whether to colour: on a terminal without NO_COLOR; anywhere with FORCE_COLOR."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def coloured(line: str) -> str:
    """Return the line with the first of the words in its colour."""
    for word, colour in COLOURED:
        match = word.search(line)
        if match is not None:
            before, after = line[: match.start()], line[match.end() :]
            return before + click.style(match[0], fg=colour, bold=True) + after
    return line


def wrapped(line: str, columns: int) -> str:
    """Return the line broken between words, as wide as a terminal, and never within a name.

    What follows stands below the text, behind the word that labels it.
    """
    import textwrap

    gap = GAP.search(line)
    is_labelled = gap is not None and " " not in line[: gap.start()].strip()
    indent = gap.end() if gap is not None and is_labelled and gap.end() < columns // 2 else 4
    return textwrap.fill(
        line,
        columns,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )


# How the JSON of several commands names an op, and an op that a rule matched.
OP = {"body": str, "op": str, "type": str}
MATCH = {**OP, "captures?": {str: str}, "inputs?": {str: str}, "graph?": str}


def say_lines(lines: Iterable[str], err: bool = False) -> None:
    """Print lines to stdout, or to stderr; one that holds a line feed is still one line."""
    _echo("\n".join(map(one_line, lines)), err)


def say_error(error: BaseException | str) -> None:
    """Print a message, which may have several lines, to standard error; of a long one, its ends."""
    _echo("graphpatch: " + shown(str(error), LONGEST_LINE + ROOM_TO_COUNT), err=True)


def say_json(document: Any, indent: int | None = None) -> None:
    """Print one JSON document, in ASCII: JSON has escapes of its own."""
    click.echo(json_text(document, indent=indent))


def say_answer(as_json: bool, document: Any, lines: Iterable[str], err: bool = False) -> None:
    """Print what a command answers: one JSON document, or lines."""
    if as_json:
        say_json(document)
    else:
        say_lines(lines, err)


def _echo(text: str, err: bool) -> None:
    stream: TextIO = sys.stderr if err else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    safe = text.encode(encoding, "backslashreplace").decode(encoding)
    if stream.isatty():
        import shutil  # here, as a pipe needs none of it

        columns = shutil.get_terminal_size().columns
        safe = "\n".join(wrapped(line, columns) for line in safe.split("\n"))
    in_colour = is_coloured(stream)
    if in_colour:
        safe = "\n".join(map(coloured, safe.split("\n")))
    click.echo(safe, err=err, color=in_colour)


def noted(notes: Iterable[str], before: str = "") -> Iterator[str]:
    """Return notes as lines: the first of many, and how many more there are."""
    notes = list(notes)
    yield from (f"{before}note: {text}" for text in notes[:IN_LIST])
    if more := and_more(notes, IN_LIST):
        yield f"{before}note: {more}"


# Progress.

SECONDS_BEFORE_BAR = 1.0
SECONDS_BETWEEN_LINES = 10.0  # and before the first


@contextmanager
def bar(of_many: bool = False) -> Iterator[Progress]:
    """Give what shows progress; of short work it shows nothing. One `of_many` counts things."""
    started, is_terminal = time.monotonic(), sys.stderr.isatty()  # rich puts a proxy in its place
    printed = started
    progress: rich.progress.Progress | None = None
    tasks: dict[str, rich.progress.TaskID] = {}

    def show(label: str, done: int, total: int) -> None:
        nonlocal printed, progress
        now = time.monotonic()
        if not is_terminal:  # a log, or a pipe: nobody redraws
            percent = done * 100 // total if total else 0
            if now - printed >= SECONDS_BETWEEN_LINES and (of_many or percent):
                printed = now
                count = f"{done} of {total}" if of_many else f"{percent}%"
                say_lines([f"{label}: {count}"], err=True)
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


def _started(of_many: bool) -> rich.progress.Progress:
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    columns = Progress.get_default_columns()
    if of_many:
        columns = (*columns[:2], MofNCompleteColumn(), *columns[3:])
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    progress.start()
    return progress

"""Colour on a terminal: the words that a reader looks for first."""

from __future__ import annotations

import os
import re
from typing import TextIO

import click

# Which words are coloured, and how; at most one of them in a line.
COLOURED: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"^(?:graphpatch|Error):"), "red"),
    (re.compile(r"^ *(?:error:|blocked\b)|(?<=: )differs(?=: \d)"), "red"),
    (re.compile(r"^ *note:|^ *near:|(?<=: )not compared(?=: \d)"), "yellow"),
    (re.compile(r"^ *fix\b|(?<=: )(?:verified|applied)$"), "green"),
)


def is_coloured(stream: TextIO) -> bool:
    """Whether to colour: on a terminal, unless NO_COLOR is set; anywhere, if FORCE_COLOR is."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def coloured(line: str) -> str:
    """The line with the first of the words in its colour."""
    for word, colour in COLOURED:
        found = word.search(line)
        if found is not None:
            before, after = line[: found.start()], line[found.end() :]
            return before + click.style(found[0], fg=colour, bold=True) + after
    return line

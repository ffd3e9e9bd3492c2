"""All that commands print goes through here, so that no name of a model steers the terminal."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import click

from graphpatch.cli.colour import coloured, is_coloured
from graphpatch.shown import LONG, ROOM_TO_COUNT, json_of_texts, json_text, one_line, shown


def say(text: str, err: bool = False) -> None:
    """Print one line to standard output, or to standard error."""
    _echo(one_line(text), err)


def say_lines(lines: Iterable[str], err: bool = False) -> None:
    """Print lines; one that holds a line feed is still printed as one line."""
    _echo("\n".join(map(one_line, lines)), err)


def say_error(error: BaseException | str) -> None:
    """Print a message, which may have several lines, to standard error; of a long one, its ends."""
    _echo("graphpatch: " + shown(str(error), LONG + ROOM_TO_COUNT), err=True)


def say_json(document: Any, indent: int | None = None) -> None:
    """Print one JSON document, in ASCII: JSON has escapes of its own."""
    click.echo(json_text(document, indent=indent))


def say_json_of_texts(document: Any) -> None:
    """The same of a large document that has no numbers but whole ones."""
    click.echo(json_of_texts(document))


def _echo(text: str, err: bool) -> None:
    stream: TextIO = sys.stderr if err else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    safe = text.encode(encoding, "backslashreplace").decode(encoding)
    in_colour = is_coloured(stream)
    if in_colour:
        safe = "\n".join(map(coloured, safe.split("\n")))
    click.echo(safe, err=err, color=in_colour)


@contextmanager
def notes_of_warnings() -> Iterator[list[str]]:
    """The texts of UserWarnings meanwhile, which are printed as notes."""
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UserWarning)
        yield notes
    notes += [str(one.message) for one in told if one.category is UserWarning]

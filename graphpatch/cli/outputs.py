"""What commands write besides models: rules files and pages, each with a name of its kind."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from graphpatch.formats.destination import JSON_MARK, Destination, marked, refuse_inputs
from graphpatch.formats.output import write_file

force_option = click.option(
    "--force", is_flag=True, help="Replace what is there even if graphpatch did not write it."
)


class Written(click.Path):
    """A path whose suffix says what is written, so that no other file is written over.

    `-`, where `is_piped` allows it, and what is there and neither a file nor a folder are taken.
    """

    def __init__(self, suffix: str, what: str, is_piped: bool = False) -> None:
        super().__init__(readable=False)
        self.suffix, self.what, self.is_piped = suffix, what, is_piped

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """The path as it was typed. Raises BadParameter for another suffix."""
        text = str(value)
        path = Path(text)
        is_device = path.exists() and not (path.is_file() or path.is_dir())
        if path.suffix != self.suffix and not is_device and not (self.is_piped and text == "-"):
            self.fail(f"{text} gets {self.what}; name a {self.suffix} file", param, ctx)
        return text


RULES_FILE = Written(".json", "a rules file")
PAGE = Written(".html", "a page", is_piped=True)


def refuse_rules_file(path: str, force: bool, inputs: Mapping[str, str | None]) -> bool:
    """Return whether a rules file replaces one; OutputError where it may not, or is an input."""
    refuse_inputs(path, inputs)
    return Destination(path, force, is_marked=True).replaces()


def write_rules_file(path: str, document: Mapping[str, Any], tell: Callable[[], None]) -> None:
    """Write a rules file with graphpatch's mark, if `tell` can say that it is written."""
    text = json.dumps({**document, **JSON_MARK}, indent=2) + "\n"
    write_file(Path(path), [marked(text)], confirm=tell)


def replaced(is_replaced: bool) -> str:
    """Return the words that stand behind the name of an output that replaces something."""
    return " (replaced)" if is_replaced else ""

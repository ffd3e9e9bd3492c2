"""What commands write besides models: rules files and pages, each with a name of its kind."""

from __future__ import annotations

from pathlib import Path

import click


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

"""Docstrings have `Example:`; the parser of the site knows `Examples:` as code."""

from __future__ import annotations

import re
from typing import Any

import griffe

TITLE = re.compile(r"^Example:$", re.M)


class ExampleSections(griffe.Extension):
    """Lets the site show the example of a docstring as code."""

    def on_object(self, *, obj: Any, **rest: Any) -> None:
        """Change the docstring of one object, as it is read."""
        if obj.docstring is not None:
            obj.docstring.value = TITLE.sub("Examples:", obj.docstring.value)

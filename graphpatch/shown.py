"""Text of others as a terminal may show it: names come from models, and models from anywhere."""

from __future__ import annotations

import json
import re
from typing import Any

# Control characters, marks that change the direction or are not seen, half surrogates, and what
# some terminals take for the end of a line. Tabs and line feeds do no harm by themselves.
OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff]"
)

ROOM_TO_COUNT = 60  # characters in which what is left out is told
AROUND = 100  # characters of a long text that are shown around a column
LONGEST_LINE = 4_000  # characters of a message, or of one line of a report


def shown(text: str, most: int | None = None) -> str:
    """Return the text with each character that a terminal would obey written as its escape.

    Line feeds stay. Of a text of more than `most` characters, the start and the end are left.
    """
    if most is None:
        return OBEYED.sub(_escape, text)
    # An escape has up to ten characters: what was cut may be too long again.
    return _cut(OBEYED.sub(_escape, _cut(text, most)), most + ROOM_TO_COUNT)


def one_line(text: str) -> str:
    """The same, with line feeds escaped too: a name in a list cannot pass for a line of it."""
    if len(text) <= LONGEST_LINE and text.isascii() and text.isprintable():
        return text  # as most names are
    return shown(text, LONGEST_LINE).replace("\n", "\\n")


def pointed(text: str, column: int) -> str:
    """Two lines: the text around a column (from 1), and a caret under it."""
    start = max(0, column - 1 - AROUND // 2)
    around = "".join(" " if character.isspace() else character for character in text)
    return f"  {around[start : start + AROUND]}\n  {' ' * (column - 1 - start)}^"


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    start, end = most * 3 // 4, most // 4
    left_out = f" ... {len(text) - start - end} characters left out ... "
    return text[:start] + left_out + text[-end:]


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


def json_text(document: Any, **layout: Any) -> str:
    """Return a JSON document in ASCII that all readers take, browsers too; see `finite`."""
    try:
        return json.dumps(document, allow_nan=False, **layout)
    except ValueError:
        return json.dumps(finite(document), allow_nan=False, **layout)


def finite(value: Any) -> Any:
    """Return a value whose NaN and infinities, which JSON has not, are texts as in protobuf's."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if not isinstance(value, float) or abs(value) < float("inf"):
        return value
    return "NaN" if value != value else f"{'-' * (value < 0)}Infinity"

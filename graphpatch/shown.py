"""Text of others as a terminal may show it: names come from models, and models from anywhere."""

from __future__ import annotations

import re

# Control characters, marks that change the direction or are not seen, half surrogates, and what
# some terminals take for the end of a line. Tabs and line feeds do no harm by themselves.
OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff]"
)

LONG = 4_000  # characters of a message, or of one line of a report


def shown(text: str, most: int | None = None) -> str:
    """The text with each character that a terminal would obey written as its escape.

    Line feeds stay. Of a text of more than `most` characters, the start and the end are left.
    """
    if most is not None and len(text) > most:
        start, end = most * 3 // 4, most // 4
        left_out = f" ... {len(text) - start - end} characters left out ... "
        text = text[:start] + left_out + text[-end:]
    return OBEYED.sub(_escape, text)


def one_line(text: str) -> str:
    """The same, with line feeds escaped too: a name in a list cannot pass for a line of it."""
    return shown(text, LONG).replace("\n", "\\n")


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()

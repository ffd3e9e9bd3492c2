"""What people are shown: texts of models, safe to print; counts, lists and tables; JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence, Sized
from operator import attrgetter
from typing import Any, ClassVar

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
    """Return the same, with line feeds escaped: a name in a list cannot pass for a line."""
    if len(text) <= LONGEST_LINE and text.isascii() and text.isprintable():
        return text  # as most names are
    return shown(text, LONGEST_LINE).replace("\n", "\\n")


def pointed(text: str, column: int) -> str:
    """Return two lines: the text around a column (from 1), and a caret under it."""
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


IN_MESSAGE = 3  # things that a message names before "and 2 more"
IN_LIST = 20  # rows of a table, lines of a list


def html_table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a title and a table, every text escaped; of many rows the first, and how many."""
    lines = [_row(header, "th"), *(_row(row, "td") for row in rows[:IN_LIST])]
    if more := and_more(rows, IN_LIST):
        lines.append(f'<tr><td colspan="{len(header)}">{more}</td></tr>')
    body = f"<table>{''.join(lines)}</table>" if rows else ""
    return f"<div><p>{_escaped(title)}</p>{body}</div>"


def beside(table: str, more: str) -> str:
    """Return a table, and another below it where there is one."""
    return f"<div>{table}{more}</div>" if more else table


def _row(cells: Sequence[object], tag: str) -> str:
    written = (f"<{tag}>{_escaped(str(cell))}</{tag}>" for cell in cells)
    return f"<tr>{''.join(written)}</tr>"


def _escaped(text: str) -> str:
    from html import escape  # a command has no tables: it does without

    return escape(text)


def plural(count: int, word: str) -> str:
    """Write `1 op`, `2 ops`, `2 matches`."""
    ending = "" if count == 1 else "es" if word.endswith("ch") else "s"
    return f"{count:,} {word}{ending}"


def short(texts: Sequence[str], most: int = IN_MESSAGE, by: str = ", ") -> str:
    """Return the first of some texts, and how many more there are."""
    return by.join(texts[:most]) + (f" {more}" if (more := and_more(texts, most)) else "")


def cut_short(text: str, most: int) -> str:
    """Return the start of a text of more characters than these, which ends in three dots then."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def path_in_words(tensors: Sequence[str], most: int) -> str:
    """Write `a -> b -> c`; of a long path the tensors at both ends, and how many lie between."""
    if len(tensors) > most:
        half, hidden = most // 2, len(tensors) - most
        tensors = [*tensors[:half], f"... {hidden:,} more ...", *tensors[-half:]]
    return " -> ".join(tensors)


def and_more(sized: Sized, shown: int) -> str:
    """Write `and 2 more` where fewer are shown than were found, or nothing."""
    return f"and {len(sized) - shown:,} more" if len(sized) > shown else ""


class Document:
    """A value that `--json` prints, with the attributes that `keys` names, in their order.

    `key=attribute` is for an attribute that the JSON calls otherwise; `attribute` may have dots.
    `key?` is left out where it is empty.
    """

    __slots__ = ()
    keys: ClassVar[str]

    def document(self) -> dict[str, Any]:
        """Return the value as `--json` prints it."""
        return document_of(self, self.keys)


def document_of(value: object, keys: str) -> dict[str, Any]:
    """Return a JSON object with these attributes of a value, written as in `Document.keys`."""
    document = {}
    for text in keys.split():
        key, _, attribute = text.partition("=")
        item = attrgetter(attribute or key.rstrip("?"))(value)
        if item or not key.endswith("?"):
            document[key.rstrip("?")] = _as_json(item)
    return document


def _as_json(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [item.document() if isinstance(item, Document) else item for item in value]
    return value.document() if isinstance(value, Document) else value

"""Counts and lists in words, and a small HTML table, as a notebook shows a value."""

from __future__ import annotations

from collections.abc import Sequence, Sized

IN_MESSAGE = 3  # things that a message names before "and 2 more"
IN_LIST = 20  # rows of a table, lines of a list


def html_table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A title and a table under it, every text escaped; of many rows the first, and how many."""
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
    """`1 op`, `2 ops`, `2 matches`."""
    ending = "" if count == 1 else "es" if word.endswith("ch") else "s"
    return f"{count:,} {word}{ending}"


def short(texts: Sequence[str], most: int = IN_MESSAGE, by: str = ", ") -> str:
    """Return the first of some texts, and how many more there are."""
    return by.join(texts[:most]) + (f" {more}" if (more := and_more(texts, most)) else "")


def cut_short(text: str, most: int) -> str:
    """Return the start of a text of more characters than these, which ends in three dots then."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def path_in_words(tensors: Sequence[str], most: int) -> str:
    """`a -> b -> c`; of a long path the tensors at both ends, and how many lie between."""
    if len(tensors) > most:
        half, hidden = most // 2, len(tensors) - most
        tensors = [*tensors[:half], f"... {hidden:,} more ...", *tensors[-half:]]
    return " -> ".join(tensors)


def and_more(sized: Sized, shown: int) -> str:
    """`and 2 more` where fewer are shown than were found, or nothing."""
    return f"and {len(sized) - shown:,} more" if len(sized) > shown else ""

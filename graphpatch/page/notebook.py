"""The part of a page that is about one value, as a notebook shows it: a small table with lanes.

It has no script, as notebooks take scripts out. Lines in between are one row, `... 12 ops`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from graphpatch.application import page_part
from graphpatch.errors import GraphpatchError
from graphpatch.formats import Model
from graphpatch.page.body_flow import LaneFlow
from graphpatch.page.document import built_document
from graphpatch.page.rule_marks import SELECTED, RuleMarks
from graphpatch.page.view import view
from graphpatch.selection import page_part_of_ops
from graphpatch.table import plural

TENSORS = 12  # rows
MOST_LANES = 8  # columns of lanes
LARGEST_MODEL = 5_000  # nodes of a model that is looked at only to be shown
HEIGHT, PITCH = 22, 12
ANSWER_WORDS = ("not there", "none", "zero", "full", "changed", "ends here", "error")
DASHES = ' stroke-dasharray="2 3"'
INK = {
    LaneFlow.FULL: "#2563eb",
    LaneFlow.CHANGED: "#b45309",
    LaneFlow.BLOCKED: "#c4162a",
    LaneFlow.ERROR: "#c4162a",
}


def part_of_model(
    model: Model, patched: Model | None, sources: Sequence[str], targets: Sequence[str]
) -> str:
    """The part about a model, or a patched one beside its original, as `view` shows it."""
    return _lines_table(
        model, lambda: view(model, patched, sources=sources, targets=targets).document()
    )


def part_of_selection(model: Model, names: Mapping[tuple[int, str, str], None]) -> str:
    """The part about some ops of a model: the graph's place, the body, the name of each."""
    marks = RuleMarks({SELECTED: None})
    for place, body, op in names:
        marks.at.setdefault(place, {})[body, op] = (SELECTED,)
    return _lines_table(model, lambda: built_document([model], marks, [], []).document)


def _lines_table(model: Model, document: Callable[[], dict[str, Any]]) -> str:
    """A table of the main graph's lines; nothing for a large model, and for one without a page."""
    if model.node_count > LARGEST_MODEL:
        return ""
    try:
        return _table(document())
    except GraphpatchError:  # the value itself says what is wrong with the model
        return ""


def _table(document: Mapping[str, Any]) -> str:
    body = document["bodies"][document["graphs"][0]["body"]]
    rows = _line_rows(body, document)
    if not any(kept for _, _, kept in rows):
        return ""
    drawn = [_table_row(document, body, rows, number) for number in range(len(rows))]
    heads = ["before", "after"] if len(body["sides"]) > 1 else [""]
    header = "".join(
        f"<th>{escape(one)}</th>" for one in [*heads, "op type", "name", "what flows back"]
    )
    return f"<table><tr>{header}</tr>{''.join(drawn)}</table>"


def _line_rows(body: Mapping[str, Any], document: Mapping[str, Any]) -> list[tuple[int, int, bool]]:
    """Stretches of lines, each a row: its first and last line, whether it is one to be shown."""
    findings = document["tables"]["findings"]
    on_path = [
        row for row, some in body["findings"].items() if any(findings[n]["on_path"] for n in some)
    ]
    ends = [min(body["ends"]), max(body["ends"])] if body["ends"] else []
    wanted = sorted({*list(body["marks"])[:TENSORS], *on_path[:TENSORS], *ends})
    rows, at = [], 0
    for line in wanted:
        if line > at:
            rows.append((at, line - 1, False))
        rows.append((line, line, True))
        at = line + 1
    return [*rows, (at, len(body["names"]) - 1, False)] if at < len(body["names"]) else rows


def _table_row(
    document: Mapping[str, Any],
    body: Mapping[str, Any],
    rows: Sequence[tuple[int, int, bool]],
    number: int,
) -> str:
    first, last, kept = rows[number]
    cells = [_lanes(side, rows, number) for side in body["sides"]]
    if not kept:
        count = last - first + 1
        texts = ["", f"... {plural(count, 'op')}", ""]
    else:
        flows = [ANSWER_WORDS[side["flow"][first]] for side in body["sides"]]
        marks = ", ".join(document["rules"][n]["name"] for n in body["marks"].get(first, ()))
        words = " → ".join(dict.fromkeys(flows)) + (f" ({marks})" if marks else "")
        texts = [document["tables"]["types"][body["types"][first]], body["names"][first], words]
    cells += [f"<td>{escape(text)}</td>" for text in texts]
    return f"<tr>{''.join(cells)}</tr>"


def _lanes(side: Mapping[str, Any], rows: Sequence[tuple[int, int, bool]], number: int) -> str:
    """The lanes of a row as a picture."""
    first, _, kept = rows[number]
    row_of = {line: place for place, (a, b, _) in enumerate(rows) for line in range(a, b + 1)}
    lines = [
        f'<path d="M{_x(a)} {p}L{_x(b)} {q}" stroke="{INK.get(LaneFlow(flow), "#8b949e")}"'
        f' stroke-width="2"{"" if flow > LaneFlow.ZERO else DASHES}></path>'
        for a, p, b, q, flow in dict.fromkeys(_pieces(side, row_of, rows, number))
    ]
    flow = LaneFlow(side["flow"][first])
    if kept and flow != LaneFlow.ABSENT:
        fill = INK.get(flow, "#ffffff")
        lines.append(
            f'<circle cx="{_x(side["columns"][first])}" cy="{HEIGHT // 2}" r="4" fill="{fill}"'
            f' stroke="{INK.get(flow, "#8b949e")}"></circle>'
        )
    width = PITCH * min(MOST_LANES, max(side["columns"]) + 1)
    return f'<td><svg width="{width}" height="{HEIGHT}">{"".join(lines)}</svg></td>'


def _pieces(
    side: Mapping[str, Any],
    row_of: Mapping[int, int],
    rows: Sequence[tuple[int, int, bool]],
    number: int,
) -> Iterator[tuple[int, int, int, int, int]]:
    """The strokes of a row: column and height of both ends, and what flows."""
    knots = [side["columns"][first] for first, _, _ in rows]
    for reader, edges in enumerate(side["edges"]):
        for producer, flow in zip(edges[::2], edges[1::2], strict=True):
            begin, end, lane = row_of[reader], row_of[producer], side["columns"][producer]
            if begin < number < end:
                yield lane, 0, lane, HEIGHT, flow
            elif begin == number < end:
                yield knots[begin], HEIGHT // 2, lane, HEIGHT, flow
            elif begin < number == end:
                yield lane, 0, knots[end], HEIGHT // 2, flow


def _x(column: int) -> int:
    return PITCH // 2 + PITCH * max(0, min(column, MOST_LANES - 1))


page_part.is_for(part_of_model)
page_part_of_ops.is_for(part_of_selection)

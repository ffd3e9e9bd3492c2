"""The part of a page that is about one value, as a notebook shows it: a small table.

It has no script, as notebooks take scripts out; so it has no lanes, which the script draws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from graphpatch.application import page_part
from graphpatch.errors import GraphpatchError
from graphpatch.formats import Model
from graphpatch.page.document import built_document
from graphpatch.page.marks import SELECTED, RuleMarks
from graphpatch.page.view import view
from graphpatch.selection import page_part_of_ops
from graphpatch.shown import plural, short

MOST_ROWS = 40  # ops that rules are at, and as many at which a gradient ends
MOST_ENDS = 12  # inputs, outputs
LARGEST_MODEL = 5_000  # nodes of a model that is looked at only to be shown
FLOW_WORDS = ("not there", "none", "zero", "full", "changed", "ends here", "error")


def part_of_model(
    model: Model, patched: Model | None, sources: Sequence[str], targets: Sequence[str]
) -> str:
    """Return the part about a model, or a patched one beside its original, as `view` shows it."""
    return _lines_table(
        model, lambda: view(model, patched, sources=sources, targets=targets).document()
    )


def part_of_selection(model: Model, names: Mapping[tuple[int, str, str], None]) -> str:
    """Return the part about some ops of a model: the graph's place, the body, the name of each."""
    marks = RuleMarks({SELECTED: None})
    for place, body, op in names:
        marks.mark(place, body, op, (SELECTED,))
    return _lines_table(model, lambda: built_document([model], marks, [], [])[0])


def _lines_table(model: Model, document: Callable[[], dict[str, Any]]) -> str:
    """Return a table of the main graph's lines; nothing for a large model or one without a page."""
    if model.node_count > LARGEST_MODEL:
        return ""
    try:
        return _table(document())
    except GraphpatchError:  # the value itself says what is wrong with the model
        return ""


def _table(document: Mapping[str, Any]) -> str:
    body, tables = document["bodies"][document["graphs"][0]["body"]], document["tables"]
    findings = {row: [tables["findings"][n] for n in of] for row, of in body["findings"].items()}
    on_path = [row for row, some in findings.items() if any(each["on_path"] for each in some)]
    rows = sorted({*list(body["marks"])[:MOST_ROWS], *on_path[:MOST_ROWS], *body["ends"]})
    if not rows:
        return ""
    heads = ["before", "after"] if len(body["sides"]) > 1 else ["what flows back"]
    lines = [_row("th", [*heads, "op type", "name", ""])]
    for row in rows:
        flows = [FLOW_WORDS[side["flow"][row]] for side in body["sides"]]
        marks = [document["rules"][n]["name"] for n in body["marks"].get(row, ())]
        why = [each["what"] for each in findings.get(row, ())[:1]]
        about = ", ".join([*filter(None, [body["ends"].get(row)]), *marks, *why])
        type_name = tables["types"][body["types"][row]]
        lines.append(_row("td", [*flows, type_name, body["names"][row], about]))
    of_rules, more = len(body["marks"].keys() - rows), len(body["names"]) - len(rows)
    among = f", {of_rules:,} of them with a rule" if of_rules else ""
    note = f"<p>and {plural(more, 'more op')} between these ends{among}</p>" if more else ""
    ends = "".join(_ends_line(document["graphs"][0], key) for key in ("inputs", "outputs"))
    return f"{ends}<table>{''.join(lines)}</table>{note}"


def _row(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _ends_line(graph: Mapping[str, Any], key: str) -> str:
    """Return a line with the model's inputs or outputs, of many the first; nothing without any."""
    tensors = [
        " ".join(filter(None, (end["name"], end["tensor"], end["signature"]))) for end in graph[key]
    ]
    return f"<p>{key}: {escape(short(tensors, MOST_ENDS))}</p>" if tensors else ""


page_part.is_for(part_of_model)
page_part_of_ops.is_for(part_of_selection)

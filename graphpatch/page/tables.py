"""The tables that a page is drawn from: one of each body, and what many lines share.

Of a body it has columns of values with one for each line, and mappings by line for what few lines
have. The page's script orders the lines, folds them and draws their lanes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from graphpatch.analysis.doctor.causes import Finding
from graphpatch.differentiation.shapes import Shapes, merged_shape, sizes_in_words
from graphpatch.differentiation.wiring import Form, Wiring
from graphpatch.graph import attrs, provenance
from graphpatch.graph.node import COLOCATION, Node, attr_value
from graphpatch.graph.op_types import VARIABLES
from graphpatch.page.curves import ALPHA, plot
from graphpatch.page.lines import ABSENT, BodySide
from graphpatch.shown import one_line

LARGE_ATTR = 1 << 10  # bytes of an attr from which on it is not shown
MOST_SHAPES = 10_000  # lines of a body whose shapes are inferred


class Tables:
    """What many lines share, each value once: a line has the number of its value in its table.

    `rules` are those that are marked, by name, as a rules file has them.
    """

    def __init__(self, rules: Mapping[str, Any]) -> None:
        self.rules = rules
        self.rule_numbers = {name: number for number, name in enumerate(rules)}
        names = ("types", "tensors", "attrs", "findings", "plots")
        self.values: dict[str, list[Any]] = {name: [] for name in names}
        self._numbers: dict[tuple[str, str], int] = {}
        self._of_form: dict[Form, int] = {}
        self._plotted: dict[tuple[str, str, float], int | None] = {}

    def number(self, table: str, value: Any) -> int:
        """Return the number of a value in a table."""
        key = table, value if isinstance(value, str) else json.dumps(value)
        if key not in self._numbers:
            self._numbers[key] = len(self.values[table])
            self.values[table].append(value)
        return self._numbers[key]

    def column(self, table: str, texts: Sequence[str]) -> list[int]:
        """Return the number of each of these texts in a table."""
        numbers = {text: self.number(table, text) for text in dict.fromkeys(texts)}
        return [numbers[text] for text in texts]

    def attrs_of(self, wiring: Wiring, index: int) -> int:
        """Return the number of an op's attrs, in plain values; -1 for an argument."""
        if index < 0:
            return -1
        form = wiring.form(index)
        if form not in self._of_form:
            self._of_form[form] = self.number("attrs", _plain_attrs(Node(wiring.body, index)))
        return self._of_form[form]

    def finding(self, finding: Finding, is_on_path: bool) -> int:
        """Return the number of what doctor says of an op; on a path asked about, with its rule."""
        document = {**_safe_texts(finding.document()), "on_path": is_on_path}
        return self.number("findings", document if is_on_path else {**document, "rule": None})

    def plot(self, rule: str, op_type: str, attrs: int = -1) -> int | None:
        """Return the number of the curves of an op, before and after a rule, if any."""
        alpha = self.values["attrs"][attrs].get("alpha") if attrs >= 0 else ALPHA
        alpha = alpha if isinstance(alpha, float) else ALPHA
        key = rule, op_type, alpha
        if key not in self._plotted:
            patch = (self.rules.get(rule) or {}).get("patch")
            curves = None if rule and not patch else plot(patch, op_type, alpha)
            self._plotted[key] = None if curves is None else self.number("plots", curves)
        return self._plotted[key]

    def defaults(self) -> dict[str, int]:
        """Return the number of the curves of TensorFlow's default gradient, by op type."""
        numbers = {op: self.plot("", op) for op in self.values["types"]}
        return {op: number for op, number in numbers.items() if number is not None}


def body_table(
    sides: Sequence[BodySide],
    tables: Tables,
    blamed: Mapping[str, Sequence[Finding]],
    numbers: Mapping[str, int],
) -> dict[str, Any]:
    """Return a body as the page reads it.

    `blamed` are doctor's findings on the paths that were asked about, by op; `numbers` those of the
    functions that have lines of their own. What a line is about is that of the last side that has
    it, as it is after a patch.
    """
    rows = sides[0].rows
    last = {row: side for side in sides for row in side.nodes}
    heads = {row: side.heads[row] for row, side in last.items()}
    lines = [(last[row], heads[row]) for row in rows.values()]
    ops = [_type(side, head) for side, head in lines]
    shown_ops = {op: one_line(op) for op in dict.fromkeys(ops)}
    types = [shown_ops[op] for op in ops]
    rules = {row: names for side in sides for row, names in side.rules_by_row.items()}
    frozen = sides[-1].unchanged
    attrs = [tables.attrs_of(side.wiring, head) for side, head in lines]
    drawn = {row: "" for row, op in enumerate(ops) if op == "LeakyRelu"}  # each by its alpha
    drawn |= {row: "" if row in frozen else names[-1] for row, names in rules.items()}
    plots = {row: tables.plot(name, types[row], attrs[row]) for row, name in drawn.items()}
    calls = {
        row: list(dict.fromkeys(numbers[name] for name in names if name in numbers))
        for side in (sides if numbers else ())
        for row, names in side.called().items()
    }
    several = [row for row, side in last.items() if len(side.nodes[row]) > 1]
    return {
        "name": one_line(sides[0].body.label),
        "names": [one_line(key.lstrip("+")) for key in rows],
        "types": tables.column("types", types),
        "tensors": _tensors(sides, tables, len(rows)),
        "attrs": attrs,
        "inputs": [_inputs(side, head) for side, head in lines],
        "variables": [
            row
            for key, row in rows.items()
            if key not in blamed and row not in rules
            if ops[row] in VARIABLES
            or (heads[row] < 0 and last[row].wiring.dtype((heads[row], 0)) == "resource")
        ],
        "marks": {
            row: sorted(tables.rule_numbers[name] for name in names if name in tables.rules)
            for row, names in sorted(rules.items())
        },
        "findings": _findings(sides, tables, blamed),
        "ends": _ends(sides),
        "calls": {row: called for row, called in calls.items() if called},
        "carried": {row: _nodes(last[row], row) for row in frozen.union(several)},
        "plots": {row: number for row, number in plots.items() if number is not None},
        "sides": [  # lines that one has not are absent
            {
                "flow": [side.flow.get(row, ABSENT) for row in rows.values()],
                "arrives": [side.arrives.get(row, ABSENT) for row in rows.values()],
                "edges": [[*chain(*side.edges.get(row, {}).items())] for row in rows.values()],
            }
            for side in sides
        ],
    }


def _type(side: BodySide, head: int) -> str:
    """Return the op type, that before a rule where one put the op into a function."""
    if head in side.before:
        return side.before[head].op
    return side.body.heads.ops[head] if head >= 0 else "argument"


def _tensors(sides: Sequence[BodySide], tables: Tables, count: int) -> list[int]:
    """Return what lines give first: the dtype, and the shape as far as either side knows it."""
    dtypes = [""] * count
    shapes: list[list[Any]] = [[] for _ in range(count)]
    for side in sides:
        known = Shapes(side.wiring) if len(side.nodes) <= MOST_SHAPES else None
        for row, head in side.heads.items():
            dtypes[row] = side.wiring.form(head).dtypes.get(0) or dtypes[row]
            if known is not None and head >= 0:
                shapes[row].append(known.of((head, 0)))
    merged = (merged_shape(of_row) if of_row else None for of_row in shapes)
    words = [
        dtype if shape is None else f"{dtype} {sizes_in_words(shape)}"
        for dtype, shape in zip(dtypes, merged, strict=True)
    ]
    return tables.column("tensors", words)


def _inputs(side: BodySide, head: int) -> list[int | str | list[int | str]]:
    """Return what an op reads: the rows of lines, with the tensor where that is not output 0.

    Of what is not in view, the names; control inputs come last.
    """
    read: list[int | str | list[int | str]] = []
    line_of = side.line_of
    texts = side.body.heads.inputs[head] if head >= 0 else ()
    controls = [one_line(text) for text in texts if text[:1] == "^"]
    texts = [text for text in texts if text[:1] != "^"] if controls else texts
    for text, (producer, output) in zip(texts, side.wiring.inputs(head), strict=True):
        row = line_of.get(producer)
        read.append(one_line(text) if row is None else [row, one_line(text)] if output else row)
    return [*read, *controls]


def _findings(
    sides: Sequence[BodySide], tables: Tables, blamed: Mapping[str, Sequence[Finding]]
) -> dict[int, list[int]]:
    """Return what doctor says of lines where a gradient ends, and of those that it blames."""
    findings: dict[int, list[int]] = {}
    on_path = {sides[0].rows[op]: blames for op, blames in blamed.items() if op in sides[0].rows}
    for side in sides:
        for row, finding in side.findings.items():
            if row not in on_path:
                findings.setdefault(row, []).append(tables.finding(finding, False))
    for row, blames in on_path.items():
        first = {finding.what: finding for finding in reversed(blames)}  # of those of all pairs
        findings[row] = [tables.finding(finding, True) for finding in reversed(first.values())]
    return {row: list(dict.fromkeys(findings[row])) for row in sorted(findings)}


def _ends(sides: Sequence[BodySide]) -> dict[int, str]:
    words = ("source", "target") if sides[0].body.is_main else ("input", "output")
    ends: dict[int, str] = {}
    for side in sides:
        for tensors, word in zip((side.sources, side.targets), words, strict=True):
            ends |= dict.fromkeys(side.rows_of(tensors), word)
    return ends


def _nodes(side: BodySide, row: int) -> list[list[str]]:
    """Return the nodes that rules added for an op, and its own: op type and name."""
    indices = [index for index in side.nodes[row] if index >= 0]
    if row in side.unchanged:  # what stands in for an optimizer's op leads to no target
        name = side.wiring.name(indices[0])
        indices += [index for index, record in side.touched.items() if record.patched == name]
    ops, names = side.body.heads.ops, side.body.heads.names
    return [[one_line(ops[index]), one_line(names[index])] for index in indices]


def _plain_attrs(node: Node) -> dict[str, Any]:
    """Return the attrs of an op as plain values, without large ones and those of records."""
    plain = {}
    for key, span in sorted(node.attr_spans().items()):
        if key not in (provenance.PROVENANCE_ATTR, COLOCATION):
            is_large = span.end - span.start >= LARGE_ATTR
            value = "(large)" if is_large else _safe_texts(attrs.as_json(attr_value(span)))
            plain[one_line(key)] = value
    return plain


def _safe_texts(value: Any) -> Any:
    """Return plain values whose texts are safe to show."""
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, Mapping):
        return {one_line(str(key)): _safe_texts(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_safe_texts(item) for item in value]
    return value

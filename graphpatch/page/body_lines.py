"""The lines of one body as data: what the page draws of the main graph, or of a function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from graphpatch.analysis.doctor.finding import Finding
from graphpatch.differentiation.op_shapes import Sizes, merged_shape
from graphpatch.differentiation.shapes import Shapes
from graphpatch.graph import provenance
from graphpatch.graph.body import Node
from graphpatch.graph.calls import called_functions
from graphpatch.names import op_of
from graphpatch.page.folds import folds, lane_columns
from graphpatch.page.line_order import in_reading_order
from graphpatch.page.sides import BodySide, OpLine, head, mark_changed
from graphpatch.page.tables import Tables, tensor_text
from graphpatch.shown import one_line

MOST_SHAPES = 10_000  # lines of a body whose shapes are inferred
Findings = Mapping[str, Sequence[Finding]]


class LineHead(NamedTuple):
    """What a line is about: of the last side that has it, as it is after a patch."""

    side: BodySide
    line: OpLine
    node: Node | None  # none for an argument of a function
    place: int  # the index of the node


@dataclass(eq=False)
class BodyLines:
    """A body of one model, or of two, whose lines stand beside each other."""

    sides: Sequence[BodySide]
    order: list[str]
    rows: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rows = {key: row for row, key in enumerate(self.order)}

    @cached_property
    def heads(self) -> list[LineHead]:
        """What each line is about, in their order."""
        return list(map(self._head, self.order))

    def _head(self, key: str) -> LineHead:
        return next(self.heads_of(key))

    def heads_of(self, key: str) -> Iterator[LineHead]:
        """What a line is about on each side that has it, the last side first."""
        for side in reversed(self.sides):
            line = side.lines.get(key)
            if line is not None:
                node = head(side, line)
                yield LineHead(side, line, node, line.nodes[0] if node is None else node.index)


def lines(sides: Sequence[BodySide], is_applied: bool) -> BodyLines:
    """The lines of one or two sides in one order, which is right for both.

    `is_applied`: what the rules at ops say is done; else they mark ops alone.
    """
    reads: dict[str, list[str]] = {}
    for side in reversed(sides):
        for key, line in side.lines.items():
            both = dict.fromkeys(reads[key]) | line.reads if key in reads else line.reads
            reads[key] = list(both)
    starts = [key for side in sides for key in side.targets()]
    order = in_reading_order(reads, starts, {key: key.lstrip("+") for key in reads})
    for side in sides if is_applied else ():
        mark_changed(side, order)
    return BodyLines(sides, order)


def body_document(
    found: BodyLines,
    tables: Tables,
    rules: Mapping[str, Any],
    told: Findings,
    numbers: Mapping[str, int],
) -> dict[str, Any]:
    """A body as the page reads it: columns of values, one for each line, and what few lines have.

    `told` are doctor's findings on the paths that were asked about, by op; `numbers` those of the
    functions that have lines of their own.
    """
    names = [key.lstrip("+") for key in found.order]
    marks = _marks(found, rules)
    findings = _findings(found, tables, told)
    ends = _end_rows(found)
    on_path = {
        row
        for row, some in findings.items()
        if any(tables.findings.values[n]["on_path"] for n in some)
    }
    shown = {*marks, *ends, *on_path}
    shapes = {side: _shapes(side) for side in found.sides}
    heads = found.heads
    return {
        "name": one_line(found.sides[0].body.label),
        "names": list(map(one_line, names)),
        "types": _type_numbers(heads, tables),
        "tensors": [tables.tensors.number(_tensor_text(found, shapes, one)) for one in heads],
        "attrs": [_form_of(tables, one) for one in heads],
        "inputs": [_input_rows(found, one) for one in heads],
        "marks": marks,
        "findings": findings,
        "ends": ends,
        "calls": _calls_by_row(found, numbers),
        "carried": _carried(found),
        "plots": _plots(found, tables, rules),
        "folds": [
            [one.first, one.last, one.depth, one_line(one.name), int(one.is_open)]
            for one in folds(names, shown)
        ],
        "sides": [_side(found, side) for side in found.sides],
    }


def _shapes(side: BodySide) -> Shapes | None:
    """The shapes of a body's tensors; None for a body that is too large to infer them."""
    return Shapes(side.flowing.wiring) if len(side.lines) <= MOST_SHAPES else None


def _side(found: BodyLines, side: BodySide) -> dict[str, Any]:
    there = [side.lines.get(key) for key in found.order]
    reads = [None if line is None else [found.rows[key] for key in line.reads] for line in there]
    return {
        "columns": lane_columns(reads),
        "flow": [int(line.flow) if line is not None else 0 for line in there],
        "arrives": [int(line.arrives) if line is not None else 0 for line in there],
        "edges": [
            []
            if line is None
            else [n for key, flow in line.reads.items() for n in (found.rows[key], int(flow))]
            for line in there
        ],
    }


def _type_shown(node: Node | None) -> str:
    """The op type, that before a rule where one put the op into a function."""
    if node is None:
        return "argument"
    return provenance.original_type(node)


def _type_numbers(heads: Sequence[LineHead], tables: Tables) -> list[int]:
    """The numbers of the op types of lines."""
    types = [_type_shown(node) for _, _, node, _ in heads]
    numbers = {one: tables.types.number(one_line(one)) for one in dict.fromkeys(types)}
    return [numbers[one] for one in types]


def _tensor_text(found: BodyLines, shapes: Mapping[BodySide, Shapes | None], one: LineHead) -> str:
    """The dtype and shape of what a line gives first, as far as either side knows them."""
    heads = [one] if len(found.sides) == 1 else list(found.heads_of(one.line.key))
    dtypes = (one.side.flowing.wiring.dtype((one.place, 0)) for one in heads)
    known = (_line_shape(shapes[one.side], one.place) for one in heads)
    return tensor_text(next(filter(None, dtypes), ""), merged_shape(list(known)))


def _line_shape(shapes: Shapes | None, place: int) -> Sizes:
    return shapes.of((place, 0)) if place >= 0 and shapes is not None else None


def _form_of(tables: Tables, one: LineHead) -> int:
    return -1 if one.node is None else tables.form(one.side.flowing.wiring, one.place)


def _input_rows(found: BodyLines, one: LineHead) -> list[int | str | list[int | str]]:
    """What an op reads: the rows of lines, with what is read of them where that is not output 0.

    Of what is not in view, the names.
    """
    if one.node is None:
        return []
    by_name, rows = one.node.body.by_name, found.rows
    read: list[int | str | list[int | str]] = []
    for text in one.node.inputs:
        op = op_of(text)
        index = by_name.get(op)
        row = rows.get(op if index is None else one.side.key(index))
        plain = row is not None and text == op
        read.append(one_line(text) if row is None else row if plain else [row, one_line(text)])
    return read


def _marks(found: BodyLines, rules: Mapping[str, Any]) -> dict[int, list[int]]:
    places = {name: place for place, name in enumerate(rules)}
    marks: dict[int, list[int]] = {}
    for key in {key for side in found.sides for key in side.rules}:
        named = [rule for side in found.sides for rule in side.rules.get(key, ())]
        if key in found.rows:
            marks[found.rows[key]] = sorted({places[rule] for rule in named if rule in places})
    return dict(sorted(marks.items()))


def _end_rows(found: BodyLines) -> dict[int, str]:
    first, last = ("source", "target") if found.sides[0].body.is_main else ("input", "output")
    sources = {key: first for side in found.sides for key in side.sources()}
    targets = {key: last for side in found.sides for key in side.targets()}
    both = {**sources, **targets}
    return {found.rows[key]: end for key, end in both.items() if key in found.rows}


def _findings(found: BodyLines, tables: Tables, told: Findings) -> dict[int, list[int]]:
    """What doctor says of lines: of those where a gradient ends, and of those that it blames."""
    own: dict[str, list[Finding]] = {key: [] for key in told}
    for side in found.sides:
        for key, line in side.lines.items():
            if line.finding is not None:
                own.setdefault(key, []).append(line.finding)
    findings: dict[int, list[int]] = {}
    for row, key in sorted((found.rows[key], key) for key in own if key in found.rows):
        named = told.get(key) or own[key]
        numbers = [tables.finding(one, key in told) for one in named]
        findings[row] = list(dict.fromkeys(numbers))
    return findings


def _calls_by_row(found: BodyLines, numbers: Mapping[str, int]) -> dict[int, list[int]]:
    """The functions that ops call, as far as they have lines of their own."""
    calls: dict[int, list[int]] = {}
    for row, (_, _, node, _) in enumerate(found.heads) if numbers else ():
        inside = (
            [numbers[name] for name in called_functions(node) if name in numbers] if node else []
        )
        if inside:
            calls[row] = inside
    return calls


def _carried(found: BodyLines) -> dict[int, list[list[str]]]:
    """The nodes that rules added for an op: op type and name."""
    carried = {}
    for row, (side, line, _, _) in enumerate(found.heads):
        if len(line.nodes) > 1 or line.rules:
            nodes = [Node(side.body, index) for index in line.nodes if index >= 0]
            added = [[one_line(node.op), one_line(node.name)] for node in nodes]
            if len(added) > 1:
                carried[row] = added
    return carried


def _plots(found: BodyLines, tables: Tables, rules: Mapping[str, Any]) -> dict[int, int]:
    """The curves of ops that rules are at; of others the op type tells."""
    plots = {}
    has_rules = any(one.rules for one in found.sides)
    for row, (_, line, node, _) in enumerate(found.heads) if has_rules else ():
        named = [name for one in found.sides for name in one.rules.get(line.key, ())]
        if named:
            patch = (rules.get(named[-1]) or {}).get("patch")
            number = tables.plot(patch, _type_shown(node)) if patch else None
            if number is not None:
                plots[row] = number
    return plots

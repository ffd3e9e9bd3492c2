"""The lines of a body, one for each op, what flows back through each, and the table of them all.

A patched op is several nodes: its own under another name, a StopGradient, a call. They are one
line, under the name that the op had before; so the lines of a model and of its patched one are the
same, and can stand beside each other.

The table of a body has columns of values, with one for each line, and mappings by line for what few
lines have. The page's script orders the lines, folds them and draws their lanes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from operator import itemgetter
from typing import Any

from graphpatch.analysis.doctor.causes import Finding, OpOnPath, PathStep, finding_of
from graphpatch.differentiation.replay import (
    BackwardPass,
    GradientReplay,
    OpGradientFlow,
    ops_on_paths,
)
from graphpatch.differentiation.shapes import Shapes, merged_shape, sizes_in_words
from graphpatch.differentiation.wiring import Form, Tensor, Wiring
from graphpatch.errors import ModelError
from graphpatch.graph import attrs, provenance
from graphpatch.graph.functions import called_by_op
from graphpatch.graph.node import COLOCATION, Node, attr_value
from graphpatch.graph.op_types import EXITS, LOOPS, VARIABLES
from graphpatch.graph.walk import reached
from graphpatch.page.curves import ALPHA, plot
from graphpatch.shown import one_line

# What flows along a lane, or through an op; the greatest counts where several meet. At BLOCKED a
# gradient comes to the op, and goes no further; at ERROR tf.gradients raises.
ABSENT, NONE, ZERO, FULL, CHANGED, BLOCKED, ERROR = range(7)
NO_ANSWER = OpGradientFlow()
LARGE_ATTR = 1 << 10  # bytes of an attr from which on it is not shown
MOST_SHAPES = 10_000  # lines of a body whose shapes are inferred


@dataclass(eq=False)
class BodySide:
    """A body of one model: its lines by number, and what flows between them.

    `visited` are the ops that tf.gradients visits: it raises at no other, wherever `back` comes.
    `rows` numbers the lines of the body by their keys, in all its models; this side adds its own.
    `nodes` are those of each line, the op itself first; `heads` has the one that a line is about,
    also where rules moved it aside; `line_of` is the line of each node, `before` what an op that a
    rule touched was.
    `edges` has the lines that a line reads, each with what flows back there.
    `is_applied`: what the rules say is done; else they mark ops alone. `changing` are the lines
    with rules that changed what flows back, `unchanged` those where they took a variable out of its
    updates alone.
    """

    answers: GradientReplay
    back: BackwardPass
    visited: Set[int]
    sources: Sequence[Tensor]
    targets: Sequence[Tensor]
    rules: Mapping[str, tuple[str, ...]]  # at ops, by the name that each op had
    rows: dict[str, int]
    is_applied: bool
    nodes: dict[int, list[int]] = field(default_factory=dict)
    heads: dict[int, int] = field(default_factory=dict)
    line_of: dict[int, int] = field(default_factory=dict)
    arrives: dict[int, int] = field(default_factory=dict)
    flow: dict[int, int] = field(default_factory=dict)
    edges: dict[int, dict[int, int]] = field(default_factory=dict)
    findings: dict[int, Finding] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Follow the gradient line by line between the two ends.

        Ops are found by tensors of any dtype, as a path may end in one that carries no gradient.
        Without sources, all that the targets are computed from is in view.
        """
        self.wiring, self.body = self.back.wiring, self.back.wiring.body
        self.touched = self.body.touched()
        self.before = {
            index: provenance.in_model(Node(self.body, index))
            for index, record in self.touched.items()
            if not record.is_added
        }
        keys, name = {index: self._key(index) for index in self.touched}, self.wiring.name
        rows, nodes, line_of = self.rows, self.nodes, self.line_of
        for index in self._ops_in_view():
            line_of[index] = row = rows.setdefault(keys.get(index) or name(index), len(rows))
            nodes.setdefault(row, []).append(index)
        names = list(rows)
        for row, of_row in nodes.items():
            self.heads[row] = of_row[0]
            if len(of_row) > 1:
                of_row.sort(key=lambda index: name(index) != names[row])
                moved = (index for index in of_row if index in self.before)
                self.heads[row] = next(moved, of_row[0])
        self._follow(self._raising())
        self._end_at_errors()
        self.rules_by_row = {rows[op]: rules for op, rules in self.rules.items() if op in rows}
        patched = {line_of[index] for index in self.touched if index in line_of}
        applied = self.rules_by_row if self.is_applied else {}
        self.changing = {row: rules for row, rules in applied.items() if row in patched}
        self.unchanged = applied.keys() - patched
        self._mark_changed()

    def _key(self, index: int) -> str:
        """Return the line of a node that a rule touched: that of the op for which it is there."""
        record = self.touched[index]
        if not record.is_added:
            return self.before[index].name
        patched = "" if record.clone_of else record.patched
        return patched or f"+{self.wiring.name(index)}"

    def _ops_in_view(self) -> Iterable[int]:
        """Return the ops that a target depends on, and that depend on a source if there are any."""
        wiring, starts = self.wiring, [index for index, _ in self.targets]
        if self.sources:
            dependent = wiring.depending_on(self.sources)
            if self.body.is_main and dependent == self.back.within:
                return self.back.between  # those that were looked for already
            return ops_on_paths(wiring, dependent, self.targets)
        return reached(starts, lambda index: [read for read, _ in wiring.inputs(index)])

    def _raising(self) -> dict[int, bool]:
        """Return at which ops tf.gradients raises: in any case, or where they let nothing through.

        In any case at ops of v1 loops, and at the ends of those whose contexts are not there.
        """
        here = self.back.refusals_here()
        refusals = [refusal for refusal in here if refusal.node.index in self.visited]
        raising = {refusal.node.index: False for refusal in refusals}
        if any(refusal.kind == "loop" for refusal in refusals):
            stored, ops = self.answers.stored.in_loops, self.body.heads.ops
            exits = (index for index in self.line_of if index >= 0 and ops[index] in EXITS)
            raising |= {index: True for index in exits if self.wiring.name(index) not in stored}
        inside = (refusal for refusal in refusals if refusal.kind == "loop_inside")
        return raising | {refusal.node.index: True for refusal in inside}

    def _follow(self, raising: Mapping[int, bool]) -> None:
        """Fill in what comes to each line and flows on, and doctor's words where it ends there."""
        line_of, answers, got, live = self.line_of, self.back.answers, self.back.got, self.back.live
        wiring, form_of = self.wiring, self.wiring.form
        tensors_of, inputs_of = wiring.tensors, wiring.inputs
        for row, nodes in self.nodes.items():
            arrives, raises = NONE, False
            reads: dict[int, int] = {}
            self.edges[row] = reads
            outside: tuple[int, int] | None = None  # the first node and slot that reads a line
            for index in nodes:
                tensors, comes = tensors_of(index), FULL
                if live.isdisjoint(tensors):
                    comes = NONE if got.isdisjoint(tensors) else ZERO
                if comes > arrives:
                    arrives = comes
                answer: OpGradientFlow | None = None
                for slot, tensor in enumerate(inputs_of(index)):
                    producer = line_of.get(tensor[0])
                    if producer is None:
                        continue
                    if answer is None:
                        answer = answers.get(index) if comes > NONE else NO_ANSWER
                        answer = answer or self._answer(index)
                    if producer == row:
                        continue
                    if outside is None:
                        outside = index, slot
                    flow = NONE
                    is_given = slot in answer.slots and tensor in got
                    if is_given and tensor[1] in form_of(tensor[0]).carrying:
                        flow = comes
                        if slot in answer.nonzero_from:  # from other outputs come zeros alone
                            outputs = ((index, output) for output in answer.nonzero_from[slot])
                            flow = ZERO if live.isdisjoint(outputs) else FULL
                    if flow > reads.get(producer, ABSENT):
                        reads[producer] = flow
                answer = answer or NO_ANSWER
                if index in raising and comes > NONE:
                    raises = raises or raising[index] or not answer.slots
                if answer.raised:
                    raises = raises or (answer.raises and index in self.visited)
            best = max(reads.values()) if reads else arrives
            ends = BLOCKED if arrives > NONE and best == NONE else min(best, arrives)
            self.arrives[row], self.flow[row] = arrives, ERROR if raises else ends
            if outside is not None and outside[0] >= 0 and (raises or best < arrives):
                step = PathStep(outside[0], 0, outside[1])
                op_on_path = OpOnPath(wiring, step, self.answers.ask(wiring, step.index))
                if op_on_path.is_blocked:
                    self.findings[row] = finding_of(op_on_path)

    def _answer(self, index: int) -> OpGradientFlow:
        """Return what an op answers; nothing where TensorFlow does not ask it."""
        answer = self.back.answers.get(index)
        if answer is None and index in self.back.visited:
            with suppress(ModelError):  # its attrs do not tell its inputs
                answer = self.answers.ask(self.wiring, index)
        return answer or NO_ANSWER

    def _end_at_errors(self) -> None:
        """Let nothing flow on from ops at which tf.gradients raises."""
        errors = [row for row, flow in self.flow.items() if flow == ERROR]
        for row in errors:
            self.edges[row] = dict.fromkeys(self.edges[row], NONE)
        if errors:
            coming = reached(self.rows_of(self.targets), lambda row: self.read_by(row, ZERO))
            for row in self.flow.keys() - coming.keys():
                self.arrives[row] = self.flow[row] = NONE
                self.edges[row] = dict.fromkeys(self.edges[row], NONE)

    def _mark_changed(self) -> None:
        """Tell what a rule changed from what is as it was: at its ops, and from there on."""
        todo = [row for row in self.changing if self.flow.get(row) == FULL]
        for row in todo:
            self.flow[row] = CHANGED
            for read in self.read_by(row, FULL):
                if self.edges[row][read] == FULL and self.flow[read] == FULL:
                    todo.append(read)
                self.edges[row][read] = CHANGED

    def read_by(self, row: int, least: int = ABSENT) -> list[int]:
        """Return the lines that a line reads to which this flows back, or more."""
        return [read for read, flow in self.edges.get(row, {}).items() if flow >= least]

    def op_type(self, head: int) -> str:
        """Return the op type, that before a rule where one put the op into a function."""
        if head in self.before:
            return self.before[head].op
        return self.body.heads.ops[head] if head >= 0 else "argument"

    def carriers(self, row: int) -> list[list[str]]:
        """Return the nodes that rules added for an op, and its own: op type and name."""
        indices = [index for index in self.nodes[row] if index >= 0]
        if row in self.unchanged:  # what stands in for an optimizer's op leads to no target
            name = self.wiring.name(indices[0])
            indices += [index for index, record in self.touched.items() if record.patched == name]
        ops, names = self.body.heads.ops, self.body.heads.names
        return [[one_line(ops[index]), one_line(names[index])] for index in indices]

    def rows_of(self, tensors: Iterable[Tensor]) -> list[int]:
        """Return the lines of those ops of these tensors that are in view."""
        return [self.line_of[index] for index, _ in tensors if index in self.line_of]

    @cached_property
    def called(self) -> dict[int, dict[str, None]]:
        """Return the functions that lines call."""
        by_row: dict[int, dict[str, None]] = {}
        for index, names in called_by_op(self.body).items():
            if index in self.line_of:
                by_row.setdefault(self.line_of[index], {}).update(dict.fromkeys(names))
        return by_row


def lines_on_path(
    main: BodySide, functions: Mapping[str, BodySide], source: Tensor, target: Tensor
) -> dict[str, set[int]]:
    """Return the lines on the path of a gradient, and in functions called there, by body.

    Of a function, those on the path from the outputs that are on the path. The source itself is
    left out: a rule there changes what flows on from it.
    """
    on_path: dict[str, set[int]] = {}

    def calls(asked: tuple[BodySide, frozenset[Tensor]]) -> Iterator[Any]:
        side, targets = asked
        sources = [source] if side is main else side.sources
        rows = _rows_between(side, targets, sources)
        shown = rows.difference(side.rows_of(sources)) if side is main else rows
        on_path.setdefault(side.body.label, set()).update(shown)
        for row, names in side.called.items() if functions else ():
            for inner in (functions[n] for n in names if n in functions and row in shown):
                yield inner, _returned_to(side, row, inner, rows, targets)

    reached([(main, frozenset({target}))], calls)
    return on_path


def _rows_between(side: BodySide, targets: Iterable[Tensor], sources: Iterable[Tensor]) -> set[int]:
    """Return the lines through which what is not always zero flows from targets to sources."""
    readers: dict[int, list[int]] = {}
    for row in reached(side.rows_of(targets), lambda row: side.read_by(row, FULL)):
        for read in side.read_by(row, FULL):
            readers.setdefault(read, []).append(row)
    return set(reached(side.rows_of(sources), lambda row: readers.get(row, ())))


def _returned_to(
    side: BodySide, row: int, inner: BodySide, rows: Set[int], targets: Set[Tensor]
) -> frozenset[Tensor]:
    """Return what a function returns that these lines read; all of it to a loop, which goes on."""
    returned, outputs = inner.wiring.returned, set[int]()
    for index in side.nodes[row]:
        if index >= 0 and side.body.heads.ops[index] in LOOPS:
            return frozenset(returned)
        readers = side.wiring.readers(index)
        outputs |= {output for output, reader in readers if side.line_of.get(reader) in rows}
        outputs |= {output for node, output in targets if node == index}
    return frozenset(returned[output] for output in outputs if output < len(returned))


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
    rows, last = sides[0].rows, {row: side for side in sides for row in side.nodes}
    lines = [(last[row], last[row].heads[row]) for row in rows.values()]
    ops = [side.op_type(head) for side, head in lines]
    shown_ops = {op: one_line(op) for op in dict.fromkeys(ops)}
    rules, frozen = sides[-1].rules_by_row, sides[-1].unchanged
    attrs = [tables.attrs_of(side.wiring, head) for side, head in lines]
    drawn = {row: "" for row, op in enumerate(ops) if op == "LeakyRelu"}  # each by its alpha
    drawn |= {row: "" if row in frozen else names[-1] for row, names in rules.items()}
    plots = {row: tables.plot(name, shown_ops[ops[row]], attrs[row]) for row, name in drawn.items()}
    calls = {
        row: list(dict.fromkeys(numbers[name] for name in names if name in numbers))
        for side in (sides if numbers else ())
        for row, names in side.called.items()
    }
    several = [row for row, side in last.items() if len(side.nodes[row]) > 1]
    words = ("source", "target") if sides[0].body.is_main else ("input", "output")
    ends = [(side.sources, side.targets) for side in sides]
    return {
        "name": one_line(sides[0].body.label),
        "names": [one_line(key.lstrip("+")) for key in rows],
        "types": tables.column("types", [shown_ops[op] for op in ops]),
        "tensors": tables.column("tensors", _tensors(sides, len(rows))),
        "attrs": attrs,
        "inputs": [_inputs(side, head) for side, head in lines],
        "variables": [
            row
            for (key, row), (side, head) in zip(rows.items(), lines, strict=True)
            if key not in blamed and row not in rules
            if ops[row] in VARIABLES or (head < 0 and side.wiring.dtype((head, 0)) == "resource")
        ],
        "marks": {
            row: sorted(tables.rule_numbers[name] for name in names if name in tables.rules)
            for row, names in sorted(rules.items())
        },
        "findings": _findings(sides, tables, blamed),
        "ends": {
            row: word
            for side, tensors in zip(sides, ends, strict=True)
            for word, of_word in zip(words, tensors, strict=True)
            for row in side.rows_of(of_word)
        },
        "calls": {row: called for row, called in calls.items() if called},
        "carried": {row: last[row].carriers(row) for row in frozen.union(several)},
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


def _tensors(sides: Sequence[BodySide], count: int) -> list[str]:
    """Return what lines give first: the dtype, and the shape as far as either side knows it."""
    dtypes, shapes = [""] * count, [list[Any]() for _ in range(count)]
    for side in sides:
        known = Shapes(side.wiring) if len(side.nodes) <= MOST_SHAPES else None
        for row, head in side.heads.items():
            dtypes[row] = side.wiring.form(head).dtypes.get(0) or dtypes[row]
            if known is not None and head >= 0:
                shapes[row].append(known.of((head, 0)))
    merged = (merged_shape(of_row) if of_row else None for of_row in shapes)
    return [
        dtype if shape is None else f"{dtype} {sizes_in_words(shape)}"
        for dtype, shape in zip(dtypes, merged, strict=True)
    ]


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
    on_path = {sides[0].rows[op]: blames for op, blames in blamed.items() if op in sides[0].rows}
    numbered = [
        (row, tables.finding(finding, False))
        for side in sides
        for row, finding in side.findings.items()
        if row not in on_path
    ]
    for row, blames in on_path.items():
        first = {finding.what: finding for finding in reversed(blames)}  # of those of all pairs
        numbered += [(row, tables.finding(finding, True)) for finding in reversed(first.values())]
    findings: dict[int, list[int]] = {}
    for row, number in sorted(dict.fromkeys(numbered), key=itemgetter(0)):
        findings.setdefault(row, []).append(number)
    return findings


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

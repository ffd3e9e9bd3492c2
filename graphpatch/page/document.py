"""The document of a page: everything that it draws, as plain values.

Of each body it has one table: columns of values with one for each line, in the order in which the
lines are found, and mappings by line for what few lines have. The page's script orders the lines,
folds them and draws their lanes.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import graphpatch
from graphpatch.analysis.doctor.causes import Finding
from graphpatch.analysis.doctor.diagnosis import Doctor, PairDiagnosis, doctors
from graphpatch.analysis.doctor.trial import offered
from graphpatch.analysis.interface import InterfaceTensor, interface
from graphpatch.differentiation.replay import GradientReplay
from graphpatch.differentiation.shapes import Shapes, merged_shape, sizes_in_words
from graphpatch.differentiation.wiring import Wiring
from graphpatch.errors import ModelError
from graphpatch.formats import Model
from graphpatch.graph import attrs, provenance
from graphpatch.graph.node import COLOCATION, Node, attr_value
from graphpatch.graph.op_types import VARIABLES
from graphpatch.names import op_of
from graphpatch.page.curves import plot
from graphpatch.page.ends import GradientEnds, ends_of, pairs
from graphpatch.page.lines import BodyLine, BodySide, OpLine, lines_on_path
from graphpatch.page.rule_marks import RuleMarks
from graphpatch.shown import one_line
from graphpatch.table import plural, short

DOCUMENT_VERSION = 2
LARGE_ATTR = 1 << 10  # bytes of an attr from which on it is not shown
MOST_SHAPES = 10_000  # lines of a body whose shapes are inferred
RESOURCE = "resource"


@dataclass(eq=False)
class BuiltDocument:
    """A document, and what ran it: the ends and the main body of each graph, on its first side."""

    document: dict[str, Any]
    ends: list[GradientEnds]
    mains: list[BodySide]


def built_document(
    models: Sequence[Model], marks: RuleMarks, sources: Sequence[str], targets: Sequence[str]
) -> BuiltDocument:
    """Build the document of a model, or of one before and one after.

    Raises ModelError for a broken graph, where no tensor leads from the ends that are named to each
    other, and where no op lies between any.
    """
    tables, bodies = Tables(), list[dict[str, Any]]()
    graphs = [
        _Graph(both, marks, place, sources, targets, tables)
        for place, both in enumerate(zip(*map(doctors, models), strict=True))
    ]
    for number, model in enumerate(models):
        diagnoses = offered(model, [graph.pairs[number] for graph in graphs])
        for graph, several in zip(graphs, diagnoses, strict=True):
            graph.pairs[number] = several
    for graph in graphs if sources or targets else ():
        graph.refuse_apart(models[0].path)
    if not any(side.lines for graph in graphs for side in graph.main):
        raise ModelError(f"{models[0].path}: {_nothing_to_show(graphs)}")
    document = {
        "graphpatch": graphpatch.__version__,
        "document": DOCUMENT_VERSION,
        "models": list(_model_documents(models, marks)),
        "rules": marks.document(),
        "graphs": [graph.document(bodies) for graph in graphs],
        "bodies": bodies,
        "run": None,
        "notes": [],
        "defaults": tables.defaults(),  # before the tables, to which it adds
        "tables": tables.document(),
    }
    return BuiltDocument(
        document, [graph.ends for graph in graphs], [graph.main[0] for graph in graphs]
    )


def _nothing_to_show(graphs: Sequence[_Graph]) -> str:
    """That no op lies between two ends, and which ends there could be."""
    said = ["no op leads from an input to an output, so the page would be empty"]
    for graph in graphs:
        ends = interface(graph.graph, graph.main[0].wiring)
        for name, tensors in (("inputs", ends.inputs), ("outputs", ends.outputs)):
            said.append(f"{name}: {short([tensor.words for tensor in tensors]) or 'none'}")
    return "; ".join([*said, "name other tensors with --from and --to"])


def _model_documents(models: Sequence[Model], marks: RuleMarks) -> Iterator[dict[str, Any]]:
    """Say what each model is, with a title that tells two of them apart."""
    paths = [str(model.path) for model in models]
    parts = [Path(path).parts[-2:] or (path,) for path in paths]
    titles = [part[-1] for part in parts]
    if len(set(paths)) < len(paths):
        written = f"with {plural(len(marks.written), 'rule')}" if marks.are_given else titles[0]
        titles = [f"{titles[0]} without its rules" if marks.is_taken_off else titles[0], written]
    elif len(set(titles)) < len(titles):
        titles = [str(Path(*part)) for part in parts]
    roles = ["model"] if len(models) == 1 else ["before", "after"]
    for model, role, title in zip(models, roles, titles, strict=True):
        about = {"path": one_line(str(model.path)), "format": model.format, "ops": model.node_count}
        yield {**about, "role": role, "title": one_line(title)}


class _Graph:
    """One graph of each model: its ends, its bodies, and what doctor says of its pairs."""

    def __init__(
        self,
        both: Sequence[Doctor],
        marks: RuleMarks,
        place: int,
        sources: Sequence[str],
        targets: Sequence[str],
        tables: Tables,
    ) -> None:
        self.both, self.marks, self.place, self.tables = both, marks, place, tables
        self.graph = both[0].session.graph
        # A TF2 SavedModel is differentiated on a tape, every other graph in a Session.
        self.is_taped = self.graph.around.is_object_based
        wiring = both[0].session.wiring(self.graph.main)
        self.ends = ends_of(self.graph, wiring, sources, targets)
        self.main = [self._main(number) for number in range(len(both))]
        asked = [pairs(*sides, self.ends) for sides in zip(both, self.main, strict=True)]
        self.pairs, self.left_out = [diagnoses for diagnoses, _ in asked], asked[0][1]
        self.functions = self._functions()

    def _answers(self, number: int) -> GradientReplay:
        doctor = self.both[number]
        return doctor.tape if self.is_taped else doctor.session

    def _main(self, number: int) -> BodySide:
        """Return the lines of the main graph of one model."""
        answers = self._answers(number)
        main = answers.graph.main
        wiring = answers.wiring(main)
        ends = wiring.named(self.ends.sources), wiring.named(self.ends.targets)
        back = answers.backward(main, *ends)
        return BodySide(answers, back, *ends, self._rules("main", number), self.marks.is_applied)

    def _rules(self, label: str, number: int) -> Mapping[str, tuple[str, ...]]:
        """Return the rules at the ops of a body: of the model after, or of the only one."""
        is_last = number == len(self.both) - 1
        return self.marks.of_body(self.place, label) if is_last else {}

    def _functions(self) -> dict[str, list[BodySide]]:
        """The lines of the functions that lines call, those that graphpatch added left out."""
        functions: dict[str, list[BodySide]] = {}
        todo = [self.main] if any(side.tape.graph.functions for side in self.both) else []
        while todo:
            sides = todo.pop()
            for name in (
                n for side in sides for line in side.lines.values() for n in side.called(line)
            ):
                if name not in functions:
                    inner = list(self._sides(name))
                    if inner:
                        functions[name] = inner
                        todo.append(inner)
        return functions

    def _sides(self, name: str) -> Iterator[BodySide]:
        """Yield the lines of a function in each model that has it."""
        for number, doctor in enumerate(self.both):
            answers = doctor.tape
            body = answers.graph.functions.get(name)
            if body is None or body.is_ours or body.label.startswith("graphpatch_"):
                continue
            wiring = answers.wiring(body)
            ends = [(index, 0) for index in wiring.arguments.values()], wiring.returned
            back = answers.inside(name) or answers.backward(body, *ends)
            rules = self._rules(name, number)
            yield BodySide(answers, back, *ends, rules, self.marks.is_applied)

    def refuse_apart(self, path: str) -> None:
        """Raise ModelError where no tensor leads from any source to any target."""
        asked = self.pairs[0]
        if asked and not self.left_out and not any(pair.connected for pair in asked):
            pair = asked[0]
            more = "name tensors with --from and --to of which one is computed from the other"
            raise ModelError(
                f"{path}: no tensor leads from {pair.source} to {pair.target}, so nothing can flow "
                f"back; {pair.says or more}"
            )

    def document(self, bodies: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the graph as the page reads it; its bodies are added to `bodies`."""
        first = len(bodies)
        numbers = {name: first + 1 + place for place, name in enumerate(self.functions)}
        blamed: dict[str, dict[str, list[Finding]]] = {}  # by body, by op
        for pair in (pair for diagnoses in self.pairs for pair in diagnoses):
            for finding in self._blocking(pair) if self._is_blocked(pair) else ():
                op = provenance.name_in_model(finding.node)
                blamed.setdefault(finding.node.body.label, {}).setdefault(op, []).append(finding)
        for sides in (self.main, *self.functions.values()):
            at_ops = blamed.get(sides[0].body.label, {})
            table = BodyTable(sides, self.tables, self.marks.written, at_ops, numbers)
            bodies.append(table.document())
        ends = interface(self.graph, self.main[0].wiring)
        return {
            "label": one_line(self.graph.around.tags),
            "from": list(map(one_line, self.ends.sources)),
            "to": list(map(one_line, self.ends.targets)),
            "pairs": [self._pair(several) for several in zip(*self.pairs, strict=False)],
            "pairs_left_out": self.left_out,
            "body": first,
            "notes": list(self._notes()),
            "inputs": list(map(_end_shown, ends.inputs)),
            "outputs": list(map(_end_shown, ends.outputs)),
            "weights": ends.weights,
        }

    def _blocking(self, pair: PairDiagnosis) -> Sequence[Finding]:
        """Return what blocks as this graph is differentiated."""
        return pair.findings if self.is_taped else pair.of_session

    def _is_blocked(self, pair: PairDiagnosis) -> bool:
        return (pair.tape if self.is_taped else pair.verdict) != "flows"

    def _pair(self, several: Sequence[PairDiagnosis]) -> dict[str, Any]:
        return {
            "from": one_line(several[0].source),
            "to": one_line(several[0].target),
            "sides": [self._verdict(pair) for pair in several],
            "changed": self._changed(several[-1]),
        }

    def _verdict(self, pair: PairDiagnosis) -> dict[str, Any]:
        """What is said of a pair; what blocks on a tape alone apart, for who differentiates so.

        The op that is nearest to the target comes first.
        """
        main = self.main[0]
        near = main.steps_from(main.key(main.wiring.named([pair.target])[0][0]))
        blocking = sorted(
            self._blocking(pair),
            key=lambda finding: near.get(provenance.name_in_model(finding.node), len(near)),
        )
        return {
            "verdict": pair.verdict,
            "tape": pair.tape,
            "connected": pair.connected,
            "says": one_line(pair.says),
            "findings": [_op_blamed(finding) for finding in blocking],
            "on_tape": [
                _op_blamed(finding) for finding in pair.findings if finding not in blocking
            ],
        }

    def _changed(self, pair: PairDiagnosis) -> dict[str, int]:
        """The rules that change what flows between two ends, each with the number of its ops.

        A rule that ends a gradient is on its path before, one that lets it through after.
        """
        if not self.marks.is_applied or not self.marks.written:
            return {}
        on_path = set[BodyLine]()
        for place, side in enumerate(self.main):
            [source], [target] = (side.wiring.named([name]) for name in (pair.source, pair.target))
            functions = {
                name: sides[min(place, len(sides) - 1)] for name, sides in self.functions.items()
            }
            on_path |= lines_on_path(side, functions, source, target)
        bodies = [self.main[-1], *(sides[-1] for sides in self.functions.values())]
        by_label = {side.body.label: side.lines for side in bodies}
        counts: Counter[str] = Counter()
        for label, key in sorted(on_path):
            if label in by_label and key in by_label[label]:
                counts.update(by_label[label][key].rules)
        return dict(counts)

    def _notes(self) -> Iterator[str]:
        shown = {key for side in self.main for key in side.lines}
        missing = [op for op in self.marks.of_body(self.place, "main") if op not in shown]
        if missing:
            are, have = ("is", "has") if len(missing) == 1 else ("are", "have")
            yield (
                f"{len(missing)} of the ops that rules touch {are} not between the two ends, and "
                f"{have} no line: {short(list(map(one_line, missing)))}"
            )
        if not self.ends.sources:
            yield "it has no placeholder and no variable: name a source with --from"


def _end_shown(tensor: InterfaceTensor) -> dict[str, str]:
    """Return an input or output of the model: its op by name, and what the page says of it."""
    kind = " ".join(filter(None, (tensor.dtype, tensor.shape)))
    signature = ", ".join(tensor.signatures)
    return {"op": op_of(tensor.name), "name": tensor.name, "tensor": kind, "signature": signature}


def _op_blamed(finding: Finding) -> dict[str, str]:
    node = finding.node
    texts = {"op": node.name, "type": finding.op_type, "body": node.body.label}
    return {key: one_line(text) for key, text in {**texts, "what": finding.what}.items()}


class BodyTable:
    """The table of a body: of one model, or of two whose lines stand beside each other.

    `blamed` are doctor's findings on the paths that were asked about, by op; `numbers` those of the
    functions that have lines of their own.
    """

    def __init__(
        self,
        sides: Sequence[BodySide],
        tables: Tables,
        rules: Mapping[str, Any],
        blamed: Mapping[str, Sequence[Finding]],
        numbers: Mapping[str, int],
    ) -> None:
        self.sides, self.tables, self.rules = sides, tables, rules
        self.blamed, self.numbers = blamed, numbers
        # What a line is about is that of the last side that has it, as it is after a patch.
        self.last = {key: side for side in sides for key in side.lines}
        self.rows = {key: row for row, key in enumerate(self.last)}
        self.heads = {key: side.head(side.lines[key]) for key, side in self.last.items()}
        self.shapes = [
            Shapes(side.wiring) if len(side.lines) <= MOST_SHAPES else None for side in sides
        ]

    def document(self) -> dict[str, Any]:
        """Return the body as the page reads it."""
        ends, calls, carried = self._ends(), self._calls(), self._carried()
        types = {key: self._type(key) for key in self.rows}
        return {
            "name": one_line(self.sides[0].body.label),
            "names": [one_line(key.lstrip("+")) for key in self.rows],
            "types": [self.tables.types.number(one_line(op)) for op in types.values()],
            "tensors": [self.tables.tensors.number(self._tensor(key)) for key in self.rows],
            "attrs": [self._attrs(key) for key in self.rows],
            "inputs": [self._inputs(key) for key in self.rows],
            "variables": [row for key, row in self.rows.items() if self._is_variable(key)],
            "marks": self._marks(),
            "findings": self._findings(),
            "ends": ends,
            "calls": calls,
            "carried": carried,
            "plots": self._plots(types),
            "sides": [self._side(side) for side in self.sides],
        }

    def _type(self, key: str) -> str:
        """Return the op type, that before a rule where one put the op into a function."""
        node = self.heads[key]
        return "argument" if node is None else provenance.original_type(node)

    def _tensor(self, key: str) -> str:
        """The dtype and shape of what a line gives first, as far as either side knows them."""
        dtype, known = "", []
        for side, shapes in zip(self.sides, self.shapes, strict=True):
            if key in side.lines:
                node = side.head(side.lines[key])
                index = side.lines[key].nodes[0] if node is None else node.index
                dtype = side.wiring.dtype((index, 0)) or dtype
                known.append(shapes.of((index, 0)) if shapes and index >= 0 else None)
        shape = merged_shape(known)
        return dtype if shape is None else f"{dtype} {sizes_in_words(shape)}"

    def _attrs(self, key: str) -> int:
        node = self.heads[key]
        return -1 if node is None else self.tables.form(self.last[key].wiring, node.index)

    def _inputs(self, key: str) -> list[int | str | list[int | str]]:
        """Return what an op reads: the rows of lines, with the tensor where that is not output 0.

        Of what is not in view, the names.
        """
        node, side = self.heads[key], self.last[key]
        read: list[int | str | list[int | str]] = []
        for text in () if node is None else node.inputs:
            op = op_of(text)
            index = side.body.by_name.get(op)
            row = self.rows.get(op if index is None else side.key(index))
            is_plain = text == op
            read.append(
                one_line(text) if row is None else row if is_plain else [row, one_line(text)]
            )
        return read

    def _is_variable(self, key: str) -> bool:
        """Return whether a line gives a variable: the op itself, or an argument that holds one."""
        side, node = self.last[key], self.heads[key]
        if key in self.blamed or any(key in side.rules for side in self.sides):
            return False
        if node is not None:
            return node.op in VARIABLES
        return side.wiring.dtype((side.lines[key].nodes[0], 0)) == RESOURCE

    def _marks(self) -> dict[int, list[int]]:
        places = {name: place for place, name in enumerate(self.rules)}
        marks: dict[int, list[int]] = {}
        for side in self.sides:
            for key, rules in side.rules.items():
                if key in self.rows:
                    at = marks.setdefault(self.rows[key], [])
                    at += [places[rule] for rule in rules if rule in places]
        return {row: sorted(set(at)) for row, at in sorted(marks.items())}

    def _findings(self) -> dict[int, list[int]]:
        """Return what doctor says of lines where a gradient ends, and of those that it blames."""
        own: dict[str, list[Finding]] = {}
        for side in self.sides:
            for key, line in side.lines.items():
                if line.finding is not None:
                    own.setdefault(key, []).append(line.finding)
        findings: dict[int, list[int]] = {}
        for key in sorted({*own, *self.blamed} & self.rows.keys(), key=self.rows.__getitem__):
            is_on_path = key in self.blamed
            said = self.blamed[key] if is_on_path else own[key]
            numbers = [self.tables.finding(finding, is_on_path) for finding in said]
            findings[self.rows[key]] = list(dict.fromkeys(numbers))
        return findings

    def _ends(self) -> dict[int, str]:
        is_main = self.sides[0].body.is_main
        ends: dict[int, str] = {}
        for side in self.sides:
            for tensors, word in (
                (side.sources, "source" if is_main else "input"),
                (side.targets, "target" if is_main else "output"),
            ):
                keys = (side.key(index) for index, _ in tensors)
                ends |= {self.rows[key]: word for key in keys if key in self.rows}
        return ends

    def _calls(self) -> dict[int, list[int]]:
        """Return the functions that ops call, as far as they have lines of their own."""
        calls = {}
        for key, side in self.last.items() if self.numbers else ():
            called = [self.numbers[n] for n in side.called(side.lines[key]) if n in self.numbers]
            if called:
                calls[self.rows[key]] = list(dict.fromkeys(called))
        return calls

    def _carried(self) -> dict[int, list[list[str]]]:
        """Return the nodes that rules added for an op: op type and name."""
        carried = {}
        for key, side in self.last.items():
            nodes = [Node(side.body, index) for index in side.lines[key].nodes if index >= 0]
            if len(nodes) > 1:
                carried[self.rows[key]] = [[one_line(n.op), one_line(n.name)] for n in nodes]
        return carried

    def _plots(self, types: Mapping[str, str]) -> dict[int, int]:
        """Return the curves of ops that rules are at; of others the op type tells."""
        plots = {}
        for key in self.rows:
            rules = [name for side in self.sides for name in side.rules.get(key, ())]
            patch = (self.rules.get(rules[-1]) or {}).get("patch") if rules else None
            number = self.tables.plot(patch, types[key]) if patch else None
            if number is not None:
                plots[self.rows[key]] = number
        return plots

    def _side(self, side: BodySide) -> dict[str, Any]:
        lines = [side.lines.get(key) for key in self.rows]
        return {
            "flow": [0 if line is None else int(line.flow) for line in lines],
            "arrives": [0 if line is None else int(line.arrives) for line in lines],
            "edges": [[] if line is None else self._edges(line) for line in lines],
        }

    def _edges(self, line: OpLine) -> list[int]:
        return [n for key, flow in line.reads.items() for n in (self.rows[key], int(flow))]


@dataclass(eq=False)
class Table:
    """Values, each once; a line has the number of its value."""

    values: list[Any] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)

    def number(self, value: Any) -> int:
        """Return the number of a value."""
        key = value if isinstance(value, str) else json.dumps(value)
        if key not in self._numbers:
            self._numbers[key] = len(self.values)
            self.values.append(value)
        return self._numbers[key]


@dataclass(eq=False)
class Tables:
    """What many lines share, written once: op types, tensors, attrs, findings, gradients."""

    types: Table = field(default_factory=Table)
    tensors: Table = field(default_factory=Table)
    attrs: Table = field(default_factory=Table)
    findings: Table = field(default_factory=Table)
    plots: Table = field(default_factory=Table)
    _forms: dict[tuple[Wiring, int], int] = field(default_factory=dict)
    _plotted: dict[tuple[str, str], int | None] = field(default_factory=dict)

    def form(self, wiring: Wiring, index: int) -> int:
        """Return the number of an op's attrs, in plain values; those of one form are read once."""
        key = wiring, wiring.form(index)
        if key not in self._forms:
            self._forms[key] = self.attrs.number(_plain_attrs(Node(wiring.body, index)))
        return self._forms[key]

    def finding(self, finding: Finding, is_on_path: bool) -> int:
        """Return the number of what doctor says of an op; on a path asked about, with its rule."""
        document = {**_safe_texts(finding.document()), "on_path": is_on_path}
        return self.findings.number(document if is_on_path else {**document, "rule": None})

    def plot(self, patch: Mapping[str, Any] | None, op_type: str) -> int | None:
        """Return the number of the curves of an op type, before and after a patch."""
        key = (json.dumps(patch, sort_keys=True), op_type)
        if key not in self._plotted:
            curves = plot(patch, op_type)
            self._plotted[key] = None if curves is None else self.plots.number(curves)
        return self._plotted[key]

    def defaults(self) -> dict[str, int]:
        """Return the number of the curves of TensorFlow's default gradient, by op type."""
        numbers = {op: self.plot(None, op) for op in self.types.values}
        return {op: number for op, number in numbers.items() if number is not None}

    def document(self) -> dict[str, list[Any]]:
        """Return the tables by name."""
        names = ("types", "tensors", "attrs", "findings", "plots")
        return {name: getattr(self, name).values for name in names}


def _plain_attrs(node: Node) -> dict[str, Any]:
    """The attrs of an op as plain values, without large ones, its record and its colocation."""
    plain = {}
    for key, span in sorted(node.attr_spans().items()):
        if key not in (provenance.PROVENANCE_ATTR, COLOCATION):
            is_large = span.end - span.start >= LARGE_ATTR
            value = "(large)" if is_large else _safe_texts(attrs.as_json(attr_value(span)))
            plain[one_line(key)] = value
    return plain


def _safe_texts(value: Any) -> Any:
    """Plain values whose texts are safe to show."""
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, Mapping):
        return {one_line(str(key)): _safe_texts(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_safe_texts(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value

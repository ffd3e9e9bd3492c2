"""The document of a page: everything that it draws, as plain values.

Of each body it has one table: columns of values with one for each line, and mappings by line for
what few lines have. The page's script orders the lines, folds them and draws their lanes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import graphpatch
from graphpatch.analysis.compare import titles
from graphpatch.analysis.doctor.causes import Finding
from graphpatch.analysis.doctor.diagnosis import Doctor, PairDiagnosis, doctors
from graphpatch.analysis.doctor.survey import offered
from graphpatch.analysis.interface import InterfaceTensor, interface
from graphpatch.analysis.rule_words import patch_in_words
from graphpatch.differentiation.replay import GradientReplay
from graphpatch.differentiation.shapes import Shapes, merged_shape, sizes_in_words
from graphpatch.differentiation.wiring import Form, Wiring
from graphpatch.errors import ModelError
from graphpatch.formats import Model
from graphpatch.graph import attrs, provenance
from graphpatch.graph.node import COLOCATION, Node, attr_value
from graphpatch.graph.op_types import VARIABLES
from graphpatch.graph.walk import reached
from graphpatch.names import op_of
from graphpatch.page.curves import ALPHA, plot
from graphpatch.page.ends import ends_of, pairs
from graphpatch.page.lines import ABSENT, BodySide, lines_on_path
from graphpatch.recipes import is_recipe
from graphpatch.shown import one_line, short

DOCUMENT_VERSION = 3
LARGE_ATTR = 1 << 10  # bytes of an attr from which on it is not shown
MOST_SHAPES = 10_000  # lines of a body whose shapes are inferred
SELECTED = "selected"
V1_ARRAYS = "--no-control-flow-v2 shows what flows after disable_control_flow_v2()"


@dataclass(eq=False)
class RuleMarks:
    """Rules by name, each as a rules file has it, and the rules at ops by graph, body and op.

    `wrong` has what `apply` says of a rule that it would refuse. `is_applied`: the last model is
    what the rules made of it.
    """

    written: dict[str, Any] = field(default_factory=dict)
    at: dict[tuple[int, str], dict[str, tuple[str, ...]]] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    is_applied: bool = False

    def mark(self, graph: int, body: str, op: str, rules: Sequence[str]) -> None:
        """Mark an op with rules, behind those that it has."""
        ops = self.at.setdefault((graph, body), {})
        ops[op] = tuple(dict.fromkeys([*ops.get(op, ()), *rules]))

    def without_idle(self) -> RuleMarks:
        """Leave out rules of recipes that are at no op, where a rule is at any; return the rest."""
        counts = self._counts()
        for name in list(self.written) if counts else ():
            if is_recipe(name) and not counts[name] and name not in self.wrong:
                del self.written[name]
        return self

    def _counts(self) -> Counter[str]:
        """Return at how many ops each rule is."""
        return Counter(rule for ops in self.at.values() for at in ops.values() for rule in at)

    def document(self) -> list[dict[str, Any]]:
        """Return the rules as the page's document lists them."""
        counts = self._counts()
        return [
            {
                "name": name,
                "words": patch_in_words(rule.get("patch")) if rule else SELECTED,
                "rule": rule,
                "ops": counts[name],
                "error": self.wrong.get(name, ""),
            }
            for name, rule in self.written.items()
        ]


def built_document(
    models: Sequence[Model],
    marks: RuleMarks,
    sources: Sequence[str],
    targets: Sequence[str],
    control_flow_v2: bool = True,
) -> tuple[dict[str, Any], list[GraphSides]]:
    """Build the document of a model, or of one before and one after, and what it is made of.

    Raises ModelError for a broken graph, where no tensor leads from the ends that are named to each
    other, and where no op lies between any.
    """
    tables, bodies = Tables(marks.written), list[dict[str, Any]]()
    asked = [doctors(model, control_flow_v2) for model in models]
    graphs = [
        GraphSides(both, marks, number, sources, targets)
        for number, both in enumerate(zip(*asked, strict=True))
    ]
    for number, model in enumerate(models):
        diagnoses = offered(model, [graph.pairs[number] for graph in graphs], control_flow_v2)
        for graph, of_graph in zip(graphs, diagnoses, strict=True):
            graph.pairs[number] = of_graph
    for graph in graphs if sources or targets else ():
        graph.refuse_apart(models[0].path)
    if not any(graph.main[0].rows for graph in graphs):
        raise ModelError(f"{models[0].path}: {_nothing_to_show(graphs)}")
    document = {
        "graphpatch": graphpatch.__version__,
        "document": DOCUMENT_VERSION,
        "models": list(_model_documents(models, marks)),
        "rules": marks.document(),
        "graphs": [graph.document(bodies, tables) for graph in graphs],
        "bodies": bodies,
        "run": None,
        "notes": [],
        "defaults": tables.defaults(),  # before the tables, to which it adds
        "tables": tables.values,
    }
    return document, graphs


def _nothing_to_show(graphs: Sequence[GraphSides]) -> str:
    """Say that no op lies between two ends, and which ends there could be."""
    parts = ["no op leads from an input to an output, so the page would be empty"]
    for graph in graphs:
        ends = graph.interface
        for name, tensors in (("inputs", ends.inputs), ("outputs", ends.outputs)):
            parts.append(f"{name}: {short([tensor.words for tensor in tensors]) or 'none'}")
    return "; ".join([*parts, "name other tensors with --from and --to"])


def _model_documents(models: Sequence[Model], marks: RuleMarks) -> Iterator[dict[str, Any]]:
    """Say what each model is, with a title that tells two of them apart."""
    roles = ["model"] if len(models) == 1 else ["before", "after"]
    carried = sum(len(graph.library.rules) for graph in models[0].graphs)
    rules = [carried, len(marks.written)][-len(models) :]
    names = titles([str(model.path) for model in models], rules)
    for model, role, title in zip(models, roles, names, strict=True):
        about = {"path": one_line(str(model.path)), "format": model.format, "ops": model.node_count}
        yield {**about, "role": role, "title": one_line(title)}


class GraphSides:
    """One graph of each model: its ends, its bodies, and what doctor says of its pairs."""

    def __init__(
        self,
        both: Sequence[Doctor],
        marks: RuleMarks,
        number: int,
        sources: Sequence[str],
        targets: Sequence[str],
    ) -> None:
        self.marks, self.number = marks, number
        self.graph = both[0].session.graph
        # A TF2 SavedModel is differentiated on a tape, every other graph in a Session.
        self.is_taped = self.graph.around.is_object_based
        self.tapes = [doctor.tape for doctor in both]
        wiring = both[0].session.wiring(self.graph.main)
        self.interface = interface(self.graph, wiring)
        marked = marks.at.get((number, "main"), {})
        self.ends = ends_of(self.graph, wiring, sources, targets, marked)
        rows = dict[str, int]()
        self.main = [self._main(doctor, rows) for doctor in both]
        asked = [pairs(*side, self.ends) for side in zip(both, self.main, strict=True)]
        self.pairs, self.left_out = [diagnoses for diagnoses, _ in asked], asked[0][1]
        self.functions = self._functions()

    def _main(self, doctor: Doctor, rows: dict[str, int]) -> BodySide:
        """Return the lines of the main graph of one model."""
        answers = doctor.tape if self.is_taped else doctor.session
        wiring = answers.wiring(answers.graph.main)
        ends = wiring.named(self.ends.sources), wiring.named(self.ends.targets)
        back = answers.backward(wiring.body, *ends)
        visited = back.visited
        if not back.live.issuperset(ends[0]):
            # tf.gradients asks no op on a path that ends; the page shows how far a gradient comes.
            within = wiring.depending_on(ends[0])
            back = answers.follow(wiring, *ends, within)
        rules = self._rules(answers)
        return BodySide(answers, back, visited, *ends, rules, rows, self.marks.is_applied)

    def _rules(self, answers: GradientReplay, label: str = "main") -> Mapping[str, tuple[str, ...]]:
        """Return the rules at the ops of a body: of the model after, or of the only one."""
        is_last = answers.graph is self.tapes[-1].graph
        return self.marks.at.get((self.number, label), {}) if is_last else {}

    def _functions(self) -> dict[str, list[BodySide]]:
        """Return the lines of the functions that lines call, without those of graphpatch."""
        functions: dict[str, list[BodySide]] = {}
        bodies = [body for tape in self.tapes for body in tape.graph.functions.values()]
        todo = [] if all(body.is_ours for body in bodies) else list(self.main)
        for side in todo:
            for name in (name for names in side.called().values() for name in names):
                if name not in functions:
                    functions[name] = list(self._sides(name))
                    todo += functions[name]
        return {name: sides for name, sides in functions.items() if sides}

    def _sides(self, name: str) -> Iterator[BodySide]:
        """Yield the lines of a function in each model that has it."""
        rows = dict[str, int]()
        for tape in self.tapes:
            body = tape.graph.functions.get(name)
            if body is None or body.is_ours or body.label.startswith("graphpatch_"):
                continue
            wiring = tape.wiring(body)
            ends = [(index, 0) for index in wiring.arguments.values()], wiring.returned
            back = tape.inside(name) or tape.backward(body, *ends)
            rules = self._rules(tape, name)
            yield BodySide(tape, back, back.visited, *ends, rules, rows, self.marks.is_applied)

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

    def document(self, bodies: list[dict[str, Any]], tables: Tables) -> dict[str, Any]:
        """Return the graph as the page reads it; its bodies are added to `bodies`."""
        first = len(bodies)
        numbers = {name: first + 1 + place for place, name in enumerate(self.functions)}
        blamed: dict[str, dict[str, list[Finding]]] = {}  # by body, by op
        for pair in (pair for diagnoses in self.pairs for pair in diagnoses):
            is_blocked = (pair.tape if self.is_taped else pair.verdict) != "flows"
            for finding in self._blocking(pair) if is_blocked else ():
                op = provenance.in_model(finding.node).name
                blamed.setdefault(finding.node.body.label, {}).setdefault(op, []).append(finding)
        for sides in (self.main, *self.functions.values()):
            at_ops = blamed.get(sides[0].body.label, {})
            bodies.append(body_table(sides, tables, at_ops, numbers))
        return {
            "label": one_line(self.graph.around.tags),
            "from": list(map(one_line, self.ends.sources)),
            "to": list(map(one_line, self.ends.targets)),
            "pairs": [
                {
                    "from": one_line(of_sides[0].source),
                    "to": one_line(of_sides[0].target),
                    "sides": [self._verdict(pair) for pair in of_sides],
                    "changed": self._changed(of_sides[-1]),
                }
                for of_sides in zip(*self.pairs, strict=False)
            ],
            "pairs_left_out": self.left_out,
            "body": first,
            "notes": list(self._notes()),
            "inputs": list(map(_end_shown, self.interface.inputs)),
            "outputs": list(map(_end_shown, self.interface.outputs)),
            "weights": self.interface.weights,
        }

    def _blocking(self, pair: PairDiagnosis) -> Sequence[Finding]:
        """Return what blocks as this graph is differentiated."""
        return pair.findings if self.is_taped else pair.of_session

    def _verdict(self, pair: PairDiagnosis) -> dict[str, Any]:
        """Return what is said of a pair, of what blocks first what is nearest to the target."""
        main = self.main[0]
        blocking = list(self._blocking(pair))
        if len(blocking) > 1:
            target = main.rows_of(main.wiring.named([pair.target]))
            steps = reached(target, main.read_by)

            def distance(finding: Finding) -> int:
                row = main.rows.get(provenance.in_model(finding.node).name, -1)
                return steps.get(row, len(steps))

            blocking.sort(key=distance)
        return {
            "verdict": pair.verdict,
            "connected": pair.connected,
            "says": one_line(pair.says),
            "findings": list(map(_op_blamed, blocking)),
        }

    def _changed(self, pair: PairDiagnosis) -> dict[str, int]:
        """Return the rules that change what flows between two ends, each with how many ops.

        A rule that ends a gradient is on its path before, one that lets it through after.
        """
        if not self.marks.is_applied or not self.marks.written:
            return {}
        last_sides = [sides[-1] for sides in (self.main, *self.functions.values())]
        on_path: dict[str, set[int]] = {side.body.label: set() for side in last_sides}
        for place, side in reversed(list(enumerate(self.main))):
            [source], [target] = (side.wiring.named([name]) for name in (pair.source, pair.target))
            functions = {
                name: sides[min(place, len(sides) - 1)] for name, sides in self.functions.items()
            }
            for label, rows in lines_on_path(side, functions, source, target).items():
                on_path[label] |= rows
            if all(last.changing.keys() <= on_path[last.body.label] for last in last_sides):
                break
        counts = Counter(
            rule
            for last in last_sides
            for row in last.changing.keys() & on_path[last.body.label]
            for rule in last.changing[row]
        )
        return {rule: counts[rule] for rule in self.marks.written if counts[rule]}

    def _notes(self) -> Iterator[str]:
        marked = self.marks.at.get((self.number, "main"), {})
        main = self.main[-1]
        frozen = [op for op in marked if main.rows.get(op, -1) in main.unchanged]
        if frozen:
            yield (
                f"frozen at {short(list(map(one_line, frozen)))}: the optimizer's updates no "
                "longer change the variable, and the gradient flows as before"
            )
        outputs = [tensor.name for tensor in self.interface.outputs]
        if outputs and not self.ends.are_named and not set(outputs) & set(self.ends.targets):
            targets = dict.fromkeys(one_line(pair.target) for pair in self.pairs[-1])
            yield (
                f"no gradient comes from {short(outputs)}: shown is that of {short(list(targets))}"
            )
        missing = [op for op in marked if op not in self.main[0].rows]
        if missing:
            ops = short(list(map(one_line, missing)))
            yield f"rules touch {len(missing):,} ops that are not between the ends: {ops}"
        pairs = [pair for diagnoses in self.pairs for pair in diagnoses]
        if any(item.kind == "tensor_array" for pair in pairs for item in self._blocking(pair)):
            yield V1_ARRAYS
        if not self.tapes[0].control_flow_v2:
            yield "as after tf.compat.v1.disable_control_flow_v2()"
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

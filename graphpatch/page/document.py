"""The document of a page: from which tensors to which it leads, and all that it draws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any

import graphpatch
from graphpatch.analysis.compare import titles
from graphpatch.analysis.doctor.causes import Finding
from graphpatch.analysis.doctor.diagnosis import Doctor, PairDiagnosis, doctors
from graphpatch.analysis.doctor.survey import offered
from graphpatch.analysis.interface import (
    MOST_OPS_ASKED,
    InterfaceTensor,
    default_targets,
    fed_floats,
    interface,
    largest_first,
)
from graphpatch.differentiation import flow
from graphpatch.differentiation.replay import GradientReplay
from graphpatch.differentiation.wiring import Tensor, Wiring
from graphpatch.errors import ModelError
from graphpatch.formats import Model
from graphpatch.graph import provenance
from graphpatch.graph.graph import ModelGraph
from graphpatch.graph.op_types import VARIABLES
from graphpatch.graph.walk import reached
from graphpatch.names import op_of
from graphpatch.page.lines import BodySide, Tables, body_table, lines_on_path
from graphpatch.page.marks import RuleMarks
from graphpatch.shown import one_line, plural, short

DOCUMENT_VERSION = 3
REAL = frozenset({"float16", "bfloat16", "float32", "float64"})
MOST_PAIRS_ASKED = 12
V1_ARRAYS = "--no-control-flow-v2 shows what flows after disable_control_flow_v2()"


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
        if not back.live >= set(ends[0]):
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
            for name in chain(*side.called.values()):
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
        numbers = {name: number for number, name in enumerate(self.functions, first + 1)}
        blamed: dict[str, dict[str, list[Finding]]] = {}  # by body, by op
        for pair in chain(*self.pairs):
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
                    "changed": self._changed(of_sides[-1]) if self.marks.is_applied else {},
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
        main, blocking = self.main[0], self._blocking(pair)
        if len(blocking) > 1:
            steps = reached(main.rows_of(main.wiring.named([pair.target])), main.read_by)
            ops = [provenance.in_model(finding.node).name for finding in blocking]
            far = [steps.get(main.rows.get(op, -1), len(steps)) for op in ops]
            nearest_first = sorted(zip(far, blocking, strict=True), key=itemgetter(0))
            blocking = [finding for _, finding in nearest_first]
        return {
            "verdict": pair.verdict,
            "connected": pair.connected,
            "says": one_line(pair.says),
            "findings": [
                {
                    "op": one_line(finding.node.name),
                    "type": one_line(finding.op_type),
                    "body": one_line(finding.node.body.label),
                    "what": one_line(finding.what),
                }
                for finding in blocking
            ],
        }

    def _changed(self, pair: PairDiagnosis) -> dict[str, int]:
        """Return the rules that change what flows between two ends, each with how many ops.

        A rule that ends a gradient is on its path before, one that lets it through after.
        """
        last_sides = [sides[-1] for sides in (self.main, *self.functions.values())]
        missing = {side.body.label: dict(side.changing) for side in last_sides}
        counts = Counter[str]()
        for place, side in reversed(list(enumerate(self.main))):
            if not any(missing.values()):
                break
            [source], [target] = (side.wiring.named([name]) for name in (pair.source, pair.target))
            functions = {name: sides[: place + 1][-1] for name, sides in self.functions.items()}
            for label, rows in lines_on_path(side, functions, source, target).items():
                for row in missing[label].keys() & rows:
                    counts.update(missing[label].pop(row))
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
            yield f"rules touch {plural(len(missing), 'op')} not between the ends: {ops}"
        blocking = chain(*map(self._blocking, chain(*self.pairs)))
        if any(finding.kind == "tensor_array" for finding in blocking):
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


# From which tensors to which: those that are named, or those a user would name.


@dataclass(frozen=True, slots=True)
class GradientEnds:
    """Tensors of the main graph, by name: the gradients of `targets` flow back to `sources`.

    `are_named`: somebody asked about them; else they are what a user would name.
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    are_named: bool = True


def ends_of(
    graph: ModelGraph,
    wiring: Wiring,
    sources: Sequence[str],
    targets: Sequence[str],
    marked: Iterable[str] = (),
) -> GradientEnds:
    """Return the ends of a graph; names that it does not have are left out.

    Default: from what is computed of the sources, and may be a loss that no op reads or is a float
    that a signature gives, to what is fed. A graph that is fed nothing is differentiated with
    respect to its variables; those that ops with rules, `marked`, read are sources in any graph,
    as what is frozen is to be seen. Of ends that nobody named, those are left out that are not real
    numbers: where that leaves no target (ArgMax), the real numbers that they were computed of are
    the targets. The first target is the one to which most ops lead, the first source a tensor.
    """
    start = wiring.named(sources)
    if not start:
        at, ops = wiring.body.by_name, wiring.body.heads.ops
        read = (tensor for name in marked if name in at for tensor in wiring.inputs(at[name]))
        variables = [tensor for tensor in read if ops[tensor[0]] in VARIABLES]
        start = list(dict.fromkeys([*_default_sources(graph, wiring), *variables]))
    end = wiring.named(targets)
    if not end:
        led_to = default_targets(graph, wiring, every=False, sources=start)
        end = [tensor for tensor in led_to if wiring.dtype(tensor) in REAL]
        end = end or largest_first(wiring, _real_before(wiring, led_to, start), start) or led_to
    names = tuple(map(wiring.spelled, start)), tuple(map(wiring.spelled, end))
    return GradientEnds(*names, bool(sources or targets))


def _default_sources(graph: ModelGraph, wiring: Wiring) -> list[Tensor]:
    """Return what is fed: real numbers, where a target is computed of them, else what is not text.

    In a model of which the inputs are words, the rate of dropout is not what is asked about.
    """
    fed, targets = fed_floats(wiring), default_targets(graph, wiring, every=False)
    real = [tensor for tensor in fed if wiring.dtype(tensor) in REAL]
    numbers = [tensor for tensor in fed if wiring.dtype(tensor) != "string"]
    for sources in (real if fed[:1] == real[:1] else [], numbers):
        depending = wiring.depending_on(sources)
        if any(index in depending for index, _ in targets):
            return sources
    variables = [(index, 0) for op in VARIABLES for index in wiring.body.by_type.get(op, ())]
    return real or numbers or fed or variables


def _real_before(
    wiring: Wiring, targets: Sequence[Tensor], sources: Sequence[Tensor]
) -> list[Tensor]:
    """Return the nearest real numbers that targets are computed of: the scores before an ArgMax."""
    depending = wiring.depending_on(sources) or set(range(len(wiring.body)))
    inside = depending.difference(index for index, _ in sources)

    def read_by(tensor: Tensor) -> list[Tensor]:
        is_shape_alone = flow.reads_shape_alone(wiring.body.heads.ops[tensor[0]])
        if wiring.dtype(tensor) in REAL or is_shape_alone:
            return []
        return [read for read in wiring.inputs(tensor[0]) if read[0] in inside]

    return [tensor for tensor in reached(targets, read_by) if wiring.dtype(tensor) in REAL]


def pairs(doctor: Doctor, main: BodySide, ends: GradientEnds) -> tuple[list[PairDiagnosis], int]:
    """Ask doctor about each pair of ends; and count the pairs that it was not asked about.

    Of many pairs the first are asked about, fewer in a large graph; of ends that nobody named those
    that are connected, if any are. A pair that flows in a graph whose functions are all of rules,
    and without loops, is known from `main`, the lines between all ends: a tape raises where a rule
    stored a gradient as a function.
    """
    wiring, back, session = main.wiring, main.back, doctor.session
    most = max(1, min(MOST_PAIRS_ASKED, MOST_OPS_ASKED // (len(wiring.body) + 1)))
    sources, targets = wiring.named(ends.sources), wiring.named(ends.targets)
    every = [(source, target) for target in targets for source in sources]
    if not ends.are_named and len(every) > 1:
        counted = sources[: max(1, MOST_OPS_ASKED // (len(main.line_of) + 1))]
        behind = dict[Tensor, set[int]]()  # the ops that depend on a source
        for source in counted:
            behind[source] = wiring.depending_on([source]).difference([source[0]])
        connected = [
            (source, target)
            for source, target in every
            if source not in behind or target[0] in behind[source]
        ]
        every = connected or every
    is_plain = len(targets) == 1 and not session.stored.in_loops and not back.raised
    is_plain = is_plain and all(body.is_ours for body in session.graph.functions.values())
    types = {wiring.body.heads.ops[index] for index in back.between if index >= 0}
    taped = "flows" if types.isdisjoint(wiring.body.library.gradients) else "error"
    diagnoses = []
    for source, target in every[:most]:
        if is_plain and source in back.live and wiring.dtype(target) in REAL:
            names = wiring.spelled(source), wiring.spelled(target)
            diagnoses.append(PairDiagnosis(*names, "flows", taped, connected=True))
        else:
            diagnoses.append(doctor.diagnose(source, target))
    return diagnoses, max(0, len(every) - most)

"""Make a patch again: apply the rules in a patched model once more, and compare.

`verify` applies them to the original. The same bytes mean that the structure is sound, all of it:
gradients, guards and functions too. Of other bytes each op, function or gradient that differs is a
fault, first what flows back. `check`, `diff`, `ops` and `doctor` apply them to the model itself
without its rules, unless its checksum says that nothing was changed since: what rules wrote, and
is not there as they wrote it, is damage.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import structs

import graphpatch
from graphpatch import names
from graphpatch.analysis.compare import differences_around, same_bytes, unlike
from graphpatch.analysis.revert import revert, taken_off
from graphpatch.errors import GraphpatchError, MatchError, PatchError
from graphpatch.formats import Model
from graphpatch.formats.before import as_meta, opened_again
from graphpatch.formats.model import META
from graphpatch.graph import provenance
from graphpatch.graph.attrs import OUTPUT_SHAPES, OVERRIDE
from graphpatch.graph.check import built_gradients
from graphpatch.graph.graph import Graph, ModelGraph, read_record
from graphpatch.graph.node import Body, Node
from graphpatch.graph.provenance import checksum_of_rules, reads_of_patched, written_by_rules
from graphpatch.graph.record import ModelRecord
from graphpatch.graph.wire import Span
from graphpatch.shown import Document, plural, short

AGAIN = "patch the original again"
SWAPPED = "the arguments look swapped"
SIGNATURES = ("signature_def", "asset_file_def", "saver_def")
VERSIONS = "versions"
# An export notes shapes or leaves them out; TensorFlow infers them when it imports a graph.
NOTED = re.compile(rf"attr {OUTPUT_SHAPES}: (\(none\) -> .*|.* -> \(none\))$", re.DOTALL)
LIVE = "it was patched as a live graph, so its rules cannot be applied to a file again"
PYTHON = "one of its rules has a gradient in Python, so they are not applied again"
EXPORTED = "it was written as a TF2 SavedModel, which holds a part of its original alone"


@dataclass(frozen=True, slots=True)
class StructureFault(Document):
    """One thing that is wrong; `op` is the op as the model calls it.

    `is_of_rules`: a rule wrote what is missing or differs.
    """

    keys = "kind body op says"
    kind: str  # "backward", "forward" or "record"
    body: str
    op: str
    says: str
    is_of_rules: bool = False


@dataclass(frozen=True, slots=True)
class MadeAgain:
    """A graph beside the one that its rules make of the original.

    `says` is how they compare, `why` the reason why the rules were not applied again.
    """

    says: str = ""
    why: str = ""
    faults: Sequence[StructureFault] = ()

    def document(self) -> dict[str, Any]:
        """Return the graph as `verify --json` prints it."""
        faults = [fault.document() for fault in self.faults]
        return {"made_again": not self.why, "says": self.says or self.why, "faults": faults}


def make_again(original: Model, patched: Model) -> tuple[list[MadeAgain], list[str]]:
    """Apply the rules in a patched model to its original and compare, for each of its graphs.

    Returns with them the faults that are of no graph.
    """
    before, after = _record(original), _record(patched)
    if before.rules and not after.rules and _are_swapped(original, patched):
        says = (
            f"{SWAPPED}: {patched.path} is {original.path} without its rules, and the original "
            f"comes first: graphpatch verify {patched.path} {original.path}"
        )
        return [MadeAgain()] * len(patched.graphs), [says]
    reasons = [(after.live, LIVE), (after.exported, EXPORTED), (None in after.again, PYTHON)]
    for applies, why in reasons:
        if applies:
            return _without_rules(original, patched, why)
    try:
        expected, patched = _expected(original, patched)
    except (MatchError, PatchError) as error:
        reason = "; ".join(map(str.strip, str(error).split("\n")))
        says = (
            f"the rules that it carries cannot be applied to the original: {reason}; is "
            f"{original.path} the original of {patched.path}?"
        )
        return [MadeAgain()] * len(patched.graphs), [says]
    except GraphpatchError as error:
        return _without_rules(original, patched, f"its rules cannot be applied again: {error}")
    count = len(after.rules) - len(before.rules)
    give = "gives" if count == 1 else "give"
    says = f"sound: {plural(count, 'rule')}, applied to the original again, {give}"
    if not count:
        is_converted = original.container is not patched.container
        has = f"the original as a {patched.container.name} has" if is_converted else "it has"
        says = f"sound: {has}"
    if _same_bytes(expected, patched):
        return [MadeAgain(f"{says} the same bytes")] * len(patched.graphs), []
    compared, around = _compared(expected, patched, f"{says} the same ops, in other bytes")
    differs = around or any(comparison.faults for comparison in compared)
    if differs and after.rules and after.version != graphpatch.__version__:
        versions = f"graphpatch {after.version} patched it, and this is {graphpatch.__version__}"
        return _without_rules(original, patched, f"{versions}, which writes other ops")
    size, was = len(original.source.data), after.size
    if differs and was not in (0, size) and not (before.rules or original.is_text):
        around.insert(
            0,
            f"{original.path} has {size:,} bytes, and what the rules were applied to had {was:,}: "
            f"is it the original of {patched.path}?",
        )
    return compared, around


def _record(model: Model) -> ModelRecord:
    """Return what is written down of a model: of its graphs the one with most rules."""
    records = [record for graph in model.graphs if (record := read_record(graph)) is not None]
    return max(records, key=lambda record: len(record.rules), default=ModelRecord())


def _are_swapped(original: Model, patched: Model) -> bool:
    try:
        return _same_bytes(*_expected(patched, original))
    except GraphpatchError:
        return False


def _expected(original: Model, patched: Model) -> tuple[Model, Model]:
    """Return the original with the rules that the patched model has besides, and the latter."""
    known = {rule.id for rule in _record(original).rules}
    record = _record(patched)
    again = zip(record.rules, record.again, strict=True)
    rules = [rule for applied, rule in again if applied.id not in known]
    is_meta = patched.container is META and patched.graphs[0].around.has_contexts
    if is_meta and record.container == META.name:  # it was converted first, and then patched
        original = as_meta(original)
    expected = _patched(original, rules) if rules else original
    return as_meta(expected) if is_meta else expected, opened_again(patched)


def _patched(model: Model, rules: Sequence[Any]) -> Model:
    from graphpatch.application import apply_rules  # here: it imports all kinds of patches
    from graphpatch.rules import rules_from

    return apply_rules(rules_from({"version": 1, "rules": rules}), model, None, None).model


def _same_bytes(expected: Model, patched: Model) -> bool:
    """Return whether a model would be written as the bytes of the other."""
    if expected.container is not patched.container:
        return False
    at, size = 0, len(patched.source.data)
    for piece in expected.pieces():
        length = piece.end - piece.start if isinstance(piece, Span) else len(piece)
        if at + length > size or not same_bytes(piece, Span(patched.source, at, at + length)):
            return False
        at += length
    return at == size


def _without_rules(original: Model, patched: Model, why: str) -> tuple[list[MadeAgain], list[str]]:
    """Compare the original with what is left when the rules are taken off, where that is told."""
    try:
        reverted = opened_again(revert(patched, allow_changed=True).model)
        if _record(original).rules:
            original = opened_again(revert(original, allow_changed=True).model)
    except PatchError:  # it carries no rules, or only a part of its original
        return [MadeAgain(why=why)] * len(patched.graphs), []
    except GraphpatchError as error:
        return [MadeAgain(why=why)] * len(patched.graphs), [str(error)]
    compared, around = _compared(original, reverted, "")
    return [MadeAgain(why=why, faults=comparison.faults) for comparison in compared], around


def _compared(expected: Model, patched: Model, says: str) -> tuple[list[MadeAgain], list[str]]:
    """Compare two models graph by graph, and what is around the graphs."""
    expected = opened_again(expected)
    compared = []
    for made, actual in zip(expected.graphs, patched.graphs, strict=True):
        faults = [*_lost_gradients(made, actual), *_faults(made, actual)]
        faults.sort(key=lambda fault: fault.kind != "backward")
        compared.append(MadeAgain("" if faults else says, faults=faults))
    is_same = expected.container is patched.container
    around = [
        f"{text} of the model was changed"
        for text in differences_around(expected, patched)
        if text.startswith((*SIGNATURES, VERSIONS) if is_same else VERSIONS)
    ]
    return compared, around


def _faults(made: ModelGraph, actual: ModelGraph) -> Iterator[StructureFault]:
    """Yield each difference of a patched graph from what its rules make."""
    for body in made.bodies:
        kind, label, is_ours = "backward" if body.is_ours else "forward", body.label, body.is_ours
        actual_body = actual.counterpart(body)
        if actual_body is None:
            yield StructureFault(kind, label, "", f"function {label!r} is gone", is_ours)
            continue
        if body.signature != actual_body.signature or body.ret != actual_body.ret:
            says = f"function {label!r} takes or returns something else"
            yield StructureFault(kind, label, "", says, is_ours)
        for name in (name for name in body.by_name if name not in actual_body.by_name):
            node = body.node(name)
            is_of_rules = is_ours or provenance.record(node) is not None
            yield _fault_at(node, kind, "is gone: no op has its name", is_of_rules)
        for name in (name for name in actual_body.by_name if name not in body.by_name):
            says = "is not in the original, and no rule adds it"
            yield _fault_at(actual_body.node(name), kind, says, is_ours)
        if len(actual_body.by_name) < len(actual_body):
            for name, count in Counter(actual_body.heads.names).items():
                if count > 1:
                    says = f"{count} ops are named {name!r}"
                    yield StructureFault("forward", label, name, says)
    for name in (name for name in actual.functions if name not in made.functions):
        says = f"function {name!r} is not in the original, and no rule adds it"
        yield StructureFault("backward", name, "", says)
    before, after = made.library.gradients, actual.library.gradients
    for name in dict.fromkeys([*before, *after]):
        if before.get(name) != after.get(name):
            says = f"the gradient function of {name!r} is {after.get(name)}, not {before.get(name)}"
            yield StructureFault("backward", name, "", says, name in before)
    for body in made.bodies:
        actual_body = actual.counterpart(body)
        if actual_body is not None:
            touched, at = {node.name for node in provenance.touched(body)}, actual_body.by_name
            pairs = ((first, at[name]) for name, first in body.by_name.items() if name in at)
            for node, actual_node, changes in unlike(body, actual_body, pairs):
                yield from _node_faults(node, actual_node, changes, touched)


def _node_faults(
    made: Node, actual: Node, changes: Sequence[str], touched: set[str]
) -> Iterator[StructureFault]:
    changes = [change for change in changes if not NOTED.match(change)]
    records = [
        record and structs.replace(record, model=None)
        for record in map(provenance.record, (made, actual))
    ]
    if changes:
        is_keyed = any(OVERRIDE in change for change in changes)
        is_backward = is_keyed or made.body.is_ours or provenance.is_added(made)
        lost = map(names.op_of, set(made.inputs) - set(actual.inputs))
        is_of_rules = made.body.is_ours or made.name in touched or not touched.isdisjoint(lost)
        kind = "backward" if is_backward else "forward"
        yield _fault_at(actual, kind, f"differs: {short(changes)}", is_of_rules)
    elif records[0] != records[1]:
        yield _fault_at(actual, "record", "what rules wrote down there was changed", True)


def _fault_at(node: Node, kind: str, says: str, is_of_rules: bool) -> StructureFault:
    name = provenance.in_model(node).name
    return StructureFault(kind, node.body.label, name, f"{node} {says}", is_of_rules)


def _lost_gradients(made: ModelGraph, actual: ModelGraph) -> Iterator[StructureFault]:
    """Name each rule of whose gradients some are not there: an optimiser may have run after it."""
    ops: dict[str, dict[str, bool]] = {}
    for body in made.bodies:
        actual_body = actual.counterpart(body)
        for index, record in () if body.is_ours else body.touched().items():
            node = Node(body, index)
            if record.patched or record.keys:
                op = record.patched or provenance.in_model(node).name
                for author in provenance.rules_that_patched(node):
                    lost = ops.setdefault(author.rule, {})
                    lost[op] = lost.get(op, False) or not _is_carried(node, actual_body)
    for rule, lost in ops.items():
        gone = [op for op, is_lost in lost.items() if is_lost]
        if gone:
            says = (
                f"the gradients of rule {rule!r} are gone at {len(gone)} of {len(lost)} ops "
                f"({short(gone)}): patch last, after optimisers"
            )
            yield StructureFault("backward", "", gone[0], says)


def _is_carried(node: Node, actual_body: Body | None) -> bool:
    """Return whether what a rule put there is there: the op, its type, its key, what it calls."""
    if actual_body is None or node.name not in actual_body.by_name:
        return False
    carried, actual = (
        (each.op, each.attr(OVERRIDE), each.body.library.gradients.get(each.op))
        for each in (node, actual_body.node(node.name))
    )
    return carried == actual


def damage(model: Model) -> str:
    """Return what is not as rules left it; nothing where all is, or no rule was applied."""
    if all(map(is_intact, model.graphs)):
        return ""
    bodies = ((graph, body) for graph in model.graphs for body in graph.bodies)
    if any(read_record(graph) is None for graph, body in bodies if body.touched()):
        return f"the record of its rules is gone, with the op that carried it; {AGAIN}"
    rules = _record(model).again
    if None in rules:
        return f"the file was changed since, and rules in Python cannot be applied again; {AGAIN}"
    try:
        expected = opened_again(model)
        taken_off(expected)  # and read anew, so that many ops of one form are patched at once
        expected = opened_again(_patched(opened_again(expected), rules))
    except GraphpatchError as error:
        # Ops of gradients that were built since read what rules added, and are no damage.
        is_built = any(True for graph in model.graphs for _ in built_gradients(graph))
        if is_built and not any(map(_has_lost_gradients, model.graphs)):
            return ""
        return f"{error}; {AGAIN}"
    for made, graph in zip(expected.graphs, model.graphs, strict=True):
        record, reads = read_record(graph), reads_of_patched(written_by_rules(graph))
        if record is not None and reads < record.reads:
            return f"{record.reads} inputs read what rules patched, and now {reads}; {AGAIN}"
        for fault in _faults(made, graph):
            if fault.is_of_rules and fault.kind != "record":
                return f"{fault.says}; {AGAIN}"
    return ""


def is_intact(graph: Graph) -> bool:
    """Return whether a graph is as its rules left it; true where no rule was applied."""
    record = read_record(graph)
    if record is None:
        return not any(body.touched() for body in graph.bodies)
    if record.live:  # TensorFlow exports the graph anew, with other attrs beside ours
        return not _has_lost_gradients(graph)
    return record.exported or record.written == checksum_of_rules(graph, written_by_rules(graph))


def _has_lost_gradients(graph: Graph) -> bool:
    """Return whether a key that a rule set, or a called function's gradient, is gone."""
    for body in graph.bodies:
        signatures, gradients = body.library.signatures, body.library.gradients
        for index, record in body.touched().items():
            node = Node(body, index)
            is_keyed = record.keys and not provenance.shadow(node)
            is_call = record.is_added and node.op in signatures
            if (is_keyed and node.attr(OVERRIDE) is None) or (is_call and node.op not in gradients):
                return True
    return False

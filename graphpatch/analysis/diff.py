"""In what two models differ: gradients first, then ops, functions, and what is around the graph."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from graphpatch import names
from graphpatch.analysis import ops
from graphpatch.analysis.intact import damage
from graphpatch.analysis.rule_words import rules_at
from graphpatch.formats import Model
from graphpatch.formats.before import opened_again
from graphpatch.formats.container import meta_around
from graphpatch.formats.load import ModelLike, model_from
from graphpatch.graph import attrs, provenance
from graphpatch.graph.attrs import OVERRIDE, ConstTensor, constant
from graphpatch.graph.check import check_graph
from graphpatch.graph.graph import LIBRARY, Graph, ModelGraph, Progress
from graphpatch.graph.node import (
    INPUT,
    NAME,
    Body,
    Node,
    attr_span,
    attr_spans,
    attr_value,
    payload_fields,
    with_attr,
)
from graphpatch.graph.provenance import name_in_model, op_type_in_model
from graphpatch.graph.record import labels
from graphpatch.graph.wire import Piece, Span, message, piece_bytes, read_span
from graphpatch.protos import GraphDef, MetaGraphDef, NodeDef
from graphpatch.table import cut_short, html_table

MAPS = ("collection_def", "signature_def")


def differences_around(before: Model, after: Model) -> Iterator[str]:
    """Yield each difference in a line."""
    if before.container is not after.container:
        yield f"container: {before.container.name} -> {after.container.name}"
    for old, new in zip_longest(before.graphs, after.graphs):
        if old is not None and new is not None:
            if _rest(old) != _rest(new):
                yield "versions or debug_info of the GraphDef"
            if old.around.meta is not None and new.around.meta is not None:
                yield from _metas(meta_around(old), meta_around(new))


def _rest(graph: ModelGraph) -> GraphDef:
    """Return the GraphDef without its nodes and library."""
    data = graph.source.data
    parts = [data[field.start : field.end] for field in graph.others if field.number != LIBRARY]
    return message(GraphDef, b"".join(parts))


def _metas(before: MetaGraphDef, after: MetaGraphDef) -> Iterator[str]:
    for part in MetaGraphDef.DESCRIPTOR.fields:
        old, new = getattr(before, part.name), getattr(after, part.name)
        if part.name not in MAPS:
            yield from [part.name] if old != new else []
            continue
        for key in sorted({*old, *new}):
            if (key in old) != (key in new) or old[key] != new[key]:
                yield f"{part.name} {key!r}"


CHANGES = ("gradients", "removed", "added", "renamed", "changed", "functions", "other")


@dataclass(frozen=True, slots=True, repr=False)
class Diff:
    """How the model `b` differs from the model `a`: a list for each of CHANGES.

    `gradients` are the ops through which something else flows back, with what flowed `before` and
    `after`, in words; then ops that were removed, added, renamed or changed; functions; and what
    is around the graph. Each entry is as `diff --json` lists it.

    Example:
        >>> found = graphpatch.diff("model.pb", "patched.pb")
        >>> [(one["op"], one["before"]) for one in found.gradients]
        [('block1/relu', 'default'), ('block2/relu', 'default')]
    """

    a: str
    b: str
    gradients: list[dict[str, Any]] = field(default_factory=list)
    removed: list[dict[str, Any]] = field(default_factory=list)
    added: list[dict[str, Any]] = field(default_factory=list)
    renamed: list[dict[str, Any]] = field(default_factory=list)
    changed: list[dict[str, Any]] = field(default_factory=list)
    functions: list[dict[str, Any]] = field(default_factory=list)
    other: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Return whether the models are equal."""
        return not any(getattr(self, kind) for kind in CHANGES)

    def document(self) -> dict[str, Any]:
        """Return what `diff --json` prints."""
        kinds = {kind: list(getattr(self, kind)) for kind in CHANGES}
        return {"a": self.a, "b": self.b, "equal": self.ok, **kinds}

    def __repr__(self) -> str:
        counts = [f"{kind}: {count}" for kind in CHANGES if (count := len(getattr(self, kind)))]
        return f"<Diff: {self.a} -> {self.b}; {', '.join(counts) or 'no difference'}>"

    def _repr_html_(self) -> str:
        rows = [
            (op_entry(change), change["before"], change["after"], ", ".join(change["rules"]))
            for change in self.gradients
        ]
        return html_table(repr(self)[1:-1], ("gradient of", "before", "after", "rules"), rows)


def op_entry(op: Mapping[str, Any]) -> str:
    """Return an op as an entry tells of it: its op type, name, and function."""
    function = "" if op["body"] == "main" else f" in function {op['body']}"
    return f"{op['type']} {op['op']!r}{function}"


def diff(a: ModelLike, b: ModelLike, progress: Progress | None = None) -> Diff:
    """Compare two models: gradients first, then ops, functions, weights and collections.

    Ops are paired by name, whatever rules renamed; weights are compared by content, and what rules
    write down of themselves does not count. Nothing is run, forward or backward.

    Args:
        a: A model: what `load` takes.
        b: Another.
        progress: Called with what is done, how much of it, and of how much.

    Raises:
        ModelError: A model cannot be read or is broken.
        TypeError: One of the two is not a model.

    When not to use it: to compare what two models compute; `verify` runs them.

    Example:
        >>> graphpatch.diff("model.pb", "model.pb").ok
        True
    """
    loaded = model_from("a", a, progress), model_from("b", b, progress)
    result = Diff(loaded[0].path, loaded[1].path)
    before, after = (opened_again(model) for model in loaded)
    for model in (before, after):
        for graph in model.graphs:
            check_graph(graph)
    faults = [damage(model) for model in (before, after)]
    for model, fault in zip((before, after), faults, strict=True):
        if fault:
            result.other.append(f"{model.path} is not as its rules left it: {fault}")
    for old, new in zip_longest(before.graphs, after.graphs):
        if old is None or new is None:
            result.other.append(f"graph {(old or new).around.tags!r} is in one of them alone")
        else:
            _diff(old, new, result, [not fault for fault in faults])
    result.other.extend(differences_around(before, after))
    return result


def _diff(
    before: ModelGraph, after: ModelGraph, result: Diff, told_by_rules: Sequence[bool]
) -> None:
    """Compare two graphs; `told_by_rules`: their records tell what flows back."""
    bodies = [{body.label: body for body in graph.bodies} for graph in (before, after)]
    changed_keys: dict[tuple[str, str], tuple[Node, Node]] = {}
    for label, body in bodies[0].items():
        if label in bodies[1]:
            changed_keys |= _diff_bodies(body, bodies[1][label], result)
        else:
            result.functions.append({"name": label, "change": "removed"})
    added = [label for label in bodies[1] if label not in bodies[0]]
    result.functions.extend([{"name": label, "change": "added"} for label in added])
    for name in sorted(before.library.gradients.keys() | after.library.gradients.keys()):
        old, new = before.library.gradients.get(name), after.library.gradients.get(name)
        if old != new and name in bodies[0] and name in bodies[1]:
            change = f"gradient: {old or 'its own'} -> {new or 'its own'}"
            result.functions.append({"name": name, "change": change})
    result.gradients.extend(_gradient_changes(before, after, changed_keys, told_by_rules))


def _diff_bodies(
    before: Body, after: Body, result: Diff
) -> dict[tuple[str, str], tuple[Node, Node]]:
    """Compare two bodies; returned are the pairs of which one has another key of its gradient."""
    pairs, changed_keys = paired_ops(before, after), {}
    result.removed.extend([_op_document(Node(before, at)) for at in pairs.first])
    result.added.extend([_op_document(Node(after, at)) for at in pairs.second])
    for first, second in unlike_pairs(before, after, pairs.both):
        old, new = Node(before, first), Node(after, second)
        if old.name != new.name:
            result.renamed.append({**_op_document(old), "to": new.name})
        changes = differences(old, new)
        if changes:
            result.changed.append({**_op_document(new), "changes": changes})
        if old.attr(OVERRIDE) != new.attr(OVERRIDE):
            changed_keys[before.label, name_in_model(old)] = old, new
    returned = [
        key for key in {**before.ret, **after.ret} if before.ret.get(key) != after.ret.get(key)
    ]
    for key in returned if before.is_ours == after.is_ours else ():
        change = f"output {key}: {before.ret.get(key)} -> {after.ret.get(key)}"
        result.functions.append({"name": before.label, "change": change})
    return changed_keys


def _op_document(node: Node) -> dict[str, Any]:
    op = {"body": node.body.label, "op": node.name, "type": node.op}
    record = provenance.record(node)
    if record is not None and (places := (*record.rules, *record.inputs)):
        op["rule"] = provenance.authors(node, [max(places)])[0].rule
    return op


def _gradient_changes(
    old_graph: ModelGraph,
    new_graph: ModelGraph,
    changed_keys: dict[tuple[str, str], tuple[Node, Node]],
    told_by_rules: Sequence[bool],
) -> Iterator[dict[str, Any]]:
    """The ops through which something else flows back: what before, what after, by which rules."""
    names = labels([*old_graph.library.rules, *new_graph.library.rules])
    told_of = zip((old_graph, new_graph), told_by_rules, strict=True)
    old_rules, new_rules = (rules_at(graph, names) if is_told else {} for graph, is_told in told_of)
    for key in dict.fromkeys([*old_rules, *new_rules, *changed_keys]):
        before, after = old_rules.get(key, {}), new_rules.get(key, {})
        if before == after and (before or key not in changed_keys):
            continue
        old, new = changed_keys.get(key) or (_node_at(old_graph, *key), _node_at(new_graph, *key))
        node = new if old is None else old
        yield {
            "body": key[0],
            "op": key[1],
            "type": "" if node is None else op_type_in_model(node),
            "before": _backward_in_words(before, old),
            "after": _backward_in_words(after, new),
            "rules": [rule for rule in {**after, **before} if before.get(rule) != after.get(rule)],
        }


def _node_at(graph: ModelGraph, label: str, op: str) -> Node | None:
    body = graph.body_if_there(label)
    return Node(body, body.by_name[op]) if body is not None and op in body.by_name else None


def _backward_in_words(rules: dict[str, str], node: Node | None) -> str:
    """Return what flows back through an op, in words."""
    if rules:
        return ", then ".join(rules.values())
    if node is None:
        return "(not there)"
    state = ops.gradient_state(node)
    named = state.get("function") or state.get("key")
    return f"key {named}" if named else state["state"]


@dataclass
class PairedOps:
    """Indices of ops: pairs, those of the first body alone, those of the second alone."""

    both: list[tuple[int, int]] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    second: list[int] = field(default_factory=list)


def paired_ops(before: Body, after: Body) -> PairedOps:
    """Pair the ops of two bodies, in the order of the first."""
    ours, theirs = _op_keys(before), _op_keys(after)
    index = dict(zip(theirs, range(len(theirs)), strict=True))
    paired = PairedOps()
    for at, key in enumerate(ours):
        if key in index:
            paired.both.append((at, index.pop(key)))
        else:
            paired.first.append(at)
    paired.second = sorted(index.values())
    if paired.first and paired.second:
        _pair_renamed(before, after, paired)
    return paired


def _op_keys(body: Body) -> list[str]:
    """What an op is known by: its name before any rule; what a rule added, apart from those."""
    keys = list(body.heads.names)
    for index, record in body.touched().items():
        is_added, node = record.is_added, Node(body, index)
        keys[index] = f"+{node.name}" if is_added else name_in_model(node)
    return keys


def _pair_renamed(before: Body, after: Body, paired: PairedOps) -> None:
    """Pair what differs in its name alone; of several alike, none is paired."""
    by_look: dict[object, list[int]] = {}
    for at in paired.second:
        by_look.setdefault(_look(Node(after, at), {}), []).append(at)
    renamed: dict[str, str] = {}
    unpaired, taken = [], set()
    for at in paired.first:
        like = by_look.get(_look(Node(before, at), renamed), [])
        if len(like) == 1 and like[0] not in taken:
            taken.add(like[0])
            paired.both.append((at, like[0]))
            renamed[before.heads.names[at]] = after.heads.names[like[0]]
        else:
            unpaired.append(at)
    paired.first = unpaired
    paired.second = [at for at in paired.second if at not in taken]


def _look(node: Node, renamed: dict[str, str]) -> object:
    """Return an op without its name; of a large field its length alone."""
    read = [(text, names.op_of(text)) for text in node.inputs]
    inputs = tuple(text.replace(op, renamed.get(op, op), 1) for text, op in read)
    payload = with_attr(node.body.payload(node.index), provenance.PROVENANCE_ATTR, None)
    rest = [
        piece.end - piece.start if isinstance(piece, Span) else piece
        for number, piece in payload_fields(payload)
        if number not in (NAME, INPUT)
    ]
    return node.op, inputs, tuple(sorted(map(repr, rest)))


def unlike_by_name(before: Graph, after: Graph) -> Iterator[tuple[Node, Node]]:
    """Yield the ops of two graphs that differ, of those that have one name in one body."""
    for body in before.bodies:
        body_after = after.counterpart(body)
        if body_after is not None:
            at = body_after.by_name
            pairs = ((first, at[name]) for name, first in body.by_name.items() if name in at)
            for first, second in unlike_pairs(body, body_after, pairs):
                yield Node(body, first), Node(body_after, second)


def unlike_pairs(
    before: Body, after: Body, pairs: Iterable[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Yield the pairs whose NodeDefs are not the same bytes."""
    for pair in pairs:
        old, new = before.payload(pair[0]), after.payload(pair[1])
        if old != new and not (len(old) == len(new) and all(map(same_bytes, old, new))):
            yield pair


NOTHING = "(none)"


def differences(before: Node, after: Node) -> list[str]:
    """Return each difference in a line; none where they are equal."""
    changes = []
    if before.op != after.op:
        changes.append(f"op type: {before.op} -> {after.op}")
    for slot, (old, new) in enumerate(zip_longest(before.inputs, after.inputs, fillvalue=NOTHING)):
        if old != new:
            changes.append(f"input {slot}: {old} -> {new}")
    if _behind_inputs(before) == _behind_inputs(after):
        return changes
    if before.device != after.device:
        changes.append(f"device: {before.device or NOTHING} -> {after.device or NOTHING}")
    return changes + list(_changed_attrs(before, after))


def _behind_inputs(node: Node) -> object:
    """Return the device and attrs of a small NodeDef, to be compared; of a large one its bytes."""
    payload = node.body.payload(node.index)
    if len(payload) > 1:
        return payload
    rest = message(NodeDef, piece_bytes(payload[0]))
    for part in ("name", "op", "input"):
        rest.ClearField(part)
    rest.attr.pop(provenance.PROVENANCE_ATTR, None)
    return rest


def _changed_attrs(before: Node, after: Node) -> Iterator[str]:
    old, new = (attr_spans(node.body.payload(node.index)) for node in (before, after))
    for key in sorted((old.keys() | new.keys()) - {provenance.PROVENANCE_ATTR}):
        if key not in old or key not in new:
            yield f"attr {key}: {_attr_in_words(before, key)} -> {_attr_in_words(after, key)}"
        elif not same_bytes(old[key], new[key]):
            yield from _changed_values(before, after, key)


def _changed_values(before: Node, after: Node, key: str) -> Iterator[str]:
    """Yield an attr that is there in other bytes: whether it says something else."""
    if key == "value":
        old, new = constant(before), constant(after)
        if old is not None and new is not None:
            difference = describe_difference(old, new)
            if difference:
                yield f"value: {difference}"
            return
    spans = [attr_span(node.body.payload(node.index), key) for node in (before, after)]
    values = [attr_value(span) for span in spans if span is not None]
    if values[0] != values[1]:
        yield f"attr {key}: {_attr_in_words(before, key)} -> {_attr_in_words(after, key)}"


def _attr_in_words(node: Node, key: str) -> str:
    value = node.attr(key)
    return NOTHING if value is None else cut_short(json.dumps(attrs.as_json(value)), 60)


if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

BLOCK = 1 << 20


def same_bytes(a: Piece, b: Piece) -> bool:
    """Return whether two pieces are the same bytes; large ones are read block by block."""
    if isinstance(a, bytes) or isinstance(b, bytes):
        return piece_bytes(a) == piece_bytes(b)
    length = a.end - a.start
    if length != b.end - b.start:
        return False
    starts = range(0, length, BLOCK)
    return all(_block(a, at) == _block(b, at) for at in starts)


def _block(span: Span, at: int) -> bytes:
    """Return a block of a span, read and not mapped: mapped pages would count as memory."""
    start = span.start + at
    return read_span(Span(span.source, start, min(start + BLOCK, span.end)))


def describe_difference(before: ConstTensor, after: ConstTensor) -> str:
    """Return how two constants differ, in words; nothing where all elements are the same."""
    if (before.dtype, before.shape) != (after.dtype, after.shape):
        return f"{before.dtype}{list(before.shape)} -> {after.dtype}{list(after.shape)}"
    count, largest = 0, 0.0
    for old, new, length in _aligned(before, after):
        differ = _differ(old, new)
        unequal = int(differ.sum()) * (length if len(differ) == 1 else 1)
        if unequal and old.dtype != object:
            largest = max(largest, float(abs(old.astype("c16") - new.astype("c16")).max()))
        count += unequal
    by = f", by up to {largest:.7g}" if largest else ""
    return f"{count} of {before.size} elements{by}" if count else ""


def _differ(old: Array, new: Array) -> Array:
    import numpy as np

    unequal: Array = old != new
    if old.dtype.kind == "f":
        unequal = unequal & ~(np.isnan(old) & np.isnan(new)) | (np.signbit(old) != np.signbit(new))
    return np.atleast_1d(unequal)


def _aligned(before: ConstTensor, after: ConstTensor) -> Iterator[tuple[Array, Array, int]]:
    """Elements of both, and how many; arrays of one element stand for all of them."""
    lefts, rights = before.pieces(), after.pieces()
    (old, m), (new, n) = next(lefts, (None, 0)), next(rights, (None, 0))
    while old is not None and new is not None:
        step = min(m, n)
        yield old[:step], new[:step], step
        old, m = (old[step:] if len(old) > 1 else old), m - step
        new, n = (new[step:] if len(new) > 1 else new), n - step
        if not m:
            old, m = next(lefts, (None, 0))
        if not n:
            new, n = next(rights, (None, 0))

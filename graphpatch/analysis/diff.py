"""In what two models differ: gradients first, then ops, functions, and what is around the graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from graphpatch.analysis import ops
from graphpatch.analysis.intact import damage
from graphpatch.analysis.node_diff import differences
from graphpatch.analysis.pairs import paired_ops, unlike_pairs
from graphpatch.analysis.rule_words import rules_at
from graphpatch.formats import Model
from graphpatch.formats.before import opened_again
from graphpatch.formats.container import meta_around
from graphpatch.formats.load import ModelLike, model_from
from graphpatch.graph import provenance
from graphpatch.graph.attrs import OVERRIDE
from graphpatch.graph.check import check_graph
from graphpatch.graph.graph import LIBRARY, ModelGraph, Progress
from graphpatch.graph.node import Body, Node
from graphpatch.graph.provenance import name_in_model, op_type_in_model
from graphpatch.graph.record import labels
from graphpatch.graph.wire import message
from graphpatch.protos import GraphDef, MetaGraphDef
from graphpatch.table import html_table

MAPS = ("collection_def", "signature_def")


def differences_around(one: Model, other: Model) -> Iterator[str]:
    """Each difference in a line."""
    if one.container is not other.container:
        yield f"container: {one.container.name} -> {other.container.name}"
    for left, right in zip_longest(one.graphs, other.graphs):
        if left is not None and right is not None:
            if _rest(left) != _rest(right):
                yield "versions or debug_info of the GraphDef"
            if left.around.meta is not None and right.around.meta is not None:
                yield from _metas(meta_around(left), meta_around(right))


def _rest(graph: ModelGraph) -> GraphDef:
    """The GraphDef without its nodes and library."""
    data = graph.source.data
    kept = [data[one.start : one.end] for one in graph.others if one.number != LIBRARY]
    return message(GraphDef, b"".join(kept))


def _metas(one: MetaGraphDef, other: MetaGraphDef) -> Iterator[str]:
    for part in MetaGraphDef.DESCRIPTOR.fields:
        left, right = getattr(one, part.name), getattr(other, part.name)
        if part.name not in MAPS:
            yield from [part.name] if left != right else []
            continue
        for key in sorted({*left, *right}):
            if (key in left) != (key in right) or left[key] != right[key]:
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
        """Whether the models are equal."""
        return not any(getattr(self, kind) for kind in CHANGES)

    def document(self) -> dict[str, Any]:
        """What `diff --json` prints."""
        kinds = {kind: list(getattr(self, kind)) for kind in CHANGES}
        return {"a": self.a, "b": self.b, "equal": self.ok, **kinds}

    def __repr__(self) -> str:
        counts = [f"{kind}: {count}" for kind in CHANGES if (count := len(getattr(self, kind)))]
        return f"<Diff: {self.a} -> {self.b}; {', '.join(counts) or 'no difference'}>"

    def _repr_html_(self) -> str:
        rows = [
            (op_entry(one), one["before"], one["after"], ", ".join(one["rules"]))
            for one in self.gradients
        ]
        return html_table(repr(self)[1:-1], ("gradient of", "before", "after", "rules"), rows)


def op_entry(one: Mapping[str, Any]) -> str:
    """An op as an entry tells of it: its op type, name, and function."""
    function = "" if one["body"] == "main" else f" in function {one['body']}"
    return f"{one['type']} {one['op']!r}{function}"


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
    found = Diff(loaded[0].path, loaded[1].path)
    one, other = (opened_again(model) for model in loaded)
    for model in (one, other):
        for graph in model.graphs:
            check_graph(graph)
    faults = [damage(model) for model in (one, other)]
    for model, fault in zip((one, other), faults, strict=True):
        if fault:
            found.other.append(f"{model.path} is not as its rules left it: {fault}")
    for left, right in zip_longest(one.graphs, other.graphs):
        if left is None or right is None:
            found.other.append(f"graph {(left or right).around.tags!r} is in one of them alone")
        else:
            _diff(left, right, found, [not fault for fault in faults])
    found.other.extend(differences_around(one, other))
    return found


def _diff(one: ModelGraph, other: ModelGraph, found: Diff, told_by_rules: Sequence[bool]) -> None:
    """Compare two graphs; `told_by_rules`: their records tell what flows back."""
    bodies = [{body.label: body for body in graph.bodies} for graph in (one, other)]
    told: dict[tuple[str, str], tuple[Node, Node]] = {}
    for label, body in bodies[0].items():
        if label in bodies[1]:
            told |= _diff_bodies(body, bodies[1][label], found)
        else:
            found.functions.append({"name": label, "change": "removed"})
    added = [label for label in bodies[1] if label not in bodies[0]]
    found.functions.extend([{"name": label, "change": "added"} for label in added])
    for name in sorted(one.library.gradients.keys() | other.library.gradients.keys()):
        left, right = one.library.gradients.get(name), other.library.gradients.get(name)
        if left != right and name in bodies[0] and name in bodies[1]:
            change = f"gradient: {left or 'its own'} -> {right or 'its own'}"
            found.functions.append({"name": name, "change": change})
    found.gradients.extend(_gradient_changes(one, other, told, told_by_rules))


def _diff_bodies(one: Body, other: Body, found: Diff) -> dict[tuple[str, str], tuple[Node, Node]]:
    """Compare two bodies; returned are the pairs of which one has another key of its gradient."""
    pairs, told = paired_ops(one, other), {}
    found.removed.extend([_op_document(Node(one, at)) for at in pairs.first])
    found.added.extend([_op_document(Node(other, at)) for at in pairs.second])
    for first, second in unlike_pairs(one, other, pairs.both):
        left, right = Node(one, first), Node(other, second)
        if left.name != right.name:
            found.renamed.append({**_op_document(left), "to": right.name})
        changes = differences(left, right)
        if changes:
            found.changed.append({**_op_document(right), "changes": changes})
        if left.attr(OVERRIDE) != right.attr(OVERRIDE):
            told[one.label, name_in_model(left)] = left, right
    returned = [key for key in {**one.ret, **other.ret} if one.ret.get(key) != other.ret.get(key)]
    for key in returned if one.is_ours == other.is_ours else ():
        change = f"output {key}: {one.ret.get(key)} -> {other.ret.get(key)}"
        found.functions.append({"name": one.label, "change": change})
    return told


def _op_document(node: Node) -> dict[str, Any]:
    op = {"body": node.body.label, "op": node.name, "type": node.op}
    rules = provenance.rules_that_touched(node)
    return {**op, "rule": rules[-1].rule} if rules else op


def _gradient_changes(
    one: ModelGraph,
    other: ModelGraph,
    told: dict[tuple[str, str], tuple[Node, Node]],
    told_by_rules: Sequence[bool],
) -> Iterator[dict[str, Any]]:
    """The ops through which something else flows back: what before, what after, by which rules."""
    names = labels([*one.library.rules, *other.library.rules])
    told_of = zip((one, other), told_by_rules, strict=True)
    left, right = (rules_at(graph, names) if is_told else {} for graph, is_told in told_of)
    for body, op in dict.fromkeys([*left, *right, *told]):
        before, after = left.get((body, op), {}), right.get((body, op), {})
        if before == after and ((body, op) not in told or before):
            continue
        nodes = told.get((body, op), (_node_at(one, body, op), _node_at(other, body, op)))
        states = [
            _backward_in_words(rules, node)
            for rules, node in zip((before, after), nodes, strict=True)
        ]
        found = {"body": body, "op": op, "type": _type_before_rules(one, other, body, op)}
        found |= {"before": states[0], "after": states[1]}
        changed = dict.fromkeys([*after, *before])
        rules = [name for name in changed if before.get(name) != after.get(name)]
        yield {**found, "rules": rules}


def _node_at(graph: ModelGraph, label: str, op: str) -> Node | None:
    body = graph.body_if_there(label)
    return body.node(op) if body is not None and op in body.by_name else None


def _type_before_rules(one: ModelGraph, other: ModelGraph, label: str, op: str) -> str:
    """The op type of an op before any rule moved it aside."""
    nodes = (_node_at(graph, label, op) for graph in (one, other))
    return next((op_type_in_model(node) for node in nodes if node is not None), "")


def _backward_in_words(rules: dict[str, str], node: Node | None) -> str:
    """What flows back through an op, in words."""
    if rules:
        return ", then ".join(rules.values())
    if node is None:
        return "(not there)"
    state = ops.gradient_state(node)
    named = state.get("function") or state.get("key")
    return f"key {named}" if named else state["state"]

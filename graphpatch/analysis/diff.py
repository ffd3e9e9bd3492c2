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

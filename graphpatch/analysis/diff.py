"""In what two models differ: gradients first, then ops, functions, and what is around the graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from graphpatch.analysis.again import damage
from graphpatch.analysis.compare import differences_around, titles, unlike
from graphpatch.analysis.rule_words import gradient_state, rules_at
from graphpatch.formats.before import opened_again
from graphpatch.formats.load import ModelLike, model_from
from graphpatch.graph import provenance
from graphpatch.graph.attrs import OVERRIDE
from graphpatch.graph.check import check_graph
from graphpatch.graph.graph import ModelGraph, Progress
from graphpatch.graph.node import Body, Node, behind_head
from graphpatch.graph.provenance import in_model, op_type_in_model, recorded_original
from graphpatch.graph.record import labels
from graphpatch.names import OpKey
from graphpatch.shown import Document, html_table

CHANGES = ("gradients", "removed", "added", "renamed", "changed", "functions", "other")


@dataclass(frozen=True, slots=True, repr=False)
class Diff(Document):
    """How the model `b` differs from the model `a`: a list for each of CHANGES.

    `gradients` are the ops through which something else flows back, with what flowed `before` and
    `after`, in words; then ops that were removed, added, renamed or changed; functions; and what
    is around the graph. Each entry is as `diff --json` lists it. `titles` tell the models apart.

    Example:
        >>> found = graphpatch.diff("model.pb", "patched.pb")
        >>> [(one["op"], one["before"]) for one in found.gradients]
        [('block1/relu', 'default'), ('block2/relu', 'default')]
    """

    keys = f"a b equal=ok {' '.join(CHANGES)}"
    a: str
    b: str
    gradients: list[dict[str, Any]] = field(default_factory=list)
    removed: list[dict[str, Any]] = field(default_factory=list)
    added: list[dict[str, Any]] = field(default_factory=list)
    renamed: list[dict[str, Any]] = field(default_factory=list)
    changed: list[dict[str, Any]] = field(default_factory=list)
    functions: list[dict[str, Any]] = field(default_factory=list)
    other: list[str] = field(default_factory=list)
    titles: Sequence[str] = ()

    @property
    def ok(self) -> bool:
        """Return whether the models are equal."""
        return not any(getattr(self, kind) for kind in CHANGES)

    def __repr__(self) -> str:
        counts = [f"{kind}: {count}" for kind in CHANGES if (count := len(getattr(self, kind)))]
        return f"<Diff: {' -> '.join(self.titles)}; {', '.join(counts) or 'no difference'}>"

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
    rules = [sum(len(graph.library.rules) for graph in model.graphs) for model in loaded]
    a, b = (model.path for model in loaded)
    result = Diff(a, b, titles=titles([a, b], rules) if a == b else (a, b))
    before, after = (opened_again(model) for model in loaded)
    are_told = []
    for model in (before, after):
        for graph in model.graphs:
            check_graph(graph)
        fault = damage(model)
        are_told.append(not fault)
        if fault:
            result.other.append(f"{model.path} is not as its rules left it: {fault}")
    for old, new in zip_longest(before.graphs, after.graphs):
        if old is None or new is None:
            result.other.append(f"graph {(old or new).around.tags!r} is in one of them alone")
        else:
            _diff_graphs(old, new, result, are_told)
    result.other.extend(differences_around(before, after))
    return result


Keyed = dict[OpKey, tuple[Node, Node]]
"""The pairs of ops of which one has another key of its gradient."""


def _diff_graphs(
    before: ModelGraph, after: ModelGraph, result: Diff, are_told: Sequence[bool]
) -> None:
    """Compare two graphs; `are_told` is whether the records of each tell what flows back."""
    old_bodies, new_bodies = ({b.label: b for b in graph.bodies} for graph in (before, after))
    keyed: Keyed = {}
    for label, body in old_bodies.items():
        if label in new_bodies:
            _diff_bodies(body, new_bodies[label], result, keyed)
        else:
            result.functions.append({"name": label, "change": "removed"})
    added = [label for label in new_bodies if label not in old_bodies]
    result.functions.extend({"name": label, "change": "added"} for label in added)
    for name in sorted(before.library.gradients.keys() | after.library.gradients.keys()):
        old, new = before.library.gradients.get(name), after.library.gradients.get(name)
        if old != new and name in old_bodies and name in new_bodies:
            change = f"gradient: {old or 'its own'} -> {new or 'its own'}"
            result.functions.append({"name": name, "change": change})
    names = labels([*before.library.rules, *after.library.rules])
    old_rules, new_rules = (
        rules_at(graph, names) if is_told else {}
        for graph, is_told in zip((before, after), are_told, strict=True)
    )
    states: dict[tuple[Body, str, bytes], str] = {}
    for key in dict.fromkeys([*old_rules, *new_rules, *keyed]):
        rules = old_rules.get(key, {}), new_rules.get(key, {})
        if rules[0] == rules[1] and (rules[0] or key not in keyed):
            continue
        nodes = keyed.get(key) or (_node_at(old_bodies, *key), _node_at(new_bodies, *key))
        known = nodes[0] or nodes[1]
        entry = {
            "body": key[0],
            "op": key[1],
            "type": "" if known is None else op_type_in_model(known),
            "before": _backward_in_words(rules[0], nodes[0], states),
            "after": _backward_in_words(rules[1], nodes[1], states),
            "rules": [r for r in {**rules[1], **rules[0]} if rules[0].get(r) != rules[1].get(r)],
        }
        result.gradients.append(entry)


def _diff_bodies(before: Body, after: Body, result: Diff, keyed: Keyed) -> None:
    keys = _op_keys(after)
    added = dict(zip(keys, range(len(keys)), strict=True))
    partners = [added.pop(key, -1) for key in _op_keys(before)]
    removed = (first for first, second in enumerate(partners) if second < 0)
    result.removed.extend(_op_documents(before, removed))
    result.added.extend(_op_documents(after, sorted(added.values())))
    pairs = (pair for pair in enumerate(partners) if pair[1] >= 0)
    unlike_pairs = list(unlike(before, after, pairs))
    names, names_after = before.heads.names, after.heads.names
    renamed = [
        (old, new) for old, new, _ in unlike_pairs if names[old.index] != names_after[new.index]
    ]
    documents = _op_documents(before, [old.index for old, _ in renamed])
    for document, (_, new) in zip(documents, renamed, strict=True):
        result.renamed.append({**document, "to": names_after[new.index]})
    for old, new, changes in unlike_pairs:
        if changes:
            [document] = _op_documents(after, [new.index])
            result.changed.append({**document, "changes": changes})
            if any(OVERRIDE in change for change in changes):
                keyed[before.label, in_model(old).name] = old, new
    for key in {**before.ret, **after.ret} if before.is_ours == after.is_ours else ():
        if before.ret.get(key) != after.ret.get(key):
            change = f"output {key}: {before.ret.get(key)} -> {after.ret.get(key)}"
            result.functions.append({"name": before.label, "change": change})


def _op_documents(body: Body, indices: Iterable[int]) -> Iterator[dict[str, Any]]:
    heads, records, label = body.heads, body.touched(), body.label
    for index in indices:
        op = {"body": label, "op": heads.names[index], "type": heads.ops[index]}
        record = records.get(index)
        if record is not None and (places := record.rules + record.inputs):
            op["rule"] = provenance.author(body, max(places)).rule
        yield op


def _node_at(bodies: Mapping[str, Body], label: str, op: str) -> Node | None:
    body = bodies.get(label)
    return Node(body, body.by_name[op]) if body is not None and op in body.by_name else None


def _backward_in_words(
    rules: dict[str, str], node: Node | None, states: dict[tuple[Body, str, bytes], str]
) -> str:
    """Return what flows back through an op, in words; `states` has them by type and attrs."""
    if rules:
        return ", then ".join(rules.values())
    if node is None:
        return "(not there)"
    body, index = node
    form = body, body.heads.ops[index], behind_head(body.payload(index).small)
    if form not in states:
        state = gradient_state(node)
        named = state.get("function") or state.get("key")
        states[form] = f"key {named}" if named else state["state"]
    return states[form]


def _op_keys(body: Body) -> list[str]:
    """Return the names of ops before any rule; what a rule added is known apart from those."""
    keys = list(body.heads.names)
    for index, record in body.touched().items():
        if record.is_added:
            keys[index] = f"+{keys[index]}"
        else:
            keys[index] = recorded_original(Node(body, index), record).name
    return keys

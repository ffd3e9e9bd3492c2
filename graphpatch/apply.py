"""Rules on a model: the patched model, and the report of what was done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphpatch.errors import GraphpatchError, MatchError, PatchError
from graphpatch.formats import Model, load
from graphpatch.graph import provenance
from graphpatch.graph.body import Node
from graphpatch.graph.check import check, foreign
from graphpatch.graph.edit import Editor
from graphpatch.graph.graph import Graph
from graphpatch.graph.heads import Progress
from graphpatch.match.misses import explain
from graphpatch.match.select import select
from graphpatch.rules import Rule, rules_from


@dataclass(frozen=True, slots=True)
class Result:
    """A patched model, not yet written, and what `apply --json` says of it."""

    model: Model
    report: dict[str, Any]


@dataclass(slots=True)
class _Findings:
    rules: list[dict[str, Any]] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    session: dict[str, None] = field(default_factory=dict)
    tape: dict[str, None] = field(default_factory=dict)


def apply(
    rules: Sequence[Rule | Mapping[str, Any]],
    model: Model | str | Path,
    progress: Progress | None = None,
) -> Result:
    """Apply rules, each on the result of the one before, and return the patched model.

    The model that came in is left as it was. Raises MatchError where a rule does not match as
    often as it expects, PatchError where a patch cannot be done or the rules were applied
    before, ModelError where the graph is broken; nothing is changed then.
    """
    loaded = model if isinstance(model, Model) else load(model, progress)
    patched = loaded.copy()
    try:
        found = _apply_all(_as_rules(rules), patched.graphs, progress)
    except GraphpatchError as error:
        raise type(error)(f"{loaded.path}: {error}") from error
    return Result(patched, _report(loaded, patched, found))


def _as_rules(rules: Sequence[Rule | Mapping[str, Any]]) -> list[Rule]:
    ready = [rule for rule in rules if isinstance(rule, Rule)]
    return ready if len(ready) == len(rules) else rules_from(list(rules))


def _apply_all(rules: list[Rule], graphs: list[Graph], progress: Progress | None) -> _Findings:
    found = _Findings()
    for graph in graphs:
        check(graph)
        found.notes.update(dict.fromkeys(foreign(graph)))
    _refuse_again(rules, graphs)
    for place, rule in enumerate(rules):
        if progress is not None:
            progress("matching", place, len(rules))
        try:
            _apply_one(rule, graphs, found)
        except GraphpatchError as error:
            raise type(error)(f"rule {rule.author.rule!r}: {error}") from error
    return found


def _apply_one(rule: Rule, graphs: list[Graph], found: _Findings) -> None:
    matched = [(graph, select(graph, rule.match)) for graph in graphs]
    nodes = [node for _, some in matched for node in some]
    _expected(rule, graphs, len(nodes))
    _refuse_shadowed(nodes)
    rule.patch.check(nodes)
    entries = [
        _entry(node, graph.label if len(graphs) > 1 else None)
        for graph, some in matched
        for node in some
    ]
    carriers: dict[str, None] = {}
    for graph, some in matched:
        editor = Editor(graph, rule.author)
        for node in some:
            rule.patch.rewrite(node, editor)
        found.notes.update(editor.notes)
        if editor.idle:
            found.notes[_idle(rule, editor.idle)] = None
        found.session.update(editor.session)
        found.tape.update(editor.tape)
        carriers.update(editor.carriers)
    emit = "+".join(carriers)
    found.rules.append({"name": rule.author.rule, "matches": entries, "emit": emit})


def _idle(rule: Rule, reasons: list[str]) -> str:
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return f"rule {rule.author.rule!r} means nothing on some of its ops: {reasons[0]}{more}"


def _expected(rule: Rule, graphs: list[Graph], count: int) -> None:
    expect = rule.expect
    if count >= expect.min and (expect.max is None or count <= expect.max):
        return
    text = f"matched {count or 'nothing'}, expected {expect}"
    raise MatchError(text if count else f"{text}\n{explain(graphs, rule.match)}")


def _refuse_again(rules: list[Rule], graphs: list[Graph]) -> None:
    """Rules that a model already carries are not put on it as a second layer."""
    ids = {rule.author.id: rule.author.rule for rule in rules}
    for graph in graphs:
        for body in graph.bodies:
            for node in provenance.touched(body):
                for entry in provenance.entries(node):
                    if entry["id"] in ids:
                        raise PatchError(
                            f"rule {ids[entry['id']]!r} has been applied to this model already "
                            f"(see {node}); apply rules to the original"
                        )


def _refuse_shadowed(nodes: list[Node]) -> None:
    """An op that an earlier rule put behind a gradient of its own is out of reach of the next."""
    for node in nodes:
        by = provenance.shadow(node)
        if by:
            raise PatchError(
                f"no gradient reaches {node} any more, since rule {by!r} gave its outputs another "
                f'one; leave it out of one of the rules: "not": {{"name": ...}}'
            )


def _entry(node: Node, tags: str | None) -> dict[str, str]:
    entry = {"body": node.body.label, "op": node.name, "type": node.op}
    return entry if tags is None else {**entry, "graph": tags}


def _report(before: Model, after: Model, found: _Findings) -> dict[str, Any]:
    return {
        "rules": found.rules,
        "nodes": {"before": before.node_count, "after": after.node_count},
        "consumer": {"session": list(found.session), "tape": list(found.tape)},
        "notes": list(found.notes),
    }

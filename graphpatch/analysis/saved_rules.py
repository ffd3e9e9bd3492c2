"""The matches of a rules file as a rules file of their own: a rule each, by the ops' names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from graphpatch.application import check_all
from graphpatch.errors import MatchError, PatchError
from graphpatch.formats import Model
from graphpatch.graph.node import Node
from graphpatch.match.pattern.overlaps import Binding
from graphpatch.match.select import MatchedOps, find, match_of_ops
from graphpatch.match.spec import WHOLE
from graphpatch.rules import Rule
from graphpatch.step import apply_rule


def as_rules_file(rules: Sequence[Rule], model: Model) -> dict[str, Any]:
    """Return a rules file with one rule for each match, to be edited; as it is, it does the same.

    Ops on which a patch means nothing stand in the rule of the first on which it does, as a rule
    of their own would be refused. Raises what `apply` raises: matches that cannot be patched are
    nothing to write down; MatchError where there is no match at all.
    """
    graphs = model.copy().graphs
    check_all(rules, graphs)
    written: list[dict[str, Any]] = []
    for rule in rules:
        written += _saved_rules(rule, [find(graph, rule.match, rule.on) for graph in graphs])
        apply_rule(rule, graphs)
    if not written:
        raise MatchError(f"{model.path}: nothing is matched, so there are no rules to write")
    return {"version": 1, "rules": written}


def _saved_rules(rule: Rule, matched: Sequence[MatchedOps]) -> list[dict[str, Any]]:
    if rule.on == (WHOLE,):
        places = [_whole_match(match.binding) for of_graph in matched for match in of_graph.kept]
        counts = [1] * len(places)
    else:
        groups = _groups(rule, [node for of_graph in matched for node in of_graph.nodes])
        places = [(nodes[0].name, match_of_ops(nodes)) for nodes in groups]
        counts = [len(nodes) for nodes in groups]
    merged: dict[bytes, dict[str, Any]] = {}
    for (name, match), count in zip(places, counts, strict=True):
        # Several graphs of one model may have an op of the same name: it is one rule for all.
        written = merged.setdefault(msgspec.json.encode(match), _saved_rule(rule, name, match))
        written["expect"] += count
    return list(merged.values())


def _saved_rule(rule: Rule, name: str, match: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = msgspec.to_builtins(rule.written)
    patch = spec["patch"] if rule.on == (WHOLE,) else {**spec["patch"], "on": None}
    patch = {key: value for key, value in patch.items() if (key, value) != ("on", None)}
    emit = {"emit": spec["emit"]} if spec.get("emit") else {}
    name = f"{rule.author.rule}: {name}"
    return {"name": name, "match": match, "patch": patch, "expect": 0, **emit}


def _groups(rule: Rule, nodes: Sequence[Node]) -> list[list[Node]]:
    """Return the ops of each rule: one, besides those on which the patch means nothing alone."""
    meant = [_means_something(rule, node) for node in nodes]
    groups = [[node] for node, means in zip(nodes, meant, strict=True) if means]
    if groups:
        groups[0] += [node for node, means in zip(nodes, meant, strict=True) if not means]
    return groups


def _means_something(rule: Rule, node: Node) -> bool:
    try:
        rule.patch.check([node])
    except PatchError:
        return False
    return True


def _whole_match(binding: Binding) -> tuple[str, dict[str, Any]]:
    """The name of the last op of a match, and its pattern with the names of all of its ops."""
    pattern: dict[str, Any] = msgspec.to_builtins(binding.pattern)
    pattern.pop("optional", None)  # those that are there stay, and no others are asked for
    op_names = binding.body.heads.names
    for name, indices in zip(binding.pattern.present, binding.bound, strict=True):
        bound = [op_names[index] for index in indices]
        pattern["nodes"][name]["name"] = bound[0] if len(bound) == 1 else bound
    last = binding.captures[binding.pattern.last].name
    return last, {"pattern": pattern, "body": binding.body.label}

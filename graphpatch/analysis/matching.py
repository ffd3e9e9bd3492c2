"""What rules would match: each rule on the result of the one before, nothing kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from graphpatch.apply import check_all
from graphpatch.errors import GraphpatchError
from graphpatch.formats import Model
from graphpatch.graph.graph import Graph
from graphpatch.match.misses import explain
from graphpatch.match.pattern.overlaps import WHOLE
from graphpatch.match.select import Found, find
from graphpatch.match.spec import Match
from graphpatch.rules import Rule
from graphpatch.step import entries, left_out, take


@dataclass(frozen=True, slots=True)
class Matched:
    """What one rule matches.

    `matches` are as `apply --json` lists them, `left_out` says which matches don't count, and
    `error` what `apply` would say. `misses` is why, and where it came near.
    """

    rule: str
    matches: list[dict[str, Any]]
    left_out: list[str]
    error: str
    misses: str


def match_rules(rules: Sequence[Rule], model: Model) -> list[Matched]:
    """What each rule matches, where those before it were applied as far as they can be.

    Raises ModelError where the graph is broken, PatchError where the model carries the rules.
    """
    graphs = model.copy().graphs
    check_all(rules, graphs)
    found = []
    for rule in rules:
        matched, graphs = _one(rule, graphs)
        found.append(matched)
    return found


def match_only(match: Match, model: Model) -> Matched:
    """What a match means, without a rule around it."""
    return _described("", match, (), model.graphs, "")


def _one(rule: Rule, graphs: list[Graph]) -> tuple[Matched, list[Graph]]:
    after, error = [graph.copy() for graph in graphs], ""
    try:
        take(rule, after)
    except GraphpatchError as raised:
        after, error = graphs, str(raised).partition("\n")[0]
    return _described(rule.author.rule, rule.match, rule.on, graphs, error), after


def _described(
    rule: str, match: Match, on: Sequence[str], graphs: Sequence[Graph], error: str
) -> Matched:
    found = [find(graph, match, on) for graph in graphs]
    tags = [graph.label if len(graphs) > 1 else None for graph in graphs]
    listed = [one for some, tag in zip(found, tags, strict=True) for one in entries(some, tag)]
    return Matched(
        rule,
        listed,
        [text for some in found for text in left_out(rule, some)],
        error,
        explain(graphs, match),
    )


def as_rules_file(rules: Sequence[Rule], model: Model) -> dict[str, Any]:
    """A rules file with one rule for each match, to be edited; as it is, it does the same.

    Raises what `apply` raises: matches that cannot be patched are nothing to write down.
    """
    graphs = model.copy().graphs
    check_all(rules, graphs)
    written = []
    for rule in rules:
        for graph in graphs:
            written += _written(rule, find(graph, rule.match, rule.on))
        take(rule, graphs)
    return {"version": 1, "rules": written}


def _written(rule: Rule, found: Found) -> list[dict[str, Any]]:
    spec: dict[str, Any] = msgspec.to_builtins(rule.written)
    patch = {key: value for key, value in spec["patch"].items() if key != "on"}
    emit = {"emit": spec["emit"]} if spec.get("emit") else {}
    if rule.on == (WHOLE,):
        return [_whole(rule, kept.binding, spec["patch"], emit) for kept in found.kept]
    return [
        {
            "name": f"{rule.author.rule}: {node.name}",
            "match": {"name": node.name, "body": node.body.label},
            "patch": patch,
            "expect": 1,
            **emit,
        }
        for node in found.nodes
    ]


def _whole(rule: Rule, binding: Any, patch: dict[str, Any], emit: dict[str, str]) -> dict[str, Any]:
    """A rule for one match as one op: its pattern, with the names of its ops."""
    pattern: dict[str, Any] = msgspec.to_builtins(binding.pattern)
    for name, node in binding.captures.items():
        pattern["nodes"][name] = {**pattern["nodes"][name], "name": node.name}
    last = binding.captures[binding.last()]
    return {
        "name": f"{rule.author.rule}: {last.name}",
        "match": {"pattern": pattern, "body": binding.body.label},
        "patch": patch,
        "expect": 1,
        **emit,
    }

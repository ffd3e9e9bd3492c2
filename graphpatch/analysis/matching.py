"""What rules would match: each rule on the result of the one before, nothing kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from graphpatch.application import check_all
from graphpatch.errors import GraphpatchError
from graphpatch.formats import Model
from graphpatch.graph.graph import Graph
from graphpatch.match.misses import explain
from graphpatch.match.select import find
from graphpatch.match.spec import Match
from graphpatch.rules import Rule
from graphpatch.step import entries, left_out, take


@dataclass(frozen=True, slots=True)
class Matched:
    """What one rule matches.

    `matches` are as `apply --json` lists them, `left_out` says which matches don't count, and
    `error` what `apply` would say. `misses` is why, and where it came near: where it was asked
    for, or nothing matched.
    """

    rule: str
    matches: list[dict[str, Any]]
    left_out: list[str]
    error: str
    misses: str


def match_rules(rules: Sequence[Rule], model: Model, why: bool = False) -> list[Matched]:
    """What each rule matches, where those before it were applied as far as they can be.

    With `why`, also how near it came where it matches. Raises ModelError where the graph is
    broken, PatchError where the model carries the rules.
    """
    graphs = model.copy().graphs
    check_all(rules, graphs)
    found = []
    for rule in rules:
        matched, graphs = _one(rule, graphs, why)
        found.append(matched)
    return found


def match_only(match: Match, model: Model, why: bool = False) -> Matched:
    """What a match means, without a rule around it."""
    return _described("", match, (), model.graphs, "", why)


def _one(rule: Rule, graphs: list[Graph], why: bool) -> tuple[Matched, list[Graph]]:
    after, error = [graph.copy() for graph in graphs], ""
    try:
        take(rule, after)
    except GraphpatchError as raised:
        after, error = graphs, str(raised).partition("\n")[0]
    return _described(rule.author.rule, rule.match, rule.on, graphs, error, why), after


def _described(
    rule: str, match: Match, on: Sequence[str], graphs: Sequence[Graph], error: str, why: bool
) -> Matched:
    found = [find(graph, match, on) for graph in graphs]
    tags = [graph.label if len(graphs) > 1 else None for graph in graphs]
    listed = [one for some, tag in zip(found, tags, strict=True) for one in entries(some, tag)]
    return Matched(
        rule,
        listed,
        [text for some in found for text in left_out(rule, some)],
        error,
        explain(graphs, match) if why or not listed else "",
    )

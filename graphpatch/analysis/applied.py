"""Whether a model has rules applied: what they wrote down on the ops says so."""

from __future__ import annotations

from collections.abc import Sequence

from graphpatch.formats import Model
from graphpatch.graph import provenance
from graphpatch.graph.check import check
from graphpatch.match.select import find
from graphpatch.rules import Rule


def missing(rules: Sequence[Rule], model: Model) -> dict[str, str]:
    """Rules that have not been applied to the model, by name, each with why that is so.

    A rule that may match nothing leaves no trace where it did; it counts as applied where no op
    that rules have left alone is one for it. Raises ModelError where the graph is broken.
    """
    for graph in model.graphs:
        check(graph)
    touched = [
        node for graph in model.graphs for b in graph.bodies for node in provenance.touched(b)
    ]
    ids = {entry["id"] for node in touched for entry in provenance.entries(node)}
    lacking = {}
    for rule in rules:
        if rule.author.id in ids:
            continue
        if rule.expect.min > 0:
            lacking[rule.author.rule] = "has not been applied"
        elif left := _left(rule, model, {str(node) for node in touched}):
            lacking[rule.author.rule] = f"has not been applied, and {left} is an op for it"
    return lacking


def _left(rule: Rule, model: Model, touched: set[str]) -> str:
    """The first op that the rule would match and that none has touched."""
    for graph in model.graphs:
        for node in find(graph, rule.match, rule.on).nodes:
            if str(node) not in touched:
                return str(node)
    return ""

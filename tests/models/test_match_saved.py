"""What `match --save` writes, applied unchanged to the real models: the same bytes again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import graphpatch
from graphpatch import Model, opdefs
from graphpatch.analysis.matches import as_rules_file
from graphpatch.errors import GraphpatchError
from graphpatch.rules import rules_from
from tests import graphs
from tests.models import catalogue

MOST = 200  # nodes that a rule patches: each is a rule of its own when it is saved


@pytest.mark.parametrize("name", catalogue.every_model())
def test_saved_matches_give_the_same_model(name: str) -> None:
    path = catalogue.models()[name]
    try:
        model = graphpatch.load(path)
    except GraphpatchError as error:
        pytest.skip(f"it cannot be read: {error}")
    rules = applicable(model)
    if not rules:
        pytest.skip("no rule of this test goes with it")
    saved = as_rules_file(rules_from(rules), model)
    once, again = (graphpatch.apply(one, model) for one in (rules, saved["rules"]))
    assert list(map(graphs.unsigned, once.model.graphs)) == list(
        map(graphs.unsigned, again.model.graphs)
    )
    assert len(saved["rules"]) >= len(rules)
    assert matched(once.report) == matched(again.report)
    assert once.report["consumer"] == again.report["consumer"]


def applicable(model: Model) -> list[dict[str, Any]]:
    """Rules of several kinds that can be applied one after the other to this model."""
    rules: list[dict[str, Any]] = []
    for rule in candidates(model):
        try:
            report = graphpatch.apply([*rules, rule], model).report
        except GraphpatchError:
            continue
        if len(report["rules"][-1]["matches"]) <= MOST:
            rules.append(rule)
    return rules


def candidates(model: Model) -> Iterator[dict[str, Any]]:
    """Rules on what the model has most: single op types, and pairs of which one reads the other."""
    singles, pairs = counted(model)
    patches = (
        {"override_gradient": {"formula": "dy * 0.5"}},
        {"filter_gradient": {"clip": {"min": -1, "max": 1}}, "at": "inputs"},
        {"straight_through": True},
    )
    for (op, _), patch in zip(singles.most_common(3), patches, strict=False):
        yield {"name": f"all {op}", "match": {"op": op}, "patch": patch}
    for source, target in [pair for pair, _ in pairs.most_common(3)]:
        text = f"first:{source} -> second:{target}"
        for on in ("first", ["first", "second"]):
            patch = {"filter_gradient": {"scale": 0.5}, "on": on}
            yield {"name": f"{text}, {on}", "match": {"pattern": text}, "patch": patch}


def counted(model: Model) -> tuple[Counter[str], Counter[tuple[str, str]]]:
    """How often each op type with a gradient is there, and each pair that is linked."""
    singles: Counter[str] = Counter()
    pairs: Counter[tuple[str, str]] = Counter()
    for graph in model.graphs:
        for body in graph.bodies:
            for node in body:
                if has_gradient(node.op):
                    singles[node.op] += 1
                    producers = map(body.producer, node.data_inputs)
                    pairs.update({(p.op, node.op) for p in producers if p and has_gradient(p.op)})
    return singles, pairs


def has_gradient(op: str) -> bool:
    known = opdefs.lookup(op)
    return known is not None and known.gradient == "registered" and bool(known.inputs)


def matched(report: dict[str, Any]) -> Counter[tuple[str, str, str]]:
    every = [one for rule in report["rules"] for one in rule["matches"]]
    return Counter((one["body"], one["op"], one["type"]) for one in every)

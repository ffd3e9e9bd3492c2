"""What `match --save` writes, applied unchanged to the real models: the same bytes again."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

import graphpatch
from graphpatch.analysis.matches import as_rules_file
from graphpatch.errors import GraphpatchError
from graphpatch.rules import rules_from
from tests import graphs
from tests.models import catalogue

MOST = 200  # nodes that a rule patches: each is a rule of its own when it is saved
CANDIDATES: list[dict[str, Any]] = [
    {"match": {"op": ["Relu", "Relu6"]}, "patch": {"override_gradient": {"formula": "dy * 0.5"}}},
    {
        "match": {"class": "has_weights"},
        "patch": {"filter_gradient": {"clip": {"min": -1, "max": 1}}, "at": "inputs"},
    },
    {"match": {"op": ["Mul", "Sub"], "body": "main"}, "patch": {"stop_gradient": True}},
    {
        "match": {"pattern": "first:Conv2D|MatMul -> second:Add|BiasAdd"},
        "patch": {"filter_gradient": {"scale": 0.5}, "on": ["first", "second"]},
    },
    {
        "match": {"pattern": "first:Add|Mul -> second:Mul|Sigmoid|Tanh"},
        "patch": {"filter_gradient": {"scale": 0.5}, "on": "first"},
    },
]


@pytest.mark.parametrize("name", catalogue.every_model())
def test_saved_matches_give_the_same_model(name: str) -> None:
    model = graphpatch.load(catalogue.models()[name])
    rules: list[dict[str, Any]] = []
    for rule in CANDIDATES:  # what can be applied one after the other
        with suppress(GraphpatchError):
            report = graphpatch.apply([*rules, rule], model).report
            rules += [rule] * (len(report["rules"][-1]["matches"]) <= MOST)
    if not rules:
        pytest.skip("no rule of this test goes with it")
    saved = as_rules_file(rules_from(rules), model)["rules"]
    once, again = (graphpatch.apply(each, model) for each in (rules, saved))
    assert list(map(graphs.unsigned, once.model.graphs)) == list(
        map(graphs.unsigned, again.model.graphs)
    )
    assert len(saved) >= len(rules)
    assert matched(once.report) == matched(again.report)
    assert once.report["consumer"] == again.report["consumer"]


def matched(report: dict[str, Any]) -> list[tuple[str, str, str]]:
    every = [match for rule in report["rules"] for match in rule["matches"]]
    return sorted((match["body"], match["op"], match["type"]) for match in every)

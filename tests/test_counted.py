"""How often a pattern matched, and how many ops of each type it brought."""

from __future__ import annotations

from typing import Any

import pytest

import graphpatch
from graphpatch.application import counted_types
from tests.graphs import graphdef
from tests.patches.one_op import net


@pytest.mark.parametrize(
    ("count", "on", "counted"),
    [
        (3, ["mul", "bias"], "3 matches: 3 BiasAdd, 3 MatMul"),
        (1, ["mul", "bias"], "1 match: 1 BiasAdd, 1 MatMul"),
        (3, "bias", "3 BiasAdd"),  # where each match brings one op, the ops say it all
    ],
)
def test_matches_of_a_pattern_are_counted_apart_from_their_ops(
    count: int, on: Any, counted: str
) -> None:
    texts = [f"mul{k}:MatMul(x, x) bias{k}:BiasAdd(mul{k}, x)" for k in range(count)]
    patch = {"filter_gradient": {"scale": 2}, "on": on}
    rule = {"match": {"pattern": "mul:MatMul -> bias:BiasAdd"}, "patch": patch}
    graph = graphdef(*net(f"x:Placeholder {' '.join(texts)}"))
    assert counted_types(graphpatch.apply([rule], graph).report["rules"][0]["matches"]) == counted


def test_ops_without_a_pattern() -> None:
    assert counted_types([{"type": "Relu", "body": "main", "op": "r"}]) == "1 Relu"
    assert counted_types([]) == ""

"""How often a pattern matched, and how many ops of each type it brought."""

from __future__ import annotations

from typing import Any

import graphpatch
from graphpatch.application import counted_types
from tests.graphs import graphdef, node


def chain(count: int) -> Any:
    nodes = [node("x", "Placeholder")]
    for place in range(count):
        nodes.append(node(f"mul{place}", "MatMul", "x", "x"))
        nodes.append(node(f"bias{place}", "BiasAdd", f"mul{place}", "x"))
    return graphdef(*nodes)


def matches(count: int, on: Any) -> list[dict[str, Any]]:
    rule = {
        "match": {"pattern": "mul:MatMul -> bias:BiasAdd"},
        "patch": {"filter_gradient": {"scale": 2}, "on": on},
    }
    found: list[dict[str, Any]] = graphpatch.apply([rule], chain(count)).report["rules"][0][
        "matches"
    ]
    return found


def test_matches_of_a_pattern_are_counted_apart_from_their_ops() -> None:
    assert counted_types(matches(3, ["mul", "bias"])) == "3 matches: 3 BiasAdd, 3 MatMul"
    assert counted_types(matches(1, ["mul", "bias"])) == "1 match: 1 BiasAdd, 1 MatMul"


def test_where_each_match_brings_one_op_the_ops_say_it_all() -> None:
    assert counted_types(matches(3, "bias")) == "3 BiasAdd"
    assert counted_types([{"type": "Relu", "body": "main", "op": "r"}]) == "1 Relu"
    assert counted_types([]) == ""

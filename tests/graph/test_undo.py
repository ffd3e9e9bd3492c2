"""What is taken back of a function, and which rule is named."""

from __future__ import annotations

from typing import Any

import pytest

import graphpatch
from graphpatch.differentiation.flow import rule_of
from tests.graphs import function, graphdef, node

T = {"T": "float32"}
PATCHES: dict[str, dict[str, Any]] = {
    "stop": {"patch": {"stop_gradient": True}},
    "filter": {"patch": {"filter_gradient": {"clip": {"min": -1, "max": 1}}}},
    "override": {"patch": {"override_gradient": "guided_relu"}, "emit": "function"},
    "surrogate": {"patch": {"surrogate_gradient": "tanh(x)"}},
}


def two_outputs() -> Any:
    body = function(
        "f",
        ["a", "b"],
        [node("r", "Relu", "a", **T), node("s", "Relu", "b", **T)],
        {"one": "r:activations:0", "two": "s:activations:0", "again": "r:activations:0"},
    )
    x = node("x", "Placeholder", dtype="float32")
    call = node("call", "PartitionedCall", "x", "x", f="f")
    return graphdef(x, call, functions=[body])


def written(model: Any) -> bytes:
    data: bytes = model.graph_def().SerializeToString(deterministic=True)
    return data


@pytest.mark.parametrize("keys", PATCHES.values(), ids=PATCHES)
def test_outputs_of_one_function(keys: dict[str, Any]) -> None:
    """Each is given back, the last edit first."""
    before = two_outputs()
    before.node[1].attr["f"].func.name = "f"
    rules = [
        {"name": name, "match": {"name": name, "body": "f", "op": "Relu"}, **keys} for name in "rs"
    ]
    patched = graphpatch.apply(rules, before)
    assert written(patched) != written(graphpatch.load(before))
    body = patched.model.graphs[0].functions["f"]
    assert {rule_of(node) for node in body} == {"r", "s"}
    assert written(graphpatch.revert(patched)) == written(graphpatch.load(before))
    for rule in "rs":
        left = graphpatch.revert(patched, rule)
        assert written(graphpatch.revert(left)) == written(graphpatch.load(before))

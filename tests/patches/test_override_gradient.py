"""override_gradient, without TensorFlow: how each gradient is carried, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from graphpatch.errors import GraphpatchError, PatchError
from graphpatch.protos import AttrValue, TensorShapeProto
from tests.graphs import attr, function, node
from tests.patches.one_op import applied, main_of, patched

X = node("x", "Placeholder")
ONE = (X, node("r", "Relu", "x"), node("y", "Identity", "r"))

CARRIED: dict[str, tuple[Any, str, str]] = {
    # the gradient, what carries it by default, the op type of what the consumers read then
    "TensorFlow's own of another op": ("identity", "built-in", "Relu"),
    "linear in dy": ({"scale": 2}, "construction", "Select"),
    "not linear in dy": ({"clip": {"min": -1, "max": 1}}, "function", ""),
    "a registered key": ({"registered": "Mine"}, "attr", "Relu"),
}


@pytest.mark.parametrize("name", CARRIED)
def test_the_op_keeps_its_name_whatever_carries_the_gradient(name: str) -> None:
    gradient, carrier, op_type = CARRIED[name]
    result = patched({"override_gradient": gradient}, "Relu", *ONE)
    body = main_of(result)
    assert result.report["rules"][0]["emit"] == carrier
    assert body.node("y").inputs == ("r",)
    assert body.node("r").op == op_type or (carrier == "function" and "r/forward" in body.by_name)
    assert "Relu" in {one.op for one in body} | {
        inner.op for one in result.model.graphs[0].added.function for inner in one.node_def
    }


def test_an_op_without_inputs_is_refused_and_one_beside_it_is_not_needed() -> None:
    with pytest.raises(PatchError, match=r"the override would never be used: .* reads nothing"):
        patched({"override_gradient": "zero"}, "Placeholder", *ONE)


@pytest.mark.parametrize(
    ("op", "nodes", "says"),
    [
        ("Shape", [node("s", "Shape", "x", out_type="int32")], "is int32, which carries no"),
        ("NoOp", [node("n", "NoOp")], "reads nothing"),
    ],
)
def test_what_no_gradient_comes_to_is_refused(op: str, nodes: list[Any], says: str) -> None:
    with pytest.raises(PatchError, match=says):
        patched({"override_gradient": "zero"}, op, *ONE, *nodes)


def test_an_op_with_an_override_is_refused_and_stock_takes_it_off() -> None:
    mine = node("r", "Relu", "x", _gradient_op_type="Theirs")
    found = patched({"override_gradient": "stock"}, "Relu", X, mine)
    assert "_gradient_op_type" not in main_of(found).node("r").attr_names


def test_other_ops_and_bodies_are_left_alone() -> None:
    inner = function("f", ["a"], [node("q", "Relu", "a")], {"b": "q:activations:0"})
    result = patched({"override_gradient": "zero"}, "Tanh", *ONE, node("t", "Tanh", "x"),
                     functions=[inner])  # fmt: skip
    assert {"_graphpatch", "_gradient_op_type"}.isdisjoint(main_of(result).node("r").attr_names)
    assert not result.model.graphs[0].functions["f"].edited


def fed(*sizes: int) -> Any:
    shape = AttrValue(shape=TensorShapeProto())
    for size in sizes:
        shape.shape.dim.add(size=size)
    return node("x", "Placeholder", dtype=attr("float32"), shape=shape)


@pytest.mark.parametrize("size", [-1, 2, 4])
def test_halves_of_a_batch_that_may_have_them(size: int) -> None:
    relu = node("r", "Relu", "x", T=attr("float32"))
    result = patched({"override_gradient": "deeplift_batch"}, "Relu", fed(size, 8), relu)
    [rule] = result.report["rules"]
    assert (len(rule["matches"]), rule["emit"]) == (1, "construction")


@pytest.mark.parametrize("parts", ["0", "0.5", "1e999", "nan", "9" * 30])
def test_a_number_of_parts_that_is_none(parts: str) -> None:
    nodes = (fed(4, 8), node("r", "Relu", "x", T=attr("float32")))
    formula = f"dy * split(x0, parts={parts}, index=0)"
    rule = {"match": {"op": "Relu"}, "patch": {"override_gradient": {"formula": formula}}}
    with pytest.raises(GraphpatchError, match="parts"):
        applied(rule, *nodes)


@pytest.mark.parametrize("on", ["op", "match"])
def test_halves_of_a_batch_that_has_none(on: str) -> None:
    """TensorFlow does not import a file in which one example is split into two halves."""
    nodes = (
        fed(1, 8),
        node("r", "Relu", "x", T=attr("float32")),
        node("t", "Tanh", "r", T=attr("float32")),
    )
    halves = {"override_gradient": {"formula": "dy * split(x0, 2, 1)"}, "on": "match"}
    rules: dict[str, Any] = {
        "op": {"match": {"op": "Relu"}, "patch": {"override_gradient": "deeplift_batch"}},
        "match": {"match": {"pattern": "Relu -> Tanh"}, "patch": halves},
    }
    with pytest.raises(PatchError, match=r"splits x0 into 2 equal parts, and its batch is fixed "):
        applied(rules[on], *nodes)

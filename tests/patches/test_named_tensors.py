"""tensor("NAME") in a formula, without TensorFlow: what reads it, what is refused, and undone."""

from __future__ import annotations

from typing import Any

import pytest

import graphpatch
from graphpatch.errors import PatchError, RulesError
from tests.graphs import function, graphdef, in_memory, joined, node
from tests.patches.one_op import main_of, patched

X, K = node("x", "Placeholder"), node("k", "Placeholder")
NET = (X, K, node("r", "Relu", "x"), node("y", "Neg", "r"), node("s", "Placeholder", dtype="int64"))
OTHERS = (
    node("text", "Placeholder", dtype="string"),
    node("handle", "Placeholder", dtype="resource"),
    node("switch", "Switch", "x", "pred"),
    node("pred", "Placeholder", dtype="bool"),
    node("taken", "Neg", "switch:1"),
    node("either", "Merge", "switch", "taken", N=2),
)


def override(text: str, **more: Any) -> Any:
    return {"override_gradient": {"formula": text}, **more}


CARRIED = {
    "construction": override("dy * tensor('k')"),
    "function": override("sign(dy) * tensor('k:0')"),
    "an integer": override("dy * cast_like(tensor('s'), dy)"),
    "the op's own gradient": override("own(dy) * tensor('k')"),
    "an input of the op": override("dy * tensor('x')"),
    "a filter behind": {"filter_gradient": {"formula": "dy * tensor('k')"}},
    "a filter before": {"filter_gradient": {"formula": "dy * tensor('k')"}, "at": "inputs"},
}


@pytest.mark.parametrize("name", CARRIED)
def test_the_tensor_is_read_and_the_patch_undone_byte_for_byte(name: str) -> None:
    raw = graphdef(*NET, *OTHERS).SerializeToString()
    rule = {"match": {"op": "Relu"}, "patch": CARRIED[name]}
    result = graphpatch.apply([rule], in_memory(raw))
    readers = [one.op for one in main_of(result) if {"k", "s"} & set(one.inputs)]
    assert readers or name == "an input of the op"
    assert joined(graphpatch.revert(result).model.pieces()) == raw


@pytest.mark.parametrize(
    ("patch", "op", "says"),
    [
        (override("dy * tensor('kk')"), "Relu", r"the graph has no such tensor; nearest: k"),
        (override("dy * tensor('k:1')"), "Relu", r"'k' has 1 output, counted from 0"),
        (override("dy * tensor('r')"), "Relu", r"is computed from Relu 'r'"),
        (override("dy * tensor('y')"), "Relu", r"is computed from Relu 'r'"),
        (override("dy * tensor('y')", on="match"), "Relu", r"is computed from Relu 'r'"),
        (override("dy * tensor('s')"), "Relu", r"this is int64; .*write: cast_like"),
        (override("cast_like(tensor('text'), dy)"), "Relu", r"this is string"),
        (override("dy * tensor('handle')"), "Relu", r"which is a resource; name the tensor"),
        (override("dy * tensor('taken')"), "Relu", r"not in the same v1 loop or branch"),
        (override("dy * tensor('k')"), "Neg", r"Neg 'taken'.*not in the same v1 loop or branch"),
        (
            {"filter_gradient": {"formula": "dy * tensor('y')"}, "at": "inputs"},
            "Relu",
            r"is computed from Relu 'r'",
        ),
        (override("dy * tensor('k')", emit="attr"), "Relu", r"a key holds no tensor"),
    ],
)
def test_what_cannot_be_read_is_refused(patch: Any, op: str, says: str) -> None:
    rule: dict[str, Any] = {"match": {"op": op}, "patch": dict(patch)}
    if "emit" in rule["patch"]:
        rule["emit"] = rule["patch"].pop("emit")
    if "on" in rule["patch"]:
        rule["match"] = {"pattern": f"a:{op}"}
    with pytest.raises(PatchError, match=says):
        graphpatch.apply([rule], graphdef(*NET, *OTHERS))


def test_a_body_has_no_tensor_of_the_graph_around() -> None:
    body = function("f", ["a"], [node("r", "Relu", "a")], {"out": "r:activations:0"})
    call = node("call", "f", "x")
    with pytest.raises(PatchError, match="function f has no such tensor"):
        patched(override("dy * tensor('k')"), "Relu", X, K, call, functions=[body])


def test_a_surrogate_has_none() -> None:
    with pytest.raises(RulesError, match="stands in formulas of dy alone"):
        patched({"surrogate_gradient": "tanh(tensor('k') * x)"}, "Relu", *NET)

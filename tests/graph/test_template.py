"""Ops that are alike are edited once, and the edit filled in for all."""

from __future__ import annotations

from typing import Any

import pytest

import graphpatch
from graphpatch import application
from graphpatch.graph import attrs, template
from graphpatch.graph.editor import Editor
from graphpatch.graph.node import Node
from graphpatch.graph.wire import LARGE
from tests.graphs import attr, function, graphdef, node

COUNT = 40
RELUS = [node(f"r{k:02}", "Relu", "images") for k in range(COUNT)]


@pytest.mark.parametrize("emit", ["function", "attr"])
def test_one_op_stands_for_all_that_are_alike(emit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graphdef(node("images", "Placeholder"), *RELUS)
    opened, open_node = list[int](), Editor._open

    def counted(editor: Editor, node: Node, only_input: bool = False) -> Any:
        opened.append(node.index)
        return open_node(editor, node, only_input)

    monkeypatch.setattr(Editor, "_open", counted)
    rule = {"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}, "emit": emit}
    result = graphpatch.apply([rule], graph)
    assert len(opened) < 5
    body = result.model.graphs[0].main
    assert all(body.record(body.by_name[relu.name]) is not None for relu in RELUS)


@pytest.mark.parametrize("patch", [
    {"surrogate_gradient": "tanh(4 * x0)"},
    {"straight_through": True},
    {"override_gradient": "zero"},
], ids=lambda patch: next(iter(patch)))  # fmt: skip
def test_what_is_filled_in_are_the_bytes_of_op_by_op(
    patch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["xs", *(f"y{k:02}" for k in range(COUNT))]
    adds = [node(f"add_{name}", "AddV2", "xs", name) for name in names[1:]]
    graph = graphdef(*(node(name, "Placeholder") for name in names), *adds)
    filled, fill = list[bool](), template._fill

    def counted(*arguments: Any) -> bool:
        filled.append(fill(*arguments))
        return filled[-1]

    def patched() -> bytes:
        result = graphpatch.apply([{"match": {"op": "AddV2"}, "patch": patch}], graph)
        return bytes(result.model.graph_def().SerializeToString(deterministic=True))

    monkeypatch.setattr(template, "_fill", counted)
    by_columns = patched()
    assert filled == [True]
    monkeypatch.setattr(application, "FEWEST_ALIKE", COUNT + 1)
    assert patched() == by_columns
    assert filled == [True]


def test_what_a_rule_says_is_said_where_its_ops_are_edited_one_by_one() -> None:
    inside = function("f", ["a"], [node("elu", "Elu", "a")], {"b": "elu:activations:0"})
    call = node("call", "PartitionedCall", "images", f=attrs.function("f"))
    graph = graphdef(node("images", "Placeholder"), *RELUS, call, functions=[inside])
    patch = {"override_gradient": {"formula": "dy * tensor('images')"}}
    result = graphpatch.apply([{"match": {"op": "Relu"}, "patch": patch}], graph)
    assert "calls function f" in result.report["notes"][0]


@pytest.mark.parametrize("patch", [
    {"override_gradient": {"registered": "Key"}},
    {"stop_gradient": True},
], ids=["attr", "construction"])  # fmt: skip
def test_ops_that_are_alike_keep_values_as_large_as_weights(patch: Any) -> None:
    graph = graphdef()
    for k in range(COUNT):
        weights = graph.node.add(name=f"w{k:02}", op="Const")
        weights.attr["dtype"].type = 1
        tensor = weights.attr["value"].tensor
        tensor.dtype, tensor.tensor_content = 1, bytes([k]) * (2 * LARGE)
        tensor.tensor_shape.dim.add(size=LARGE // 2)
        graph.node.append(node(f"r{k:02}", "Relu", weights.name, T=attr("float32")))
    result = graphpatch.apply([{"match": {"op": ["Const", "Relu"]}, "patch": patch}], graph)
    patched = {patched.name: patched for patched in result.model.graph_def().node}
    for original in graph.node:
        if original.op == "Const":
            value = patched[original.name].attr["value"].SerializeToString()
            assert value == original.attr["value"].SerializeToString()
    reverted = graphpatch.revert(result).graph_def()
    assert reverted.SerializeToString() == graph.SerializeToString()

"""Graphs that TensorFlow would refuse: `doctor` and `view` say so, or say what they can."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import graphpatch
from graphpatch.errors import ModelError
from tests import graphs
from tests.graphs import graphdef, node

X = node("x", "Placeholder", dtype=graphs.attr("float32"))


def written(folder: Path, *nodes: Any) -> graphpatch.Model:
    path = folder / "model.pb"
    path.write_bytes(graphdef(*nodes).SerializeToString())
    return graphpatch.load(path)


def test_a_call_of_no_function(tmp_path: Path) -> None:
    found = written(tmp_path, X, node("call", "PartitionedCall", "x"), node("y", "Relu", "call"))
    assert graphpatch.diagnose(found).document()["graphs"]


def test_a_name_that_no_tensor_can_have(tmp_path: Path) -> None:
    found = written(tmp_path, X, node("a:b", "Relu", "x"), node("y", "Relu", "a:b"))
    with pytest.raises(ModelError, match="'a:b'"):
        graphpatch.diagnose(found)


@pytest.mark.parametrize(
    ("op", "inputs"),
    [("MatMul", "x"), ("MatMul", "x x x"), ("Conv2D", "x"), ("Reshape", "x"), ("Mean", "x")],
)
def test_ops_with_other_inputs(op: str, inputs: str, tmp_path: Path) -> None:
    found = written(tmp_path, X, node("odd", op, *inputs.split()), node("y", "Relu", "odd"))
    assert graphpatch.view(found).document()["graphs"]


@pytest.mark.parametrize("op", ["Enter", "RefEnter", "Switch", "RefSwitch", "Merge", "Exit"])
def test_control_flow_without_inputs(op: str, tmp_path: Path) -> None:
    odd = node("odd", op, is_constant=True, frame_name="f")
    found = written(tmp_path, X, odd, node("sum", "AddV2", "odd", "x"), node("y", "Relu", "sum"))
    assert graphpatch.view(found).document()["graphs"]
    assert graphpatch.diagnose(found).document()["graphs"]


def test_a_switch_that_nothing_decides(tmp_path: Path) -> None:
    switch, leave = node("s", "Switch", "x"), node("e", "Exit", "s")
    found = written(tmp_path, X, switch, leave, node("y", "AddV2", "e", "s:1"))
    assert graphpatch.diagnose(found).document()["graphs"]


@pytest.mark.parametrize("op", ["f", "PartitionedCall"])
def test_a_call_that_gives_more_than_the_function_takes(op: str, tmp_path: Path) -> None:
    """`doctor` and `view` looked for the argument, and raised IndexError."""
    call = node("call", op, "x", "x")
    if op != "f":
        call.attr["f"].func.name = "f"
    body = graphs.function("f", [], [node("r", "Round")], {"b": "r:y:0"})
    message = graphdef(X, call, node("y", "Relu", "call"), functions=[body])
    path = tmp_path / "model.pb"
    path.write_bytes(message.SerializeToString())
    assert graphpatch.diagnose(path).document()["graphs"]
    assert graphpatch.view(path).document()["graphs"]

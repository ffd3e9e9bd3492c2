"""Which shapes TensorFlow infers on import, though the file does not tell them."""

from __future__ import annotations

from typing import Any

import pytest

from graphpatch.differentiation.shapes import Shapes
from graphpatch.differentiation.wiring import Wiring
from tests import graphs
from tests.graphs import const, function, graphdef, main, node

F = {"T": "float32"}
LOOP = (
    node("x", "Placeholder", dtype="float32"),
    const("w"),
    node("enter", "Enter", "x", frame_name=b"f", is_constant=False, **F),
    node("fixed", "Enter", "w", frame_name=b"f", is_constant=True, **F),
    node("merge", "Merge", "enter", "next", N=2, **F),
    node("mul", "MatMul", "merge", "merge", **F),
    node("switch", "Switch", "merge", "cond", **F),
    node("cond", "LoopCond", "less"),
    node("less", "Less", "sum", "fixed", **F),
    node("axes", "Rank", "mul", **F),
    node("sum", "Tanh", "fixed", **F),
    node("next", "NextIteration", "sum", **F),
    node("stack", "StackPushV2", "h", "fixed", **F),
    node("h", "StackV2", elem_type="float32"),
    node("loose", "StackPushV2", "h", "mul", **F),
    node("flow", "TensorArrayWriteV3", "h", "axes", "mul", "fixed", **F),
)
KNOWN = {"w": True, "fixed": True, "enter": False, "merge": False, "merge:1": True, "sum": True,
         "next": True, "stack": True, "loose": False, "axes": True, "flow": True, "cond": True,
         "switch": False, "less": True, "mul": False}  # fmt: skip


@pytest.mark.parametrize("order", ["the first first", "the last first"])
def test_shapes_that_are_known(order: str) -> None:
    """Whichever is asked first: what comes round a loop is never known to its Merge."""
    wiring = Wiring(main(*LOOP))
    shapes = Shapes(wiring)
    asked: list[Any] = sorted(KNOWN, reverse=order == "the last first")
    found = {name: shapes.is_known(wiring.tensor(name)) for name in asked}
    assert found == KNOWN


def test_a_long_chain_needs_no_recursion() -> None:
    chain = [node(f"r{k}", "Relu", f"r{k - 1}" if k else "c", **F) for k in range(3000)]
    wiring = Wiring(main(const("c"), *chain))
    assert Shapes(wiring).of(wiring.tensor("r2999")) == (1,)


def test_what_a_function_gives_on_has_the_shape_of_the_argument() -> None:
    """As in the functions that carry our gradients."""
    kept, relu = node("k", "PreventGradient", "b", **F), node("r", "Relu", "a", **F)
    body = function("give", ["a", "b"], [kept, relu], {"p": "k:output:0", "q": "r:activations:0"})
    nodes = const("x", 8), const("y", 12), node("call", "give", "x", "y")
    graph = graphs.opened(graphdef(*nodes, functions=[body]))
    wiring = Wiring(graph.main)
    assert [Shapes(wiring).of((wiring.tensor("call")[0], n)) for n in range(2)] == [(3,), None]

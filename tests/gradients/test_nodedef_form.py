from __future__ import annotations

from typing import Any

import pytest

from graphpatch.errors import FormulaError
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.lowering import FormulaNodes, formula_nodes


def nodes(source: Any, in_function: bool = False, **parameters: float) -> FormulaNodes:
    inputs = [("a:1", "float32"), ("b", "float16")]
    formula = Formula.parse(source, parameters)
    return formula_nodes(formula, inputs, "float32", "r/g", in_function)


def test_tensors_of_a_graph() -> None:
    found = nodes("tanh(4 * x) + tanh(4 * x) * k", k=0.5)
    spelled = [(node.name, node.op, list(node.input)) for node in found.nodes]
    assert spelled == [
        ("r/g/Const", "Const", []),
        ("r/g/Mul", "Mul", ["r/g/Const", "a:1"]),
        ("r/g/Tanh", "Tanh", ["r/g/Mul"]),
        ("r/g/Const_1", "Const", []),
        ("r/g/Mul_1", "Mul", ["r/g/Tanh", "r/g/Const_1"]),
        ("r/g/AddV2", "AddV2", ["r/g/Tanh", "r/g/Mul_1"]),
    ]
    assert found.results == ("r/g/AddV2",)


def test_tensors_of_a_body() -> None:
    found = nodes("relu(x) / 2", in_function=True)
    assert [list(node.input) for node in found.nodes] == [
        *(["a:1"], []),
        ["r/g/Relu:activations:0", "r/g/Const:output:0"],
    ]
    assert found.results == ("r/g/RealDiv:z:0",)


def test_the_result_has_the_dtype_asked_for() -> None:
    assert [node.op for node in nodes("x1 * 2").nodes] == ["Const", "Mul", "Cast"]
    assert nodes("x").results == ("a:1",)


@pytest.mark.parametrize("source", ["dy * x", "x + y", "x2", ["x", None], [None, "x"]])
def test_what_is_no_function_of_the_inputs(source: Any) -> None:
    with pytest.raises(FormulaError, match="expected one formula of x0, x1"):
        nodes(source)
    with pytest.raises(FormulaError, match="this is a condition"):
        nodes("x > 0")

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import graphpatch
from graphpatch.errors import FormulaError
from graphpatch.gradients.attach import GradientFunction, attached
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.ops import Signature
from graphpatch.gradients.program import FormulaNodes, formula_nodes, gradient_function
from graphpatch.protos import FunctionDef
from tests import graphs


def function(source: Any, dtype: str = "float32", inputs: int = 1, **options: Any) -> FunctionDef:
    """The gradient function of a formula for an op of one dtype with one output."""
    op = Signature.of([dtype] * inputs, [dtype], **options)
    return gradient_function(Formula.parse(source), op, "g")


def op_types(found: FunctionDef) -> list[str]:
    """The op types of a body."""
    return [node.op for node in found.node_def]


@pytest.mark.parametrize(
    ("source", "body"),
    [
        ("dy", ["Identity"]),
        ("-dy", ["Neg"]),
        ("0", ["ZerosLike"]),
        ("0 * 5 - 0", ["ZerosLike"]),
        ("0.5 * dy", ["Const", "Mul"]),
        ("relu(dy)", ["Relu"]),
        ("dy * x * x", ["Mul", "Mul"]),
        (
            "where(x > 0 and dy > 0, dy, 0)",
            ["Const", "Greater", "Greater", "LogicalAnd", "SelectV2"],
        ),
        ("clip(dy, -1, 1)", ["Const", "Const", "Greater", "SelectV2", "Less", "SelectV2"]),
        ("maximum(dy, x)", ["Greater", "IsNan", "LogicalOr", "SelectV2"]),
        ("dy * x ** 2", ["Square", "Mul"]),
        ("dy * x ** 3", ["Const", "Pow", "Mul"]),
        ("sqrt(dy)", ["Cast", "Sqrt", "Cast"]),
        ("1", ["Const", "Shape", "BroadcastTo"]),
    ],
)
def test_the_everyday_case_is_a_few_nodes(source: str, body: list[str]) -> None:
    assert op_types(function(source, same_shape=True)) == body


def test_constants_and_subexpressions_stand_once() -> None:
    found = function("exp(x) * dy + exp(x) * 2 + 2 * exp(x) + 2.0", same_shape=True)
    types = op_types(found)
    assert types.count("Exp") == 1
    assert types.count("Const") == 1
    assert types.count("Mul") == 3
    assert len({node.name for node in found.node_def}) == len(found.node_def)


@pytest.mark.parametrize(
    ("source", "numbers"),
    [
        ("where(x > 0, 0 * dy, -0.0 * dy)", [0.0, -0.0]),
        # A factor of 1 is none.
        ("dy * (1 + 2 * sqrt(4) - 10 / 5) * where(1 < 2, 1, x)", [3.0]),
    ],
)
def test_numbers_are_computed_before_there_is_a_tensor(source: str, numbers: list[float]) -> None:
    nodes = function(source, same_shape=True).node_def
    consts = [node.attr["value"].tensor.float_val[0] for node in nodes if node.op == "Const"]
    assert list(map(str, consts)) == list(map(str, numbers))


@pytest.mark.parametrize(
    ("source", "summed", "repeated"),
    [
        ("dy", True, True),
        ("dy * x", True, False),
        ("x", False, False),
        ("sign(x) * norm(dy)", False, False),
        ("norm(dy)", False, True),
        ("0", False, False),
        ("x * max(x, from_axis=1, keepdims=true)", False, False),
        ("max(x, from_axis=1, keepdims=true)", False, True),
        ("sum(dy, axes=0)", True, True),
    ],
)
def test_the_shape_is_fixed_only_where_it_may_differ(
    source: str, summed: bool, repeated: bool
) -> None:
    types = op_types(function(source))
    assert ("BroadcastGradientArgs" in types) is summed
    assert ("BroadcastTo" in types) is repeated


@pytest.mark.parametrize(
    ("dtype", "casts"), [("float16", 2), ("bfloat16", 2), ("float32", 0), ("float64", 0)]
)
def test_sums_of_narrow_dtypes_are_in_float32(dtype: str, casts: int) -> None:
    for source in ("dy", "sum(dy) * x", "sum_like(dy, x)"):
        assert op_types(function(source, dtype)).count("Cast") == casts


def test_the_signature_and_what_is_returned() -> None:
    formula = Formula.parse(["dy0 * cast_like(x1, dy1)", None, "dy1"])
    op = Signature.of(["float32", "int64", "float16"], ["float32", "float32", "int32"])
    found = attached(GradientFunction("g", gradient_function(formula, op))).gradient
    arguments = [(arg.name, arg.type) for arg in found.signature.input_arg]
    assert arguments == [
        *(("x0", 1), ("x1", 9), ("x2", 19), ("y0", 1), ("y1", 1), ("y2", 3)),
        *(("dy0", 1), ("dy1", 1), ("dy2", 3)),
    ]
    returned = [(arg.name, arg.type) for arg in found.signature.output_arg]
    assert returned == [("dx0", 1), ("dx1", 9), ("dx2", 19), ("gy0", 1), ("gy1", 1), ("gy2", 3)]
    nodes = {node.name: node for node in found.node_def}
    assert nodes[found.ret["dx1"].split(":")[0]].op == "ZerosLike"
    assert set(found.ret) == {name for name, _ in returned}


@pytest.mark.parametrize("dtype", ["resource", "variant", "string"])
def test_an_argument_that_no_function_can_give_zeros_for(dtype: str) -> None:
    op = Signature.of(["float32"], ["float32", dtype])
    with pytest.raises(FormulaError, match=f"y1 is {dtype}"):
        attached(GradientFunction("g", gradient_function(Formula.parse("dy"), op)))


def test_the_bytes_are_the_same_in_another_process() -> None:
    code = (
        "import hashlib\n"
        "from graphpatch.gradients.formula import Formula\n"
        "from graphpatch.gradients.program import gradient_function\n"
        "f = Formula.parse('dy * where(0 < x < 6, tanh(x), 2) / norm(dy)')\n"
        "from graphpatch.gradients.ops import Signature\n"
        "g = gradient_function(f, Signature.of(['bfloat16'], ['bfloat16']))\n"
        "print(hashlib.sha256(g.SerializeToString(deterministic=True)).hexdigest())\n"
        "import sys\n"
        "assert 'tensorflow' not in sys.modules\n"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_ops_that_broadcast_and_others_share_no_function() -> None:
    """The gradient of Mul need not be repeated to x0, and that of MatMul must."""
    pair = [graphs.node("a", "Mul", "x", "w"), graphs.node("b", "MatMul", "x", "w")]
    model = graphs.graphdef(graphs.node("x", "Placeholder"), graphs.node("w", "Placeholder"), *pair)
    patch = {"override_gradient": {"formula": ["clip(dy, -1, 1)", None]}}
    rule = {"match": {"op": ["Mul", "MatMul"]}, "patch": patch}
    library = graphpatch.apply([rule], model).graph_def().library
    gradients = [
        {node.op for node in function.node_def}
        for function in library.function
        if function.signature.name.startswith("graphpatch_formula")
        and function.signature.name.endswith("_gradient")
    ]
    assert sorted("BroadcastTo" in types for types in gradients) == [False, True]


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

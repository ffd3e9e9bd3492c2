from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import graphpatch
from graphpatch.errors import FormulaError
from graphpatch.gradients.attach import GradientFunction, attached
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.ops import FLOATS, Signature
from graphpatch.gradients.program import gradient_function
from graphpatch.gradients.tensors import scalar, survives_dtype
from graphpatch.protos import FunctionDef
from tests import graphs
from tests.patches.one_op import net


def function(source: Any, dtype: str = "float32", inputs: int = 1, **options: Any) -> FunctionDef:
    """The gradient function of a formula for an op of one dtype with one output."""
    op = Signature.of([dtype] * inputs, [dtype], **options)
    return gradient_function(Formula.parse(source), op, "g")


def op_types(source: Any, dtype: str = "float32", **options: Any) -> list[str]:
    """The op types of its body."""
    return [node.op for node in function(source, dtype, **options).node_def]


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
        ("where(0 < dy < x, dy, 0)", ["Const", "Less", "Less", "LogicalAnd", "SelectV2"]),
        ("clip(dy, -1, 1)", ["Const", "Const", "Greater", "SelectV2", "Less", "SelectV2"]),
        ("maximum(dy, x)", ["Greater", "IsNan", "LogicalOr", "SelectV2"]),
        ("dy * x ** 2", ["Square", "Mul"]),
        ("dy * x ** 3", ["Const", "Pow", "Mul"]),
        ("sqrt(dy)", ["Cast", "Sqrt", "Cast"]),
        ("1", ["Const", "Shape", "BroadcastTo"]),
    ],
)
def test_the_everyday_case_is_a_few_nodes(source: str, body: list[str]) -> None:
    assert op_types(source, same_shape=True) == body


def test_constants_and_subexpressions_stand_once() -> None:
    text = "exp(x) * dy + exp(x) * 2 + 2 * exp(x) + 2.0"
    types = op_types(text, same_shape=True)
    assert [types.count(op) for op in ("Exp", "Const", "Mul")] == [1, 1, 3]
    nodes = function(text).node_def
    assert len({node.name for node in nodes}) == len(nodes)


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


NUMBERS = (0.0, -0.0, -1.5, 0.1, 1 / 3, 255.0, 256.0, 257.0, 257.5, 259.0, math.inf, -math.inf)


@pytest.mark.parametrize("dtype", FLOATS)
def test_numbers_are_rounded_to_the_nearest(dtype: str) -> None:
    for value in NUMBERS:
        expected = np.array(value, ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        assert scalar(value, dtype).data == expected.tobytes()
        assert scalar(value, dtype).numbers == (float(expected),)
    assert scalar(math.nan, dtype) == scalar(math.nan, dtype)


def test_numbers_beyond_a_dtype() -> None:
    beyond = {"float16": (1e-8, 65520.0), "float32": (1e39, 1e-50), "bfloat16": (3.4e38, 1e-50)}
    within = {"float16": (6e-8, 65504.0, 0.0, math.inf), "bfloat16": (3.39e38, math.nan)}
    assert not any(survives_dtype(value, dtype) for dtype in beyond for value in beyond[dtype])
    assert all(survives_dtype(value, dtype) for dtype in within for value in within[dtype])
    assert survives_dtype(1e-300, "float64")


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
    types = op_types(source)
    assert ("BroadcastGradientArgs" in types) is summed
    assert ("BroadcastTo" in types) is repeated


@pytest.mark.parametrize(
    ("dtype", "casts"), [("float16", 2), ("bfloat16", 2), ("float32", 0), ("float64", 0)]
)
def test_sums_of_narrow_dtypes_are_in_float32(dtype: str, casts: int) -> None:
    for source in ("dy", "sum(dy) * x", "sum_like(dy, x)"):
        assert op_types(source, dtype).count("Cast") == casts


@pytest.mark.parametrize("dtype", ["resource", "variant", "string"])
def test_an_argument_that_no_function_can_give_zeros_for(dtype: str) -> None:
    op = Signature.of(["float32"], ["float32", dtype])
    with pytest.raises(FormulaError, match=f"y1 is {dtype}"):
        attached(GradientFunction("g", gradient_function(Formula.parse("dy"), op)))


def test_the_bytes_are_the_same_in_another_process() -> None:
    code = (
        "from tests.gradients.test_lowering import function\n"
        "g = function('dy * where(0 < x < 6, tanh(x), 2) / norm(dy)', 'bfloat16')\n"
        "print(g.SerializeToString(deterministic=True))\n"
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
    model = graphs.graphdef(*net("x:Placeholder w:Placeholder a:Mul(x, w) b:MatMul(x, w)"))
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

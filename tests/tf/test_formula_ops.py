"""`forward` and `own` of formulas: numpy, the FunctionDef and TensorFlow's ops give one number.

TensorFlow's own gradient of the op is the oracle of `own(dy)`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphpatch.errors import FormulaError
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.interpreter import gradient
from graphpatch.gradients.op_gradients import OP_GRADIENTS
from graphpatch.gradients.ops import Signature
from graphpatch.gradients.program import gradient_function
from graphpatch.runtime.gradient_functions import formula_gradients
from tests.gradients.oracle import numpy_gradient
from tests.tf import run_graph, tensorflow1
from tests.tf.function_calls import Calls
from tests.tf.op_cases import CASES, OpCase, drawn

tf = pytest.importorskip("tensorflow")

DTYPE = "float64"
TOLERANCE = {"rtol": 1e-9, "atol": 1e-9}
NOT_HERE = {
    "SparseMatMul",
    "Conv3D",
    "BatchMatMul",
    "Add",
    "Div",
    "FusedBatchNorm",
    "FusedBatchNormV2",
} | {"FusedBatchNormV3"}


# By name what `own(dy * forward(...))` says, and the windows of another op.
NAMED = {
    "Conv2D": ("conv2d_transpose(dy * conv2d(x0, x1), x1, x0)",),
    "DepthwiseConv2dNative": ("depthwise_conv2d_transpose(dy * depthwise_conv2d(x0, x1), x1, x0)",),
    "AvgPool": (
        "avg_pool_transpose(dy * avg_pool(x0), x0)",
        "max_pool_transpose(dy * max_pool(x0), x0)",
    ),
    "MaxPool": (
        "max_pool_transpose(dy * max_pool(x0), x0)",
        "avg_pool_transpose(dy * avg_pool(x0), x0)",
    ),
    "BiasAdd": ("dy * bias_add(x0, x1)",),
}


def at(case: OpCase, place: int, text: str) -> Formula:
    """The formula for one input of the op alone."""
    return Formula.parse([text if n == place else None for n in range(len(case.inputs))])


def others(case: OpCase) -> str:
    """The inputs of the op, the float ones moved."""
    return ", ".join(
        f"0.5 * x{n} + 1" if n in case.places else f"x{n}" for n in range(len(case.inputs))
    )


def formulas(case: OpCase) -> list[tuple[int, str]]:
    """At each input: the op's own gradient, and that at other inputs of a dy that it gives."""
    found = []
    for place in case.places:
        found.append((place, "own(dy)"))
        moved = f"let f = forward({others(case)}); own(dy * f, {others(case)})"
        found.append((place, moved))
    return [*found, *((0, text) for text in NAMED.get(case.op_type, ()))]


@cache
def given(number: int) -> tuple[Any, Any]:
    """The output of an op, and dy."""
    y = CASES[number].raw(*map(tf.constant, CASES[number].inputs)).numpy()
    return y, drawn(*y.shape, seed=9)


def reference(number: int, place: int, text: str) -> Any:
    case, (y, dy) = CASES[number], given(number)
    formula = at(case, place, text)
    found = numpy_gradient(formula, case.inputs, [y], [dy], case.attrs, case.op_type)
    return found[place]


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: CASES[n].op_type)
def test_numpy_gives_what_tensorflow_does(number: int) -> None:
    case, (_, dy) = CASES[number], given(number)
    tensors = [tf.constant(one) for one in case.inputs]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([tensors[place] for place in case.places])
        value = case.raw(*tensors)
        moved = [0.5 * one + 1 if n in case.places else one for n, one in enumerate(tensors)]
        other = case.raw(*moved)
    for place in case.places:
        expected = tape.gradient(value, tensors[place], tf.constant(dy))
        np.testing.assert_allclose(reference(number, place, "own(dy)"), expected, **TOLERANCE)
        # By the chain rule, d other / d x is half of the gradient at the moved inputs.
        expected = 2 * tape.gradient(other, tensors[place], tf.constant(dy) * other)
        text = f"own(dy * forward({others(case)}), {others(case)})"
        np.testing.assert_allclose(reference(number, place, text), expected, **TOLERANCE)


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: CASES[n].op_type)
def test_what_a_name_says_is_what_the_op_does(number: int) -> None:
    case = CASES[number]
    for text in NAMED.get(case.op_type, ())[:1]:
        expected = "dy * forward()" if case.op_type == "BiasAdd" else "own(dy * forward())"
        by_op = expected.replace("forward()", "forward(x0)")
        found, wanted = reference(number, 0, text), reference(number, 0, by_op)
        np.testing.assert_allclose(found, wanted, **TOLERANCE)


def calls() -> tuple[Calls, dict[str, tuple[int, int, str]]]:
    gathered, expected = Calls(), {}
    for number, case in enumerate(CASES):
        y, dy = given(number)
        inputs = [one.dtype.name for one in case.inputs]
        for place, text in formulas(case):
            op = Signature.of(inputs, [DTYPE], case.attrs, op_type=case.op_type)
            function = gradient_function(at(case, place, text), op, f"f{len(expected)}")
            found = gathered.add(function, [*case.inputs, y, dy])
            expected[found[0]] = (number, place, text)
    return gathered, expected


def compare(found: Any, expected: dict[str, tuple[int, int, str]]) -> None:
    for name, (number, place, text) in expected.items():
        wanted = reference(number, place, text)
        told = f"{text} of {CASES[number].op_type}"
        np.testing.assert_allclose(found[name], wanted, **TOLERANCE, err_msg=told)


def test_functions_in_a_session() -> None:
    gathered, expected = calls()
    graph = gathered.graph.SerializeToString()
    compare(run_graph.run(graph, gathered.feeds, gathered.fetches), expected)


@pytest.mark.slow
def test_functions_under_tensorflow_1(tmp_path: Path) -> None:
    gathered, expected = calls()
    graph = gathered.graph.SerializeToString()
    compare(tensorflow1.fetch(graph, gathered.feeds, gathered.fetches, tmp_path), expected)


def test_tensorflow_ops() -> None:
    from graphpatch.runtime.gradient_functions import formula_gradients

    for number, case in enumerate(CASES):
        y, dy = given(number)
        tensors = [list(map(tf.constant, some)) for some in (case.inputs, [y], [dy])]
        for place, text in formulas(case):
            found = formula_gradients(
                at(case, place, text), *tensors, case.attrs, op_type=case.op_type
            )
            np.testing.assert_allclose(found[place], reference(number, place, text), **TOLERANCE)


def test_every_op_type_of_the_table_is_here() -> None:
    assert {case.op_type for case in CASES} | NOT_HERE == set(OP_GRADIENTS)


@pytest.mark.parametrize(
    ("op_type", "text", "message"),
    [
        ("", "own(dy)", "a match as one op have none"),
        ("Cumsum", "own(dy)", "own(dy) is known for MatMul, BatchMatMul"),
        ("Relu", "forward(x, x)", "Relu has 1 inputs"),
        ("Relu", "forward(1)", "takes a tensor here"),
        ("Relu", "own(2)", "takes a tensor here"),
        ("RandomStandardNormal", "forward(x)", "has a state"),
    ],
)
def test_what_an_op_does_not_have(op_type: str, text: str, message: str) -> None:
    op = Signature.of(["float32"], ["float32"], op_type=op_type)
    with pytest.raises(FormulaError) as caught:
        gradient_function(Formula.parse(text), op)
    assert message in str(caught.value)


def test_own_of_sparse_matmul_is_tensorflows() -> None:
    # models 9294: SparseMatMul, which knows float32 and bfloat16 alone.
    a, b, dy = (drawn(*shape).astype("float32") for shape in ((4, 3), (2, 4), (3, 2)))
    flags = {"transpose_a": True, "transpose_b": True, "a_is_sparse": True}
    with tf.GradientTape() as tape:
        tensors = [tf.constant(a), tf.constant(b)]
        tape.watch(tensors)
        y = tf.raw_ops.SparseMatMul(a=tensors[0], b=tensors[1], **flags)
    expected = tape.gradient(y, tensors, tf.constant(dy))
    own = Formula.parse(["own(dy)", "own(dy)"])
    found = [
        formula_gradients(own, tensors, [y], [tf.constant(dy)], flags, op_type="SparseMatMul"),
        gradient(own, [a, b], [y.numpy()], [dy], flags, "SparseMatMul"),
    ]
    for dxs in found:
        for dx, wanted in zip(dxs, expected, strict=True):
            np.testing.assert_allclose(dx, wanted, rtol=1e-5)

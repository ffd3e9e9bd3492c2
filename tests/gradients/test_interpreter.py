"""Formulas in numpy, by definition and as programs, against numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from graphpatch.errors import FormulaError
from graphpatch.gradients.formula import Formula
from tests.gradients.oracle import numpy_gradient

N, I = math.nan, math.inf  # noqa: E741
X = np.array([[-2.0, -0.5], [0.5, 4.0]])
DY = np.array([[1.0, -1.0], [2.0, 3.0]])


def gradient(source: Any, *inputs: Any, dy: Any = DY, **options: Any) -> list[Any]:
    arrays = [np.asarray(value) for value in inputs or (X,)]
    return numpy_gradient(Formula.parse(source), arrays, [dy], [dy], **options)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("dy * x", DY * X),
        ("-x - 1", -X - 1),
        ("x / 0", [[-I, -I], [I, I]]),
        ("x ** 2 + 2 ** x", X**2 + 2.0**X),
        ("where(x > 0, dy, 0)", [[0, 0], [2, 3]]),
        ("where(not (x > 0), dy, nan)", [[1, -1], [N, N]]),
        ("where(x > 0, 1, 0) * dy", [[0, 0], [2, 3]]),
        ("where(-1 < x < 1 or dy == 3, 1, 2)", [[2, 1], [1, 1]]),
        ("where(true, dy, x)", DY),
        ("sign(x) + sign(0)", np.sign(X)),
        ("log(x)", [[N, N], [math.log(0.5), math.log(4)]]),
        ("rsqrt(x)", [[N, N], [math.sqrt(2), 0.5]]),
        ("relu(x)", [[0, 0], [0.5, 4]]),
        ("erf(x)", [[math.erf(-2), math.erf(-0.5)], [math.erf(0.5), math.erf(4)]]),
        ("round(x)", [[-2, 0], [0, 4]]),
        ("round(x + dy)", [[-1, -2], [2, 7]]),
        ("maximum(x, 0)", [[0, 0], [0.5, 4]]),
        ("clip(x, -1, 1)", [[-1, -0.5], [0.5, 1]]),
        ("where(is_finite(x / (x - 4)), 1, 0)", [[1, 1], [1, 0]]),
        ("where(is_nan(log(x)), 1, 0)", [[1, 1], [0, 0]]),
        ("zeros_like(x) + ones_like(x)", np.ones((2, 2))),
        ("cast_like(x > 0, dy)", [[0, 0], [1, 1]]),
        ("max(x) - min(x)", np.full((2, 2), 6.0)),
        ("x - sum(x, axes=[0], keepdims=true)", [[-0.5, -4], [2, 0.5]]),
        ("sum(x, axes=1, keepdims=true) + 0 * x", [[-2.5, -2.5], [4.5, 4.5]]),
        ("max(x, from_axis=1, keepdims=true) + 0 * x", [[-0.5, -0.5], [4, 4]]),
        ("norm(dy, axes=-1, keepdims=true) * ones_like(x)", np.sqrt([[2, 2], [13, 13]])),
        ("norm(x)", np.full((2, 2), math.sqrt(20.5))),
        ("transpose(x, perm=[1, 0])", X.T),
        ("matmul(x, dy, transpose_a=true, transpose_b=true)", X.T @ DY.T),
        (
            "reshape_like(sum(x, axes=0, keepdims=false), sum(x, axes=1)) * ones_like(x)",
            [[-1.5, 3.5]] * 2,
        ),
        ("broadcast_like(3, x)", np.full((2, 2), 3.0)),
        ("sum_like(dy, sum(x, axes=0, keepdims=true)) * ones_like(x)", [[3, 2], [3, 2]]),
        ("attr.alpha * x", 0.5 * X),
        ("where(attr.flag, x, dy)", X),
        ("pi * x + inf * 0", np.full((2, 2), N)),
        ("5", np.full((2, 2), 5.0)),
    ],
)
def test_functions(source: str, expected: Any) -> None:
    (found,) = gradient(source, attrs={"alpha": 0.5, "flag": True})
    np.testing.assert_allclose(found, expected, rtol=1e-14)


@pytest.mark.parametrize(
    ("source", "x", "expected"),
    [
        ("dy", [[0.0], [0.0]], [[0], [5]]),
        ("dy", [0.0, 0.0], [3, 2]),
        ("dy", [[0.0, 0.0]], [[3, 2]]),
        ("dy", 0.0, 5),
        ("dy", np.zeros((1, 1)), [[5]]),
        ("1", [0.0, 0.0], [1, 1]),
        ("sum(dy, axes=1)", X, [[0, 5], [0, 5]]),
        ("sum(dy, axes=0, keepdims=true)", [[0.0], [0.0]], [[5], [5]]),
    ],
)
def test_the_result_has_the_shape_of_the_input(source: str, x: Any, expected: Any) -> None:
    (found,) = gradient(source, x)
    np.testing.assert_array_equal(found, expected)
    assert found.shape == np.shape(x)


def test_each_input_gets_its_own() -> None:
    found = gradient(["dy * x1", None, "dy"], X, np.array(3.0), np.array([0.0, 0.0]))
    np.testing.assert_array_equal(found[0], DY * 3)
    assert found[1] is None
    np.testing.assert_array_equal(found[2], [3, 2])


def test_integers_get_none_and_can_be_cast() -> None:
    found = gradient("dy * cast_like(x1, dy)", X, np.array([2, 3]))
    np.testing.assert_array_equal(found[0], DY * [2, 3])
    assert found[1] is None


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_result_has_the_dtype_of_the_input(dtype: str) -> None:
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    dy = DY.astype(kind)
    (found,) = gradient("dy * norm(x) + tanh(x) * 0.1", X.astype(kind), dy=dy)
    assert found.dtype == kind
    expected = DY * math.sqrt(20.5) + np.tanh(X) * 0.1
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=0.02)


def test_a_norm_does_not_leave_the_range_of_a_narrow_dtype() -> None:
    for dtype, length in ((np.float16, 300.0), (np.float32, 1e25), (np.float32, 1e-30)):
        dy = np.array([3, 4]).astype(dtype) * dtype(length / 5)
        (found,) = gradient("dy / norm(dy)", np.zeros(2, dtype), dy=dy)
        np.testing.assert_allclose(found, [0.6, 0.8], rtol=1e-3)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("dy1", "column 1: the op has no dy1; it has: x0, y0, dy0"),
        ("transpose(dy) + x1", "column 17: the op has no x1"),
        ("dy * attr.beta", "column 6: the op has no attr 'beta'"),
        ("dy * sum(x, axes=5)", "Sum: axis 5 is out of bounds"),
    ],
)
def test_what_is_not_there(source: str, message: str) -> None:
    with pytest.raises(FormulaError) as caught:
        gradient(source)
    assert message in str(caught.value)


def test_a_result_that_fits_no_shape() -> None:
    with pytest.raises(FormulaError, match="BroadcastArgs: shape mismatch"):
        gradient("dy", np.zeros(3))

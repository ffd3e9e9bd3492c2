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

X = np.array([[-2.0, -0.5], [0.5, 4.0]])
DY = np.array([[1.0, -1.0], [2.0, 3.0]])


def gradient(source: Any, *inputs: Any, dy: Any = DY, **options: Any) -> list[Any]:
    arrays = [np.asarray(value) for value in inputs or (X,)]
    return numpy_gradient(Formula.parse(source), arrays, [dy], [dy], **options)


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

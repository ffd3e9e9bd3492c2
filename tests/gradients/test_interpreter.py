"""Formulas in numpy, by definition and as programs, against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graphpatch.errors import FormulaError
from graphpatch.gradients.formula import Formula
from tests.gradients.oracle import numpy_gradient

X = np.array([[-2.0, -0.5], [0.5, 4.0]])
DY = np.array([[1.0, -1.0], [2.0, 3.0]])


def gradient(source: Any, *inputs: Any, dy: Any = DY) -> list[Any]:
    arrays = [np.asarray(value) for value in inputs or (X,)]
    return numpy_gradient(Formula.parse(source), arrays, [dy], [dy])


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


def test_a_norm_does_not_leave_the_range_of_a_narrow_dtype() -> None:
    for dtype, length in ((np.float16, 300.0), (np.float32, 1e25), (np.float32, 1e-30)):
        dy = np.array([3, 4]).astype(dtype) * dtype(length / 5)
        (found,) = gradient("dy / norm(dy)", np.zeros(2, dtype), dy=dy)
        np.testing.assert_allclose(found, [0.6, 0.8], rtol=1e-3)


def test_each_input_gets_its_own() -> None:
    inputs = X, np.array(3.0), np.array([0.0, 0.0]), np.array([2, 3])
    found = gradient(["dy * x1", None, "dy * cast_like(x3, dy)", None], *inputs)
    np.testing.assert_array_equal(found[0], DY * 3)
    np.testing.assert_array_equal(found[2], [6, 6])
    assert found[1] is found[3] is None


def test_what_does_not_fit() -> None:
    with pytest.raises(FormulaError, match="Sum: axis 5 is out of bounds"):
        gradient("dy * sum(x, axes=5)")
    with pytest.raises(FormulaError, match="BroadcastArgs: shape mismatch"):
        gradient("dy", np.zeros(3))

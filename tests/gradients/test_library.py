"""Formulas in numpy, by definition and as programs, against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graphpatch import opdefs
from graphpatch.errors import FormulaError, RulesError
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.library import LIBRARY, library_entry
from graphpatch.gradients.library.differences import DIFFERENCES
from graphpatch.gradients.library.filters import QUANTIZATION
from graphpatch.gradients.library.relevance import RELEVANCE
from tests.gradients.oracle import numpy_gradient, numpy_op_gradient
from tests.gradients.regimes import NORMS, REGIMES, TOLERANCE, Regimes


@pytest.mark.parametrize("regimes", REGIMES, ids=str)
def test_the_numbers_of_each_regime(regimes: Regimes) -> None:
    x, dy, expected = (
        np.array(column, float)[:, np.newaxis] for column in zip(*regimes.rows, strict=True)
    )
    formula = LIBRARY[regimes.name].formula(regimes.parameters)
    (found,) = numpy_gradient(formula, [x], [regimes.y(x)], [dy], regimes.attrs, regimes.op_type)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(("name", "parameters", "dy", "expected"), NORMS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_numbers_of_whole_tensors(
    name: str, parameters: dict[str, float], dy: Any, expected: Any, dtype: str
) -> None:
    x, upstream = np.full(len(dy), -1, dtype), np.array(dy, dtype)
    formula = LIBRARY[name].formula(parameters)
    (found,) = numpy_gradient(formula, [x], [x], [upstream])
    np.testing.assert_allclose(found, expected, rtol=TOLERANCE[dtype])


def test_a_redirected_gradient_is_the_own_one_where_that_gets_through() -> None:
    x = np.array([[-1.0, -1.0, 2.0], [-1.0, -1.0, 2.0], [-1.0, 7.0, 2.0]])
    dy = np.array([[-3.0, 3.0, 1.0], [-3.0, 3.0, 0.0], [-3.0, 3.0, 0.0]])
    for name, expected in (
        ("redirected_relu", [[0, 0, 1], [-3, 0, 0], [0, 3, 0]]),
        ("redirected_relu6", [[0, 0, 1], [-3, 0, 0], [-3, 3, 0]]),
    ):
        (found,) = numpy_gradient(LIBRARY[name].formula(), [x], [x], [dy])
        np.testing.assert_array_equal(found, expected)


PRODUCTS: list[tuple[str, str, dict[str, bool]]] = [
    ("mul", "Mul", {}),
    *(
        (name, op_type, {first: turned & 1 > 0, second: turned & 2 > 0})
        for turned in range(4)
        for name, op_type, first, second in (
            ("matmul", "MatMul", "transpose_a", "transpose_b"),
            ("batch_matmul", "BatchMatMulV2", "adj_x", "adj_y"),
        )
    ),
]


@pytest.mark.parametrize(("name", "op_type", "attrs"), PRODUCTS)
def test_products(name: str, op_type: str, attrs: dict[str, bool]) -> None:
    a, b, dy = (np.random.default_rng(n).normal(size=(3, 3)) for n in range(3))
    found = numpy_gradient(LIBRARY[name].formula(), [a, b], [dy], [dy], attrs)
    expected = [numpy_op_gradient(op_type, place, dy, [a, b], attrs) for place in (0, 1)]
    np.testing.assert_allclose(found, expected)


def test_every_gradient_has_its_numbers() -> None:
    shown = {regimes.name for regimes in REGIMES} | {name for name, *_ in NORMS}
    methods = {entry.name for entry in (*RELEVANCE, *DIFFERENCES, *QUANTIZATION)}
    assert set(LIBRARY) == shown | methods | {"mul", "matmul", "batch_matmul"}  # test_methods


@pytest.mark.parametrize("name", LIBRARY)
def test_every_entry_is_whole(name: str) -> None:
    entry = LIBRARY[name]
    assert entry.name == name
    assert all((entry.purpose, entry.avoid, entry.source))
    assert not any(
        t.endswith(".") for t in (entry.purpose, entry.avoid, entry.source, entry.differs)
    )
    for op_type in (*entry.ops, *entry.by_op_type):
        assert opdefs.lookup(op_type) is not None, op_type
    for op_type, other in entry.by_op_type.items():
        assert op_type in LIBRARY[other].ops
        assert library_entry(name, op_type) is LIBRARY[other]
        assert f"; at {op_type}: {other}" in entry.meant_for
    assert library_entry(name, "Cumsum") is entry
    assert all(parameter.does for parameter in entry.parameters)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("scale", None, "scale needs factor: what dy is multiplied by"),
        ("scale", {"fator": 1}, "scale has no parameter 'fator'; nearest: factor"),
        ("scale", "big", "scale: factor is 'big', not a number"),
        ("scale", True, "scale: factor is True, not a number"),
        ("scale", float("nan"), "scale: factor is nan; expected is_finite(factor)"),
        ("reverse", -1, "reverse: strength is -1; expected strength >= 0"),
        ("clip", 0.1, "clip takes its parameters by name: min, max, not 0.1"),
        ("clip", {"min": 1}, "clip needs max: the upper bound"),
        ("clip", {"min": 1, "max": 0}, "min is 1, max is 0; expected min <= max"),
        ("clip", {"min": float("nan"), "max": 0}, "clip: min is nan; expected a number"),
        ("guided_relu", 1, "guided_relu takes no parameters, not 1"),
        ("guided_relu", {"x": 1}, "guided_relu has no parameter 'x'; it has: none"),
        ("lrp_epsilon", {"epsilon": 0}, "expected epsilon > 0"),
    ],
)
def test_parameters_that_are_wrong(name: str, given: Any, message: str) -> None:
    with pytest.raises(RulesError) as caught:
        LIBRARY[name].formula(given)
    assert message in str(caught.value)
    with pytest.raises(RulesError, match="called 'guided_rel'; nearest: guided_relu"):
        library_entry("guided_rel")


# What the result of a formula is.

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

"""Random formulas: numpy, FunctionDef and TensorFlow ops agree, in all dtypes.

Where each function is exact in every dtype (IEEE 754 says to which number it rounds), they agree
to the bit, but for the sign of 0. Test values are multiples of 1/8, NaN and infinities.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphpatch.gradients.formula import Formula
from graphpatch.gradients.ops import Signature
from graphpatch.gradients.program import gradient_function
from tests.draws import draws
from tests.gradients.oracle import numpy_gradient
from tests.tf import run_graph
from tests.tf.function_calls import Calls, dtype_named

tf = pytest.importorskip("tensorflow")

DTYPES = ("float16", "bfloat16", "float32", "float64")
LEAVES = ("x0", "x1", "y", "dy", "0", "1", "2.5", "0.125", "attr.alpha", "slope", "inf", "nan")
NUMBERS = (
    *("{a} + {b}", "{a} - {b}", "{a} * {b}", "{a} / (1 + abs({b}))", "-({a})"),
    *(
        "abs({a})",
        "sign({a})",
        "floor({a})",
        "round({a})",
        "relu({a})",
        "square({a})",
        "({a}) ** 2",
    ),
    *("minimum({a}, {b})", "maximum({a}, {b})", "clip({a}, {b}, 3)", "stop({a})"),
    *("where({c}, {a}, {b})", "zeros_like(dy) + {a}", "ones_like(dy) * {a}", "cast_like({c}, dy)"),
)
CONDITIONS = (
    *("{a} < {b}", "{a} <= {b}", "{a} > {b}", "{a} >= {b}", "{a} == {b}", "{a} != {b}"),
    *("is_finite({a} + 0 * dy)", "is_nan({a} + 0 * dy)", "-1 < {a} < 2"),
)

numbers = st.deferred(lambda: st.sampled_from(LEAVES) | calls(NUMBERS))
conditions = st.deferred(
    lambda: (
        calls(CONDITIONS)
        | st.builds("({}) and ({})".format, conditions, conditions)
        | st.builds("({}) or ({})".format, conditions, conditions)
        | st.builds("not ({})".format, conditions)
    )
)


def calls(templates: tuple[str, ...]) -> st.SearchStrategy[str]:
    return st.builds(
        lambda template, a, b, c: template.format(a=f"({a})", b=f"({b})", c=f"({c})"),
        st.sampled_from(templates),
        numbers,
        numbers,
        st.deferred(lambda: conditions),
    )


SHAPES = (
    ((3,), (3,), (3,)),
    ((33,), (33,), (33,)),
    ((2, 3), (3,), (2, 3)),
    ((2, 1), (1, 2), (2, 2)),
    ((), (2,), (2,)),
)
"""Those of x0, x1 and y. What is summed down is two numbers, so that the order does not matter."""

elements = st.sampled_from((*(number / 8 for number in range(-24, 25)), np.nan, np.inf, -np.inf))


@st.composite
def arrays(draw: st.DrawFn) -> tuple[Any, ...]:
    """x0, x1, y and dy: the shape of y is the joint one of x0 and x1."""
    first, second, joint = draw(st.sampled_from(SHAPES))
    shapes = (first, second, joint, joint)
    sizes = [int(np.prod(shape)) for shape in shapes]
    lists = [draw(st.lists(elements, min_size=size, max_size=size)) for size in sizes]
    return tuple(np.array(v).reshape(shape) for v, shape in zip(lists, shapes, strict=True))


def agree(formula: Formula, values: tuple[Any, ...], rounding: float) -> None:
    """Compare the three forms, in all dtypes, with one Session."""
    from graphpatch.runtime.gradient_functions import formula_gradients

    gathered, expected, attrs = Calls(), {}, {"alpha": 0.5}
    for dtype in DTYPES:
        x0, x1, y, dy = (value.astype(dtype_named(dtype)) for value in values)
        reference = numpy_gradient(formula, [x0, x1], [y], [dy], attrs)
        op = Signature.of([dtype, dtype], [dtype], attrs)
        function = gradient_function(formula, op, f"f_{dtype}")
        names = gathered.add(function, [x0, x1, y, dy])
        tensors = [tf.constant(x0), tf.constant(x1)], [tf.constant(y)], [tf.constant(dy)]
        ops = formula_gradients(formula, *tensors, attrs)
        for name, wanted, found in zip(names, reference, ops, strict=False):
            assert wanted is not None
            assert found.dtype.name == dtype
            assert found.shape == wanted.shape
            expected[name] = (dtype, wanted.astype(np.float64))
            same(tf.cast(found, tf.float64).numpy(), *expected[name], rounding, formula)
    found = run_graph.run(gathered.graph.SerializeToString(), gathered.feeds, gathered.fetches)
    for name, (dtype, wanted) in expected.items():
        same(found[name], dtype, wanted, rounding, formula)


def same(found: Any, dtype: str, wanted: Any, rounding: float, formula: Formula) -> None:
    bits = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}[dtype]
    limit = rounding * 2.0**-bits
    message = f"{formula} in {dtype}"
    np.testing.assert_allclose(found, wanted, rtol=limit, atol=limit, err_msg=message)


def formula_of(text: str) -> Formula:
    return Formula.parse(text, {"slope": 0.25})


@settings(max_examples=draws(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(numbers, arrays())
def test_exact_formulas(text: str, values: tuple[Any, ...]) -> None:
    agree(formula_of(text), values, 0)


ROUNDED = (
    *("exp({a})", "expm1({a})", "log(abs({a}))", "log1p(abs({a}))", "sqrt(abs({a}))", "tanh({a})"),
    *("rsqrt(abs({a}))", "sigmoid({a})", "softplus({a})", "erf({a})", "sin({a})", "cos({a})"),
    *("pow(abs({a}), 1.5)", "norm({a})", "mean({a})", "sum({a}) / 8", "max({a})", "min({a})"),
    *("({a}) / (norm({a}) + 1)", "norm({a}, from_axis=0, keepdims=true) * dy"),
)
leaves = st.sampled_from(("x0", "x1 - y", "dy * x0", "clip(dy, -1, 1)", "where(x0 > 0, dy, y)"))


@settings(max_examples=draws(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.builds(lambda t, a: t.format(a=a), st.sampled_from(ROUNDED), leaves), arrays())
def test_rounded_formulas(text: str, values: tuple[Any, ...]) -> None:
    agree(formula_of(text), values, 64)

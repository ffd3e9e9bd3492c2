"""Every function of the language: the forms agree, on tensors long and short, odd numbers too."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphpatch.gradients.formula import Formula
from graphpatch.gradients.functions import FUNCTIONS, OF_THE_OP, OPERATORS
from graphpatch.gradients.ops import Signature
from graphpatch.gradients.program import gradient_function
from tests.draws import quick
from tests.gradients.oracle import numpy_gradient
from tests.tf import run_graph, tensorflow1
from tests.tf.function_calls import Calls, dtype_named

tf = pytest.importorskip("tensorflow")

TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 3e-6, "float64": 1e-12}
ODD = (0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5)
SHAPES = ((), (1,), (3,), (37,), (2, 3, 5))

UNARY = [
    name
    for name, one in FUNCTIONS.items()
    if one.arguments == ("x",) and not one.options and name not in OF_THE_OP
]
CONDITIONS = ("is_finite", "is_nan")
REDUCTIONS = ("sum", "mean", "max", "min", "norm")
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")

ELEMENTWISE = [
    *(f"{name}(x)" for name in UNARY if name not in (*CONDITIONS, "transpose", "softmax")),
    *(f"where({name}(x), dy, 7)" for name in CONDITIONS),
    *(f"where(x {sign} dy, 1, 2) + where(x {sign} 1, 4, 8)" for sign in COMPARISONS),
    *(f"x {sign} dy" for sign in ("+", "-", "*", "/", "**")),
    "x / 3 + 3 / x",
    "x ** 2 + 2 ** x + x ** 0.5",
    "pow(abs(x), dy)",
    "-x",
    "minimum(x, dy) + minimum(x, 1) + minimum(-1, x)",
    "maximum(x, dy) + maximum(x, 1) + maximum(-1, x)",
    "maximum(x, nan)",
    "clip(x, -1, 1.5) + clip(x, dy, 2)",
    "where(x > 0 and dy > 0 or not (x > -1), dy, nan)",
    "cast_like(x > 0, dy)",
    "cast_like(3, dy)",
    "where(x > 0, inf, -0.5)",
]

SHAPED = [
    *(f"{name}(dy)" for name in REDUCTIONS),
    *(f"x - {name}(x, from_axis=1, keepdims=true)" for name in REDUCTIONS),
    *(f"{name}(dy, axes=[0, -1], keepdims=true) * x" for name in REDUCTIONS),
    *(f"{name}(dy, axes=0) * norm(x)" for name in ("sum", "max")),
    "reshape_like(reshape_like(x, transpose(x)), dy)",
    "broadcast_like(sum(x), x)",
    "sum_like(x * dy, sum(x, axes=0, keepdims=true)) * x",
    "transpose(transpose(x))",
    "transpose(transpose(x, perm=[2, 0, 1]), perm=[1, 2, 0])",
    "matmul(matmul(x, dy, transpose_b=true), x)",
    "matmul(x, matmul(dy, x, transpose_a=true))",
    "split(x, 3, 1, axis=1) * dy - split(dy, parts=5, index=4, axis=-1)",
    "split(split(concat(x, dy), 2, 1), 3, 0, axis=-2) + x",
    "split(concat(dy, x, dy, axis=-1), 3, 1, axis=2)",
    "split(concat(x, dy, axis=1), 6, 5, axis=1) * x",
    "softmax(x) * dy + softmax(3 * transpose(dy, perm=[0, 1, 2]))",
    "gather(x, [1, 0]) * gather(dy, [4, 3, 2, 1, 0], axis=-1)",
    "quantile(x, 0.5) * dy + quantile(dy, 0.3, from_axis=1) + quantile(x, q=1, from_axis=2)",
    "let s = sigmoid(x); let t = s * dy; t * t - s",
]


def test_the_formulas_name_every_function() -> None:
    text = " ".join((*ELEMENTWISE, *SHAPED))
    elsewhere = {*OF_THE_OP, "normal_like", "uniform_like"}
    missing = [name for name in FUNCTIONS if f"{name}(" not in text and name not in elsewhere]
    assert not missing
    assert all(sign.removesuffix("x") in text for sign in OPERATORS)


@cache
def drawn(shape: tuple[int, ...], dtype: str, seed: int) -> Any:
    """Numbers that are exact in the dtype, one in four an odd one."""
    draw = np.random.default_rng(seed)
    values = draw.normal(scale=3, size=shape)
    values = np.where(draw.random(shape) < 0.25, draw.choice(ODD, size=shape), values)
    return values.astype(dtype_named(dtype))


def cases(dtypes: Iterable[str]) -> list[tuple[str, str, Any, Any]]:
    """Each formula with its dtype, x and dy."""
    found = []
    for dtype in dtypes:
        for place, text in enumerate(ELEMENTWISE):
            for shape in SHAPES:
                arrays = drawn(shape, dtype, place), drawn(shape, dtype, place + 1000)
                found.append((text, dtype, *arrays))
        for text in SHAPED:
            finite = [np.random.default_rng(s).normal(size=(2, 3, 5)) for s in (1, 2)]
            found.append((text, dtype, *(array.astype(dtype_named(dtype)) for array in finite)))
        for name in REDUCTIONS:
            found.append((f"{name}(x)", dtype, *(drawn((37,), dtype, s) for s in (3, 4))))
        found.append(("dy", dtype, *(np.ones(n, dtype_named(dtype)) for n in (1, 4096))))
    return found


def reference(text: str, x: Any, dy: Any) -> Any:
    (found,) = numpy_gradient(Formula.parse(text), [x], [dy], [dy])
    assert found is not None
    return found.astype(np.float64)


def check(text: str, dtype: str, found: Any, expected: Any, x: Any, dy: Any) -> None:
    limit = TOLERANCE[dtype] * (10 if "matmul" in text or "sin" in text or "cos" in text else 1)
    told = f"{text} in {dtype} of x = {x.ravel()[:9]}, dy = {dy.ravel()[:9]}"
    np.testing.assert_allclose(found, expected, rtol=limit, atol=limit, err_msg=told)


def gather(dtypes: Iterable[str] = TOLERANCE) -> tuple[Calls, dict[str, tuple[str, str, Any, Any]]]:
    calls, fetched = Calls(), {}
    for number, (text, dtype, x, dy) in enumerate(cases(dtypes)):
        op = Signature.of([dtype], [dtype])
        function = gradient_function(Formula.parse(text), op, f"f{number}")
        name = calls.add(function, [x, dy, dy])[0]
        fetched[name] = (text, dtype, x, dy)
    return calls, fetched


@pytest.mark.every(4)
@pytest.mark.parametrize("dtype", quick(TOLERANCE, lambda dtype: dtype in ("float16", "float32")))
def test_functions_in_a_session(dtype: str) -> None:
    calls, fetched = gather([dtype])
    found = run_graph.run(calls.graph.SerializeToString(), calls.feeds, calls.fetches)
    for name, (text, dtype, x, dy) in fetched.items():
        check(text, dtype, found[name], reference(text, x, dy), x, dy)


@pytest.mark.slow
def test_functions_under_tensorflow_1(tmp_path: Path) -> None:
    calls, fetched = gather()
    graph = calls.graph.SerializeToString()
    found = tensorflow1.fetch(graph, calls.feeds, calls.fetches, tmp_path)
    for name, (text, dtype, x, dy) in fetched.items():
        check(text, dtype, found[name], reference(text, x, dy), x, dy)


NOISE = (
    "normal_like(x, seed=3)",
    "normal_like(dy, 2147483648) + x",
    "uniform_like(x, seed=3)",
    "uniform_like(dy, 7) + x",
)


def noise_calls() -> tuple[Calls, dict[str, tuple[str, str, Any]]]:
    calls, x = Calls(), np.linspace(-1, 1, 30).reshape(2, 3, 5)
    fetched = {}
    for dtype in TOLERANCE:
        for text in NOISE:
            op = Signature.of([dtype], [dtype])
            function = gradient_function(Formula.parse(text), op, f"noise_{len(fetched)}")
            assert function.signature.is_stateful
            fetched[calls.add(function, [x, x, x])[0]] = (text, dtype, x)
    return calls, fetched


def check_noise(found: Any, fetched: dict[str, tuple[str, str, Any]]) -> None:
    for name, (text, dtype, x) in fetched.items():
        expected = reference(text, *[x.astype(dtype_named(dtype))] * 2)
        limit = max(TOLERANCE[dtype], 3e-6)  # the noise itself is drawn in float32
        np.testing.assert_allclose(found[name], expected, rtol=limit, atol=limit)


def test_noise_is_that_of_numpy_in_the_first_run_of_a_session() -> None:
    calls, fetched = noise_calls()
    graph = calls.graph.SerializeToString()
    check_noise(run_graph.run(graph, calls.feeds, calls.fetches), fetched)


@pytest.mark.slow
def test_noise_under_tensorflow_1(tmp_path: Path) -> None:
    calls, fetched = noise_calls()
    graph = calls.graph.SerializeToString()
    check_noise(tensorflow1.fetch(graph, calls.feeds, calls.fetches, tmp_path), fetched)


def test_noise_is_another_in_the_next_run() -> None:
    from graphpatch.runtime.gradient_functions import formula_gradients

    with tf.Graph().as_default() as graph:
        x = [tf.zeros([1000])]
        (found,) = formula_gradients(Formula.parse("normal_like(dy, 0)"), x, x, x)
        drawn = [[run.run(found) for _ in range(2)] for run in map(session_of, [graph] * 2)]
    assert drawn[0][0].tolist() == drawn[1][0].tolist() != drawn[0][1].tolist()
    assert drawn[0][1].tolist() == drawn[1][1].tolist()
    assert abs(drawn[0][0].mean()) < 0.1
    assert abs(drawn[0][0].std() - 1) < 0.1


def session_of(graph: Any) -> Any:
    return tf.compat.v1.Session(graph=graph)


@pytest.mark.every(4)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_tensorflow_ops(dtype: str) -> None:
    from graphpatch.runtime.gradient_functions import formula_gradients

    for text, kind, x, dy in cases(TOLERANCE):
        if kind == dtype:
            tensors = [[tf.constant(array)] for array in (x, dy, dy)]
            (found,) = formula_gradients(Formula.parse(text), *tensors)
            assert found.dtype.name == dtype
            check(text, dtype, tf.cast(found, tf.float64), reference(text, x, dy), x, dy)

"""The library in the numbers of its regimes: FunctionDef and TensorFlow ops, in all dtypes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphpatch.gradients.library import LIBRARY
from graphpatch.gradients.ops import Signature
from graphpatch.gradients.program import gradient_function
from tests.gradients.regimes import NORMS, REGIMES, TOLERANCE, Regimes
from tests.tf import run_graph, tensorflow1
from tests.tf.function_calls import Calls, dtype_named

tf = pytest.importorskip("tensorflow")

DTYPES = tuple(TOLERANCE)
# TensorFlow 1.15 has no kernels of these for a CPU: no net holds such an op there.
NOT_IN_1 = {("Sigmoid", "bfloat16"), ("Tanh", "bfloat16")}


def columns(regimes: Regimes, dtype: str) -> tuple[Any, Any, Any, Any]:
    """x, y, dy in this dtype, and dx."""
    x, dy, dx = (
        np.array(column, float)[:, np.newaxis] for column in zip(*regimes.rows, strict=True)
    )
    with np.errstate(all="ignore"):
        return *(array.astype(dtype_named(dtype)) for array in (x, regimes.y(x), dy)), dx


def library_calls(
    same_shape: bool, without: Collection[tuple[str, str]] = ()
) -> tuple[Calls, dict[str, tuple[str, str, Any]]]:
    """Each regime in each dtype as a call; what is fetched, with its gradient, dtype and dx."""
    calls, expected = Calls(), {}
    for number, regimes in enumerate(REGIMES):
        for dtype in (dtype for dtype in DTYPES if (regimes.op_type, dtype) not in without):
            x, y, dy, dx = columns(regimes, dtype)
            formula = LIBRARY[regimes.name].formula(regimes.parameters)
            op = Signature.of([dtype], [dtype], regimes.attrs, same_shape)
            op = replace(op, op_type=regimes.op_type)
            function = gradient_function(formula, op, f"{regimes.name}_{number}_{dtype}")
            (found,) = calls.add(function, [x, y, dy])
            expected[found] = (str(regimes), dtype, dx)
    return calls, expected


def vector_calls() -> tuple[Calls, dict[str, tuple[str, str, Any]]]:
    """Each gradient of a whole tensor as a call."""
    calls, expected = Calls(), {}
    for number, (name, parameters, dy, dx) in enumerate(NORMS):
        for dtype in DTYPES:
            formula = LIBRARY[name].formula(parameters)
            op = Signature.of([dtype], [dtype])
            function = gradient_function(formula, op, f"{name}_{number}_{dtype}")
            x = np.full(len(dy), -1.0)
            expected[calls.add(function, [x, x, dy])[0]] = (name, dtype, dx)
    return calls, expected


def compare(found: Any, expected: dict[str, tuple[str, str, Any]]) -> None:
    for tensor, (name, dtype, dx) in expected.items():
        limit = TOLERANCE[dtype]
        message = f"{name} in {dtype}"
        np.testing.assert_allclose(found[tensor], dx, rtol=limit, atol=limit, err_msg=message)


@pytest.mark.every(2)
@pytest.mark.parametrize("same_shape", [False, True])
def test_functions_in_a_session(same_shape: bool) -> None:
    calls, expected = library_calls(same_shape)
    compare(run_graph.run(calls.graph.SerializeToString(), calls.feeds, calls.fetches), expected)


def test_functions_of_whole_tensors_in_a_session() -> None:
    calls, expected = vector_calls()
    compare(run_graph.run(calls.graph.SerializeToString(), calls.feeds, calls.fetches), expected)


@pytest.mark.slow
@pytest.mark.parametrize("gather", [lambda: library_calls(False, NOT_IN_1), vector_calls])
def test_functions_under_tensorflow_1(gather: Any, tmp_path: Path) -> None:
    calls, expected = gather()
    graph = calls.graph.SerializeToString()
    compare(tensorflow1.fetch(graph, calls.feeds, calls.fetches, tmp_path), expected)


@pytest.mark.parametrize("regimes", REGIMES, ids=str)
def test_tensorflow_ops(regimes: Regimes) -> None:
    from graphpatch.runtime.gradient_functions import formula_gradients

    for dtype in DTYPES:
        x, y, dy, dx = columns(regimes, dtype)
        formula = LIBRARY[regimes.name].formula(regimes.parameters)
        tensors = [[tf.constant(array)] for array in (x, y, dy)]
        (found,) = formula_gradients(formula, *tensors, regimes.attrs, op_type=regimes.op_type)
        assert found.dtype.name == dtype
        limit = TOLERANCE[dtype]
        np.testing.assert_allclose(tf.cast(found, tf.float64), dx, rtol=limit, atol=limit)

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from graphpatch.gradients.ops import FLOATS, scalar, survives_dtype, vector
from graphpatch.protos import TensorProto

VALUES = (0.0, -0.0, 1.0, -1.5, 0.1, 1 / 3, 255.0, 256.0, 257.0, 257.5, 259.0, math.inf, -math.inf)


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_numbers_are_rounded_to_the_nearest(value: float, dtype: str) -> None:
    constant = scalar(value, dtype)
    expected = np.array(value, ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    assert constant.data == expected.tobytes()
    assert constant.numbers == (float(expected),)


@pytest.mark.parametrize("dtype", FLOATS)
def test_constants_are_equal_where_their_bits_are(dtype: str) -> None:
    assert scalar(math.nan, dtype) == scalar(math.nan, dtype)
    assert scalar(0.0, dtype) != scalar(-0.0, dtype)
    assert math.isnan(scalar(math.nan, dtype).numbers[0])
    assert scalar(1.0, dtype) != scalar(1, "int32")


@pytest.mark.parametrize(
    ("value", "dtype", "kept"),
    [
        (1e-8, "float16", False),
        (6e-8, "float16", True),
        (65504.0, "float16", True),
        (65520.0, "float16", False),
        (1e39, "float32", False),
        (1e39, "bfloat16", False),
        (3.39e38, "bfloat16", True),
        (3.4e38, "bfloat16", False),
        (1e-50, "float32", False),
        (1e-50, "bfloat16", False),
        (1e-300, "float64", True),
        (0.0, "float16", True),
        (math.inf, "float16", True),
        (math.nan, "bfloat16", True),
    ],
)
def test_numbers_beyond_a_dtype(value: float, dtype: str, kept: bool) -> None:
    assert survives_dtype(value, dtype) is kept


@pytest.mark.parametrize(
    ("constant", "field", "values"),
    [
        (scalar(0.5, "float32"), "float_val", [0.5]),
        (scalar(0.5, "float64"), "double_val", [0.5]),
        (scalar(0.5, "float16"), "half_val", [0x3800]),
        (scalar(0.5, "bfloat16"), "half_val", [0x3F00]),
        (scalar(True, "bool"), "bool_val", [True]),
        (vector(1, -2, 3), "int_val", [1, -2, 3]),
    ],
)
def test_the_tensor_proto(constant: object, field: str, values: list[object]) -> None:
    proto: TensorProto = constant.proto()  # type: ignore[attr-defined]
    assert list(getattr(proto, field)) == values
    assert len(proto.tensor_shape.dim) == (len(values) > 1)

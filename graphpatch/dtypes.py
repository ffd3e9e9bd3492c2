"""TensorFlow's dtypes by name, without TensorFlow."""

from __future__ import annotations

_NAMES = (
    "float32 float64 int32 uint8 int16 int8 string complex64 int64 bool qint8 quint8 qint32"
    " bfloat16 qint16 quint16 uint16 complex128 float16 resource variant uint32 uint64"
    " float8_e5m2 float8_e4m3fn float8_e4m3fnuz float8_e4m3b11fnuz float8_e5m2fnuz"
    " int4 uint4 int2 uint2 float4_e2m1fn"
).split()

REF = 100
"""How far the number of a reference dtype (DT_FLOAT_REF is 101) lies above its base dtype's."""

DTYPE_NAMES: dict[int, str] = {
    number + ref: name for ref in (0, REF) for number, name in enumerate(_NAMES, start=1)
}
"""The name (`tf.DType.name`, base dtype) of each number of the enum DataType."""

DIFFERENTIABLE = frozenset({"float16", "bfloat16", "float32", "float64", "complex64", "complex128"})
"""The dtypes of tensors that carry gradients.

TensorFlow also lets `resource` and `variant` through: they stand for variables and lists that
hold such tensors.
"""

HANDLES = frozenset({"resource", "variant"})
"""Handles of variables and lists of tensors: they stand for the floats that they hold."""

NO_NUMBERS = HANDLES | {"string"}
"""Dtypes with no arithmetic, and no zeros."""


def is_ref(number: int) -> bool:
    """Return whether a number of the enum DataType is a reference dtype, as v1 variables have."""
    return number > REF

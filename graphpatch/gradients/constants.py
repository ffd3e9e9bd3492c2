"""The value of a Const, to the bit, in the dtypes that gradients need."""

from __future__ import annotations

import math
import struct
from typing import Any

import msgspec
from tensorboard.compat.proto.tensor_pb2 import TensorProto

from graphpatch.gradients.tensors import ConstantTensor
from graphpatch.graph.attrs import DTYPE_NUMBERS

FLOATS = ("float16", "bfloat16", "float32", "float64")
"""The dtypes that formulas compute in."""

CASTABLE = (
    *FLOATS,
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"),
)
"""The dtypes whose numbers TensorFlow casts to those of formulas, without losing a part."""

LARGE_CONSTANT = 256
"""From how many bytes on a vector is written as bytes, not as a list of numbers."""

_CODES = {"float16": "e", "float32": "f", "float64": "d", "int32": "i", "bool": "?"}

_TENSOR_PROTO_FIELDS = {
    "float16": "half_val",
    "bfloat16": "half_val",
    "float32": "float_val",
    "float64": "double_val",
    "int32": "int_val",
    "bool": "bool_val",
}


class Constant(msgspec.Struct, frozen=True):
    """A number, or a tensor of them, as the bytes it has in its dtype.

    So two are equal where their bits are: 0 and -0 are two, NaN is one.
    """

    dtype: str
    data: bytes
    shape: tuple[int, ...] = ()

    @property
    def numbers(self) -> tuple[Any, ...]:
        """What it holds, as Python has it."""
        if self.dtype == "bfloat16":
            return tuple(_from_bfloat16(bits) for bits in self._unpacked("H"))
        return self._unpacked(_CODES[self.dtype])

    def _unpacked(self, code: str) -> tuple[Any, ...]:
        return struct.unpack(f"<{len(self.data) // struct.calcsize(code)}{code}", self.data)

    def proto(self) -> TensorProto:
        """The TensorProto of this value."""
        proto = TensorProto(dtype=DTYPE_NUMBERS[self.dtype])
        proto.tensor_shape.SetInParent()
        field = _TENSOR_PROTO_FIELDS[self.dtype]
        for size in self.shape:
            proto.tensor_shape.dim.add(size=size)
        if len(self.shape) > 1 or len(self.data) > LARGE_CONSTANT:
            proto.tensor_content = self.data
            return proto
        values = self._unpacked("H") if field == "half_val" else self.numbers
        getattr(proto, field).extend(values)
        return proto


def scalar(value: float | bool, dtype: str) -> Constant:
    """The number in this dtype, rounded to the nearest. Raises OverflowError beyond its range."""
    if dtype == "bfloat16":
        return Constant(dtype, struct.pack("<H", _to_bfloat16(value)))
    return Constant(dtype, struct.pack(f"<{_CODES[dtype]}", value))


def vector(*values: int) -> Constant:
    """A vector of int32."""
    return Constant("int32", struct.pack(f"<{len(values)}i", *values), (len(values),))


def tensor(value: ConstantTensor, dtype: str) -> Constant:
    """A tensor in this dtype, each number rounded to the nearest."""
    import numpy as np

    array = value.array()
    if dtype == "bfloat16":
        bits = [_to_bfloat16(number) for number in array.ravel().tolist()]
        data = np.array(bits, "<u2").tobytes()
    else:
        with np.errstate(over="ignore"):
            data = array.astype(np.dtype(dtype).newbyteorder("<")).tobytes()
    return Constant(dtype, data, value.shape)


def survives_dtype(value: float, dtype: str) -> bool:
    """Whether a number stays what it is in this dtype, but for rounding: not 0, not infinite."""
    try:
        (rounded,) = scalar(value, dtype).numbers
    except OverflowError:
        return False
    return (rounded == 0) == (value == 0) and math.isinf(rounded) == math.isinf(value)


def _to_bfloat16(value: float) -> int:
    """The upper half of the float32's bits, rounded to even."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    if value != value:
        return 0x7FC0
    return int(bits + 0x7FFF + (bits >> 16 & 1) >> 16)


def _from_bfloat16(bits: int) -> float:
    (value,) = struct.unpack("<f", struct.pack("<I", bits << 16))
    return float(value)

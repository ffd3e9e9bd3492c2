"""The values of attrs: as JSON has them, new ones, and those of Consts piece by piece."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from graphpatch.errors import ModelError
from graphpatch.graph.node import Node
from graphpatch.graph.wire import BYTES, VARINT, Span, fields, message, piece_bytes, read_varint
from graphpatch.opdefs import DTYPE_NAMES
from graphpatch.opdefs import as_json as as_json
from graphpatch.protos import AttrValue, NameAttrList, TensorProto, TensorShapeProto

# The attr in which TensorFlow looks for the name of an op's gradient before the op type's own.
OVERRIDE = "_gradient_op_type"
OUTPUT_SHAPES = "_output_shapes"

DTYPE_NUMBERS = {name: number for number, name in DTYPE_NAMES.items() if number < 100}


def dtype(name: str) -> AttrValue:
    """Return an attr that holds a dtype, by its name."""
    return AttrValue(type=DTYPE_NUMBERS[name])


def dtypes(names: Sequence[str]) -> AttrValue:
    """Return an attr that holds a list of dtypes."""
    return AttrValue(list=AttrValue.ListValue(type=[DTYPE_NUMBERS[name] for name in names]))


def text(value: str) -> AttrValue:
    """Return an attr that holds a string."""
    return AttrValue(s=value.encode())


def function(name: str) -> AttrValue:
    """Return an attr that holds a function of the library."""
    return AttrValue(func=NameAttrList(name=name))


if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

CHUNK = 1 << 16  # bytes of a large tensor that are looked at together

# Fields of AttrValue and TensorProto.
TENSOR, DTYPE, SHAPE, CONTENT = 8, 1, 2, 4

VALUE_FIELDS = {
    **dict.fromkeys(
        "int8 int16 int32 uint8 uint16 qint8 quint8 qint16 quint16 qint32".split(), "int"
    ),
    **{"float32": "float", "float64": "double", "float16": "half", "bfloat16": "half"},
    **{"int64": "int64", "uint32": "uint32", "uint64": "uint64", "bool": "bool"},
    **{"complex64": "scomplex", "complex128": "dcomplex", "string": "string"},
}
"""The field of TensorProto, without `_val`, for the values of a dtype outside of tensor_content."""

RAW = {"float32": 5, "float64": 6}
"""Repeated fields that lie, packed, as tensor_content would."""

ZERO: dict[str, list[Any]] = {"string": [b""], "complex64": [0, 0], "complex128": [0, 0]}
"""What stands for a missing element in a repeated field; 0 where this is silent."""


class ConstTensor(msgspec.Struct, frozen=True):
    """A TensorProto where it lies: dtype and shape are read, values on demand."""

    dtype: str
    shape: tuple[int, ...]
    span: Span

    @property
    def size(self) -> int:
        """Return the number of its elements."""
        return math.prod(self.shape)

    def pieces(self) -> Iterator[tuple[Array, int]]:
        """Yield its elements in order, flat, piece by piece, and how many elements each piece is.

        A piece of one element may stand for many. bfloat16 comes as float32, strings as bytes.
        Whoever stops early has not read the rest; what a broken tensor lacks is not there.
        """
        content = self._content()
        if content is None:
            yield from self._shortened()
            return
        for start in range(content.start, content.end, CHUNK):
            raw = content.source.data[start : min(content.end, start + CHUNK)]
            elements = _array(self.dtype, raw)
            yield elements, len(elements)

    def _content(self) -> Span | None:
        """Return where the elements lie one after the other, as tensor_content or packed."""
        span, whole = self.span, self.size * _kind(self.dtype).itemsize
        for field in fields(span.source.data, span.start, span.end):
            is_raw = field.number in (CONTENT, RAW.get(self.dtype)) and field.wire == BYTES
            if is_raw and field.end - field.value == whole > 0 and self.dtype != "string":
                return Span(span.source, field.value, field.end)
        return None

    def _shortened(self) -> Iterator[tuple[Array, int]]:
        """Yield the elements of repeated fields, which leave out those at the end that are alike.

        Where there are none, and no tensor_content that is too short or too long, all are zero.
        """
        proto = message(TensorProto, piece_bytes(self.span))
        try:
            elements = _array(self.dtype, list(getattr(proto, f"{VALUE_FIELDS[self.dtype]}_val")))
        except (OverflowError, ValueError):  # ValueError: half of a complex number
            raise ModelError(f"a constant of {self.dtype} holds a value that none is") from None
        if proto.tensor_content or len(elements) > self.size:
            return
        if len(elements):
            yield elements, len(elements)
        if self.size > len(elements):
            zero = ZERO.get(self.dtype, [0])
            last = elements[-1:] if len(elements) else _array(self.dtype, zero)
            yield last, self.size - len(elements)


def constant(node: Node) -> ConstTensor | None:
    """Return the tensor of a Const; None for another op, and for an unknown dtype."""
    value = node.attr_spans().get("value") if node.op == "Const" else None
    if value is None:
        return None
    data, dtype, shape = value.source.data, "", TensorShapeProto()
    whole = next(
        (part for part in fields(data, value.start, value.end) if part.holds(TENSOR)), None
    )
    for field in () if whole is None else fields(data, whole.value, whole.end):
        if field.number == DTYPE and field.wire == VARINT:
            dtype = DTYPE_NAMES.get(read_varint(data, field.value)[0], "")
        elif field.holds(SHAPE):
            shape = message(TensorShapeProto, data[field.value : field.end])
    sizes = tuple(dim.size for dim in shape.dim)
    if whole is None or dtype not in VALUE_FIELDS or min(sizes, default=0) < 0:
        return None
    return ConstTensor(dtype, sizes, Span(value.source, whole.value, whole.end))


def _kind(dtype: str) -> np.dtype[Any]:
    """Return numpy's type of one element in tensor_content; bfloat16 as its bits."""
    import numpy as np

    kinds = {"bfloat16": "uint16", "string": "O"}
    return np.dtype(kinds.get(dtype, dtype.removeprefix("q"))).newbyteorder("<")


def _array(dtype: str, elements: bytes | list[Any]) -> Array:
    """Return elements of tensor_content, or of a repeated field, as an array.

    A repeated field has halves as bits, complex numbers as pairs. A bfloat16 is the upper half of
    a float32.
    """
    import numpy as np

    if isinstance(elements, bytes):
        array: Array = np.frombuffer(elements, _kind(dtype))
    elif dtype == "float16":
        array = np.array(elements, np.uint16).view(np.float16)
    elif dtype.startswith("complex"):
        array = np.array(elements, np.float64).view(np.complex128).astype(dtype)
    else:
        array = np.array(elements, _kind(dtype))
    return (array.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else array

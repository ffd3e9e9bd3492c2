"""The values of attrs: as JSON has them, new ones, and those of Consts piece by piece."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from graphpatch.dtypes import DTYPE_NAMES
from graphpatch.errors import ModelError
from graphpatch.graph.node import Node, attr_span
from graphpatch.graph.wire import BYTES, VARINT, Span, fields, message, piece_bytes, read_varint
from graphpatch.protos import AttrValue, NameAttrList, TensorProto, TensorShapeProto

# The attr in which TensorFlow looks for the name of an op's gradient before the op type's own.
OVERRIDE = "_gradient_op_type"
OUTPUT_SHAPES = "_output_shapes"

DTYPE_NUMBERS = {name: number for number, name in DTYPE_NAMES.items() if number < 100}


def as_json(value: AttrValue) -> Any:
    """The value as JSON would have it: dtypes and functions by name, shapes as lists.

    An unknown dimension is -1, an unknown rank None. Of a tensor only dtype and shape are told.
    """
    kind = value.WhichOneof("value")
    if kind == "list":
        return _plain_list(value.list)
    if kind == "tensor":
        return {"tensor": _dtype_of(value.tensor.dtype), "shape": _shape(value.tensor.tensor_shape)}
    return None if kind is None else _plain_one(kind, getattr(value, kind))


def _plain_list(values: AttrValue.ListValue) -> list[Any]:
    for field, found in values.ListFields():
        if field.name == "tensor":
            return [{"tensor": _dtype_of(t.dtype), "shape": _shape(t.tensor_shape)} for t in found]
        return [_plain_one(field.name, one) for one in found]
    return []


def _plain_one(kind: str, value: Any) -> Any:
    if kind == "s":
        return value.decode(errors="backslashreplace")
    if kind == "type":
        return _dtype_of(value)
    if kind == "shape":
        return _shape(value)
    if kind == "func":
        return value.name
    # A float attr is a float32: show the shortest decimal that is that number.
    return float(f"{value:.7g}") if kind == "f" else value


def _dtype_of(number: int) -> str:
    return DTYPE_NAMES.get(number, f"dtype {number}") + ("_ref" if number > 100 else "")


def _shape(shape: Any) -> list[int] | None:
    return None if shape.unknown_rank else [dim.size for dim in shape.dim]


def dtype(name: str) -> AttrValue:
    """An attr that holds a dtype, by its name."""
    return AttrValue(type=DTYPE_NUMBERS[name])


def dtypes(found: Sequence[str]) -> AttrValue:
    """An attr that holds a list of dtypes."""
    return AttrValue(list=AttrValue.ListValue(type=[DTYPE_NUMBERS[n] for n in found]))


def text(value: str) -> AttrValue:
    """An attr that holds a string."""
    return AttrValue(s=value.encode())


def function(name: str) -> AttrValue:
    """An attr that holds a function of the library."""
    return AttrValue(func=NameAttrList(name=name))


if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

CHUNK = 1 << 16  # bytes of a large tensor that are looked at together

# Fields of AttrValue and TensorProto.
TENSOR, DTYPE, SHAPE, CONTENT = 8, 1, 2, 4

# The field of TensorProto that holds the values of a dtype, where they are not in tensor_content,
# and numpy's type of one element in tensor_content; bfloat16 as its bits.
VALUE_FIELDS: dict[str, tuple[str, str]] = {
    "float32": ("float_val", "<f4"),
    "float64": ("double_val", "<f8"),
    "float16": ("half_val", "<f2"),
    "bfloat16": ("half_val", "<u2"),
    "int8": ("int_val", "<i1"),
    "int16": ("int_val", "<i2"),
    "int32": ("int_val", "<i4"),
    "int64": ("int64_val", "<i8"),
    "uint8": ("int_val", "<u1"),
    "uint16": ("int_val", "<u2"),
    "uint32": ("uint32_val", "<u4"),
    "uint64": ("uint64_val", "<u8"),
    "bool": ("bool_val", "?"),
    "complex64": ("scomplex_val", "<c8"),
    "complex128": ("dcomplex_val", "<c16"),
    "qint8": ("int_val", "<i1"),
    "quint8": ("int_val", "<u1"),
    "qint16": ("int_val", "<i2"),
    "quint16": ("int_val", "<u2"),
    "qint32": ("int_val", "<i4"),
    "string": ("string_val", "O"),
}

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
        """The number of its elements."""
        return math.prod(self.shape)

    def pieces(self) -> Iterator[tuple[Array, int]]:
        """Its elements in order, flat, piece by piece, and how many elements each piece is.

        A piece of one element may stand for many. bfloat16 comes as float32, strings as bytes.
        Whoever stops early has not read the rest; what a broken tensor lacks is not there.
        """
        content = _content(self)
        if content is None:
            yield from _shortened(self)
            return
        for start in range(content.start, content.end, CHUNK):
            raw = content.source.data[start : min(content.end, start + CHUNK)]
            found = _decoded(self.dtype, raw)
            yield found, len(found)


def constant(node: Node) -> ConstTensor | None:
    """The tensor of a Const; None for another op, and for a dtype that has no numbers or text."""
    span = attr_span(node.body.payload(node.index), "value") if node.op == "Const" else None
    if span is None:
        return None
    for field in fields(span.source.data, span.start, span.end):
        if field.number == TENSOR and field.wire == BYTES:
            return _tensor(Span(span.source, field.value, field.end))
    return None


def _tensor(span: Span) -> ConstTensor | None:
    dtype, shape = "", TensorShapeProto()
    for field in fields(span.source.data, span.start, span.end):
        if field.number == DTYPE and field.wire == VARINT:
            dtype = DTYPE_NAMES.get(read_varint(span.source.data, field.value)[0], "")
        elif field.number == SHAPE and field.wire == BYTES:
            shape = message(TensorShapeProto, span.source.data[field.value : field.end])
    sizes = tuple(dim.size for dim in shape.dim)
    return (
        ConstTensor(dtype, sizes, span)
        if dtype in VALUE_FIELDS and min(sizes, default=0) >= 0
        else None
    )


def _content(tensor: ConstTensor) -> Span | None:
    """Where the elements lie one after the other, as tensor_content or as one packed field."""
    import numpy as np

    span, whole = tensor.span, tensor.size * np.dtype(VALUE_FIELDS[tensor.dtype][1]).itemsize
    for field in fields(span.source.data, span.start, span.end):
        raw = field.number in (CONTENT, RAW.get(tensor.dtype)) and field.wire == BYTES
        if raw and field.end - field.value == whole > 0 and tensor.dtype != "string":
            return Span(span.source, field.value, field.end)
    return None


def _shortened(tensor: ConstTensor) -> Iterator[tuple[Array, int]]:
    """The elements as repeated fields have them: those at the end that equal the last are left out.

    Where there are none, and no tensor_content that is too short or too long, all are zero.
    """
    name, _ = VALUE_FIELDS[tensor.dtype]
    proto = message(TensorProto, piece_bytes(tensor.span))
    try:
        given = _array(tensor.dtype, list(getattr(proto, name)))
    except (OverflowError, ValueError):  # ValueError: half of a complex number
        raise ModelError(f"a constant of {tensor.dtype} holds a value that none is") from None
    if proto.tensor_content or len(given) > tensor.size:
        return
    if len(given):
        yield given, len(given)
    if tensor.size > len(given):
        last = given[-1:] if len(given) else _array(tensor.dtype, ZERO.get(tensor.dtype, [0]))
        yield last, tensor.size - len(given)


def _array(dtype: str, given: list[Any]) -> Array:
    """What a repeated field holds, as an array: halves are written as bits, complex as pairs."""
    import numpy as np

    kind = VALUE_FIELDS[dtype][1]
    if dtype == "bfloat16":
        return _widened(np.array(given, np.uint16))
    if dtype == "float16":
        return np.array(given, np.uint16).view(np.float16)
    if dtype.startswith("complex"):
        return np.array(given, np.float64).view(np.complex128).astype(kind)
    return np.array(given, kind)


def _decoded(dtype: str, raw: bytes) -> Array:
    import numpy as np

    found: Array = np.frombuffer(raw, VALUE_FIELDS[dtype][1])
    return _widened(found) if dtype == "bfloat16" else found


def _widened(bits: Array) -> Array:
    """The float32 numbers whose upper halves are these bits, which is what bfloat16 is."""
    import numpy as np

    return (bits.astype(np.uint32) << 16).view(np.float32)

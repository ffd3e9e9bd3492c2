"""AttrValues as plain values: what JSON can say of them, and new ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorboard.compat.proto.attr_value_pb2 import AttrValue, NameAttrList

from graphpatch.dtypes import DTYPE_NAMES

# The attr in which TensorFlow looks for the name of an op's gradient before the op type's own.
OVERRIDE = "_gradient_op_type"

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

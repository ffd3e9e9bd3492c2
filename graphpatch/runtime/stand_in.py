"""What a gradient function of TensorFlow's convention is given as `op`, while it is traced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from graphpatch import opdefs
from graphpatch.gradients.attach import OpDtypes
from graphpatch.graph.attrs import DTYPE_NUMBERS
from graphpatch.protos import AttrValue, TensorShapeProto


@dataclass(frozen=True, eq=False)
class StandIn:
    """An op as its gradient function sees it: `op.inputs`, `op.outputs`, `op.get_attr("...")`."""

    seen: OpDtypes
    inputs: Sequence[Any]
    outputs: Sequence[Any]

    @property
    def type(self) -> str:
        """Return the op type."""
        return self.seen.type

    @property
    def name(self) -> str:
        """Return the name of the op."""
        return self.seen.name

    @property
    def device(self) -> str:
        """Return the device that the NodeDef asks for."""
        return self.seen.device

    def get_attr(self, name: str) -> Any:
        """Return the value of an attr as tf.Operation.get_attr gives it.

        Raises ValueError where the op has none of this name.
        """
        value = self.seen.attrs.get(name)
        return _attr_value(_default_attr(self.seen.type, name) if value is None else value)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"op.{name} is not there while a gradient is traced into a file; op.inputs, "
            f"op.outputs, op.get_attr, op.type, op.name and op.device are"
        )


def _default_attr(op_type: str, name: str) -> AttrValue:
    """Return the op type's own value of an attr that the NodeDef leaves out."""
    known = opdefs.lookup(op_type)
    attrs = {} if known is None else {attr.name: attr for attr in known.attrs}
    if name not in attrs or attrs[name].default is None:
        raise ValueError(f"op type {op_type} has no attr {name!r}")
    kind, default = attrs[name].type, attrs[name].default
    if not isinstance(default, tuple) or kind == "shape":
        return _proto(kind, default)
    attr = AttrValue(list=AttrValue.ListValue())
    for element in default:
        attr.list.MergeFrom(_elements_of(_proto(kind[len("list(") : -1], element)))
    return attr


_ATTR_VALUE_FIELDS = {
    "string": "s",
    "int": "i",
    "float": "f",
    "bool": "b",
    "type": "type",
    "shape": "shape",
}


def _proto(kind: str, value: Any) -> AttrValue:
    """Return the AttrValue of a default as the table of ops has it."""
    if kind == "type":
        value = DTYPE_NUMBERS[value]
    elif kind == "string":
        value = value.encode()
    elif kind == "shape":
        unknown = value == "unknown"
        sizes = [] if unknown else [TensorShapeProto.Dim(size=size) for size in value]
        value = TensorShapeProto(dim=sizes, unknown_rank=unknown)
    if kind not in _ATTR_VALUE_FIELDS:
        raise ValueError(f"the default of an attr of type {kind} is not known")
    return AttrValue(**{_ATTR_VALUE_FIELDS[kind]: value})


def _elements_of(value: AttrValue) -> AttrValue.ListValue:
    kind = value.WhichOneof("value")
    return AttrValue.ListValue(**{kind: [getattr(value, kind)]})


def _attr_value(value: AttrValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "list":
        filled = next(iter(value.list.ListFields()), None)
        return (
            []
            if filled is None
            else [_element_of(filled[0].name, element) for element in filled[1]]
        )
    return [] if kind is None else _element_of(kind, getattr(value, kind))


def _element_of(kind: str, value: Any) -> Any:
    import tensorflow as tf

    if kind == "type":
        return tf.as_dtype(value)
    if kind in {"shape", "tensor", "func"}:
        # TensorFlow's own message, not our copy of it.
        raw = AttrValue(**{kind: value}).SerializeToString()
        return getattr(tf.compat.v1.AttrValue.FromString(raw), kind)
    return value

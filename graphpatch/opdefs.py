"""What TensorFlow's ops look like, without TensorFlow.

`scripts/make_opdefs.py` makes `data/opdefs.bin`, the OpDef messages of a TensorFlow 2.x and of
TensorFlow 1.15 with tf.contrib, and `data/opdefs.json`, what was measured of these ops. An op that
both know is described as 2.x has it.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Sequence
from functools import cache, cached_property, lru_cache
from typing import Any, Literal

import msgspec

from graphpatch.decoding import decode
from graphpatch.errors import ModelError
from graphpatch.protos import POOL, AttrValue, OpList
from graphpatch.protos import OpDef as OpDefProto

REF = 100
"""How far the number of a reference dtype (DT_FLOAT_REF is 101) lies above its base dtype's."""

_SPELLED_OTHERWISE = {"float": "float32", "double": "float64", "half": "float16"}
_NAMES = {
    value.number: value.name.removeprefix("DT_").removesuffix("_REF").lower()
    for value in POOL.FindEnumTypeByName("tensorflow.DataType").values
}
DTYPE_NAMES = {
    number: _SPELLED_OTHERWISE.get(name, name) for number, name in sorted(_NAMES.items()) if number
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


class Arg(msgspec.Struct, frozen=True, gc=False):
    """An input or output that an op declares: one tensor, or a list of them.

    Its dtype is fixed (`dtype`) or the node's attr `type_attr` names it. It is a list where
    `number_attr` (so many tensors of that dtype) or `type_list_attr` (one for each dtype) is set.
    """

    name: str
    dtype: str = ""
    type_attr: str = ""
    number_attr: str = ""
    type_list_attr: str = ""
    is_ref: bool = False

    @property
    def is_list(self) -> bool:
        """Return whether it is a list of tensors."""
        return bool(self.number_attr or self.type_list_attr)


class Measured(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an OpDef message does not say of an op.

    `gradient` is the state of TensorFlow's registry: "registered"; "none", declared as not
    differentiable; "missing", where tf.gradients raises LookupError (function calls are missing
    too: they are differentiated through their body).
    `known_to` is "both", "1" (1.15 or its tf.contrib alone), "2", or "library" (a function).
    `keeps_shape` are the inputs whose shape output 0 was always measured to have, attrs at their
    defaults. Where `broadcasts`, inputs of unequal shapes are broadcast, and it holds for equal
    ones. They count flat, and after a list of tensors none is named.
    """

    gradient: Literal["registered", "none", "missing"] = "missing"
    known_to: Literal["both", "1", "2", "library"] = "both"
    keeps_shape: tuple[int, ...] = ()
    broadcasts: bool = False


class OpDef(Measured, frozen=True):
    """An op type. `commutative` is what TensorFlow declares, which it does for few ops that are.

    `attrs` are the messages of its attrs. `defaults` has for each what it is where a node leaves it
    out, as `as_json` gives it, but floats as the op takes them: None where a node must carry it.
    """

    name: str
    inputs: tuple[Arg, ...] = ()
    outputs: tuple[Arg, ...] = ()
    attrs: tuple[OpDefProto.AttrDef, ...] = ()
    defaults: dict[str, Any] = {}
    stateful: bool = False
    commutative: bool = False

    def default(self, attr: str) -> AttrValue | None:
        """Return the value of an attr where a node leaves it out, if it may."""
        declared = (known for known in self.attrs if known.name == attr)
        return next(
            (attr.default_value for attr in declared if attr.HasField("default_value")), None
        )


class OpTable(msgspec.Struct, frozen=True):
    """The TensorFlow versions that the ops are from, and what was measured of each op, by name."""

    tensorflow: tuple[str, str]
    ops: dict[str, Measured]


class FlatArg(msgspec.Struct, frozen=True, gc=False):
    """One tensor that a node reads or gives: function bodies spell an output `node:name:index`.

    `dtype` is None where the node does not tell.
    """

    name: str
    index: int
    dtype: str | None
    is_ref: bool


def _data(name: str) -> bytes:
    data = pkgutil.get_data("graphpatch", f"data/{name}")  # importlib.resources takes 12 ms
    assert data is not None, "graphpatch is installed without its table of ops"
    return data


@cache
def table() -> OpTable:
    """Return what was measured of each op, read on first use."""
    return decode(_data("opdefs.json"), OpTable)


@cache
def _messages() -> dict[str, OpDefProto]:
    """Return the OpDef message of each op, which TensorFlow registers."""
    return {op.name: op for op in OpList.FromString(_data("opdefs.bin")).op}


@lru_cache(maxsize=4096)
def lookup(op_type: str) -> OpDef | None:
    """Return what this op type looks like, or None where neither TensorFlow registers it."""
    proto = _messages().get(op_type)
    return None if proto is None else from_proto(proto, table().ops[op_type])


def op_types() -> list[str]:
    """Return the name of every op type in the table, sorted."""
    return list(table().ops)


def newer_than_1_15(types: Iterable[str]) -> list[str]:
    """Return those op types that TensorFlow 2 knows and TensorFlow 1.15 does not, sorted."""
    return [op for op in sorted(set(types)) if (opdef := lookup(op)) and opdef.known_to == "2"]


AttrReader = Callable[[str], "AttrValue | None"]


class FlatArgs(list[FlatArg]):
    """The tensors of a node, in their order."""

    @cached_property
    def first(self) -> dict[str, int]:
        """Return where those of each arg begin: they lie side by side."""
        return {self[place].name: place for place in reversed(range(len(self)))}


def flatten(op: OpDef, args: Iterable[Arg], attr: AttrReader) -> FlatArgs:
    """Return the tensors that a node has for these args of its op type, in the order it has them.

    `attr` gives the node's value of an attr, or None where it has none; the op's default then
    counts. Raises ModelError where that leaves unknown how many tensors an arg holds.
    """
    return FlatArgs(
        FlatArg(arg.name, index, dtype, arg.is_ref or ref)
        for arg in args
        for index, (dtype, ref) in enumerate(_dtypes_of_arg(op, arg, attr))
    )


def tensor_index(tensors: Sequence[FlatArg], name: str, index: int) -> int | None:
    """Return where tensor `index` of an arg is among a node's tensors; None where there is none."""
    if isinstance(tensors, FlatArgs):
        first = tensors.first.get(name, len(tensors))
    else:
        first = next((at for at, tensor in enumerate(tensors) if tensor.name == name), len(tensors))
    at = first + index
    return at if at < len(tensors) and tensors[at].name == name else None


def _dtypes_of_arg(op: OpDef, arg: Arg, attr: AttrReader) -> Sequence[tuple[str | None, bool]]:
    """Return the dtype of each tensor of an arg, and whether that dtype itself is a reference."""
    if key := arg.type_list_attr:
        value = attr(key) or op.default(key)
        if value is None or value.WhichOneof("value") != "list":
            raise _unknown_length(arg, key, value, "a list of dtypes")
        return [(DTYPE_NAMES.get(number), is_ref(number)) for number in value.list.type]
    dtype: tuple[str | None, bool] = (arg.dtype or None, False)
    if not arg.dtype and (value := attr(arg.type_attr) or op.default(arg.type_attr)) is not None:
        dtype = DTYPE_NAMES.get(value.type), is_ref(value.type)
    if not (key := arg.number_attr):
        return [dtype]
    value = attr(key) or op.default(key)
    if value is None or value.WhichOneof("value") != "i" or value.i < 0:
        raise _unknown_length(arg, key, value, "an int of 0 or more")
    return [dtype] * int(value.i)


def _unknown_length(arg: Arg, attr: str, value: AttrValue | None, legal: str) -> ModelError:
    problem = f"is {value}".strip() if value is not None else "is missing and has no default"
    return ModelError(
        f"attr {attr!r} {problem}; it must be {legal}, "
        f"the length of the list of tensors {arg.name!r}"
    )


OF_A_LIBRARY = Measured(known_to="library")


def from_proto(proto: OpDefProto, measured: Measured = OF_A_LIBRARY) -> OpDef:
    """Return the op type that a message describes; by default one of a graph's own library."""
    defaults = {}
    for attr in proto.attr:
        value = attr.default_value
        defaults[attr.name] = value.f if value.WhichOneof("value") == "f" else as_json(value)
    return OpDef(
        proto.name,
        inputs=tuple(map(_arg, proto.input_arg)),
        outputs=tuple(map(_arg, proto.output_arg)),
        attrs=tuple(proto.attr),
        defaults=defaults,
        stateful=proto.is_stateful,
        commutative=proto.is_commutative,
        **msgspec.structs.asdict(measured),
    )


def _arg(proto: OpDefProto.ArgDef) -> Arg:
    return Arg(
        proto.name,
        DTYPE_NAMES.get(proto.type, ""),
        proto.type_attr,
        proto.number_attr,
        proto.type_list_attr,
        proto.is_ref or is_ref(proto.type),
    )


def as_json(value: AttrValue) -> Any:
    """Return the value as JSON would have it: dtypes and functions by name, shapes as lists.

    An unknown dimension is -1, an unknown rank None. Of a tensor only dtype and shape are told.
    """
    kind = value.WhichOneof("value")
    if kind != "list":
        return None if kind is None else _plain(kind, getattr(value, kind))
    for field, items in value.list.ListFields():
        return [_plain(field.name, item) for item in items]
    return []


def _plain(kind: str, value: Any) -> Any:
    match kind:
        case "s":
            return value.decode(errors="backslashreplace")
        case "type":
            return DTYPE_NAMES.get(value, f"dtype {value}") + ("_ref" if value > 100 else "")
        case "shape":
            return None if value.unknown_rank else [dim.size for dim in value.dim]
        case "func":
            return value.name
        case "tensor":
            shape = _plain("shape", value.tensor_shape)
            return {"tensor": _plain("type", value.dtype), "shape": shape}
        case "f":  # a float32: show the shortest decimal that is that number
            return float(f"{value:.7g}")
    return value

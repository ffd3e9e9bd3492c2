"""What TensorFlow's ops look like, without TensorFlow.

The table `data/opdefs.json` is made by `scripts/make_opdefs.py` from the op registries of a
TensorFlow 2.x and of TensorFlow 1.15 with tf.contrib. An op that both know is described as 2.x
has it.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache, cached_property, lru_cache
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from graphpatch.decoding import decode
from graphpatch.errors import ModelError

if TYPE_CHECKING:
    from graphpatch.protos import AttrValue
    from graphpatch.protos import OpDef as OpDefProto

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


AttrDefault = (
    bool | int | float | str | tuple[bool | int | float | str | tuple[int, ...], ...] | None
)


class Arg(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An input or output that an op declares: one tensor, or a list of them.

    Its dtype is fixed (`dtype`) or the node's attr `type_attr` names it. It is a list where
    `number_attr` (so many tensors of that dtype) or `type_list_attr` (one for each dtype) is set.
    The last three fields are what these attrs are where a node leaves them out.
    """

    name: str
    dtype: str = ""
    type_attr: str = ""
    number_attr: str = ""
    type_list_attr: str = ""
    is_ref: bool = False
    dtype_default: str = ""
    number_default: int | None = None
    dtypes_default: tuple[str, ...] | None = None

    @property
    def is_list(self) -> bool:
        """Return whether it is a list of tensors."""
        return bool(self.number_attr or self.type_list_attr)


class AttrDef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An attr that an op declares, with its type as OpDef spells it (`int`, `list(type)`).

    `default` is None where a node must carry the attr. A dtype is its name, a shape a tuple of
    sizes (-1 where one is unknown) or "unknown", a list a tuple, an infinite float a string, a
    tensor the text of its TensorProto.
    """

    name: str
    type: str
    default: AttrDefault = None


class OpDef(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """An op type.

    `commutative` is what TensorFlow declares, which it does for few ops that are.
    `gradient` is the state of TensorFlow's registry: "registered"; "none", declared as not
    differentiable; "missing", where tf.gradients raises LookupError (function calls are missing
    too: they are differentiated through their body).
    `known_to` is "both", "1" (1.15 or its tf.contrib alone), "2", or "library" (a function).
    `keeps_shape` are the inputs whose shape output 0 was always measured to have, attrs at their
    defaults. Where `broadcasts`, inputs of unequal shapes are broadcast, and it holds for equal
    ones. They count flat, and after a list of tensors none is named.
    """

    name: str
    inputs: tuple[Arg, ...] = ()
    outputs: tuple[Arg, ...] = ()
    attrs: tuple[AttrDef, ...] = ()
    stateful: bool = False
    commutative: bool = False
    gradient: Literal["registered", "none", "missing"] = "missing"
    known_to: Literal["both", "1", "2", "library"] = "both"
    keeps_shape: tuple[int, ...] = ()
    broadcasts: bool = False


class OpTable(msgspec.Struct, frozen=True):
    """The shipped file: the TensorFlow versions it was made from, and their ops by name."""

    tensorflow: tuple[str, str]
    ops: tuple[OpDef, ...]


_LINE = re.compile(rb'^\{"name":"([^"]+)".*\}(?=,?$)', re.MULTILINE)
_OP = msgspec.json.Decoder(OpDef)


class FlatArg(msgspec.Struct, frozen=True, gc=False):
    """One tensor that a node reads or gives: function bodies spell an output `node:name:index`.

    `dtype` is None where the node does not tell.
    """

    name: str
    index: int
    dtype: str | None
    is_ref: bool


@cache
def _data() -> bytes:
    data = pkgutil.get_data("graphpatch", "data/opdefs.json")  # importlib.resources takes 12 ms
    assert data is not None, "graphpatch is installed without its table of ops"
    return data


@cache
def table() -> OpTable:
    """Return the shipped table, read on first use."""
    return decode(_data(), OpTable)


@cache
def _lines() -> dict[str, tuple[int, int]]:
    """Return where each op type lies in the file, which has one a line: a model has few of them."""
    return {match[1].decode(): match.span() for match in _LINE.finditer(_data())}


@lru_cache(maxsize=4096)
def lookup(op_type: str) -> OpDef | None:
    """Return what this op type looks like, or None where neither TensorFlow registers it."""
    place = _lines().get(op_type)
    return None if place is None else _OP.decode(_data()[slice(*place)])


def op_types() -> list[str]:
    """Return the name of every op type in the table, sorted."""
    return list(_lines())


def newer_than_1_15(types: Iterable[str]) -> list[str]:
    """Those of some op types that TensorFlow 2 knows and TensorFlow 1.15 does not, sorted."""
    return [op for op in sorted(set(types)) if (opdef := lookup(op)) and opdef.known_to == "2"]


AttrReader = Callable[[str], "AttrValue | None"]


class FlatArgs(list[FlatArg]):
    """The tensors of a node, in their order."""

    @cached_property
    def first(self) -> dict[str, int]:
        """Return where those of each arg begin: they lie side by side."""
        return {self[place].name: place for place in reversed(range(len(self)))}


def flatten(args: Iterable[Arg], attr: AttrReader) -> FlatArgs:
    """Return the tensors that a node has for these args of its op type, in the order it has them.

    `attr` gives the node's value of an attr, or None where it has none; the op's default then
    counts. Raises ModelError where that leaves unknown how many tensors an arg holds.
    """
    return FlatArgs(
        FlatArg(arg.name, index, dtype, arg.is_ref or ref)
        for arg in args
        for index, (dtype, ref) in enumerate(_dtypes_of_arg(arg, attr))
    )


def tensor_index(tensors: Sequence[FlatArg], name: str, index: int) -> int | None:
    """Return where tensor `index` of an arg is among a node's tensors; None where there is none."""
    if isinstance(tensors, FlatArgs):
        first = tensors.first.get(name, len(tensors))
    else:
        first = next((at for at, tensor in enumerate(tensors) if tensor.name == name), len(tensors))
    at = first + index
    return at if at < len(tensors) and tensors[at].name == name else None


def _dtypes_of_arg(arg: Arg, attr: AttrReader) -> Sequence[tuple[str | None, bool]]:
    """Return the dtype of each tensor of an arg, and whether that dtype itself is a reference."""
    if arg.type_list_attr:
        value = attr(arg.type_list_attr)
        if value is None and arg.dtypes_default is not None:
            return [(name, False) for name in arg.dtypes_default]
        if value is None or value.WhichOneof("value") != "list":
            raise _unknown_length(arg, arg.type_list_attr, value, "a list of dtypes")
        return [(DTYPE_NAMES.get(number), is_ref(number)) for number in value.list.type]
    dtype: tuple[str | None, bool] = (arg.dtype or arg.dtype_default or None, False)
    if not arg.dtype and (value := attr(arg.type_attr)) is not None:
        dtype = DTYPE_NAMES.get(value.type), is_ref(value.type)
    if not arg.number_attr:
        return [dtype]
    value, count = attr(arg.number_attr), arg.number_default
    if value is not None or count is None:
        if value is None or value.WhichOneof("value") != "i" or value.i < 0:
            raise _unknown_length(arg, arg.number_attr, value, "an int of 0 or more")
        count = int(value.i)
    return [dtype] * count


def _unknown_length(arg: Arg, attr: str, value: AttrValue | None, legal: str) -> ModelError:
    problem = f"is {value}".strip() if value is not None else "is missing and has no default"
    return ModelError(
        f"attr {attr!r} {problem}; it must be {legal}, "
        f"the length of the list of tensors {arg.name!r}"
    )


def from_proto(proto: OpDefProto) -> OpDef:
    """Return the op type that a message describes, as one of the graph's own library (a signature).

    What a message does not hold (gradient, keeps_shape, broadcasts) is left at its default.
    """
    defaults = {
        attr.name: _default_as_json(attr.default_value)
        for attr in proto.attr
        if attr.HasField("default_value")
    }
    return OpDef(
        proto.name,
        inputs=tuple(_arg(arg, defaults) for arg in proto.input_arg),
        outputs=tuple(_arg(arg, defaults) for arg in proto.output_arg),
        attrs=tuple(AttrDef(attr.name, attr.type, defaults.get(attr.name)) for attr in proto.attr),
        stateful=proto.is_stateful,
        commutative=proto.is_commutative,
        known_to="library",
    )


def _arg(proto: OpDefProto.ArgDef, defaults: dict[str, AttrDefault]) -> Arg:
    dtype, number = defaults.get(proto.type_attr), defaults.get(proto.number_attr)
    dtypes = defaults.get(proto.type_list_attr)
    return Arg(
        proto.name,
        DTYPE_NAMES.get(proto.type, ""),
        proto.type_attr,
        proto.number_attr,
        proto.type_list_attr,
        proto.is_ref or is_ref(proto.type),
        dtype if isinstance(dtype, str) else "",
        number if isinstance(number, int) else None,
        tuple(map(str, dtypes)) if isinstance(dtypes, tuple) else None,
    )


def _default_as_json(value: AttrValue) -> AttrDefault:
    """Return an attr value as JSON can hold it; the docstring of AttrDef says how."""
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind != "list":
        return cast(AttrDefault, _plain_default(kind, getattr(value, kind)))
    fields = value.list.ListFields()
    return tuple(_plain_default(field.name, item) for field, items in fields for item in items)


def _plain_default(kind: str, value: Any) -> Any:
    if kind == "s":
        return str(value, "utf-8", "backslashreplace")
    if kind == "type":
        return DTYPE_NAMES.get(value, str(value))
    if kind == "shape":
        return "unknown" if value.unknown_rank else tuple(dim.size for dim in value.dim)
    if kind in ("b", "i") or (kind == "f" and isfinite(value)):
        return value
    if kind in ("f", "placeholder"):
        return str(value)
    from google.protobuf.text_format import MessageToString

    return MessageToString(value, as_one_line=True)

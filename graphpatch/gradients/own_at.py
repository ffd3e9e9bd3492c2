"""The op that a gradient is for, at other inputs: what `forward` and `own` of formulas compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from graphpatch.errors import FormulaError
from graphpatch.gradients import op_sequences
from graphpatch.gradients.broadcast_shape import SCALAR, UNKNOWN, BroadcastShape
from graphpatch.gradients.program import AttrValue, Program, Value, op_def
from graphpatch.gradients.signature import Signature
from graphpatch.opdefs import AttrDef


class OpCall(msgspec.Struct, frozen=True):
    """An op of this signature, at these inputs."""

    program: Program
    signature: Signature
    xs: tuple[Value, ...]

    @property
    def y(self) -> Value:
        """Output 0: the op's own where the inputs are, else computed."""
        own = [name for name, _ in self.signature.inputs] == [x.source for x in self.xs]
        name, dtype = self.signature.outputs[0]
        if own:
            return Value(name, dtype, self.signature.shape(name))
        return op_forward(self)

    def attrs(self, op_type: str) -> dict[str, AttrValue]:
        """The attrs of the op that another op type has too, but for dtypes and defaults."""
        known = {one.name: one for one in op_def(op_type).attrs if one.type != "type"}
        given = {name: _attr_held(one, self.signature.attrs) for name, one in known.items()}
        return {name: value for name, value in given.items() if value is not None}

    def op(self, op_type: str, *inputs: Value, shape: BroadcastShape = UNKNOWN) -> Value:
        """An op with the attrs of this one."""
        return self.program.op(op_type, *inputs, shape=shape, **self.attrs(op_type))

    def sizes(self, place: int) -> Value:
        """The shape of an input."""
        return self.program.shape_of(self.xs[place])


def of_signature(
    program: Program, signature: Signature, function: str, given: Sequence[Value]
) -> OpCall:
    """The op at these inputs, its own where fewer are given. Raises FormulaError."""
    if not signature.op_type:
        raise FormulaError(
            f"{function} computes what one op does; a filter, a surrogate and a match as one op"
            " have none"
        )
    if len(given) > len(signature.inputs):
        raise FormulaError(f"{function}: {signature.op_type} has {len(signature.inputs)} inputs")
    own = [Value(name, dtype, signature.shape(name)) for name, dtype in signature.inputs]
    for place, (one, like) in enumerate(zip(given, own, strict=False)):
        if one.dtype != like.dtype:
            raise FormulaError(f"{function}: input {place} is {like.dtype}, and this {one.dtype}")
    return OpCall(program, signature, (*given, *own[len(given) :]))


def op_forward(at: OpCall) -> Value:
    """Output 0 of the op. Raises FormulaError for an op that cannot be run again."""
    op_type = at.signature.op_type
    try:
        definition = op_def(op_type)
    except LookupError as error:
        raise FormulaError(f"forward: {error}") from None
    lists = any(arg.is_list for arg in definition.inputs)
    if definition.stateful or lists or len(definition.inputs) != len(at.xs):
        raise FormulaError(f"forward: {op_type} has a state or a list of inputs: it runs once")
    same = all(x.shape == at.signature.shape(f"x{n}") for n, x in enumerate(at.xs))
    return at.op(op_type, *at.xs, shape=at.signature.shape("y0") if same else UNKNOWN)


def _attr_held(attr: AttrDef, given: Mapping[str, object]) -> AttrValue | None:
    """The value as a program holds it; None for the default, which a node may leave out."""
    value = given.get(attr.name, attr.default)
    if isinstance(value, list | tuple):
        value = tuple(value)
    if value is None or value == attr.default or value == ():
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, tuple | bool | int):
        return value
    return float(value) if isinstance(value, float) else None


def summed(at: OpCall, place: int, value: Value) -> Value:
    """The value summed to the shape of an input that was repeated."""
    like = at.xs[place]
    if value.shape.exactly is not None and value.shape == like.shape:
        return value
    return op_sequences.sum_like(at.program, value, like)


def count(at: OpCall, value: Value, dtype: str) -> Value:
    """How many elements a value has, as a number of a dtype."""
    sizes = at.program.shape_of(value)
    axes = at.program.vector(0)
    number = at.program.op("Prod", sizes, axes, shape=SCALAR, keep_dims=False)
    return at.program.cast(number, dtype)

"""Gradients as a list of TensorFlow ops, each written once: what two of the forms are made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import TypeAlias

import msgspec

from graphpatch import opdefs
from graphpatch.gradients import broadcast_shape, constants
from graphpatch.gradients.broadcast_shape import SCALAR, UNKNOWN, BroadcastShape
from graphpatch.gradients.constants import FLOATS, Constant

AttrValue: TypeAlias = bool | int | float | str | bytes | tuple[int, ...] | Constant
"""The value of an attr; a dtype is its name, a string is bytes."""


class Value(msgspec.Struct, frozen=True):
    """A tensor: an argument by its name, or output 0 of a step by its number."""

    source: str | int
    dtype: str
    shape: BroadcastShape
    constant: Constant | None = None


StepInput: TypeAlias = Value | tuple[Value, ...]


class Step(msgspec.Struct, frozen=True):
    """One op: its type, its inputs (a list of tensors is a tuple), all attrs that it needs."""

    op_type: str
    inputs: tuple[StepInput, ...]
    attrs: tuple[tuple[str, AttrValue], ...]

    @property
    def tensors(self) -> Iterator[Value]:
        """The inputs, lists of tensors taken apart."""
        for value in self.inputs:
            yield from (value,) if isinstance(value, Value) else value


@cache
def op_def(op_type: str) -> opdefs.OpDef:
    """What an op type looks like. Raises LookupError for one that not both TensorFlows know."""
    found = opdefs.lookup(op_type)
    if found is None or found.known_to != "both":
        raise LookupError(f"{op_type} is not an op of both TensorFlow 1.15 and 2.x")
    return found


class Program:
    """Steps in the order they are computed. An op that is asked for again is the first one."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._numbers: dict[Step, int] = {}

    def op(
        self,
        op_type: str,
        *inputs: StepInput,
        shape: BroadcastShape | None = None,
        **attrs: AttrValue,
    ) -> Value:
        """Output 0 of an op.

        Its shape is the joint one of its inputs where `shape` is silent. The attrs that say the
        inputs' dtypes and number are set.
        """
        attrs |= _input_attrs(op_type, inputs)
        step = Step(op_type, inputs, tuple(sorted(attrs.items())))
        output = op_def(op_type).outputs[0]
        dtype = output.dtype or str(attrs[output.type_attr])
        if shape is None:
            shape = broadcast_shape.broadcast_together(*(value.shape for value in step.tensors))
        value = attrs.get("value")
        constant = value if isinstance(value, Constant) else None
        return Value(self._number(step), dtype, shape, constant)

    def _number(self, step: Step) -> int:
        if step not in self._numbers:
            self._numbers[step] = len(self.steps)
            self.steps.append(step)
        return self._numbers[step]

    def scalar(self, value: float | bool, dtype: str) -> Value:
        """A constant without axes."""
        return self.op("Const", shape=SCALAR, dtype=dtype, value=constants.scalar(value, dtype))

    def vector(self, *values: int) -> Value:
        """A constant of int32 with one axis."""
        return self.op("Const", shape=UNKNOWN, dtype="int32", value=constants.vector(*values))

    def cast(self, value: Value, dtype: str) -> Value:
        """The value in another dtype; itself where it has that dtype."""
        if value.dtype == dtype:
            return value
        if value.constant is not None and value.dtype in FLOATS and not value.constant.shape:
            return self.scalar(value.constant.numbers[0], dtype)
        return self.op("Cast", value, DstT=dtype)

    def shape_of(self, value: Value) -> Value:
        """The sizes of a tensor, a vector of int32."""
        return self.op("Shape", value, shape=UNKNOWN, out_type="int32")


def needed(program: Program, values: Iterable[Value]) -> list[int]:
    """The numbers of the steps that these values are computed from, in order."""
    numbers: set[int] = set()
    waiting = list(values)
    while waiting:
        source = waiting.pop().source
        if isinstance(source, int) and source not in numbers:
            numbers.add(source)
            waiting.extend(program.steps[source].tensors)
    return sorted(numbers)


def _input_attrs(op_type: str, inputs: tuple[StepInput, ...]) -> dict[str, AttrValue]:
    """The attrs that say which dtype the inputs have, and how many a list of them holds."""
    attrs: dict[str, AttrValue] = {}
    for arg, value in zip(op_def(op_type).inputs, inputs, strict=True):
        if arg.type_attr:
            attrs[arg.type_attr] = (value if isinstance(value, Value) else value[0]).dtype
        if arg.number_attr and isinstance(value, tuple):
            attrs[arg.number_attr] = len(value)
    return attrs

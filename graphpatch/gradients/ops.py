"""A program: TensorFlow ops in a list, each written once, with what is known of their shapes.

A formula is written for ops whose shapes the file need not tell. Enough is known all the same to
leave most of the reshaping out: `dy * x` has the joint shape of dy and x, whatever that is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, TypeAlias

import msgspec

from graphpatch import opdefs
from graphpatch.errors import FormulaError, did_you_mean
from graphpatch.gradients.tensors import ConstantTensor, scalar, vector
from graphpatch.graph.attrs import DTYPE_NUMBERS
from graphpatch.graph.walk import reached

Scalar: TypeAlias = float | bool
"""A number or a boolean that belongs to no tensor: a literal, a parameter, an attr."""

FLOATS = ("float16", "bfloat16", "float32", "float64")
"""The dtypes that formulas compute in."""

NOT_SERVED = ("complex64", "complex128")
"""The dtypes that carry gradients in TensorFlow, and that formulas do not compute in."""

CASTABLE = (
    *FLOATS,
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"),
)
"""The dtypes whose numbers TensorFlow casts to those of formulas, without losing a part."""

INT32 = range(-(2**31), 2**31)


class BroadcastShape(msgspec.Struct, frozen=True):
    """The shape that tensors have when broadcast together, by their names.

    The shape broadcasts to the joint one of `most` (None where that is unknown), and the joint
    one of `least` broadcasts to it. Where both are the same, it is that shape.
    """

    most: frozenset[str] | None
    least: frozenset[str]

    @property
    def exactly(self) -> frozenset[str] | None:
        """Return the tensors whose joint shape this is, or None where that is unknown."""
        return self.most if self.most == self.least else None


SCALAR = BroadcastShape(frozenset(), frozenset())
UNKNOWN = BroadcastShape(None, frozenset())


def shape_of_tensor(name: str) -> BroadcastShape:
    """Return the shape of one tensor."""
    return BroadcastShape(frozenset({name}), frozenset({name}))


def shape_of_constant(sizes: tuple[int, ...]) -> BroadcastShape:
    """Return the shape of a tensor of the rule, whose sizes are its name: `[2, 7]`."""
    return shape_of_tensor(str(list(sizes))) if sizes else SCALAR


def sizes_of_constant(name: str) -> tuple[int | None, ...] | None:
    """Return the sizes that a name of `shape_of_constant` says; None for a tensor of the op."""
    return tuple(map(int, name[1:-1].split(","))) if name.startswith("[") else None


def broadcast_together(*shapes: BroadcastShape) -> BroadcastShape:
    """Return the shape that these have when broadcast together."""
    least = frozenset[str]().union(*(shape.least for shape in shapes))
    most = [shape.most for shape in shapes if shape.most is not None]
    is_known = len(most) == len(shapes)
    return BroadcastShape(frozenset[str]().union(*most) if is_known else None, least)


AttrValue: TypeAlias = bool | int | float | str | bytes | tuple[int, ...] | ConstantTensor
"""The value of an attr; a dtype is its name, a string is bytes."""


class Value(msgspec.Struct, frozen=True):
    """A tensor: an argument by its name, or an output of a step of the program by its number.

    Python's operators write ops; a plain number is a constant of this dtype.
    """

    program: Program
    source: str | int
    dtype: str
    shape: BroadcastShape
    constant: ConstantTensor | None = None
    output: int = 0

    def __add__(self, right: Operand) -> Value:
        return op("AddV2", self, right)

    def __sub__(self, right: Operand) -> Value:
        return op("Sub", self, right)

    def __mul__(self, right: Operand) -> Value:
        return op("Mul", self, right)

    def __rmul__(self, left: float) -> Value:
        return op("Mul", left, self)

    def __truediv__(self, right: Operand) -> Value:
        return op("RealDiv", self, right)

    def __neg__(self) -> Value:
        return op("Neg", self)

    @property
    def sizes(self) -> Value:
        """Return the sizes of the tensor, a vector of int32."""
        return op("Shape", self, out_type="int32")

    @property
    def number(self) -> Any:
        """Return the number of a constant without axes; None for any other tensor."""
        is_number = self.constant is not None and not self.constant.shape
        return self.constant.numbers[0] if self.constant is not None and is_number else None

    def like(self, number: Scalar) -> Value:
        """Return a constant of this dtype."""
        return self.program.scalar(number, self.dtype)

    def cast(self, dtype: str) -> Value:
        """Return the tensor in another dtype; itself where it has that dtype."""
        if self.dtype == dtype:
            return self
        if self.number is not None and self.dtype in FLOATS:
            return self.program.scalar(self.number, dtype)
        return op("Cast", self, DstT=dtype)


Operand: TypeAlias = Value | Scalar
StepInput: TypeAlias = Value | tuple[Value, ...]


class Step(msgspec.Struct, frozen=True):
    """One op: its type, its inputs (a list of tensors is a tuple), all attrs that it needs."""

    op_type: str
    inputs: tuple[StepInput, ...]
    attrs: tuple[tuple[str, AttrValue], ...]

    @property
    def tensors(self) -> Iterator[Value]:
        """Yield the inputs, lists of tensors taken apart."""
        for value in self.inputs:
            yield from (value,) if isinstance(value, Value) else value


@cache
def op_def(op_type: str) -> opdefs.OpDef:
    """Return an op type's definition; raise LookupError where not both TensorFlows know it."""
    definition = opdefs.lookup(op_type)
    if definition is None or definition.known_to != "both":
        raise LookupError(f"{op_type} is not an op of both TensorFlow 1.15 and 2.x")
    return definition


def op(
    op_type: str,
    *operands: Operand | tuple[Value, ...],
    shape: BroadcastShape | None = None,
    **attrs: AttrValue,
) -> Value:
    """Return output 0 of an op on these tensors, written into their program.

    A plain number is a constant of the first tensor's dtype. Default: the shape is that of the
    inputs whose shape ops of this type keep. The attrs that say the inputs' dtypes and number are
    set.
    """
    flat = [item for part in operands for item in (part if isinstance(part, tuple) else (part,))]
    first = next(item for item in flat if isinstance(item, Value))
    inputs = [first.like(part) if isinstance(part, (int, float)) else part for part in operands]
    return first.program.add(op_type, inputs, shape, attrs)


class Program:
    """Steps in the order they are computed. An op that is asked for again is the first one."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._numbers: dict[Step, int] = {}

    def add(
        self,
        op_type: str,
        inputs: Iterable[StepInput],
        shape: BroadcastShape | None,
        attrs: dict[str, AttrValue],
    ) -> Value:
        """Write an op, and return its output 0: see `op`."""
        definition, inputs = op_def(op_type), tuple(inputs)
        for arg, value in zip(definition.inputs, inputs, strict=True):
            if arg.type_attr:
                attrs[arg.type_attr] = (value if isinstance(value, Value) else value[0]).dtype
            if arg.number_attr and isinstance(value, tuple):
                attrs[arg.number_attr] = len(value)
        step = Step(op_type, inputs, tuple(sorted(attrs.items())))
        output = definition.outputs[0]
        dtype = output.dtype or str(attrs[output.type_attr])
        if shape is None:
            keeping = [item for n, item in enumerate(inputs) if n in definition.keeps_shape]
            shapes = [item.shape for item in keeping if isinstance(item, Value)]
            shape = broadcast_together(*shapes) if shapes else UNKNOWN
        number = self._numbers.setdefault(step, len(self.steps))
        if number == len(self.steps):
            self.steps.append(step)
        constant = attrs.get("value")
        return Value(
            self, number, dtype, shape, constant if isinstance(constant, ConstantTensor) else None
        )

    def constant(self, value: ConstantTensor, shape: BroadcastShape = UNKNOWN) -> Value:
        """Return a constant."""
        return self.add("Const", (), shape, {"dtype": value.dtype, "value": value})

    def scalar(self, value: float | bool, dtype: str) -> Value:
        """Return a constant without axes."""
        return self.constant(scalar(value, dtype), SCALAR)

    def vector(self, *values: int) -> Value:
        """Return a constant of int32 with one axis."""
        return self.constant(vector(*values))


def needed(values: Iterable[Value]) -> list[int]:
    """Return the numbers of the steps that these values are computed from, in order."""
    results = list(values)

    def read(number: int) -> list[int]:
        return _numbers(results[0].program.steps[number].tensors)

    return sorted(reached(_numbers(results), read))


def _numbers(values: Iterable[Value]) -> list[int]:
    return [value.source for value in values if isinstance(value.source, int)]


@dataclass(frozen=True)
class Signature:
    """An op's inputs (`x0`, ...) and outputs (`y0`, ...) with their dtypes, and its attrs.

    `same_shape`: all these tensors have one shape, in every run, but for the `scalars`, whose shape
    is (). `broadcast` names the inputs whose joint shape is that of the outputs, where that is
    known. The last `more` inputs are not the op's: a formula reads them besides. `op_type` is empty
    for what is no one op: a match as a whole, a filter. `attrs` are those that are numbers or
    booleans, with the op type's defaults where the NodeDef leaves them out; others may be there,
    and cannot be read.
    """

    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    attrs: Mapping[str, object] = field(default_factory=dict, hash=False)
    same_shape: bool = False
    scalars: frozenset[str] = frozenset()
    broadcast: tuple[str, ...] = ()
    op_type: str = ""
    more: int = 0

    @classmethod
    def of(
        cls,
        inputs: Sequence[str],
        outputs: Sequence[str],
        attrs: Mapping[str, object] | None = None,
        same_shape: bool = False,
        scalars: Collection[str] = (),
        op_type: str = "",
        more: int = 0,
    ) -> Signature:
        """Return the signature of an op with inputs and outputs of these dtypes.

        Raises FormulaError for a dtype that is not known.
        """
        xs = tuple((f"x{place}", dtype) for place, dtype in enumerate(inputs))
        ys = tuple((f"y{place}", dtype) for place, dtype in enumerate(outputs))
        for name, dtype in (*xs, *ys):
            if dtype not in DTYPE_NUMBERS:
                raise FormulaError(
                    f"the dtype of {name} is not known ({dtype!r}): an attr must name it"
                )
        scalars = frozenset(scalars)
        return cls(xs, ys, attrs or {}, same_shape, scalars, op_type=op_type, more=more)

    @classmethod
    def of_tensor(cls, dtype: str) -> Signature:
        """Return the signature of a filter: x and y are both the tensor."""
        return cls.of([dtype], [dtype], same_shape=True)

    def reading(self, dtypes: Sequence[str]) -> Signature:
        """Return it with more inputs of these dtypes, each of a shape of its own."""
        more = ((f"x{place}", dtype) for place, dtype in enumerate(dtypes, len(self.inputs)))
        broadcast = ("x0",) if self.same_shape else self.broadcast
        inputs = (*self.inputs, *more)
        return replace(self, inputs=inputs, same_shape=False, broadcast=broadcast, more=len(dtypes))

    @cached_property
    def variables(self) -> dict[str, str]:
        """Return the dtype of each variable that a formula for this op may read."""
        upstream = ((f"d{name}", dtype) for name, dtype in self.outputs)
        return dict((*self.inputs, *self.outputs, *upstream))

    @property
    def upstream_dtype(self) -> str | None:
        """Return the dtype of the first upstream gradient that there is."""
        return next((dtype for _, dtype in self.outputs if dtype in FLOATS), None)

    def value(self, program: Program, name: str) -> Value:
        """Return a variable as a tensor of a program."""
        return Value(program, name, self.variables[name], self.shape(name))

    def shape(self, name: str) -> BroadcastShape:
        """Return the shape of a variable: dy0 has that of y0, and all have one where they do."""
        if name in self.scalars:
            return SCALAR
        plain = name.removeprefix("d")
        if self.broadcast and plain.startswith("y"):
            return broadcast_together(*map(shape_of_tensor, self.broadcast))
        return shape_of_tensor("x" if self.same_shape else plain)

    def attr(self, name: str) -> Scalar:
        """Return the value of an attr. Raises FormulaError where there is none, or no number."""
        value = self.attrs.get(name)
        if name not in self.attrs:
            legal = [word for word, attr in self.attrs.items() if isinstance(attr, (int, float))]
            known = f"; its numbers and booleans: {', '.join(legal) or 'none'}"
            raise FormulaError(f"the op has no attr {name!r}{did_you_mean(name, legal) or known}")
        if not isinstance(value, (bool, int, float)):
            raise FormulaError(f"attr {name!r} is {value!r}; formulas read numbers and booleans")
        return value

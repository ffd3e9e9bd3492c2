"""A gradient that is linear in dy as the function g of the inputs whose gradient it is.

Where dx is L(dy), g is the adjoint of L, applied to x: TensorFlow's default gradient of g is dx,
op by op what the formula computes. For dx = dy * h(x), g is x * stop(h(x)).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from graphpatch.gradients import op_sequences
from graphpatch.gradients.adjoint_ops import OF_OPS, Back
from graphpatch.gradients.broadcast_shape import SCALAR, UNKNOWN, BroadcastShape, broadcast_together
from graphpatch.gradients.constants import FLOATS
from graphpatch.gradients.functions import SINGLE
from graphpatch.gradients.linear_in_dy import linear_inputs_of
from graphpatch.gradients.program import Program, Step, Value
from graphpatch.gradients.signature import Signature

DY, Y = "dy0", "y0"
LIVE = "live_"  # before the name of an input, where it is read to get its gradient

JOINED = frozenset({"AddV2", "Sub", "Mul", "RealDiv", "SelectV2", "Neg", "Cast", "StopGradient"})


class Adjoint(msgspec.Struct, eq=False):
    """Goes back through the steps of a program that are `linear` in dy, from dx to dy.

    `shapes` is what is known of results besides. In ops that are added here, dy stands for a
    tensor of its shape, which is y.
    """

    program: Program
    signature: Signature
    linear: frozenset[int]
    shapes: dict[int, BroadcastShape]
    came: dict[int | str, Value] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Find the shapes of what is computed, element by element, of what `shapes` tells."""
        for number in sorted(self.linear):
            step = self.program.steps[number]
            if step.op_type in JOINED:
                self.shapes[number] = broadcast_together(*map(self.shape, step.tensors))

    def shape(self, value: Value) -> BroadcastShape:
        """What is known of the shape of a value."""
        known = self.shapes.get(value.source) if isinstance(value.source, int) else None
        return known or value.shape

    def start(self, dx: Value, name: str) -> bool:
        """Let x, the input of this name, come to dx; whether that is known to be right.

        A dx that is larger than x is summed to its shape, a smaller one repeated.
        """
        x = Value(LIVE + name, dict(self.signature.inputs)[name], self.signature.shape(name))
        shape, came = self.shape(dx), self.program.cast(x, dx.dtype)
        if shape.exactly is None or shape.exactly != x.shape.exactly:
            if shape.most is not None and shape.most <= x.shape.least:
                came = self.summed(came, dx)
            elif x.shape.least <= shape.least:
                came = self.repeated(came, dx)
            else:
                return False
        self.arrive(dx, came)
        return True

    def finish(self) -> Value:
        """What comes to dy: g, of the shape and dtype of y."""
        for number in sorted(self.linear, reverse=True):
            if number in self.came:
                self._back(number, self.program.steps[number])
        return self.came[DY]

    def _back(self, number: int, step: Step) -> None:
        came = self.came[number]
        rule = linear_inputs_of(step)
        assert rule is not None, step.op_type
        for place, value in enumerate(step.tensors):
            if place in rule.places and self.is_linear(value):
                self.arrive(value, BACK[step.op_type](self, step, came, place))

    def is_linear(self, value: Value) -> bool:
        """Whether a value is dy, or linear in it."""
        return value.source in self.linear or value.source == DY

    def arrive(self, value: Value, came: Value) -> None:
        """Add what came to a value, of its shape, to what came before."""
        before = self.came.get(value.source)
        self.came[value.source] = (
            came if before is None else self.program.op("AddV2", before, came, shape=came.shape)
        )

    def fixed(self, value: Value) -> Value:
        """A value that does not depend on dy, so that no gradient flows through it."""
        if value.constant is not None or value.dtype not in FLOATS or value.source == Y:
            return value
        return self.program.op("StopGradient", value)

    def elementwise(self, result: Value, value: Value, whole: BroadcastShape) -> Value:
        """What comes back through an op to one of its inputs, which it may have repeated."""
        shape = self.shape(value)
        if shape.exactly is not None and shape.exactly == whole.exactly:
            return result
        return self.summed(result, value)

    def repeated(self, came: Value, value: Value) -> Value:
        """What came, repeated to the shape of a value. Narrow dtypes are summed up in float32."""
        program, wide = self.program, SINGLE.get(came.dtype, came.dtype)
        shape = self.shape(value)
        full = program.op("BroadcastTo", program.cast(came, wide), self.sizes(value), shape=shape)
        return program.cast(full, came.dtype)

    def summed(self, came: Value, value: Value) -> Value:
        """What came, summed to the shape of a value that broadcasts to it."""
        program, shape = self.program, self.shape(value)
        return op_sequences.sum_to(program, came, self.sizes(value), program.shape_of(came), shape)

    def sizes(self, value: Value) -> Value:
        """The sizes of a value that is linear in dy, without its numbers where that can be had."""
        program, exactly = self.program, self.shape(value).exactly
        y = Value(Y, dict(self.signature.outputs)[Y], self.signature.shape(Y))
        if value.source == DY or (exactly is not None and exactly == y.shape.exactly):
            return program.shape_of(y)
        step = program.steps[value.source] if isinstance(value.source, int) else None
        if step is not None and step.op_type in JOINED:
            known = [self.sizes(one) for one in step.tensors if one.shape != SCALAR]
            joined = known[0]
            for one in known[1:]:
                joined = program.op("BroadcastArgs", joined, one, shape=UNKNOWN)
            return joined
        if step is not None and step.op_type in ("Reshape", "BroadcastTo"):
            return list(step.tensors)[1]
        return program.shape_of(value)


def _unchanged(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    return came


def _negative(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    return adjoint.program.op("Neg", came)


def _cast(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    return adjoint.program.cast(came, next(step.tensors).dtype)


def _elementwise(build: Back) -> Back:
    """Of an op that may have repeated this input: what comes back is summed to its shape."""

    def back(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
        tensors = list(step.tensors)
        whole = broadcast_together(*map(adjoint.shape, tensors))
        return adjoint.elementwise(build(adjoint, step, came, place), tensors[place], whole)

    return back


def _difference(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    return came if place == 0 else adjoint.program.op("Neg", came)


def _mul_adjoint(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    other = list(step.tensors)[1 - place]
    return adjoint.program.op("Mul", came, adjoint.fixed(other), shape=came.shape)


def _quotient(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    by = adjoint.fixed(list(step.tensors)[1])
    return adjoint.program.op("RealDiv", came, by, shape=came.shape)


def _choice(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    condition, zero = next(step.tensors), adjoint.program.scalar(0.0, came.dtype)
    pair = (came, zero) if place == 1 else (zero, came)
    return adjoint.program.op("SelectV2", condition, *pair, shape=came.shape)


def _sum(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    program, (value, axes) = adjoint.program, step.tensors
    if not dict(step.attrs)["keep_dims"] and came.shape != SCALAR:
        kept = program.op("Sum", value, axes, shape=UNKNOWN, keep_dims=True)
        came = program.op("Reshape", came, program.shape_of(kept), shape=UNKNOWN)
    return adjoint.repeated(came, value)


def _reshape(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    value = next(step.tensors)
    return adjoint.program.op("Reshape", came, adjoint.sizes(value), shape=adjoint.shape(value))


def _repetition(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    return adjoint.summed(came, next(step.tensors))


def _transpose(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    order = adjoint.program.op("InvertPermutation", list(step.tensors)[1])
    return adjoint.program.op("Transpose", came, order, shape=UNKNOWN)


def _matmul_adjoint(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    """Of C = A B with A, B as `adj_x`, `adj_y` say; the axes before the last two are summed."""
    program, attrs, (a, b) = adjoint.program, dict(step.attrs), step.tensors
    adj_x, adj_y = bool(attrs["adj_x"]), bool(attrs["adj_y"])
    value, other = (a, adjoint.fixed(b)) if place == 0 else (b, adjoint.fixed(a))
    if place == 0:
        left, right = (other, came) if adj_x else (came, other)
        flags = (adj_y, True) if adj_x else (False, not adj_y)
    else:
        left, right = (came, other) if adj_y else (other, came)
        flags = (True, adj_x) if adj_y else (not adj_x, False)
    return adjoint.summed(op_sequences.matmul(program, left, right, *flags), value)


BACK: Mapping[str, Back] = {
    "Identity": _unchanged,
    "StopGradient": _unchanged,
    "Neg": _negative,
    "Cast": _cast,
    "AddV2": _elementwise(_unchanged),
    "Sub": _elementwise(_difference),
    "Mul": _elementwise(_mul_adjoint),
    "RealDiv": _elementwise(_quotient),
    "SelectV2": _elementwise(_choice),
    "Sum": _sum,
    "Reshape": _reshape,
    "BroadcastTo": _repetition,
    "Transpose": _transpose,
    "BatchMatMulV2": _matmul_adjoint,
    **OF_OPS,
}
"""What an op gives back to an input that it is linear in, of what came to its result."""

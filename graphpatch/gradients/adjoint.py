"""A gradient that is linear in dy as the function g of the inputs whose gradient it is.

Where dx is L(dy), g is the adjoint of L, applied to x: TensorFlow's default gradient of g is dx,
op by op what the formula computes. For dx = dy * h(x), g is x * stop(h(x)).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from graphpatch.gradients import op_sequences
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

    `shapes` is what is known of results besides, and `back` says by op type what comes back through
    a step. In ops that are added here, dy stands for a tensor of its shape, which is y.
    """

    program: Program
    signature: Signature
    linear: frozenset[int]
    shapes: dict[int, BroadcastShape]
    back: Mapping[str, Back]
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
                self.arrive(value, self.back[step.op_type](self, step, came, place))

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


Back = Callable[[Adjoint, Step, Value, int], Value]
"""What comes back through a step to the input at a place, of what came to its result."""

"""A gradient that is linear in dy as ops of a graph: a construction, which needs no function.

Where dx is L(dy), g is the adjoint of L, applied to x: TensorFlow's default gradient of g is dx,
op by op what the formula computes. For dx = dy * h(x), g is x * stop(h(x)).
`Select(true, StopGradient(f), g)` with the gradient of AddN gives on f bit for bit, and what flows
back goes to g, whose default gradient is the formula's. What multiplies dy is behind StopGradient,
so that a second derivative takes it as constant.

Linear are dy itself, its product with anything that does not depend on dy, sums and choices of
such terms, and what moves or adds up their elements. Nothing else is taken for linear: `clip`,
`relu`, `abs`, a norm, a comparison of dy. What reads no more of dy than its shape does not depend
on it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping

import msgspec

from graphpatch.errors import FormulaError
from graphpatch.gradients import sequences
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.functions import SINGLE
from graphpatch.gradients.library import LIBRARY
from graphpatch.gradients.lowering import FormulaNodes, node_defs
from graphpatch.gradients.ops import (
    FLOATS,
    SCALAR,
    UNKNOWN,
    BroadcastShape,
    Program,
    Step,
    Value,
    broadcast_together,
    shape_of_tensor,
)
from graphpatch.gradients.program import input_values
from graphpatch.gradients.signature import Signature

DY, Y = "dy0", "y0"
LIVE = "live_"  # before the name of an input, where it is read to get its gradient

# The library has the gradients of products, which are known to have the shapes of their inputs:
# of these op types exactly, of the others at least.
PRODUCTS = {"MatMul": "matmul", "BatchMatMul": "batch_matmul", "BatchMatMulV2": "batch_matmul"}
BROADCAST = frozenset({"BatchMatMulV2"})

JOINED = frozenset({"AddV2", "Sub", "Mul", "RealDiv", "SelectV2", "Neg", "Cast", "StopGradient"})

# Ops that read of a tensor no more than its shape and dtype.
SHAPE_ONLY = frozenset({"Shape", "Rank", "ZerosLike", "OnesLike"})


def construction(
    formula: Formula, signature: Signature, op_type: str, in_function: bool
) -> FormulaNodes | None:
    """Return the nodes of g, for an op of this signature; None where there is no such g.

    There is none where the formula is not known to be linear in dy, or to give a gradient of the
    shape of its input. In the nodes `x0` and `y0` stand for the op's inputs and output, `dy0` for a
    tensor of its shape, and `live_x0` for an input as it is read to get its gradient. Raises
    FormulaError where the formula does not suit the op.
    """
    if len(signature.outputs) != 1:
        return None
    program = Program()
    dxs = dict(input_values(program, formula, signature))
    linear = _linear_steps(program, dxs.values())
    if not dxs or linear is None:
        return None
    shapes = _known_products(program, signature, op_type)
    adjoint = Adjoint(program, signature, linear, shapes)
    if not all(adjoint.start(dx, name) for name, dx in dxs.items()):
        return None
    return node_defs(program, [adjoint.finish()], {}, in_function)


def tensors_read(inputs: int) -> dict[str, int | None]:
    """Return what the nodes may read: which input of the op, or None for its output."""
    places: dict[str, int | None] = {DY: None, Y: None}
    for place in range(inputs):
        places[f"x{place}"] = places[f"{LIVE}x{place}"] = place
    return places


def _known_products(
    program: Program, signature: Signature, op_type: str
) -> dict[int, BroadcastShape]:
    """Return the shapes of matrix products that are the op's own gradients."""
    if op_type not in PRODUCTS:
        return {}
    try:
        own = dict(input_values(program, LIBRARY[PRODUCTS[op_type]].formula(), signature))
    except FormulaError:
        return {}
    at_least = op_type in BROADCAST
    return {
        dx.source: BroadcastShape(None, frozenset({x})) if at_least else shape_of_tensor(x)
        for x, dx in own.items()
        if isinstance(dx.source, int)
    }


def _linear_steps(program: Program, values: Iterable[Value]) -> frozenset[int] | None:
    """Return the numbers of the steps that are linear in dy; None where one value is not.

    A value that does not depend on dy at all is not linear in it.
    """
    linear: set[int] = set()
    dependent: set[int] = set()
    for number, step in enumerate(program.steps):
        tensors = list(step.tensors)
        places = [place for place, value in enumerate(tensors) if _is_of(value, dependent)]
        if step.op_type in SHAPE_ONLY or not places:
            continue
        dependent.add(number)
        rule = _linear_op(step)
        if rule is None or not all(
            place in rule.places and _is_of(tensors[place], linear) for place in places
        ):
            continue
        constant = [tensors[place] for place in rule.places if place not in places]
        zeros = rule.jointly and all(_is_zero(program, value) for value in constant)
        if zeros or (not rule.jointly and len(places) == 1):
            linear.add(number)
    return frozenset(linear) if all(_is_of(value, linear) for value in values) else None


def _is_of(value: Value, numbers: Container[int]) -> bool:
    """Return whether a value is dy, or the result of one of these steps."""
    if isinstance(value.source, str):
        return value.source.startswith("dy")
    return value.source in numbers


def _is_zero(program: Program, value: Value) -> bool:
    """Return whether a value is zero throughout."""
    if value.constant is not None:
        return not any(value.constant.numbers)
    return isinstance(value.source, int) and program.steps[value.source].op_type == "ZerosLike"


class Adjoint(msgspec.Struct, eq=False):
    """Goes back through the steps of a program that are `linear` in dy, from dx to dy.

    `shapes` is what is known of results besides; `came` has what came to each value. In ops that
    are added here, dy stands for a tensor of its shape, which is y.
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
        """Return what is known of the shape of a value."""
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
        """Return what comes to dy: g, of the shape and dtype of y."""
        for number in sorted(self.linear, reverse=True):
            if number not in self.came:
                continue
            step, came = self.program.steps[number], self.came[number]
            rule = _linear_op(step)
            assert rule is not None, step.op_type
            for place, value in enumerate(step.tensors):
                if place in rule.places and (value.source in self.linear or value.source == DY):
                    self.arrive(value, rule.back(self, step, came, place))
        return self.came[DY]

    def arrive(self, value: Value, came: Value) -> None:
        """Add what came to a value, of its shape, to what came before."""
        before = self.came.get(value.source)
        self.came[value.source] = (
            came if before is None else self.program.op("AddV2", before, came, shape=came.shape)
        )

    def fixed(self, value: Value) -> Value:
        """Return a value that does not depend on dy, so that no gradient flows through it."""
        if value.constant is not None or value.dtype not in FLOATS or value.source == Y:
            return value
        return self.program.op("StopGradient", value)

    def step_op(self, step: Step, op_type: str, *inputs: Value) -> Value:
        """Return an op with the attrs of a step, dtypes left out: they are those of its inputs."""
        attrs = {name: value for name, value in step.attrs if not isinstance(value, str)}
        return self.program.op(op_type, *inputs, shape=UNKNOWN, **attrs)

    def repeated(self, came: Value, value: Value) -> Value:
        """Repeat what came to the shape of a value. Narrow dtypes are summed up in float32."""
        program, wide = self.program, SINGLE.get(came.dtype, came.dtype)
        shape = self.shape(value)
        full = program.op("BroadcastTo", program.cast(came, wide), self.sizes(value), shape=shape)
        return program.cast(full, came.dtype)

    def summed(self, came: Value, value: Value) -> Value:
        """Sum what came to the shape of a value that broadcasts to it."""
        program, shape = self.program, self.shape(value)
        return sequences.sum_to(program, came, self.sizes(value), program.shape_of(came), shape)

    def sizes(self, value: Value) -> Value:
        """Return the sizes of a value that is linear in dy, without its numbers where possible."""
        program, exactly = self.program, self.shape(value).exactly
        y = Value(Y, dict(self.signature.outputs)[Y], self.signature.shape(Y))
        if value.source == DY or (exactly is not None and exactly == y.shape.exactly):
            return program.shape_of(y)
        step = program.steps[value.source] if isinstance(value.source, int) else None
        if step is not None and step.op_type in JOINED:
            known = [self.sizes(x) for x in step.tensors if x.shape != SCALAR] or [program.vector()]
            joined = known[0]
            for sizes in known[1:]:
                joined = program.op("BroadcastArgs", joined, sizes, shape=UNKNOWN)
            return joined
        if step is not None and step.op_type in ("Reshape", "BroadcastTo"):
            return list(step.tensors)[1]
        return program.shape_of(value)


Back = Callable[[Adjoint, Step, Value, int], Value]
"""What comes back through a step to the input at a place, of what came to its result."""


class LinearOp(msgspec.Struct, frozen=True):
    """What comes back through an op, and the inputs that it is linear in: each alone, or `jointly`.

    What is linear in each of two factors alone is not linear where both depend on dy. What is
    linear in them together is not where one is anything but linear or zero.
    """

    back: Back
    places: tuple[int, ...] = (0,)
    jointly: bool = False


def _linear_op(step: Step) -> LinearOp | None:
    if step.op_type == "ConcatV2":  # of any number of tensors, with the axis last
        places = tuple(range(len(list(step.tensors)) - 1))
        return LinearOp(_part_of_concat, places, jointly=True)
    return LINEAR.get(step.op_type)


def _unchanged(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    return came


def _cast(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    return adjoint.program.cast(came, next(step.tensors).dtype)


def _elementwise(build: Back) -> Back:
    """Sum what comes back to the shape of this input, which the op may have repeated."""

    def back(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
        tensors = list(step.tensors)
        whole = broadcast_together(*map(adjoint.shape, tensors))
        result, shape = build(adjoint, step, came, place), adjoint.shape(tensors[place])
        if shape.exactly is not None and shape.exactly == whole.exactly:
            return result
        return adjoint.summed(result, tensors[place])

    return back


def _difference(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    return adjoint.program.op("Neg", came) if place else came


def _factor(op_type: str) -> Back:
    def back(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
        factor = list(step.tensors)[1 - place]
        return adjoint.program.op(op_type, came, adjoint.fixed(factor), shape=came.shape)

    return back


def _choice(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    condition, zero = next(step.tensors), adjoint.program.scalar(0.0, came.dtype)
    pair = (came, zero) if place == 1 else (zero, came)
    return adjoint.program.op("SelectV2", condition, *pair, shape=came.shape)


def _sum(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    program, (value, axes) = adjoint.program, step.tensors
    if not dict(step.attrs)["keep_dims"] and came.shape != SCALAR:
        reduced = program.op("Sum", value, axes, shape=UNKNOWN, keep_dims=True)
        came = program.op("Reshape", came, program.shape_of(reduced), shape=UNKNOWN)
    return adjoint.repeated(came, value)


def _reshape(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    value = next(step.tensors)
    return adjoint.program.op("Reshape", came, adjoint.sizes(value), shape=adjoint.shape(value))


def _repetition(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    return adjoint.summed(came, next(step.tensors))


def _transpose(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    order = adjoint.program.op("InvertPermutation", list(step.tensors)[1])
    return adjoint.program.op("Transpose", came, order, shape=UNKNOWN)


def _matmul(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    """Return that of C = A B, A and B as the attrs say; the axes before the last two are summed."""
    attrs, (a, b) = dict(step.attrs), step.tensors
    adj_x, adj_y = bool(attrs["adj_x"]), bool(attrs["adj_y"])
    value, factor = (a, adjoint.fixed(b)) if place == 0 else (b, adjoint.fixed(a))
    if place == 0:
        left, right = (factor, came) if adj_x else (came, factor)
        flags = (adj_y, True) if adj_x else (False, not adj_y)
    else:
        left, right = (came, factor) if adj_y else (factor, came)
        flags = (True, adj_x) if adj_y else (not adj_x, False)
    return adjoint.summed(sequences.matmul(adjoint.program, left, right, *flags), value)


def _diagonal(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    """Return that of an op that multiplies each element of this input: it is its own adjoint."""
    inputs = [adjoint.fixed(value) for value in step.tensors]
    inputs[place] = came
    return adjoint.step_op(step, step.op_type, *inputs)


def _convolution(*op_types: str) -> Back:
    """Return that of one of three ops, each linear in two of (image, filter, dy).

    They are given by what they compute: the image, the filter, and dy, the convolution. The
    place of what an op computes has its sizes, or nothing where it is dy.
    """

    def back(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
        computed = op_types.index(step.op_type)
        tensors = {**dict(enumerate(step.tensors)), computed: came}
        inputs = []
        for role in (0, 1, 2):
            if role == place:
                inputs += [adjoint.sizes(tensors[role])] if role < 2 else []
            else:
                inputs.append(came if role == computed else adjoint.fixed(tensors[role]))
        return adjoint.step_op(step, op_types[place], *inputs)

    return back


def _bias_add(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    return adjoint.step_op(step, "BiasAddGrad", came) if place else came


def _bias_gradient(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    zeros = adjoint.program.op("ZerosLike", next(step.tensors))
    return adjoint.step_op(step, "BiasAdd", zeros, came)


def _average(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    return adjoint.step_op(step, "AvgPoolGrad", adjoint.sizes(next(step.tensors)), came)


def _average_gradient(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    return adjoint.step_op(step, "AvgPool", came)


def _largest_gradient(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    x, y, _ = step.tensors
    return adjoint.step_op(step, "MaxPoolGradGrad", adjoint.fixed(x), adjoint.fixed(y), came)


def _slice(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    x, *ends = step.tensors
    return adjoint.step_op(step, "StridedSliceGrad", adjoint.sizes(x), *ends, came)


def _gathered(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    """Put each part back to its place along the axis, which is put first for that."""
    x, indices, axis = step.tensors
    assert axis.constant is not None
    program, sizes, number = adjoint.program, adjoint.sizes(x), int(axis.constant.numbers[0])
    flat = program.op("Reshape", indices, program.vector(-1), shape=UNKNOWN)
    parts = sequences.with_size(program, came, sizes, number, program.shape_of(flat))
    order = sequences.to_front(program, sizes, number)
    first = program.op("Transpose", parts, order, shape=UNKNOWN)
    span = sequences.span_of(program, sizes, number, number + 1)
    count = program.op("Reshape", span, program.vector(), shape=SCALAR)
    whole = program.op("UnsortedSegmentSum", first, flat, count, shape=UNKNOWN)
    back = program.op("InvertPermutation", order, shape=UNKNOWN)
    return program.op("Transpose", whole, back, shape=UNKNOWN)


def _part_of_concat(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    """Return the part of a concatenation that this input is."""
    *tensors, axis = step.tensors
    assert axis.constant is not None
    number, program = axis.constant.numbers[0], adjoint.program
    ends = [program.vector(0)]
    for value in tensors[: place + 1]:
        span = sequences.span_of(program, adjoint.sizes(value), number, number + 1)
        ends.append(program.op("AddV2", ends[-1], span, shape=UNKNOWN))
    return sequences.span(program, came, number, ends[-2], ends[-1])


_CONV = _convolution("Conv2DBackpropInput", "Conv2DBackpropFilter", "Conv2D")
_DEPTHWISE = _convolution(
    "DepthwiseConv2dNativeBackpropInput",
    "DepthwiseConv2dNativeBackpropFilter",
    "DepthwiseConv2dNative",
)

LINEAR: Mapping[str, LinearOp] = {
    **dict.fromkeys(("Identity", "StopGradient"), LinearOp(_unchanged)),
    "Neg": LinearOp(lambda adjoint, step, came, place: adjoint.program.op("Neg", came)),
    "Cast": LinearOp(_cast),
    "AddV2": LinearOp(_elementwise(_unchanged), (0, 1), jointly=True),
    "Sub": LinearOp(_elementwise(_difference), (0, 1), jointly=True),
    "Mul": LinearOp(_elementwise(_factor("Mul")), (0, 1)),
    "RealDiv": LinearOp(_elementwise(_factor("RealDiv"))),
    "SelectV2": LinearOp(_elementwise(_choice), (1, 2), jointly=True),
    "Sum": LinearOp(_sum),
    "Reshape": LinearOp(_reshape),
    "BroadcastTo": LinearOp(_repetition),
    "Transpose": LinearOp(_transpose),
    "BatchMatMulV2": LinearOp(_matmul, (0, 1)),
    "Conv2D": LinearOp(_CONV, (0, 1)),
    "Conv2DBackpropInput": LinearOp(_CONV, (1, 2)),
    "Conv2DBackpropFilter": LinearOp(_CONV, (0, 2)),
    "DepthwiseConv2dNative": LinearOp(_DEPTHWISE, (0, 1)),
    "DepthwiseConv2dNativeBackpropInput": LinearOp(_DEPTHWISE, (1, 2)),
    "DepthwiseConv2dNativeBackpropFilter": LinearOp(_DEPTHWISE, (0, 2)),
    "BiasAdd": LinearOp(_bias_add, (0, 1), jointly=True),
    "BiasAddGrad": LinearOp(_bias_gradient),
    "AvgPool": LinearOp(_average),
    "AvgPoolGrad": LinearOp(_average_gradient, (1,)),
    "MaxPoolGrad": LinearOp(_largest_gradient, (2,)),
    "StridedSlice": LinearOp(_slice),
    "GatherV2": LinearOp(_gathered),
    **dict.fromkeys(
        "ReluGrad Relu6Grad LeakyReluGrad EluGrad SeluGrad SoftplusGrad SoftsignGrad".split(),
        LinearOp(_diagonal),
    ),
    **dict.fromkeys(("SigmoidGrad", "TanhGrad"), LinearOp(_diagonal, (1,))),
}
"""The ops that a gradient may be made of that is linear in dy."""

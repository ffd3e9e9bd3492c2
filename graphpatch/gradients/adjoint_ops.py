"""What comes back through the steps that `forward`, `own`, `split` and others are made of."""

from __future__ import annotations

from collections.abc import Mapping

from graphpatch.gradients import along
from graphpatch.gradients.adjoint import Adjoint, Back
from graphpatch.gradients.broadcast_shape import SCALAR, UNKNOWN
from graphpatch.gradients.program import Step, Value


def _step_op(adjoint: Adjoint, step: Step, op_type: str, *inputs: Value) -> Value:
    """An op with the attrs of this step, dtypes left out: they are those of its inputs."""
    attrs = {name: value for name, value in step.attrs if not isinstance(value, str)}
    return adjoint.program.op(op_type, *inputs, shape=UNKNOWN, **attrs)


def _diagonal(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    """Of an op that multiplies each element of this input: it is its own adjoint."""
    inputs = [adjoint.fixed(one) for one in step.tensors]
    inputs[place] = came
    return _step_op(adjoint, step, step.op_type, *inputs)


def _convolution(by_input: str, by_filter: str) -> Back:
    def back(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
        x, weights = step.tensors
        if place == 0:
            found = (adjoint.sizes(x), adjoint.fixed(weights), came)
            return _step_op(adjoint, step, by_input, *found)
        return _step_op(adjoint, step, by_filter, adjoint.fixed(x), adjoint.sizes(weights), came)

    return back


def _by_input(convolution: str, by_filter: str) -> Back:
    """Of (sizes, filter, dy)."""

    def back(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
        _, weights, dy = step.tensors
        if place == 2:
            return _step_op(adjoint, step, convolution, came, adjoint.fixed(weights))
        return _step_op(adjoint, step, by_filter, came, adjoint.sizes(weights), adjoint.fixed(dy))

    return back


def _by_filter(convolution: str, by_input: str) -> Back:
    """Of (x, sizes, dy)."""

    def back(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
        x, _, dy = step.tensors
        if place == 2:
            return _step_op(adjoint, step, convolution, adjoint.fixed(x), came)
        return _step_op(adjoint, step, by_input, adjoint.sizes(x), came, adjoint.fixed(dy))

    return back


def _bias_add_adjoint(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    return came if place == 0 else _step_op(adjoint, step, "BiasAddGrad", came)


def _bias_gradient(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    zeros = adjoint.program.op("ZerosLike", next(step.tensors))
    return _step_op(adjoint, step, "BiasAdd", zeros, came)


def _average(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    return _step_op(adjoint, step, "AvgPoolGrad", adjoint.sizes(next(step.tensors)), came)


def _average_gradient(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    return _step_op(adjoint, step, "AvgPool", came)


def _largest_gradient(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    x, y, _ = step.tensors
    return _step_op(adjoint, step, "MaxPoolGradGrad", adjoint.fixed(x), adjoint.fixed(y), came)


def _slice(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    x, *ends = step.tensors
    return _step_op(adjoint, step, "StridedSliceGrad", adjoint.sizes(x), *ends, came)


def _gathered(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    """Each part goes back to its place along the axis, which is put first for that."""
    x, indices, axis = step.tensors
    assert axis.constant is not None
    program, sizes, number = adjoint.program, adjoint.sizes(x), int(axis.constant.numbers[0])
    flat = program.op("Reshape", indices, program.vector(-1), shape=UNKNOWN)
    parts = along.with_size(program, came, sizes, number, program.shape_of(flat))
    order = along.to_front(program, sizes, number)
    first = program.op("Transpose", parts, order, shape=UNKNOWN)
    count = program.op(
        "Reshape", along.span_of(program, sizes, number, number + 1), program.vector(), shape=SCALAR
    )
    whole = program.op("UnsortedSegmentSum", first, flat, count, shape=UNKNOWN)
    back = program.op("InvertPermutation", order, shape=UNKNOWN)
    return program.op("Transpose", whole, back, shape=UNKNOWN)


def _part_of_concat(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    """Of a concatenation: the part that this input is."""
    *tensors, axis = step.tensors
    assert axis.constant is not None
    number, program = axis.constant.numbers[0], adjoint.program
    start = program.vector(0)
    for one in tensors[:place]:
        start = program.op("AddV2", start, _span(adjoint, one, number), shape=UNKNOWN)
    stop = program.op("AddV2", start, _span(adjoint, tensors[place], number), shape=UNKNOWN)
    return along.span(program, came, number, start, stop)


def _span(adjoint: Adjoint, value: Value, axis: int) -> Value:
    return along.span_of(adjoint.program, adjoint.sizes(value), axis, axis + 1)


OF_OPS: Mapping[str, Back] = {
    "Conv2D": _convolution("Conv2DBackpropInput", "Conv2DBackpropFilter"),
    "Conv2DBackpropInput": _by_input("Conv2D", "Conv2DBackpropFilter"),
    "Conv2DBackpropFilter": _by_filter("Conv2D", "Conv2DBackpropInput"),
    "DepthwiseConv2dNative": _convolution(
        "DepthwiseConv2dNativeBackpropInput", "DepthwiseConv2dNativeBackpropFilter"
    ),
    "DepthwiseConv2dNativeBackpropInput": _by_input(
        "DepthwiseConv2dNative", "DepthwiseConv2dNativeBackpropFilter"
    ),
    "DepthwiseConv2dNativeBackpropFilter": _by_filter(
        "DepthwiseConv2dNative", "DepthwiseConv2dNativeBackpropInput"
    ),
    "BiasAdd": _bias_add_adjoint,
    "BiasAddGrad": _bias_gradient,
    "AvgPool": _average,
    "AvgPoolGrad": _average_gradient,
    "MaxPoolGrad": _largest_gradient,
    "StridedSlice": _slice,
    "ConcatV2": _part_of_concat,
    "GatherV2": _gathered,
    **dict.fromkeys(("ReluGrad", "Relu6Grad", "LeakyReluGrad", "EluGrad", "SeluGrad"), _diagonal),
    **dict.fromkeys(("SoftplusGrad", "SoftsignGrad", "SigmoidGrad", "TanhGrad"), _diagonal),
}
"""What an op gives back to an input that it is linear in, of what came to its result."""

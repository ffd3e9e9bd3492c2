"""`own`: the gradients that ops have of themselves, as programs: one line for each op type.

They are made of ops that TensorFlow 1.15 and 2.x know, from dy, the inputs and the outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from graphpatch.errors import FormulaError
from graphpatch.gradients import op_sequences
from graphpatch.gradients.broadcast_shape import UNKNOWN
from graphpatch.gradients.constants import FLOATS
from graphpatch.gradients.own_at import OpCall, count, summed
from graphpatch.gradients.program import Value

OpGradient = Callable[[OpCall, int, Value], Value]


def _matmul_grad(first: str, second: str) -> OpGradient:
    """Of y = A B, where these attrs say that A and B stand transposed or adjoint."""

    def own(at: OpCall, place: int, dy: Value) -> Value:
        a, b = at.xs
        ta, tb = (bool(at.signature.attrs.get(name, False)) for name in (first, second))
        if place == 0:
            pair, flags = ((b, dy), (tb, True)) if ta else ((dy, b), (False, not tb))
        else:
            pair, flags = ((dy, a), (True, ta)) if tb else ((a, dy), (not ta, False))
        product = op_sequences.matmul(at.program, *pair, *flags)
        return product if first == "transpose_a" else summed(at, place, product)

    return own


def _conv_grad(by_input: str, by_filter: str) -> OpGradient:
    def own(at: OpCall, place: int, dy: Value) -> Value:
        if place == 0:
            return at.op(by_input, at.sizes(0), at.xs[1], dy)
        return at.op(by_filter, at.xs[0], at.sizes(1), dy)

    return own


def _conv_transpose_grad(convolution: str, by_filter: str) -> OpGradient:
    """Of a transposed convolution of (sizes, filter, x)."""

    def own(at: OpCall, place: int, dy: Value) -> Value:
        if place == 2:
            return at.op(convolution, dy, at.xs[1])
        return at.op(by_filter, dy, at.sizes(1), at.xs[2])

    return own


def _bias_add_grad(at: OpCall, place: int, dy: Value) -> Value:
    return dy if place == 0 else at.op("BiasAddGrad", dy)


def _avg_pool_grad(at: OpCall, place: int, dy: Value) -> Value:
    return at.op("AvgPoolGrad", at.sizes(0), dy)


def _largest(at: OpCall, place: int, dy: Value) -> Value:
    return at.op("MaxPoolGrad", at.xs[0], at.y, dy)


def _reduction_grad(at: OpCall, place: int, dy: Value) -> Value:
    """Of Sum and Mean over the axes x1."""
    program, (x, axes) = at.program, at.xs
    kept = program.op("Sum", x, axes, shape=UNKNOWN, keep_dims=True)
    whole = program.op("Reshape", dy, program.shape_of(kept), shape=UNKNOWN)
    if at.signature.op_type == "Mean":
        parts = program.op("RealDiv", count(at, x, dy.dtype), count(at, dy, dy.dtype))
        whole = program.op("RealDiv", whole, parts, shape=UNKNOWN)
    return program.op("BroadcastTo", whole, at.sizes(0), shape=x.shape)


def _batch_norm_grad(at: OpCall, place: int, dy: Value) -> Value:
    """Of batch norm with the moments that it was trained to: it is linear in x."""
    program, attrs = at.program, at.signature.attrs
    if attrs.get("is_training", True) or attrs.get("data_format", "NHWC") != "NHWC" or place:
        raise FormulaError(
            "own(dy) of batch norm is known for its input 0, is_training false and NHWC alone"
        )
    _, scale, _, _, variance = at.xs
    epsilon = program.scalar(float(str(attrs.get("epsilon", 1e-4))), variance.dtype)
    factor = program.op("Mul", scale, program.op("Rsqrt", program.op("AddV2", variance, epsilon)))
    return program.op("Mul", dy, program.cast(factor, dy.dtype), shape=dy.shape)


def _of_input(op_type: str) -> OpGradient:
    """An op that takes dy and the input."""
    return lambda at, place, dy: at.op(op_type, dy, at.xs[0], shape=dy.shape)


def _of_output(op_type: str) -> OpGradient:
    """An op that takes dy and the output."""
    return lambda at, place, dy: at.op(op_type, dy, at.y, shape=dy.shape)


def _of_y(op_type: str) -> OpGradient:
    """An op that takes the output and dy."""
    return lambda at, place, dy: at.op(op_type, at.y, dy, shape=dy.shape)


def _softmax_grad(at: OpCall, place: int, dy: Value) -> Value:
    program, y = at.program, at.y
    axes = program.vector(-1)
    product = program.op("Mul", dy, y)
    total = program.op("Sum", product, axes, shape=UNKNOWN, keep_dims=True)
    return program.op("Mul", program.op("Sub", dy, total), y)


def _subtracted(at: OpCall, place: int, dy: Value) -> Value:
    return summed(at, place, at.program.op("Neg", dy) if place else dy)


def _multiplied(at: OpCall, place: int, dy: Value) -> Value:
    return summed(at, place, at.program.op("Mul", dy, at.xs[1 - place]))


def _divided(at: OpCall, place: int, dy: Value) -> Value:
    program, (a, b) = at.program, at.xs
    found = program.op("RealDiv", dy, b)
    if place:
        found = program.op("Mul", program.op("Neg", found), program.op("RealDiv", a, b))
    return summed(at, place, found)


def _greater(op_type: str) -> OpGradient:
    """Of Maximum and Minimum: to the one that it took, the first of two equal ones."""

    def own(at: OpCall, place: int, dy: Value) -> Value:
        taken, zero = at.program.op(op_type, *at.xs), at.program.scalar(0.0, dy.dtype)
        pair = (zero, dy) if place else (dy, zero)
        return summed(at, place, at.program.op("SelectV2", taken, *pair))

    return own


def _identity_grad(at: OpCall, place: int, dy: Value) -> Value:
    return dy


OP_GRADIENTS: Mapping[str, OpGradient] = {
    "MatMul": _matmul_grad("transpose_a", "transpose_b"),
    **dict.fromkeys(("BatchMatMul", "BatchMatMulV2"), _matmul_grad("adj_x", "adj_y")),
    "Conv2D": _conv_grad("Conv2DBackpropInput", "Conv2DBackpropFilter"),
    "DepthwiseConv2dNative": _conv_grad(
        "DepthwiseConv2dNativeBackpropInput", "DepthwiseConv2dNativeBackpropFilter"
    ),
    "Conv3D": _conv_grad("Conv3DBackpropInputV2", "Conv3DBackpropFilterV2"),
    "Conv2DBackpropInput": _conv_transpose_grad("Conv2D", "Conv2DBackpropFilter"),
    "BiasAdd": _bias_add_grad,
    "AvgPool": _avg_pool_grad,
    "MaxPool": _largest,
    **dict.fromkeys(("Sum", "Mean"), _reduction_grad),
    **dict.fromkeys(("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"), _batch_norm_grad),
    "Relu": _of_input("ReluGrad"),
    "Relu6": _of_input("Relu6Grad"),
    "LeakyRelu": _of_input("LeakyReluGrad"),
    "Softplus": _of_input("SoftplusGrad"),
    "Softsign": _of_input("SoftsignGrad"),
    "Elu": _of_output("EluGrad"),
    "Selu": _of_output("SeluGrad"),
    "Sigmoid": _of_y("SigmoidGrad"),
    "Tanh": _of_y("TanhGrad"),
    "Softmax": _softmax_grad,
    **dict.fromkeys(("Add", "AddV2"), summed),
    "Sub": _subtracted,
    "Mul": _multiplied,
    **dict.fromkeys(("RealDiv", "Div"), _divided),
    "Maximum": _greater("GreaterEqual"),
    "Minimum": _greater("LessEqual"),
    "Identity": _identity_grad,
}


def op_gradient(at: OpCall, place: int, dy: Value) -> Value:
    """The op's gradient by its input `place`. Raises FormulaError for an op not in the table."""
    op_type, like = at.signature.op_type, at.xs[place]
    if op_type not in OP_GRADIENTS:
        raise FormulaError(f"own(dy) is known for {', '.join(OP_GRADIENTS)}, not for {op_type}")
    if like.dtype not in FLOATS:
        raise FormulaError(f"input {place} of {op_type} is {like.dtype}: it has no gradient")
    result = OP_GRADIENTS[op_type](at, place, dy)
    if result.shape == like.shape:
        return result
    return at.program.op("Identity", result, shape=like.shape)

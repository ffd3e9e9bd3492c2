"""The op that a gradient is for, in formulas: `forward`, `own`, and the functions with its windows.

What ops compute backward of themselves, and what convolutions and poolings of the same windows do,
is made of ops that TensorFlow 1.15 and 2.x know, from dy, the inputs and the outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from graphpatch.errors import FormulaError
from graphpatch.gradients import sequences
from graphpatch.gradients.ops import (
    SCALAR,
    UNKNOWN,
    AttrValue,
    BroadcastShape,
    Program,
    Value,
    op_def,
)
from graphpatch.gradients.signature import Signature


class OpCall(msgspec.Struct, frozen=True):
    """An op of this signature, at these inputs."""

    program: Program
    signature: Signature
    xs: tuple[Value, ...]

    @property
    def y(self) -> Value:
        """Output 0: the op's own where the inputs are, else computed."""
        name, dtype = self.signature.outputs[0]
        if [x.source for x in self.xs] == [f"x{place}" for place in range(len(self.xs))]:
            return Value(name, dtype, self.signature.shape(name))
        return op_forward(self)

    def op(self, op_type: str, *inputs: Value, shape: BroadcastShape = UNKNOWN) -> Value:
        """Return an op with those attrs of this one that its op type has, dtypes left out."""
        values = {
            attr.name: _attr_value(self.signature.attrs.get(attr.name, attr.default), attr.default)
            for attr in op_def(op_type).attrs
            if attr.type != "type"
        }
        attrs = {name: value for name, value in values.items() if value is not None}
        return self.program.op(op_type, *inputs, shape=shape, **attrs)

    def sizes(self, place: int) -> Value:
        """Return the shape of an input."""
        return self.program.shape_of(self.xs[place])

    def summed(self, place: int, value: Value) -> Value:
        """Sum a value to the shape of an input that was repeated."""
        like = self.xs[place]
        if value.shape.exactly is not None and value.shape == like.shape:
            return value
        return sequences.sum_like(self.program, value, like)

    def count(self, value: Value, dtype: str) -> Value:
        """Count the elements of a value, as a number of a dtype."""
        sizes, axes = self.program.shape_of(value), self.program.vector(0)
        number = self.program.op("Prod", sizes, axes, shape=SCALAR, keep_dims=False)
        return self.program.cast(number, dtype)


def _attr_value(value: object, default: object) -> AttrValue | None:
    """Return an attr as a program holds it; None for the default, which a node may leave out."""
    if isinstance(value, list | tuple):
        value = tuple(value)
    if value is None or value == default or value == ():
        return None
    if isinstance(value, str):
        return value.encode()
    return value if isinstance(value, tuple | bool | int | float) else None


def op_at(program: Program, signature: Signature, function: str, inputs: Sequence[Value]) -> OpCall:
    """Return the op at these inputs, its own where fewer are given. Raises FormulaError."""
    if not signature.op_type:
        raise FormulaError(
            f"{function} computes what one op does; a filter, a surrogate and a match as one op"
            " have none"
        )
    names = signature.inputs[: len(signature.inputs) - signature.more]
    if len(inputs) > len(names):
        raise FormulaError(f"{function}: {signature.op_type} has {len(names)} inputs")
    own = [Value(name, dtype, signature.shape(name)) for name, dtype in names]
    for place, (value, like) in enumerate(zip(inputs, own, strict=False)):
        if value.dtype != like.dtype:
            raise FormulaError(f"{function}: input {place} is {like.dtype}, and this {value.dtype}")
    return OpCall(program, signature, (*inputs, *own[len(inputs) :]))


def op_forward(at: OpCall) -> Value:
    """Return output 0 of the op. Raises FormulaError for an op that cannot be run again."""
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


def _pool_grad(at: OpCall, x: Value, dy: Value) -> Value:
    return at.op("AvgPoolGrad", at.program.shape_of(x), dy, shape=x.shape)


def _image_gradient(op_type: str) -> Callable[[OpCall], Value]:
    """Return an image of the shape of x, of (dy, filter, x)."""
    return lambda at: at.op(op_type, at.sizes(2), at.xs[1], at.xs[0], shape=at.xs[2].shape)


def _max_pool_grad(at: OpCall) -> Value:
    dy, x = at.xs
    return at.op("MaxPoolGrad", x, at.op("MaxPool", x), dy, shape=x.shape)


WINDOWS: Mapping[str, tuple[str, Callable[[OpCall], Value]]] = {
    "conv2d": ("strides", lambda at: at.op("Conv2D", *at.xs)),
    "conv2d_transpose": ("strides", _image_gradient("Conv2DBackpropInput")),
    "depthwise_conv2d": ("strides", lambda at: at.op("DepthwiseConv2dNative", *at.xs)),
    "depthwise_conv2d_transpose": (
        "strides",
        _image_gradient("DepthwiseConv2dNativeBackpropInput"),
    ),
    "avg_pool": ("ksize", lambda at: at.op("AvgPool", *at.xs)),
    "avg_pool_transpose": ("ksize", lambda at: _pool_grad(at, at.xs[1], at.xs[0])),
    "max_pool": ("ksize", lambda at: at.op("MaxPool", *at.xs)),
    "max_pool_transpose": ("ksize", _max_pool_grad),
    "bias_add": ("", lambda at: at.op("BiasAdd", *at.xs, shape=at.xs[0].shape)),
}
"""By name, the attr without which there is no such op, and what it is made of."""


def windowed(
    program: Program, signature: Signature, function: str, inputs: Sequence[Value]
) -> Value:
    """Return what a function of the op's windows computes, of the op or of a match's one conv.

    Raises FormulaError where there are no windows.
    """
    attr, build = WINDOWS[function]
    if attr and attr not in signature.attrs:
        raise FormulaError(
            f"{function} takes {attr} and padding from the op, or from the one convolution or "
            f"pooling of a match as one op; here is none"
        )
    dtypes = {value.dtype for value in inputs}
    if len(dtypes) > 1:
        raise FormulaError(f"{function} meets {', '.join(sorted(dtypes))}; write: cast_like(...)")
    return build(OpCall(program, signature, tuple(inputs)))


OpGradient = Callable[[OpCall, int, Value], Value]


def _matmul_grad(first: str, second: str) -> OpGradient:
    """Return that of y = A B, where these attrs say that A and B are transposed or adjoint."""

    def own(at: OpCall, place: int, dy: Value) -> Value:
        a, b = (at.program.cast(x, dy.dtype) for x in at.xs)
        ta, tb = (bool(at.signature.attrs.get(name, False)) for name in (first, second))
        if place == 0:
            pair, flags = ((b, dy), (tb, True)) if ta else ((dy, b), (False, not tb))
        else:
            pair, flags = ((dy, a), (True, ta)) if tb else ((a, dy), (not ta, False))
        product = sequences.matmul(at.program, *pair, *flags)
        return product if first == "transpose_a" else at.summed(place, product)

    return own


def _conv_grad(by_input: str, by_filter: str) -> OpGradient:
    def own(at: OpCall, place: int, dy: Value) -> Value:
        if place == 0:
            return at.op(by_input, at.sizes(0), at.xs[1], dy)
        return at.op(by_filter, at.xs[0], at.sizes(1), dy)

    return own


def _conv_transpose_grad(convolution: str, by_filter: str) -> OpGradient:
    """Return that of a transposed convolution of (sizes, filter, x)."""

    def own(at: OpCall, place: int, dy: Value) -> Value:
        if place == 2:
            return at.op(convolution, dy, at.xs[1])
        return at.op(by_filter, dy, at.sizes(1), at.xs[2])

    return own


def _reduction_grad(at: OpCall, place: int, dy: Value) -> Value:
    """Return that of Sum and Mean over the axes x1."""
    program, (x, axes) = at.program, at.xs
    whole_axes = program.op("Sum", x, axes, shape=UNKNOWN, keep_dims=True)
    whole = program.op("Reshape", dy, program.shape_of(whole_axes), shape=UNKNOWN)
    if at.signature.op_type == "Mean":
        parts = program.op("RealDiv", at.count(x, dy.dtype), at.count(dy, dy.dtype))
        whole = program.op("RealDiv", whole, parts, shape=UNKNOWN)
    return program.op("BroadcastTo", whole, at.sizes(0), shape=x.shape)


def _batch_norm_grad(at: OpCall, place: int, dy: Value) -> Value:
    """Return that of batch norm with its trained moments, which is linear in x."""
    program, attrs = at.program, at.signature.attrs
    if attrs.get("is_training", True) or attrs.get("data_format", "NHWC") != "NHWC" or place:
        raise FormulaError(
            "own(dy) of batch norm is known for its input 0, is_training false and NHWC alone"
        )
    _, scale, _, _, variance = at.xs
    epsilon = program.scalar(float(str(attrs.get("epsilon", 1e-4))), variance.dtype)
    factor = program.op("Mul", scale, program.op("Rsqrt", program.op("AddV2", variance, epsilon)))
    return program.op("Mul", dy, program.cast(factor, dy.dtype), shape=dy.shape)


def _elementwise(op_type: str, order: str) -> OpGradient:
    """Return an op that takes dy with the input x or the output y, in this order."""

    def own(at: OpCall, place: int, dy: Value) -> Value:
        tensors = {"d": dy, "x": at.xs[0]} if "x" in order else {"d": dy, "y": at.y}
        return at.op(op_type, *(tensors[name] for name in order), shape=dy.shape)

    return own


def _softmax_grad(at: OpCall, place: int, dy: Value) -> Value:
    program, y = at.program, at.y
    axes = program.vector(-1)
    product = program.op("Mul", dy, y)
    total = program.op("Sum", product, axes, shape=UNKNOWN, keep_dims=True)
    return program.op("Mul", program.op("Sub", dy, total), y)


def _divided(at: OpCall, place: int, dy: Value) -> Value:
    program, (a, b) = at.program, at.xs
    quotient = program.op("RealDiv", dy, b)
    if place:
        quotient = program.op("Mul", program.op("Neg", quotient), program.op("RealDiv", a, b))
    return at.summed(place, quotient)


def _greater(op_type: str) -> OpGradient:
    """Return that of Maximum and Minimum: dy at the one taken, the first of two equal ones."""

    def own(at: OpCall, place: int, dy: Value) -> Value:
        taken, zero = at.program.op(op_type, *at.xs), at.program.scalar(0.0, dy.dtype)
        pair = (zero, dy) if place else (dy, zero)
        return at.summed(place, at.program.op("SelectV2", taken, *pair))

    return own


OP_GRADIENTS: Mapping[str, OpGradient] = {
    "MatMul": _matmul_grad("transpose_a", "transpose_b"),
    **dict.fromkeys(("BatchMatMul", "BatchMatMulV2"), _matmul_grad("adj_x", "adj_y")),
    "Conv2D": _conv_grad("Conv2DBackpropInput", "Conv2DBackpropFilter"),
    "DepthwiseConv2dNative": _conv_grad(
        "DepthwiseConv2dNativeBackpropInput", "DepthwiseConv2dNativeBackpropFilter"
    ),
    "Conv3D": _conv_grad("Conv3DBackpropInputV2", "Conv3DBackpropFilterV2"),
    "Conv2DBackpropInput": _conv_transpose_grad("Conv2D", "Conv2DBackpropFilter"),
    "BiasAdd": lambda at, place, dy: at.op("BiasAddGrad", dy) if place else dy,
    "AvgPool": lambda at, place, dy: at.op("AvgPoolGrad", at.sizes(0), dy),
    "MaxPool": lambda at, place, dy: at.op("MaxPoolGrad", at.xs[0], at.y, dy),
    **dict.fromkeys(("Sum", "Mean"), _reduction_grad),
    **dict.fromkeys(("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"), _batch_norm_grad),
    "Relu": _elementwise("ReluGrad", "dx"),
    "Relu6": _elementwise("Relu6Grad", "dx"),
    "LeakyRelu": _elementwise("LeakyReluGrad", "dx"),
    "Softplus": _elementwise("SoftplusGrad", "dx"),
    "Softsign": _elementwise("SoftsignGrad", "dx"),
    "Elu": _elementwise("EluGrad", "dy"),
    "Selu": _elementwise("SeluGrad", "dy"),
    "Sigmoid": _elementwise("SigmoidGrad", "yd"),
    "Tanh": _elementwise("TanhGrad", "yd"),
    "Softmax": _softmax_grad,
    **dict.fromkeys(("Add", "AddV2"), OpCall.summed),
    "Sub": lambda at, place, dy: at.summed(place, at.program.op("Neg", dy) if place else dy),
    "Mul": lambda at, place, dy: at.summed(place, at.program.op("Mul", dy, at.xs[1 - place])),
    **dict.fromkeys(("RealDiv", "Div"), _divided),
    "Maximum": _greater("GreaterEqual"),
    "Minimum": _greater("LessEqual"),
    "Identity": lambda at, place, dy: dy,
    "SparseMatMul": _matmul_grad("transpose_a", "transpose_b"),
}

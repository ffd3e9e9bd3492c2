"""What ops compute: the op of a formula (`forward`, its windows), and the gradients of ops (`own`).

A gradient is made of ops that TensorFlow 1.15 and 2.x know, from dy, the inputs and the outputs.
`linear` asks for those of a formula's own ops. Second derivatives are gradients of ops that compute
gradients, of which TensorFlow registers none (`tf.gradients` raises LookupError), or None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from graphpatch.errors import FormulaError
from graphpatch.gradients.functions import matmul, sum_to
from graphpatch.gradients.ops import (
    FLOATS,
    SCALAR,
    AttrValue,
    BroadcastShape,
    Program,
    Signature,
    Value,
    op,
    op_def,
)


class OpCall(msgspec.Struct):
    """An op with these attrs, at these inputs.

    `output` is its output 0, where that is computed; `part` is the number of the output that dy is
    of, where there are several.
    """

    xs: tuple[Value, ...]
    attrs: Mapping[str, object]
    op_type: str = ""
    output: Value | None = None
    part: int = 0

    @property
    def y(self) -> Value:
        """Return output 0."""
        return self.output or self.op(self.op_type, *self.xs)

    def x(self, place: int) -> Value:
        """Return an input."""
        return self.xs[place]

    def shape(self, place: int) -> BroadcastShape:
        """Return what is known of the shape of an input."""
        return self.xs[place].shape

    def sizes(self, place: int) -> Value:
        """Return the sizes of an input."""
        return self.xs[place].sizes

    def op(self, op_type: str, *inputs: Value, shape: BroadcastShape | None = None) -> Value:
        """Return an op with those attrs of this one that its op type has, dtypes left out."""
        attrs: dict[str, AttrValue] = {}
        definition = op_def(op_type)
        for attr in definition.attrs:
            default = definition.defaults[attr.name]
            value = self.attrs.get(attr.name, default)
            value = list(value) if isinstance(value, tuple) else value
            if attr.type == "type" or value in (None, default, []):
                continue  # a node may leave its defaults out
            if isinstance(value, str):
                attrs[attr.name] = value.encode()
            elif isinstance(value, bytes | list | bool | int | float):
                attrs[attr.name] = tuple(value) if isinstance(value, list) else value
        return op(op_type, *inputs, shape=shape, **attrs)

    def summed(self, place: int, value: Value) -> Value:
        """Sum a value to the shape of an input that was repeated."""
        known = self.shape(place)
        if value.shape.exactly is not None and value.shape.exactly == known.exactly:
            return value
        return sum_to(value, self.sizes(place), value.sizes, known)

    def repeated(self, place: int, value: Value) -> Value:
        """Repeat a value to the shape of an input."""
        return op("BroadcastTo", value, self.sizes(place), shape=self.shape(place))


def op_at(program: Program, signature: Signature, function: str, inputs: Sequence[Value]) -> OpCall:
    """Return the op at these inputs, its own where fewer are given. Raises FormulaError."""
    if not signature.op_type:
        raise FormulaError(
            f"{function} computes what one op does; a filter, a surrogate and a match as one op"
            " have none"
        )
    names = [name for name, _ in signature.inputs[: len(signature.inputs) - signature.more]]
    if len(inputs) > len(names):
        raise FormulaError(f"{function}: {signature.op_type} has {len(names)} inputs")
    own = [signature.value(program, name) for name in names]
    for place, (value, like) in enumerate(zip(inputs, own, strict=False)):
        if value.dtype != like.dtype:
            raise FormulaError(f"{function}: input {place} is {like.dtype}, and this {value.dtype}")
    at = OpCall((*inputs, *own[len(inputs) :]), signature.attrs, signature.op_type)
    if function == "own":
        is_own = [x.source for x in at.xs] == [f"x{place}" for place in range(len(at.xs))]
        at.output = signature.value(program, signature.outputs[0][0]) if is_own else None
    return at


def op_forward(at: OpCall, signature: Signature) -> Value:
    """Return output 0 of the op. Raises FormulaError for an op that cannot be run again."""
    try:
        definition = op_def(at.op_type)
    except LookupError as error:
        raise FormulaError(f"forward: {error}") from None
    lists = any(arg.is_list for arg in definition.inputs)
    if definition.stateful or lists or len(definition.inputs) != len(at.xs):
        raise FormulaError(f"forward: {at.op_type} has a state or a list of inputs: it runs once")
    same = all(x.shape == signature.shape(f"x{n}") for n, x in enumerate(at.xs))
    result = at.op(at.op_type, *at.xs)
    return replace(result, shape=signature.shape("y0")) if same else result


def op_gradient(at: OpCall, place: int, dy: Value) -> Value:
    """Return the op's gradient with respect to an input. Raises FormulaError for unknown ops."""
    second = {name: gradient for name, (gradient, _) in _SECOND.items()}
    like, gradients = at.xs[place], {**OP_GRADIENTS, **second}
    if at.op_type not in gradients:
        raise FormulaError(f"own(dy) is known for {', '.join(gradients)}, not for {at.op_type}")
    if like.dtype not in FLOATS:
        raise FormulaError(f"input {place} of {at.op_type} is {like.dtype}: it has no gradient")
    result = gradients[at.op_type](at, place, dy)
    return result if result.shape == like.shape else op("Identity", result, shape=like.shape)


OpGradient = Callable[[OpCall, int, Value], Value]
"""Of an op, the gradient with respect to the input at a place, from dy."""


def ops(*texts: str) -> OpGradient:
    """Return one op for each input, or for all: `Conv2DBackpropInput #x0 x1 dy`.

    `#x0` are the sizes of input 0, `#x0[1,2]` those of some axes.
    """

    def gradient(at: OpCall, place: int, dy: Value) -> Value:
        def read(word: str) -> Value:
            name, _, axes = word.lstrip("#").rstrip("]").partition("[")
            if axes:
                return sizes_of(at.xs[int(name[1:])], *map(int, axes.split(",")))
            if word.startswith("#"):
                return at.sizes(int(name[1:]))
            return {"dy": dy}.get(name) or (at.y if name == "y" else at.x(int(name[1:])))

        op_type, *words = texts[place % len(texts)].split()
        return at.op(op_type, *map(read, words))

    return gradient


def sizes_of(value: Value, *axes: int) -> Value:
    """Return the sizes of some axes of a value, as a vector."""
    axis, sizes = value.program.scalar(0, "int32"), value.sizes
    return op("GatherV2", sizes, value.program.vector(*axes), axis, batch_dims=0)


def _product(first: str, second: str) -> OpGradient:
    """Return that of y = A B, where these attrs say that A and B are transposed or adjoint."""

    def gradient(at: OpCall, place: int, dy: Value) -> Value:
        factor = at.x(1 - place).cast(dy.dtype)
        ta, tb = (bool(at.attrs.get(name, False)) for name in (first, second))
        if place == 0:
            pair, flags = ((factor, dy), (tb, True)) if ta else ((dy, factor), (False, not tb))
        else:
            pair, flags = ((dy, factor), (True, ta)) if tb else ((factor, dy), (not ta, False))
        product = matmul(*pair, *flags)
        return product if first == "transpose_a" else at.summed(place, product)

    return gradient


def _reduction(at: OpCall, place: int, dy: Value) -> Value:
    """Return that of Sum and Mean over the axes x1."""
    x, axes = at.xs
    if dy.shape != SCALAR and not at.attrs.get("keep_dims"):
        dy = op("Reshape", dy, op("Sum", x, axes, keep_dims=True).sizes)
    if at.op_type == "Mean":
        dy = dy / (_count(x, dy.dtype) / _count(dy, dy.dtype))
    return at.repeated(0, dy)


def _count(value: Value, dtype: str) -> Value:
    """Count the elements of a value, as a number of a dtype."""
    sizes, axes = value.sizes, value.program.vector(0)
    return op("Prod", sizes, axes, shape=SCALAR, keep_dims=False).cast(dtype)


def _batch_norm(at: OpCall, place: int, dy: Value) -> Value:
    """Return that of batch norm with its trained moments, which is linear in x."""
    attrs = at.attrs
    if attrs.get("is_training", True) or attrs.get("data_format", "NHWC") != "NHWC" or place:
        raise FormulaError(
            "own(dy) of batch norm is known for its input 0, is_training false and NHWC alone"
        )
    _, scale, _, _, variance = at.xs
    epsilon = variance.like(float(str(attrs.get("epsilon", 1e-4))))
    factor = scale * op("Rsqrt", variance + epsilon)
    return op("Mul", dy, factor.cast(dy.dtype), shape=dy.shape)


def _softmax(at: OpCall, place: int, dy: Value) -> Value:
    y, axes = at.y, dy.program.vector(-1)
    return (dy - op("Sum", dy * y, axes, keep_dims=True)) * y


def _quotient(at: OpCall, place: int, dy: Value) -> Value:
    quotient = dy / at.x(1)
    return at.summed(place, -quotient * (at.x(0) / at.x(1)) if place else quotient)


def _extremum(op_type: str) -> OpGradient:
    """Return that of Maximum and Minimum: dy at the one taken, the first of two equal ones."""

    def gradient(at: OpCall, place: int, dy: Value) -> Value:
        taken, zero = op(op_type, *at.xs), dy.like(0.0)
        return at.summed(place, op("SelectV2", taken, *((zero, dy) if place else (dy, zero))))

    return gradient


OP_GRADIENTS: Mapping[str, OpGradient] = {
    "MatMul": _product("transpose_a", "transpose_b"),
    **dict.fromkeys(("BatchMatMul", "BatchMatMulV2"), _product("adj_x", "adj_y")),
    "Conv2D": ops("Conv2DBackpropInput #x0 x1 dy", "Conv2DBackpropFilter x0 #x1 dy"),
    "DepthwiseConv2dNative": ops(
        "DepthwiseConv2dNativeBackpropInput #x0 x1 dy",
        "DepthwiseConv2dNativeBackpropFilter x0 #x1 dy",
    ),
    "Conv3D": ops("Conv3DBackpropInputV2 #x0 x1 dy", "Conv3DBackpropFilterV2 x0 #x1 dy"),
    "Conv2DBackpropInput": ops("", "Conv2DBackpropFilter dy #x1 x2", "Conv2D dy x1"),
    "BiasAdd": lambda at, place, dy: at.op("BiasAddGrad", dy) if place else dy,
    "AvgPool": ops("AvgPoolGrad #x0 dy"),
    "MaxPool": ops("MaxPoolGrad x0 y dy"),
    **dict.fromkeys(("Sum", "Mean"), _reduction),
    **dict.fromkeys(("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"), _batch_norm),
    **{name: ops(f"{name}Grad dy x0") for name in ("Relu", "Relu6", "LeakyRelu")},
    **{name: ops(f"{name}Grad dy x0") for name in ("Softplus", "Softsign")},
    **{name: ops(f"{name}Grad dy y") for name in ("Elu", "Selu")},
    **{name: ops(f"{name}Grad y dy") for name in ("Sigmoid", "Tanh")},
    "Softmax": _softmax,
    **dict.fromkeys(("Add", "AddV2"), OpCall.summed),
    "Sub": lambda at, place, dy: at.summed(place, -dy if place else dy),
    "Mul": lambda at, place, dy: at.summed(place, dy * at.x(1 - place)),
    **dict.fromkeys(("RealDiv", "Div"), _quotient),
    "Maximum": _extremum("GreaterEqual"),
    "Minimum": _extremum("LessEqual"),
    "Identity": lambda at, place, dy: dy,
    "SparseMatMul": _product("transpose_a", "transpose_b"),
}
"""The gradients that `own(dy)` computes of ops that models are made of."""


def _segments(kind: str) -> OpGradient:
    """Return the sums of what dy has at the indices, by segment, divided by their numbers."""

    def gradient(at: OpCall, place: int, dy: Value) -> Value:
        grads, indices, segments, _ = at.xs
        rows = op("Squeeze", sizes_of(grads, 0))
        zero, step = (segments.program.scalar(number, "int32") for number in (0, 1))
        parts = op("GatherV2", dy, indices, zero, batch_dims=0)
        sums = op("UnsortedSegmentSum", parts, segments, rows, shape=grads.shape)
        if kind == "Sum":
            return sums
        each = op("BroadcastTo", dy.like(1.0), segments.sizes)
        counts = op("Maximum", op("UnsortedSegmentSum", each, segments, rows), dy.like(1.0))
        if kind == "SqrtN":
            counts = op("Sqrt", counts)
        axes = op("Range", step, op("Rank", grads, shape=SCALAR), step)
        column = op("Sum", grads, axes, keep_dims=True)
        return op("RealDiv", sums, op("Reshape", counts, column.sizes), shape=grads.shape)

    return gradient


def _max_pool(at: OpCall, place: int, dy: Value) -> Value:
    """Return the elements of dy at the largest elements, whose places `argmax` has."""
    image, grad, argmax = at.xs
    zero, first = dy.program.scalar(0, "int32"), dy.program.vector(0)
    flat = op("Reshape", dy, op("Prod", dy.sizes, first, keep_dims=True))
    index = argmax.cast("int32")
    if not at.attrs.get("include_batch_in_index", False):
        each = op("Prod", sizes_of(image, 1, 2, 3), first, keep_dims=False)
        examples = op("Range", zero, op("Squeeze", sizes_of(image, 0)), zero.like(1))
        index += op("Reshape", examples * each, dy.program.vector(-1, 1, 1, 1))
    return op("GatherV2", flat, index, zero, shape=grad.shape, batch_dims=0)


def _lrn(at: OpCall, place: int, dy: Value) -> Value:
    """Return that of the gradient of x * s ** -beta, where s = bias + alpha * window(x * x).

    It reads x alone: the output of LRN, which the op reads too, counts as computed of x here, so
    that nothing is left for the third input.
    """
    g, x, _ = at.xs
    defaults = op_def("LRNGrad").defaults
    bias, alpha, beta = (
        float(str(at.attrs.get(name, defaults[name]))) for name in ("bias", "alpha", "beta")
    )
    most = x.program.scalar(int(str(at.attrs.get("depth_radius", 5))), "int32")
    radius = op("Minimum", most, op("Squeeze", sizes_of(x, 3)))
    band = op("MatrixBandPart", op("BroadcastTo", x.like(1.0), sizes_of(x, 3, 3)), radius, radius)
    rows = op("ConcatV2", (x.program.vector(-1), sizes_of(x, 3)), radius.like(0))

    def window(value: Value) -> Value:
        flat = op("Reshape", value, rows)
        sums = op("MatMul", flat, band, transpose_a=False, transpose_b=False)
        return op("Reshape", sums, x.sizes, shape=x.shape)

    def power(exponent: float) -> Value:
        return op("Pow", s, exponent)

    s = alpha * window(x * x) + bias
    twice, around = 2 * alpha * beta, window(x * dy)
    if place == 0:
        return dy * power(-beta) - twice * x * power(-beta - 1) * around
    curved = -4 * alpha * alpha * beta * (beta + 1)
    return -(
        twice * x * window(g * dy * power(-beta - 1))
        + twice * g * power(-beta - 1) * around
        + twice * dy * window(g * x * power(-beta - 1))
        + curved * x * window(g * x * power(-beta - 2) * around)
    )


_OWN = "own(dy)"
_INSIDE = "own(ones_like(x0)) > 0"  # of the range of numbers that are quantized
_RESIZED = ("Bicubic", "Bilinear", "NearestNeighbor")

_SECOND: Mapping[str, tuple[OpGradient, tuple[str | None, ...]]] = {
    "CropAndResizeGradImage": (
        ops("CropAndResize dy x1 x2 #x0[1,2]", "CropAndResizeGradBoxes x0 dy x1 x2"),
        (_OWN, _OWN, None, None),
    ),
    "FakeQuantWithMinMaxArgsGradient": (ops("FakeQuantWithMinMaxArgsGradient dy x1"), (_OWN, None)),
    **{
        f"FakeQuantWithMinMaxVars{kind}Gradient": (
            ops(f"FakeQuantWithMinMaxVars{kind}Gradient dy x1 x2 x3"),
            (f"where({_INSIDE}, dy0, where(x1 < (x2 + x3) / 2, dy1, dy2))", None, None, None),
        )
        for kind in ("", "PerChannel")
    },
    "LRNGrad": (_lrn, (_OWN, _OWN, None)),
    "MaxPoolGradGradV2": (ops("MaxPoolGradV2 x0 x1 dy x3 x4"), (None, None, _OWN, None, None)),
    "MaxPoolGradWithArgmax": (_max_pool, (None, _OWN, None)),
    **{f"Resize{kind}Grad": (ops(f"Resize{kind} dy #x0[1,2]"), (_OWN, None)) for kind in _RESIZED},
    "ScaleAndTranslateGrad": (ops("ScaleAndTranslate dy #x0[1,2] x2 x3"), (_OWN, None, None, None)),
    **{
        f"SparseSegment{kind}Grad": (_segments(kind), (_OWN, None, None, None))
        for kind in ("Mean", "SqrtN", "Sum")
    },
}

SECOND: Mapping[str, tuple[str | None, ...]] = {
    **{name: texts for name, (_, texts) in _SECOND.items()},
    "SoftsignGrad": (
        "dy / square(1 + abs(x1))",
        "-2 * (x0 * (dy / square(1 + abs(x1)))) * (sign(x1) / (1 + abs(x1)))",
    ),
}
"""Ops of which TensorFlow has no gradient: a formula for each input."""

NO_SECOND = "no_second_derivative"
"""What an op is called whose gradient, a SoftsignGrad, raises where it is differentiated again."""


WINDOWS: Mapping[str, tuple[str, str]] = {
    "conv2d": ("Conv2D", "strides"),
    "depthwise_conv2d": ("DepthwiseConv2dNative", "strides"),
    "avg_pool": ("AvgPool", "ksize"),
    "max_pool": ("MaxPool", "ksize"),
    "bias_add": ("BiasAdd", ""),
}
"""The op that a function computes, and the attr without which there is no such op."""


def windowed(signature: Signature, function: str, inputs: Sequence[Value]) -> Value:
    """Return what a function of the op's windows computes, of the op or of a match's one conv.

    Raises FormulaError where there are no windows.
    """
    op_type, attr = WINDOWS[function.removesuffix("_transpose")]
    if attr and attr not in signature.attrs:
        raise FormulaError(
            f"{function} takes {attr} and padding from the op, or from the one convolution or "
            f"pooling of a match as one op; here is none"
        )
    dtypes = {value.dtype for value in inputs}
    if len(dtypes) > 1:
        raise FormulaError(f"{function} meets {', '.join(sorted(dtypes))}; write: cast_like(...)")
    if not function.endswith("_transpose"):
        at = OpCall(tuple(inputs), signature.attrs, op_type)
        return at.op(op_type, *inputs, shape=inputs[0].shape if op_type == "BiasAdd" else None)
    dy, *weights, x = inputs
    result = OP_GRADIENTS[op_type](OpCall((x, *weights), signature.attrs, op_type), 0, dy)
    return replace(result, shape=x.shape)

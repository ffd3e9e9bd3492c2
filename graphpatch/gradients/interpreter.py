"""Programs in numpy: one function for each op type, for plots and `verify`.

It runs the ops that are written to files, so that what a plot shows is what a file computes. Images
are (batch, height, width, channels); a window is what one place of the output reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from graphpatch.errors import FormulaError
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.ops import Signature, StepInput, Value, needed, op_def
from graphpatch.gradients.program import formula_ops, gradient_ops
from graphpatch.graph.attrs import DTYPE_NUMBERS

Array: TypeAlias = npt.NDArray[Any]
Attrs: TypeAlias = Mapping[str, Any]


def gradient(
    formula: Formula,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    upstream: Sequence[Array],
    attrs: Mapping[str, object] | None = None,
    op_type: str = "",
) -> list[Array | None]:
    """Return dx of each input array, of its shape and dtype, or None.

    The arrays of `tensors` that the formula reads by name are the last inputs. Arrays of bfloat16
    are those of the package ml_dtypes. `op_type` is that of the op, which
    `forward` and `own` compute. Raises FormulaError where the formula does not suit the arrays,
    or needs an op that numpy has not.
    """
    dtypes, more = _dtypes(inputs), len(formula.tensors)
    op = Signature.of(dtypes, _dtypes(outputs), attrs, op_type=op_type, more=more)
    formula = formula.with_more_inputs(dtypes[: len(dtypes) - more])
    arguments: dict[str, Array] = {}
    for kind, arrays in (("x", inputs), ("y", outputs), ("dy", upstream)):
        arguments |= {f"{kind}{place}": array for place, array in enumerate(arrays)}
    return run(gradient_ops(formula, op), arguments)


def value(formula: Formula, inputs: Sequence[Array]) -> Array:
    """Return what one formula of the inputs `x0, x1, ...` is."""
    dtype = inputs[0].dtype.name
    result = formula_ops(formula, Signature.of(_dtypes(inputs), [dtype]), dtype)
    arguments = {f"x{place}": array for place, array in enumerate(inputs)}
    return np.asarray(run([result], arguments)[0])


def op_output(op_type: str, inputs: Sequence[Any], attrs: Attrs) -> Any:
    """Return output 0 of one op, a list where it is one. Raises FormulaError for foreign types."""
    if op_type not in _PLAIN and op_type not in _KERNELS:
        known = ", ".join(sorted(_PLAIN | _KERNELS))
        raise FormulaError(f"numpy has no {op_type}; there is: {known}")
    definition = op_def(op_type)
    defaults = {attr.name: attr.default for attr in definition.attrs}
    texts = {k: v.decode() if isinstance(v, bytes) else v for k, v in attrs.items()}
    try:
        if op_type in _PLAIN:
            result = _PLAIN[op_type](*inputs)
        else:
            result = _KERNELS[op_type](*inputs, {**defaults, **texts})
    except (ValueError, IndexError) as error:  # shapes that do not fit
        raise FormulaError(f"{op_type}: {error}") from None
    if isinstance(result, list):
        return result
    result, output = np.asarray(result), definition.outputs[0]
    dtype = output.dtype or attrs.get(output.type_attr)
    return result if dtype is None else result.astype(np.dtype(dtype), copy=False)


def run(
    values: Sequence[Value | None],
    arguments: Mapping[str, Any],
    output: Callable[[str, list[Any], dict[str, Any]], Any] = op_output,
) -> list[Any]:
    """Return the arrays that these values of a program are, or what `output` makes of each op."""
    computed: dict[str | int, Any] = dict(arguments.items())
    wanted = [item for item in values if item is not None]

    def array(item: StepInput) -> Any:
        if not isinstance(item, Value):
            return list(map(array, item))
        value = computed[item.source]
        return value[item.output] if isinstance(value, list | tuple) else value

    with np.errstate(all="ignore"):
        for number in needed(wanted):
            step = wanted[0].program.steps[number]
            computed[number] = output(step.op_type, [*map(array, step.inputs)], dict(step.attrs))
    return [None if item is None else array(item) for item in values]


def _dtypes(arrays: Sequence[Array]) -> list[str]:
    """Return the dtype of each array; what has no number counts as string."""
    names = (array.dtype.name for array in arrays)
    return [name if name in DTYPE_NUMBERS else "string" for name in names]


Kernel = Callable[..., Any]
"""A function of the inputs of an op, and of its attrs."""


def _sigmoid(x: Array) -> Array:
    tail = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, tail, np.ones_like(x)) / (1 + tail))


def _erf(x: Array) -> Array:
    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x), x.dtype)


def _softmax(x: Array) -> Array:
    tops = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(tops / tops.sum(axis=-1, keepdims=True))


def _reduction(reduce: Callable[..., Any]) -> Kernel:
    return lambda x, axes, attrs: reduce(
        x, axis=tuple(np.ravel(axes)), keepdims=bool(attrs["keep_dims"])
    )


def _product(first: str, second: str) -> Kernel:
    def matmul(a: Array, b: Array, attrs: Attrs) -> Array:
        pair = ((a, attrs[first]), (b, attrs[second]))
        return np.asarray(np.matmul(*(np.swapaxes(x, -1, -2) if turn else x for x, turn in pair)))

    return matmul


def _repeated_axes(shape: Array, target: Array) -> Array:
    """Return the axes along which a tensor of this shape is repeated to that of the other."""
    sizes = (1,) * (len(target) - len(shape)) + tuple(shape)
    return np.array([axis for axis, size in enumerate(sizes) if size == 1], np.int32)


def _part_of_vector(x: Array, begin: Array, end: Array, _: Array, attrs: Attrs) -> Array:
    """Return a StridedSlice of a vector, in steps of 1."""
    return np.asarray(x[begin[0] : None if attrs["end_mask"] else end[0]])


def _random_uniform(shape: Array, attrs: Attrs) -> Array:
    """Draw what TensorFlow draws first: Philox of 4 words, of each the last 23 bits."""
    size = math.prod(map(int, shape))
    words = philox(math.ceil(size / 4), int(attrs["seed"]), int(attrs["seed2"])).ravel()[:size]
    bits = (words & 0x7FFFFF).astype(np.uint32) | np.uint32(127 << 23)
    return np.asarray((bits.view(np.float32) - np.float32(1)).reshape(shape))


def _random_normal(shape: Array, attrs: Attrs) -> Array:
    """Draw what TensorFlow draws first: uniform numbers, and Box and Muller's formula."""
    size = math.prod(map(int, shape))
    length, angle = _random_uniform(np.array([math.ceil(size / 4) * 2, 2]), attrs).T
    length = np.sqrt(-2 * np.log(np.maximum(length, np.float32(1e-7))))
    angle = np.float32(2 * math.pi) * angle
    drawn = np.stack([np.sin(angle) * length, np.cos(angle) * length], 1).ravel()
    return np.asarray(drawn[:size].reshape(shape), np.float32)


def philox(count: int, seed: int, seed_2: int) -> Array:
    """Return four words for each counter from 0 on, with upper half `seed_2`; `seed` is the key.

    Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, 2011.
    """
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    counter = [np.arange(count, dtype=np.uint64), np.full(count, seed_2, np.uint64)]
    a, b, c, d = (word for part in counter for word in (part & low, part >> half))
    for number in range(10):
        keys = (seed + number * 0x9E3779B9, (seed >> 32) + number * 0xBB67AE85)
        key, key_2 = (np.uint64(key & 0xFFFFFFFF) for key in keys)
        first, second = np.uint64(0xD2511F53) * a, np.uint64(0xCD9E8D57) * c
        a, b = (second >> half) ^ b ^ key, second & low
        c, d = (first >> half) ^ d ^ key_2, first & low
    return np.stack([a, b, c, d], 1)


def _spatial(attrs: Attrs, name: str) -> tuple[int, int]:
    """Return height and width of an attr with a number for each axis; 1 where the op has it not."""
    sizes = attrs.get(name) or (1, 1, 1, 1)
    first = 2 if attrs.get("data_format") == "NCHW" else 1
    return int(sizes[first]), int(sizes[first + 1])


def _channels_last(x: Array, attrs: Attrs) -> Array:
    return x.transpose(0, 2, 3, 1) if attrs.get("data_format") == "NCHW" else x


def _as_given(x: Array, attrs: Attrs) -> Array:
    """Put the channels of an image where the op has them."""
    return x.transpose(0, 3, 1, 2) if attrs.get("data_format") == "NCHW" else x


def _pixels(size: Sequence[int], window: Sequence[int], attrs: Attrs) -> Array:
    """Return the number of the pixel that each place of each window reads.

    Its axes are rows, columns, window height and window width. What is outside of the image reads
    the pixel after its last.
    """
    (down, right), (rows, columns) = _spatial(attrs, "strides"), _spatial(attrs, "dilations")
    reach = (window[0] - 1) * rows + 1, (window[1] - 1) * columns + 1
    pads: Any = [(0, 0), (0, 0)]
    if attrs["padding"] == "SAME":
        for axis, (n, stride) in enumerate(zip(size, (down, right), strict=True)):
            missing = max((math.ceil(n / stride) - 1) * stride + reach[axis] - n, 0)
            pads[axis] = missing // 2, missing - missing // 2
    elif attrs["padding"] == "EXPLICIT":
        first = 4 if attrs["data_format"] == "NCHW" else 2
        pads = np.reshape(attrs["explicit_paddings"][first : first + 4], (2, 2))
    numbers = np.arange(math.prod(size)).reshape(size)
    padded = np.pad(numbers, pads, constant_values=numbers.size)
    return sliding_window_view(padded, reach)[::down, ::right, ::rows, ::columns]


def _cut(image: Array, pixels: Array, fill: float = 0.0) -> Array:
    """Return the windows of an image: (batch, *pixels, channels)."""
    flat = image.reshape(len(image), -1, image.shape[-1])
    return np.pad(flat, [(0, 0), (0, 1), (0, 0)], constant_values=fill)[:, pixels]


def _put_back(windows: Array, pixels: Array, size: Sequence[int]) -> Array:
    """Return the image of this size whose pixels are the sums of what windows have for them."""
    flat = np.zeros((len(windows), math.prod(size) + 1, windows.shape[-1]), windows.dtype)
    for row, column in np.ndindex(*pixels.shape[2:]):  # no pixel is twice in one place of windows
        flat[:, pixels[:, :, row, column]] += windows[:, :, :, row, column]
    return flat[:, :-1].reshape(len(windows), *size, windows.shape[-1])


def _convolution(is_depthwise: bool) -> tuple[Kernel, Kernel, Kernel]:
    """Return Conv2D, or DepthwiseConv2dNative, and its gradients by the image and the filter."""
    weights_in, gives = "ijkm", "brckm" if is_depthwise else "brcm"

    def forward(x: Array, weights: Array, attrs: Attrs) -> Array:
        image = _channels_last(x, attrs)
        cut = _cut(image, _pixels(image.shape[1:3], weights.shape[:2], attrs))
        result = np.einsum(f"brcijk,{weights_in}->{gives}", cut, weights)
        return _as_given(result.reshape(*result.shape[:3], -1), attrs)

    def upstream(dy: Array, sizes: Sequence[int], attrs: Attrs) -> Array:
        image = _channels_last(dy, attrs)
        return image.reshape(*image.shape[:3], *sizes[2:]) if is_depthwise else image

    def by_input(sizes: Array, weights: Array, dy: Array, attrs: Attrs) -> Array:
        size = [int(sizes[axis]) for axis in ((2, 3) if attrs["data_format"] == "NCHW" else (1, 2))]
        image = upstream(dy, weights.shape, attrs)
        windows = np.einsum(f"{gives},{weights_in}->brcijk", image, weights)
        return _as_given(_put_back(windows, _pixels(size, weights.shape[:2], attrs), size), attrs)

    def by_filter(x: Array, sizes: Array, dy: Array, attrs: Attrs) -> Array:
        image, shape = _channels_last(x, attrs), tuple(map(int, sizes))
        cut = _cut(image, _pixels(image.shape[1:3], shape[:2], attrs))
        return np.asarray(
            np.einsum(f"brcijk,{gives}->{weights_in}", cut, upstream(dy, shape, attrs))
        )

    return forward, by_input, by_filter


def _pooled(x: Array, attrs: Attrs, fill: float) -> tuple[Array, Array, tuple[int, ...]]:
    """Return the windows of an image on one axis, the pixels that they read, and its size."""
    image = _channels_last(x, attrs)
    pixels = _pixels(image.shape[1:3], _spatial(attrs, "ksize"), attrs)
    cut = _cut(image, pixels, fill)
    return cut.reshape(*cut.shape[:3], -1, cut.shape[-1]), pixels, image.shape[1:3]


def _avg_pool(x: Array, attrs: Attrs) -> Array:
    """Return the mean of those pixels of a window that are in the image."""
    return _as_given(np.nanmean(_pooled(x, attrs, np.nan)[0], axis=3), attrs)


def _max_pool(x: Array, attrs: Attrs) -> Array:
    return _as_given(_pooled(x, attrs, -np.inf)[0].max(axis=3), attrs)


def _unpooled(parts: Array, pixels: Array, size: tuple[int, ...], dy: Array, attrs: Attrs) -> Array:
    """Return the image of which each window has got its part of dy."""
    windows = (parts * _channels_last(dy, attrs)[:, :, :, np.newaxis]).astype(dy.dtype)
    windows = windows.reshape(len(dy), *pixels.shape, -1)
    return _as_given(_put_back(windows, pixels, size), attrs)


def _avg_pool_grad(sizes: Array, dy: Array, attrs: Attrs) -> Array:
    """Give each pixel of a window an equal part."""
    windows, pixels, size = _pooled(np.zeros(tuple(sizes), dy.dtype), attrs, np.nan)
    inside = ~np.isnan(windows)
    return _unpooled(inside / inside.sum(axis=3, keepdims=True), pixels, size, dy, attrs)


def _max_pool_grad(x: Array, y: Array, dy: Array, attrs: Attrs) -> Array:
    """Give it all to the first of the largest pixels of a window."""
    windows, pixels, size = _pooled(x, attrs, -np.inf)
    largest = windows.argmax(axis=3)[:, :, :, np.newaxis]
    taken = np.arange(windows.shape[3])[:, np.newaxis] == largest
    return _unpooled(taken, pixels, size, dy, attrs)


def _bias_add(x: Array, bias: Array, attrs: Attrs) -> Array:
    return x + (bias.reshape(1, -1, 1, 1) if attrs["data_format"] == "NCHW" else bias)


def _bias_add_grad(dy: Array, attrs: Attrs) -> Array:
    axis = 1 if attrs["data_format"] == "NCHW" else dy.ndim - 1
    return np.asarray(dy.sum(axis=tuple(n for n in range(dy.ndim) if n != axis)))


def _batch_norm(
    x: Array, scale: Array, offset: Array, mean: Array, variance: Array, attrs: Attrs
) -> Array:
    if attrs["is_training"] or attrs["data_format"] != "NHWC":
        raise FormulaError("numpy has batch norm for is_training false and NHWC alone")
    return np.asarray((x - mean) / np.sqrt(variance + float(attrs["epsilon"])) * scale + offset)


_SELU_SCALE, _SELU_ALPHA = 1.0507009873554805, 1.7580993408473768

_BY_NAME = (  # numpy calls these as TensorFlow does, in small letters
    "Abs Add Cos Equal Exp Expm1 Floor Greater Greater_Equal Less Less_Equal Log Log1p Logical_And"
    " Logical_Or Maximum Minimum Not_Equal Ones_Like Sign Sin Sqrt Square Tanh Zeros_Like IsFinite"
    " IsNan"
)

_PLAIN: dict[str, Callable[..., Any]] = {
    **{name.replace("_", ""): getattr(np, name.lower()) for name in _BY_NAME.split()},
    "AddV2": np.add,
    "BroadcastArgs": lambda a, b: np.array(np.broadcast_shapes(tuple(a), tuple(b)), np.int32),
    "BroadcastGradientArgs": _repeated_axes,
    "BroadcastTo": lambda x, sizes: np.broadcast_to(x, tuple(sizes)),
    "ConcatV2": lambda arrays, axis: np.concatenate(arrays, int(axis)),
    "Div": np.divide,
    "Elu": lambda x: np.where(x < 0, np.expm1(x), x),
    "EluGrad": lambda dy, y: np.where(y < 0, dy * (y + 1), dy),
    "Erf": _erf,
    "FloorDiv": np.floor_divide,
    "GatherV2": lambda x, indices, axis: np.take(x, indices, int(axis)),
    "Identity": np.asarray,
    "Mul": np.multiply,
    "Neg": np.negative,
    "NthElement": lambda x, n: np.sort(x, axis=-1)[..., int(n)],
    "Pow": np.power,
    "Range": lambda start, stop, step: np.arange(start, stop, step, dtype=np.int32),
    "Rank": lambda x: np.array(x.ndim, np.int32),
    "RealDiv": np.divide,
    "Relu": lambda x: np.maximum(x, np.zeros_like(x)),
    "Relu6": lambda x: np.clip(x, 0, 6),
    "Relu6Grad": lambda dy, x: np.where((x > 0) & (x < 6), dy, np.zeros_like(dy)),
    "ReluGrad": lambda dy, x: np.where(x > 0, dy, np.zeros_like(dy)),
    "Reshape": lambda x, sizes: x.reshape(tuple(sizes)),
    "Round": np.rint,
    "Rsqrt": lambda x: 1 / np.sqrt(x),
    "SelectV2": np.where,
    "Selu": lambda x: np.where(x < 0, _SELU_ALPHA * np.expm1(x), _SELU_SCALE * x),
    "SeluGrad": lambda dy, y: dy * np.where(y < 0, y + _SELU_ALPHA, _SELU_SCALE),
    "Shape": lambda x: np.array(x.shape, np.int32),
    "Sigmoid": _sigmoid,
    "SigmoidGrad": lambda y, dy: dy * y * (1 - y),
    "Softmax": _softmax,
    "Softplus": lambda x: np.logaddexp(x, np.zeros_like(x)),
    "SoftplusGrad": lambda dy, x: dy * _sigmoid(x),
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "SoftsignGrad": lambda dy, x: dy / np.square(1 + np.abs(x)),
    "SquaredDifference": lambda a, b: np.square(a - b),
    "StopGradient": np.asarray,
    "Sub": np.subtract,
    "TanhGrad": lambda y, dy: dy * (1 - y * y),
    "Transpose": lambda x, order: np.transpose(x, tuple(order)),
}
"""The functions of ops without attrs."""

_CONV, _DEPTHWISE = _convolution(False), _convolution(True)

_KERNELS: dict[str, Kernel] = {
    "Any": _reduction(np.any),
    "AvgPool": _avg_pool,
    "AvgPoolGrad": _avg_pool_grad,
    **dict.fromkeys(("BatchMatMul", "BatchMatMulV2"), _product("adj_x", "adj_y")),
    "BiasAdd": _bias_add,
    "BiasAddGrad": _bias_add_grad,
    "Cast": lambda x, attrs: x.astype(np.dtype(attrs["DstT"])),
    "Const": lambda attrs: np.array(attrs["value"].numbers, np.dtype(attrs["value"].dtype)).reshape(
        attrs["value"].shape
    ),
    "Conv2D": _CONV[0],
    "Conv2DBackpropFilter": _CONV[2],
    "Conv2DBackpropInput": _CONV[1],
    "DepthwiseConv2dNative": _DEPTHWISE[0],
    "DepthwiseConv2dNativeBackpropFilter": _DEPTHWISE[2],
    "DepthwiseConv2dNativeBackpropInput": _DEPTHWISE[1],
    **dict.fromkeys(("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"), _batch_norm),
    "LeakyRelu": lambda x, attrs: np.where(x > 0, x, x * attrs["alpha"]),
    "LeakyReluGrad": lambda dy, x, attrs: np.where(x > 0, dy, dy * attrs["alpha"]),
    "MatMul": _product("transpose_a", "transpose_b"),
    "Max": _reduction(np.max),
    "MaxPool": _max_pool,
    "MaxPoolGrad": _max_pool_grad,
    "Mean": _reduction(np.mean),
    "Min": _reduction(np.min),
    "Prod": _reduction(np.prod),
    "RandomStandardNormal": _random_normal,
    "RandomUniform": _random_uniform,
    "Split": lambda axis, x, attrs: np.split(x, attrs["num_split"], int(axis)),
    "SparseMatMul": _product("transpose_a", "transpose_b"),
    "StridedSlice": _part_of_vector,
    "Sum": _reduction(np.sum),
}
"""The functions of other ops."""

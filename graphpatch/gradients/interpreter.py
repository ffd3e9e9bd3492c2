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

from graphpatch.errors import FormulaError
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.ops import Constant, Program, StepInput, Value, needed, op_def
from graphpatch.gradients.program import GradientProgram, formula_ops, gradient_ops
from graphpatch.gradients.signature import Signature
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
    xs, more = _dtypes("x", inputs), len(formula.tensors)
    op = Signature.of(xs, _dtypes("y", outputs), attrs, op_type=op_type, more=more)
    formula = formula.with_more_inputs([dtype for _, dtype in xs[: len(xs) - more]])
    arguments = {f"x{place}": array for place, array in enumerate(inputs)}
    arguments |= {f"y{place}": array for place, array in enumerate(outputs)}
    arguments |= {f"dy{place}": array for place, array in enumerate(upstream)}
    return _results(gradient_ops(formula, op), arguments)


def value(formula: Formula, inputs: Sequence[Array]) -> Array:
    """Return what one formula of the inputs `x0, x1, ...` is."""
    dtype = inputs[0].dtype.name
    op = Signature.of(_dtypes("x", inputs), [("y0", dtype)])
    arguments = {f"x{place}": array for place, array in enumerate(inputs)}
    return np.asarray(_results(formula_ops(formula, op, dtype), arguments)[0])


def op_output(op_type: str, inputs: Sequence[Array], attrs: Attrs) -> Array:
    """Return output 0 of one op. Raises FormulaError for an op type that is not here."""
    return _computed(op_type, inputs, attrs)


def run(program: Program, values: Sequence[Value], arguments: Mapping[str, Array]) -> list[Array]:
    """Return the arrays that these values of a program are."""
    computed: dict[str | int, Array] = dict(arguments.items())

    def given(item: StepInput) -> Any:
        return computed[item.source] if isinstance(item, Value) else list(map(given, item))

    with np.errstate(all="ignore"):
        for number in needed(program, values):
            step = program.steps[number]
            inputs = [given(item) for item in step.inputs]
            computed[number] = _computed(step.op_type, inputs, dict(step.attrs))
    return [computed[item.source] for item in values]


def _dtypes(kind: str, arrays: Sequence[Array]) -> list[tuple[str, str]]:
    """Return the name in a formula and the dtype of each; what has no number counts as string."""
    names = [
        array.dtype.name if array.dtype.name in DTYPE_NUMBERS else "string" for array in arrays
    ]
    return [(f"{kind}{place}", dtype) for place, dtype in enumerate(names)]


def _results(lowered: GradientProgram, arguments: Mapping[str, Array]) -> list[Array | None]:
    values = [item for item in lowered.results if item is not None]
    arrays = iter(run(lowered.program, values, arguments))
    return [None if item is None else next(arrays) for item in lowered.results]


def _computed(op_type: str, inputs: Sequence[Any], attrs: Attrs) -> Array:
    if op_type not in KERNELS:
        raise FormulaError(f"numpy has no {op_type}; there is: {', '.join(sorted(KERNELS))}")
    definition = op_def(op_type)
    defaults = {attr.name: attr.default for attr in definition.attrs}
    texts = {k: v.decode() if isinstance(v, bytes) else v for k, v in attrs.items()}
    try:
        result = np.asarray(KERNELS[op_type](*inputs, {**defaults, **texts}))
    except (ValueError, IndexError) as error:  # shapes that do not fit
        raise FormulaError(f"{op_type}: {error}") from None
    output = definition.outputs[0]
    dtype = output.dtype or attrs.get(output.type_attr)
    return result if dtype is None else result.astype(np.dtype(dtype), copy=False)


Kernel = Callable[..., Any]
"""A function of the inputs of an op, and of its attrs."""


def _plain(function: Callable[..., Any]) -> Kernel:
    """Return the kernel of an op that no attr changes."""
    return lambda *inputs: function(*inputs[:-1])


def _constant(attrs: Attrs) -> Array:
    constant: Constant = attrs["value"]
    return np.array(constant.numbers, np.dtype(constant.dtype)).reshape(constant.shape)


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
        left = np.swapaxes(a, -1, -2) if attrs[first] else a
        right = np.swapaxes(b, -1, -2) if attrs[second] else b
        return np.asarray(np.matmul(left, right))

    return matmul


def _axes_repeated(shape: Array, target: Array) -> Array:
    """Return the axes along which a tensor of this shape is repeated to that of the other."""
    rank = max(len(shape), len(target))
    sizes = (*[1] * (rank - len(shape)), *shape)
    return np.array([axis for axis, size in enumerate(sizes) if size == 1], np.int32)


def _strided_slice(x: Array, begin: Array, end: Array, strides: Array, attrs: Attrs) -> Array:
    def part(place: int) -> Any:
        if attrs["ellipsis_mask"] >> place & 1:
            return Ellipsis
        start = None if attrs["begin_mask"] >> place & 1 else int(begin[place])
        stop = None if attrs["end_mask"] >> place & 1 else int(end[place])
        return slice(start, stop, int(strides[place]))

    return np.asarray(x[tuple(part(place) for place in range(len(begin)))])


def _random_uniform(shape: Array, attrs: Attrs) -> Array:
    """Draw what TensorFlow draws first: Philox of 4 words, of each the last 23 bits."""
    size = math.prod(map(int, shape))
    words = philox(math.ceil(size / 4), int(attrs["seed"]), int(attrs["seed2"])).ravel()[:size]
    bits = (words & 0x7FFFFF).astype(np.uint32) | np.uint32(127 << 23)
    return np.asarray((bits.view(np.float32) - np.float32(1)).reshape(shape))


def _random_normal(shape: Array, attrs: Attrs) -> Array:
    """Draw what TensorFlow draws first: uniform numbers, and Box and Muller's formula."""
    size = math.prod(map(int, shape))
    unit = _random_uniform(np.array([math.ceil(size / 4) * 2, 2]), attrs)
    length = np.sqrt(-2 * np.log(np.maximum(unit[:, 0], np.float32(1e-7))))
    angle = np.float32(2 * math.pi) * unit[:, 1]
    drawn = np.stack([np.sin(angle) * length, np.cos(angle) * length], 1).ravel()
    return np.asarray(drawn[:size].reshape(shape), np.float32)


_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_FACTORS = (0xD2511F53, 0xCD9E8D57)
_ROUNDS = 10


def philox(count: int, seed: int, seed_2: int) -> Array:
    """Return four words for each counter from 0 on, with upper half `seed_2`; `seed` is the key.

    Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, 2011.
    """
    low = np.uint64(0xFFFFFFFF)
    numbers = np.arange(count, dtype=np.uint64)
    high = np.full(count, seed_2 & 0xFFFFFFFF, np.uint64)
    words = [numbers, numbers >> np.uint64(32), high, np.full(count, seed_2 >> 32, np.uint64)]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(_ROUNDS):
        first, second = (np.uint64(f) * w for f, w in zip(_FACTORS, words[::2], strict=True))
        words = [
            (second >> np.uint64(32)) ^ words[1] ^ np.uint64(key[0]),
            second & low,
            (first >> np.uint64(32)) ^ words[3] ^ np.uint64(key[1]),
            first & low,
        ]
        key = [(k + step) & 0xFFFFFFFF for k, step in zip(key, _KEY_STEPS, strict=True)]
    return np.stack(words, 1)


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


class Windows:
    """The windows of an op with these attrs on images of this height and width."""

    def __init__(self, size: tuple[int, ...], window: tuple[int, ...], attrs: Attrs) -> None:
        self.size, self.window = size, window
        self.strides, self.dilations = _spatial(attrs, "strides"), _spatial(attrs, "dilations")
        reach = [(w - 1) * d + 1 for w, d in zip(window, self.dilations, strict=True)]
        padding = str(attrs.get("padding", "VALID"))
        self.pads = [_pads(padding, *of) for of in zip(size, reach, self.strides, strict=True)]
        if padding == "EXPLICIT":
            first = 4 if attrs.get("data_format") == "NCHW" else 2
            top, bottom, left, right = list(attrs["explicit_paddings"])[first : first + 4]
            self.pads = [(top, bottom), (left, right)]
        sizes = zip(size, self.pads, reach, self.strides, strict=True)
        self.gives = tuple((n + sum(p) - r) // s + 1 for n, p, r, s in sizes)

    def _at(self, row: int, column: int) -> tuple[slice, slice]:
        """Return which pixels of the padded image are at this place of the windows."""
        pairs = zip((row, column), self.dilations, self.strides, self.gives, strict=True)
        first, second = (slice(n * d, n * d + s * (g - 1) + 1, s) for n, d, s, g in pairs)
        return first, second

    def of(self, image: Array, fill: float = 0.0) -> Array:
        """Return (batch, rows, columns, window height, window width, channels)."""
        padded = np.pad(image, [(0, 0), *self.pads, (0, 0)], constant_values=fill)
        rows, columns = self.window
        parts = [
            [padded[(slice(None), *self._at(row, column))] for column in range(columns)]
            for row in range(rows)
        ]
        return np.stack([np.stack(line, 3) for line in parts], 3)

    def image(self, windows: Array) -> Array:
        """Return the image whose pixels are the sums of what the windows have in their place."""
        sizes = [n + sum(p) for n, p in zip(self.size, self.pads, strict=True)]
        padded = np.zeros((len(windows), *sizes, windows.shape[-1]), windows.dtype)
        for row, column in np.ndindex(*self.window):
            padded[(slice(None), *self._at(row, column))] += windows[:, :, :, row, column]
        (top, _), (left, _) = self.pads
        return padded[:, top : top + self.size[0], left : left + self.size[1]]


def _pads(padding: str, size: int, reach: int, stride: int) -> tuple[int, int]:
    if padding != "SAME":
        return 0, 0
    missing = max((math.ceil(size / stride) - 1) * stride + reach - size, 0)
    return missing // 2, missing - missing // 2


def _convolution(depthwise: bool) -> tuple[Kernel, Kernel, Kernel]:
    """Return Conv2D, or DepthwiseConv2dNative, and its gradients."""

    def forward(x: Array, weights: Array, attrs: Attrs) -> Array:
        image = _channels_last(x, attrs)
        cut = Windows(image.shape[1:3], weights.shape[:2], attrs).of(image)
        if depthwise:
            image = np.einsum("brcijk,ijkm->brckm", cut, weights)
            return _as_given(image.reshape(*image.shape[:3], -1), attrs)
        return _as_given(np.einsum("brcijk,ijkm->brcm", cut, weights), attrs)

    def by_input(sizes: Array, weights: Array, dy: Array, attrs: Attrs) -> Array:
        like = _channels_last(np.empty(tuple(sizes), dy.dtype), attrs)
        places = Windows(like.shape[1:3], weights.shape[:2], attrs)
        dy = _channels_last(dy, attrs)
        if depthwise:
            dy = dy.reshape(*dy.shape[:3], *weights.shape[2:])
        text = "brckm,ijkm->brcijk" if depthwise else "brcm,ijkm->brcijk"
        return _as_given(places.image(np.einsum(text, dy, weights)), attrs)

    def by_filter(x: Array, sizes: Array, dy: Array, attrs: Attrs) -> Array:
        image, dy = _channels_last(x, attrs), _channels_last(dy, attrs)
        cut = Windows(image.shape[1:3], tuple(sizes[:2]), attrs).of(image)
        if depthwise:
            dy = dy.reshape(*dy.shape[:3], *sizes[2:])
        text = "brcijk,brckm->ijkm" if depthwise else "brcijk,brcm->ijkm"
        return np.asarray(np.einsum(text, cut, dy))

    return forward, by_input, by_filter


def _pooled(x: Array, attrs: Attrs, fill: float) -> tuple[Windows, Array]:
    image = _channels_last(x, attrs)
    places = Windows(image.shape[1:3], _spatial(attrs, "ksize"), attrs)
    return places, places.of(image, fill)


def _avg_pool(x: Array, attrs: Attrs) -> Array:
    """Return the mean of those pixels of a window that are in the image."""
    _, cut = _pooled(x, attrs, np.nan)
    return _as_given(np.nanmean(cut, axis=(3, 4)), attrs)


def _avg_pool_grad(sizes: Array, dy: Array, attrs: Attrs) -> Array:
    """Give each pixel of a window an equal part."""
    places, cut = _pooled(np.zeros(tuple(sizes), dy.dtype), attrs, np.nan)
    inside = ~np.isnan(cut)
    parts = inside / inside.sum(axis=(3, 4), keepdims=True)
    whole = _channels_last(dy, attrs)[:, :, :, np.newaxis, np.newaxis]
    return _as_given(places.image((parts * whole).astype(dy.dtype)), attrs)


def _max_pool(x: Array, attrs: Attrs) -> Array:
    _, cut = _pooled(x, attrs, -np.inf)
    return _as_given(cut.max(axis=(3, 4)), attrs)


def _max_pool_grad(x: Array, y: Array, dy: Array, attrs: Attrs) -> Array:
    """Give it all to the first of the largest pixels of a window."""
    places, cut = _pooled(x, attrs, -np.inf)
    rows = cut.reshape(*cut.shape[:3], -1, cut.shape[-1])
    taken = np.arange(rows.shape[3])[:, np.newaxis] == rows.argmax(axis=3)[..., np.newaxis, :]
    whole = _channels_last(dy, attrs)[:, :, :, np.newaxis]
    return _as_given(places.image((taken * whole).astype(dy.dtype).reshape(cut.shape)), attrs)


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

_PLAIN: Mapping[str, Callable[..., Any]] = {
    "Abs": np.abs,
    **dict.fromkeys(("Add", "AddV2"), np.add),
    "BroadcastArgs": lambda a, b: np.array(np.broadcast_shapes(tuple(a), tuple(b)), np.int32),
    "BroadcastGradientArgs": _axes_repeated,
    "BroadcastTo": lambda x, sizes: np.broadcast_to(x, tuple(sizes)),
    "ConcatV2": lambda arrays, axis: np.concatenate(arrays, int(axis)),
    "Cos": np.cos,
    "Elu": lambda x: np.where(x < 0, np.expm1(x), x),
    "EluGrad": lambda dy, y: np.where(y < 0, dy * (y + 1), dy),
    "Equal": np.equal,
    "Erf": _erf,
    "Exp": np.exp,
    "Expm1": np.expm1,
    "Floor": np.floor,
    "FloorDiv": np.floor_divide,
    "GatherV2": lambda x, indices, axis: np.take(x, indices, int(axis)),
    "Greater": np.greater,
    "GreaterEqual": np.greater_equal,
    **dict.fromkeys(("Identity", "StopGradient"), lambda x: x),
    "IsFinite": np.isfinite,
    "IsNan": np.isnan,
    "Less": np.less,
    "LessEqual": np.less_equal,
    "Log": np.log,
    "Log1p": np.log1p,
    "LogicalAnd": np.logical_and,
    "LogicalOr": np.logical_or,
    "Maximum": np.maximum,
    "Minimum": np.minimum,
    "Mul": np.multiply,
    "Neg": np.negative,
    "NotEqual": np.not_equal,
    "NthElement": lambda x, n: np.sort(x, axis=-1)[..., int(n)],
    "OnesLike": np.ones_like,
    "Pow": np.power,
    "Range": lambda start, stop, step: np.arange(start, stop, step, dtype=np.int32),
    "Rank": lambda x: np.array(x.ndim, np.int32),
    **dict.fromkeys(("RealDiv", "Div"), np.divide),
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
    "Sign": np.sign,
    "Sin": np.sin,
    "Softmax": _softmax,
    "Softplus": lambda x: np.logaddexp(x, np.zeros_like(x)),
    "SoftplusGrad": lambda dy, x: dy * _sigmoid(x),
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "SoftsignGrad": lambda dy, x: dy / np.square(1 + np.abs(x)),
    "Sqrt": np.sqrt,
    "Square": np.square,
    "Sub": np.subtract,
    "Tanh": np.tanh,
    "TanhGrad": lambda y, dy: dy * (1 - y * y),
    "Transpose": lambda x, order: np.transpose(x, tuple(order)),
    "ZerosLike": np.zeros_like,
}

_CONV, _DEPTHWISE = _convolution(depthwise=False), _convolution(depthwise=True)

KERNELS: Mapping[str, Kernel] = {
    **{op_type: _plain(function) for op_type, function in _PLAIN.items()},
    "Any": _reduction(np.any),
    "AvgPool": _avg_pool,
    "AvgPoolGrad": _avg_pool_grad,
    **dict.fromkeys(("BatchMatMul", "BatchMatMulV2"), _product("adj_x", "adj_y")),
    "BiasAdd": _bias_add,
    "BiasAddGrad": _bias_add_grad,
    "Cast": lambda x, attrs: x.astype(np.dtype(attrs["DstT"])),
    "Const": _constant,
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
    "SparseMatMul": _product("transpose_a", "transpose_b"),
    "StridedSlice": _strided_slice,
    "Sum": _reduction(np.sum),
}
"""The functions of each op type."""

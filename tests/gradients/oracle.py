"""Formulas in numpy, by what each function means: the oracle that programs are compared with.

It reads the parsed formula itself and shares no lowering with the package, so that a mistake in one
does not hide in the other. The gradient of a linear op is what each unit of the input gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from graphpatch.gradients import interpreter
from graphpatch.gradients.formula import (
    Call,
    Expression,
    Formula,
    Literal,
    NumberList,
    ParameterRef,
    Variable,
)
from graphpatch.gradients.functions import OF_THE_OP, SINGLE, look_up
from graphpatch.gradients.ops import FLOATS, Scalar
from graphpatch.gradients.tensors import ConstantTensor

Array: TypeAlias = npt.NDArray[Any]
Attrs: TypeAlias = Mapping[str, Any]
Operand: TypeAlias = Scalar | Array

TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-5, "float64": 1e-12}


class TheOp(NamedTuple):
    """The op that a formula is for, and the input whose gradient it is."""

    type: str
    place: int
    inputs: Sequence[Array]
    attrs: Mapping[str, Any]

    def at(self, given: Sequence[Array]) -> list[Array]:
        """These inputs, the op's own where fewer are given."""
        return [*given, *self.inputs[len(given) :]]


def numpy_gradient(
    formula: Formula,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    upstream: Sequence[Array],
    attrs: Mapping[str, Any] | None = None,
    op_type: str = "",
) -> list[Array | None]:
    """The dx of each input array, of its shape and dtype, or None.

    Arrays of bfloat16 are those of the package ml_dtypes. What is legal is left to the program.
    `op_type` is that of the op, which `forward` and `own` compute.
    """
    variables = {f"x{place}": value for place, value in enumerate(inputs)}
    variables |= {f"y{place}": value for place, value in enumerate(outputs)}
    variables |= {f"dy{place}": value for place, value in enumerate(upstream)}
    values = dict(formula.values)
    default = next((dy.dtype for dy in upstream if dy.dtype.name in FLOATS), None)
    read, made = ([array.dtype.name for array in arrays] for arrays in (inputs, outputs))
    is_known = not interpreter.missing(interpreter.program(formula, read, made, attrs, op_type))
    program = is_known and interpreter.gradient(formula, inputs, outputs, upstream, attrs, op_type)
    results: list[Array | None] = []
    for place, like in enumerate(inputs):
        at = 0 if formula.alike else place
        expression = formula.expressions[at]
        if expression is None or like.dtype.name not in FLOATS:
            results.append(None)
            continue
        op = TheOp(op_type, place, inputs, attrs or {})
        with np.errstate(all="ignore"):
            found = evaluate(expression, variables, values, default, op)
            results.append(_fitted(found, like))
        if program:
            same_as_program(program[place], results[-1], str(formula))
    return results


def same_as_program(found: Array | None, expected: Array | None, formula: str) -> None:
    """The program of the formula, run by the package, gives this to a few units of its dtype."""
    assert found is not None, formula
    assert expected is not None, formula
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape), formula
    wide = expected.astype(np.float64)
    finite = np.abs(wide[np.isfinite(wide)])
    limit = TOLERANCE[expected.dtype.name]
    np.testing.assert_allclose(
        found.astype(np.float64),
        wide,
        rtol=limit,
        atol=limit * max(1.0, finite.max(initial=0)),
        err_msg=formula,
    )


def evaluate(
    expression: Expression,
    variables: Mapping[str, Array],
    values: Mapping[str, Scalar | ConstantTensor],
    default: Any,
    op: TheOp,
) -> Operand:
    """The array, or the plain number or boolean, that an expression is.

    `default` is the dtype of a `where` between plain numbers, and of tensors of the rule.
    """
    done: dict[Expression, Operand] = {}

    def value_of(part: Expression) -> Operand:
        if isinstance(part, Call):
            if part not in done:
                done[part] = _call(part, value_of, default, op)
            return done[part]
        if isinstance(part, Literal):
            return part.value
        assert not isinstance(part, NumberList)
        named: dict[type, Mapping[str, Any]] = {Variable: variables, ParameterRef: values}
        value: Any = named.get(type(part), op.attrs)[part.name]
        return value.array().astype(default) if isinstance(value, ConstantTensor) else value  # type: ignore[no-any-return]

    return value_of(expression)


def option(expression: Expression, value_of: Any) -> Any:
    """An option: axes are tuples, other numbers integers, but for q."""
    if isinstance(expression, NumberList):
        return tuple(int(value_of(item)) for item in expression.items)
    value = value_of(expression)
    return value if isinstance(value, bool) or not float(value).is_integer() else int(value)


def _call(call: Call, value_of: Any, default: Any, op: TheOp) -> Operand:
    function = look_up(call.function)
    if function.name == "where":
        condition = value_of(call.arguments[0])
        if isinstance(condition, bool):
            return value_of(call.arguments[1 if condition else 2])  # type: ignore[no-any-return]
    kinds = function.kinds_of(len(call.arguments))
    operands: list[Any] = [
        np.array([int(value_of(item)) for item in argument.items])
        if isinstance(argument, NumberList)
        else value_of(argument)
        for argument in call.arguments
    ]
    if function.name in OF_THE_OP:
        return _of_the_op(call, operands, op)
    given = {name: option(value, value_of) for name, value in call.options}
    compute = FUNCTIONS.get(function.name) or getattr(np, function.name)
    if not function.options and not any(isinstance(operand, np.ndarray) for operand in operands):
        plain = [one if isinstance(one, bool) else float(one) for one in operands]
        return np.asarray(compute(*map(np.asarray, plain))).item()  # type: ignore[no-any-return]
    computed = [
        operand
        for kind, operand in zip(kinds, operands, strict=True)
        if kind in ("number", "tensor") and isinstance(operand, np.ndarray)
    ]
    dtype = computed[0].dtype if computed else np.dtype(default)
    wide = np.dtype(function.wide.get(dtype.name, dtype))
    arrays = [
        np.asarray(operand, dtype).astype(wide)
        if kind in ("number", "tensor")
        else np.asarray(operand)
        for kind, operand in zip(kinds, operands, strict=True)
    ]
    result = np.asarray(compute(*arrays, **given))
    return result.astype(dtype) if result.dtype == wide else result


def _of_the_op(call: Call, operands: Sequence[Any], op: TheOp) -> Array:
    if call.function in WINDOWS:
        return np.asarray(WINDOWS[call.function](*operands, op.attrs)).astype(operands[0].dtype)
    if call.function == "forward":
        return numpy_op_forward(op.type, op.at(operands), op.attrs)
    return numpy_op_gradient(op.type, op.place, operands[0], op.at(operands[1:]), op.attrs)


def _fitted(found: Operand, like: Array) -> Array:
    """The result in the dtype of the input, summed down or repeated to its shape."""
    value = np.asarray(found, None if isinstance(found, np.ndarray) else like.dtype)
    shape = np.broadcast_shapes(value.shape, like.shape)
    wide = SINGLE.get(value.dtype.name, value.dtype)
    total = sum_like(np.broadcast_to(value, shape).astype(wide), like)
    return total.astype(value.dtype).astype(like.dtype)


def power(base: Array, exponent: Array) -> Array:
    """`base ** exponent`; for the numbers 0.5 and -0.5 the square root, so NaN below 0."""
    if exponent.ndim == 0 and abs(exponent) == 0.5:
        root = np.sqrt(base)
        return root if exponent > 0 else 1 / root
    return np.asarray(np.power(base, exponent))


def relu(x: Array) -> Array:
    return np.maximum(x, np.zeros_like(x))


def sigmoid(x: Array) -> Array:
    tail = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, tail, np.ones_like(x)) / (1 + tail))


def softplus(x: Array) -> Array:
    return np.logaddexp(x, np.zeros_like(x))


def softmax(x: Array) -> Array:
    tops = np.exp(x - np.max(x, -1, keepdims=True))
    return np.asarray(tops / np.sum(tops, -1, keepdims=True))


def erf(x: Array) -> Array:
    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x), x.dtype)


def _reduction(ufunc: Callable[..., Array]) -> Callable[..., Array]:
    def reduce(x: Array, axes: Any = None, from_axis: int = 0, keepdims: bool = False) -> Array:
        over = tuple(range(from_axis, x.ndim)) if axes is None else axes
        return ufunc(x, axis=over, keepdims=keepdims)

    return reduce


def norm(x: Array, **options: Any) -> Array:
    return np.sqrt(_reduction(np.sum)(x * x, **options))


def sum_like(value: Array, like: Array) -> Array:
    """The value summed down to the shape of another."""
    sizes = (1,) * (value.ndim - like.ndim) + like.shape
    axes = tuple(axis for axis, size in enumerate(sizes) if size == 1)
    return np.asarray(value.sum(axis=axes, keepdims=True).reshape(like.shape))


def transpose(x: Array, perm: Sequence[int] | None = None) -> Array:
    return np.swapaxes(x, -1, -2) if perm is None else np.transpose(x, perm)


def matmul(a: Array, b: Array, transpose_a: bool = False, transpose_b: bool = False) -> Array:
    left = np.swapaxes(a, -1, -2) if transpose_a else a
    return np.asarray(left @ (np.swapaxes(b, -1, -2) if transpose_b else b))


def quantile(x: Array, q: float, from_axis: int = 0) -> Array:
    """The element at place floor(q * (n - 1)) of those in order, over the axes from this one on."""
    rows = np.sort(x.reshape(*x.shape[:from_axis], -1), axis=-1)
    found = rows[..., math.floor(q * (rows.shape[-1] - 1))]
    return found.reshape(x.shape[:from_axis] + (1,) * (x.ndim - from_axis))


def philox(counter: int, seed: int) -> list[int]:
    """Four words of 32 bits, of a counter of 128 bits and a key of 64.

    Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, 2011.
    """
    a, b, c, d = (counter >> shift & 0xFFFFFFFF for shift in (0, 32, 64, 96))
    low, high = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = second >> 32 ^ b ^ low, second, first >> 32 ^ d ^ high, first
        b, d = b & 0xFFFFFFFF, d & 0xFFFFFFFF
        low, high = low + 0x9E3779B9 & 0xFFFFFFFF, high + 0xBB67AE85 & 0xFFFFFFFF
    return [a, b, c, d]


def _unit(x: Array, seed: int) -> Array:
    """The words that TensorFlow draws first, as float32 numbers from 0 to 1."""
    second = 1 << 64  # the second seed is 1
    words = [word for n in range(-(-x.size // 4)) for word in philox(n + second, seed)]
    bits = np.array([word & 0x7FFFFF | 127 << 23 for word in words], np.uint32)
    return bits.view(np.float32) - np.float32(1)


def uniform_like(x: Array, seed: int) -> Array:
    return _unit(x, seed)[: x.size].reshape(x.shape).astype(x.dtype)


def normal_like(x: Array, seed: int) -> Array:
    """Box and Muller's formula of two numbers each."""
    unit = _unit(x, seed).reshape(-1, 2)
    length = np.sqrt(-2 * np.log(np.maximum(unit[:, 0], np.float32(1e-7))))
    angle = np.float32(2 * math.pi) * unit[:, 1]
    found = np.stack([np.sin(angle) * length, np.cos(angle) * length], 1).ravel()
    return found[: x.size].reshape(x.shape).astype(x.dtype)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "-x": np.negative},
    **{"<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal},
    **{"==": np.equal, "!=": np.not_equal, "**": power, "pow": power},
    **{"and": np.logical_and, "or": np.logical_or, "not": np.logical_not},
    **{"is_finite": np.isfinite, "is_nan": np.isnan, "round": np.rint, "erf": erf},
    "rsqrt": lambda x: 1 / np.sqrt(x),
    **{"relu": relu, "sigmoid": sigmoid, "softplus": softplus, "softmax": softmax},
    "clip": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "stop": lambda x: x,
    "cast_like": lambda value, like: value.astype(like.dtype),
    **{name: _reduction(getattr(np, name)) for name in ("sum", "mean", "max", "min")},
    "norm": norm,
    "reshape_like": lambda value, like: value.reshape(like.shape),
    "broadcast_like": lambda value, like: np.broadcast_to(value, like.shape),
    **{"sum_like": sum_like, "transpose": transpose, "matmul": matmul},
    "split": lambda x, parts, index, axis=0: np.split(x, parts, axis)[index],
    "concat": lambda *arrays, axis=0: np.concatenate(arrays, axis),
    "gather": lambda x, indices, axis=0: np.take(x, indices, axis),
    **{"quantile": quantile, "normal_like": normal_like, "uniform_like": uniform_like},
}
"""Functions of formulas; of others the name is numpy's."""


def spatial(attrs: Attrs, name: str) -> tuple[int, int]:
    """Height and width of an attr that has a number for each axis; 1 where the op has it not."""
    given = attrs.get(name) or (1, 1, 1, 1)
    first = 2 if attrs.get("data_format") == "NCHW" else 1
    return int(given[first]), int(given[first + 1])


def channels_last(x: Array, attrs: Attrs) -> Array:
    """An image with its channels last."""
    return x.transpose(0, 2, 3, 1) if attrs.get("data_format") == "NCHW" else x


def as_given(x: Array, attrs: Attrs) -> Array:
    """An image with its channels where the op has them."""
    return x.transpose(0, 3, 1, 2) if attrs.get("data_format") == "NCHW" else x


class Windows:
    """The windows of an op with these attrs, place by place, by TensorFlow's definition."""

    def __init__(self, size: Sequence[int], window: Sequence[int], attrs: Attrs) -> None:
        self.size, self.window = tuple(size), tuple(map(int, window))
        self.rows = [self._along(axis, attrs) for axis in (0, 1)]

    def _along(self, axis: int, attrs: Attrs) -> list[list[int]]:
        """The pixels of each window along one axis; those outside of the image too."""
        n, width = self.size[axis], self.window[axis]
        step, gap = spatial(attrs, "strides")[axis], spatial(attrs, "dilations")[axis]
        reach, padding = (width - 1) * gap + 1, attrs.get("padding", "VALID")
        if padding == "EXPLICIT":
            first = 2 * axis + (4 if attrs.get("data_format") == "NCHW" else 2)
            before, after = list(attrs["explicit_paddings"])[first : first + 2]
            gives = (n + before + after - reach) // step + 1
        elif padding == "SAME":
            gives = -(-n // step)
            before = max((gives - 1) * step + reach - n, 0) // 2
        else:
            gives, before = -(-(n - reach + 1) // step), 0
        return [[at * step - before + k * gap for k in range(width)] for at in range(gives)]

    def _places(self) -> Iterator[tuple[tuple[int, ...], tuple[int, int]]]:
        """Each place of the windows that is in the image, with its pixel."""
        (high, wide), (rows, columns) = self.size, self.rows
        for r, c, i, j in np.ndindex(len(rows), len(columns), *self.window):
            pixel = rows[r][i], columns[c][j]
            if 0 <= pixel[0] < high and 0 <= pixel[1] < wide:
                yield (r, c, i, j), pixel

    def of(self, image: Array, fill: float = 0.0) -> Array:
        """(batch, rows, columns, window height, window width, channels)."""
        shape = (len(image), *map(len, self.rows), *self.window, image.shape[-1])
        cut = np.full(shape, fill, image.dtype)
        for (r, c, i, j), (y, x) in self._places():
            cut[:, r, c, i, j] = image[:, y, x]
        return cut

    def image(self, windows: Array) -> Array:
        """The image whose pixels are the sums of what the windows have in their place."""
        total = np.zeros((len(windows), *self.size, windows.shape[-1]), windows.dtype)
        for (r, c, i, j), (y, x) in self._places():
            total[:, y, x] += windows[:, r, c, i, j]
        return total


def _cut(x: Array, window: Sequence[int], attrs: Attrs, fill: float = 0.0) -> Array:
    """The windows on an image as the op has it."""
    image = channels_last(x, attrs)
    return Windows(image.shape[1:3], window, attrs).of(image, fill)


def convolve(x: Array, weights: Array, attrs: Attrs) -> Array:
    cut = _cut(x, weights.shape[:2], attrs)
    return as_given(np.einsum("brcijk,ijkm->brcm", cut, weights), attrs)


def depthwise(x: Array, weights: Array, attrs: Attrs) -> Array:
    cut = _cut(x, weights.shape[:2], attrs)
    found = np.einsum("brcijk,ijkm->brckm", cut, weights)
    return as_given(found.reshape(*found.shape[:3], -1), attrs)


def average(x: Array, attrs: Attrs) -> Array:
    """AvgPool: the mean of those pixels of a window that are in the image."""
    cut = _cut(x, spatial(attrs, "ksize"), attrs, np.nan)
    return as_given(np.nanmean(cut, axis=(3, 4)), attrs)


def max_pool(x: Array, attrs: Attrs) -> Array:
    return as_given(_cut(x, spatial(attrs, "ksize"), attrs, -np.inf).max(axis=(3, 4)), attrs)


def largest_by_input(place: int, dy: Array, xs: Sequence[Array], attrs: Attrs) -> Array:
    """The gradient of MaxPool: the first of the largest pixels of a window gets it all."""
    cut = _cut(xs[0], spatial(attrs, "ksize"), attrs, -np.inf)
    rows = cut.reshape(*cut.shape[:3], -1, cut.shape[-1])
    taken = np.arange(rows.shape[3])[:, np.newaxis] == rows.argmax(axis=3)[..., np.newaxis, :]
    parts = taken * channels_last(dy, attrs)[:, :, :, np.newaxis]
    places = Windows(channels_last(xs[0], attrs).shape[1:3], spatial(attrs, "ksize"), attrs)
    return as_given(places.image(parts.astype(dy.dtype).reshape(cut.shape)), attrs)


def _bias(x: Array, bias: Array, attrs: Attrs) -> Array:
    return x + (bias.reshape(1, -1, 1, 1) if attrs.get("data_format") == "NCHW" else bias)


def _product(first: str, second: str) -> Callable[..., Array]:
    return lambda a, b, attrs: matmul(a, b, bool(attrs.get(first)), bool(attrs.get(second)))


def _reduced(reduce: Any) -> Callable[..., Array]:
    return lambda x, axes, attrs: reduce(
        x, axis=tuple(np.ravel(axes)), keepdims=bool(attrs.get("keep_dims"))
    )


def _normalised(*xs: Any) -> Array:
    (x, scale, offset, mean, variance), attrs = xs[:-1], xs[-1]
    return np.asarray((x - mean) / np.sqrt(variance + float(attrs["epsilon"])) * scale + offset)


def by_units(op: Callable[..., Array]) -> Callable[..., Array]:
    """The gradient of an op that is affine in an input: dy times what each unit gives."""

    def gradient(place: int, dy: Array, xs: Sequence[Array], attrs: Attrs) -> Array:
        wide = [x.astype(np.float64) if x.dtype.kind not in "iub" else x for x in xs]
        zeros, like = np.zeros(xs[place].shape), xs[place]
        found = np.zeros(like.size)
        origin = op(*wide[:place], zeros, *wide[place + 1 :], attrs)
        for n in range(like.size):
            unit = zeros.copy()
            unit.flat[n] = 1
            given = op(*wide[:place], unit, *wide[place + 1 :], attrs) - origin
            found[n] = (given * dy.astype(np.float64)).sum()
        return found.reshape(like.shape)

    return gradient


def _image_of(sizes: Any, weights: Array, dy: Array, attrs: Attrs, op: Any = convolve) -> Array:
    """The gradient of a convolution by an image of this shape."""
    return by_units(op)(0, dy, [np.zeros(tuple(sizes)), weights], attrs)


WINDOWS: Mapping[str, Callable[..., Any]] = {
    "conv2d": convolve,
    "conv2d_transpose": lambda dy, w, x, attrs: _image_of(x.shape, w, dy, attrs),
    "depthwise_conv2d": depthwise,
    "depthwise_conv2d_transpose": lambda dy, w, x, attrs: _image_of(
        x.shape, w, dy, attrs, depthwise
    ),
    "avg_pool": average,
    "avg_pool_transpose": lambda dy, x, attrs: by_units(average)(0, dy, [x], attrs),
    "max_pool": max_pool,
    "max_pool_transpose": lambda dy, x, attrs: largest_by_input(0, dy, [x], attrs),
    "bias_add": _bias,
}

SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.7580993408473768


def numpy_op_forward(op_type: str, xs: Sequence[Array], attrs: Attrs) -> Array:
    """Output 0 of an op."""
    dtype = next((x.dtype for x in xs if x.dtype.kind not in "iu"), xs[0].dtype)
    return np.asarray(FORWARD[op_type](*xs, attrs)).astype(dtype)


def numpy_op_gradient(
    op_type: str, place: int, dy: Array, xs: Sequence[Array], attrs: Attrs
) -> Array:
    """The gradient of an op by one of its inputs; of a foreign type it is that of a linear op."""
    gradient = GRADIENTS.get(op_type) or by_units(FORWARD[op_type])
    return np.asarray(gradient(place, dy, xs, attrs)).astype(dy.dtype)


def _softmax_gradient(place: int, dy: Array, xs: Sequence[Array], attrs: Attrs) -> Array:
    y = softmax(xs[0])
    return np.asarray((dy - (dy * y).sum(axis=-1, keepdims=True)) * y)


def _exp(x: Array) -> Array:
    return np.asarray(np.exp(np.minimum(x, 0)))


_ELEMENTWISE: Mapping[str, tuple[Any, Any]] = {
    "Relu": (lambda x, _: relu(x), lambda x, _: x > 0),
    "Relu6": (lambda x, _: np.clip(x, 0, 6), lambda x, _: (x > 0) & (x < 6)),
    "LeakyRelu": (
        lambda x, a: np.where(x > 0, x, x * a["alpha"]),
        lambda x, a: np.where(x > 0, 1, a["alpha"]),
    ),
    "Elu": (lambda x, _: np.where(x < 0, np.expm1(x), x), lambda x, _: _exp(x)),
    "Selu": (
        lambda x, _: np.where(x < 0, SELU_ALPHA * np.expm1(x), SELU_SCALE * x),
        lambda x, _: np.where(x < 0, SELU_ALPHA * _exp(x), SELU_SCALE),
    ),
    "Softplus": (lambda x, _: softplus(x), lambda x, _: sigmoid(x)),
    "Softsign": (lambda x, _: x / (1 + abs(x)), lambda x, _: 1 / np.square(1 + abs(x))),
    "Sigmoid": (lambda x, _: sigmoid(x), lambda x, _: sigmoid(x) * sigmoid(-x)),
    "Tanh": (lambda x, _: np.tanh(x), lambda x, _: 1 - np.square(np.tanh(x))),
    "Identity": (lambda x, _: x, lambda x, _: np.ones_like(x)),
}

_PAIRS: Mapping[str, tuple[Any, Any, Any]] = {
    **dict.fromkeys(("Add", "AddV2"), (np.add, lambda a, b: 1, lambda a, b: 1)),
    "Sub": (np.subtract, lambda a, b: 1, lambda a, b: -1),
    "Mul": (np.multiply, lambda a, b: b, lambda a, b: a),
    **dict.fromkeys(
        ("RealDiv", "Div"), (np.divide, lambda a, b: 1 / b, lambda a, b: -a / np.square(b))
    ),
    "Maximum": (np.maximum, np.greater_equal, np.less),
    "Minimum": (np.minimum, np.less_equal, np.greater),
    "Pow": (np.power, lambda a, b: b * a ** (b - 1), lambda a, b: a**b * np.log(a)),
    "SquaredDifference": (
        lambda a, b: (a - b) ** 2,
        lambda a, b: 2 * (a - b),
        lambda a, b: 2 * (b - a),
    ),
}


FORWARD: Mapping[str, Callable[..., Any]] = {
    **{name: of for name, (of, _) in _ELEMENTWISE.items()},
    **{name: lambda a, b, _, of=of: of(a, b) for name, (of, *_) in _PAIRS.items()},
    "MatMul": _product("transpose_a", "transpose_b"),
    **dict.fromkeys(("BatchMatMul", "BatchMatMulV2"), _product("adj_x", "adj_y")),
    **{"Conv2D": convolve, "DepthwiseConv2dNative": depthwise, "BiasAdd": _bias},
    "Conv2DBackpropInput": _image_of,
    **{"AvgPool": average, "MaxPool": max_pool, "Sum": _reduced(np.sum), "Mean": _reduced(np.mean)},
    **dict.fromkeys(("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"), _normalised),
    **{"Softmax": lambda x, _: softmax(x), "Sign": lambda x, _: np.sign(x)},
}


def _slope(of: Any) -> Callable[..., Any]:
    """Of an op that works element by element: dy times the derivative at x."""
    return lambda place, dy, xs, attrs: dy * of(xs[0], attrs)


def _of_two(*slopes: Any) -> Callable[..., Any]:
    """Of an op of a and b: dy times these functions of a and b, summed to their shapes."""
    return lambda place, dy, xs, attrs: sum_like(
        dy * slopes[place](*np.broadcast_arrays(*xs)), xs[place]
    )


GRADIENTS: Mapping[str, Callable[..., Any]] = {
    **{name: _slope(slope) for name, (_, slope) in _ELEMENTWISE.items()},
    **{name: _of_two(*slopes) for name, (_, *slopes) in _PAIRS.items()},
    **{"MaxPool": largest_by_input, "Softmax": _softmax_gradient},
}
"""Those of ops that are not linear in their inputs."""

"""`forward` and `own` of formulas in numpy: op types, and their gradients, by definition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from graphpatch.errors import FormulaError
from graphpatch.gradients import numpy_functions as functions
from graphpatch.gradients import numpy_windows as windows
from graphpatch.gradients.numpy_functions import Array, sum_like
from graphpatch.gradients.numpy_windows import Attrs
from graphpatch.gradients.windows import check_windows

ForwardFunction = Callable[..., Array]
NumpyGradient = Callable[[int, Array, Sequence[Array], Attrs], Array]

SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.7580993408473768


def numpy_op_forward(op_type: str, xs: Sequence[Array], attrs: Attrs) -> Array:
    """Output 0 of an op. Raises FormulaError for an op type that is not here."""
    if op_type not in NUMPY_FORWARD:
        raise FormulaError(f"numpy has no {op_type}; there is: {', '.join(NUMPY_FORWARD)}")
    dtype = next((x.dtype for x in xs if x.dtype.kind not in "iu"), xs[0].dtype)
    return np.asarray(NUMPY_FORWARD[op_type](*xs, attrs)).astype(dtype)


def numpy_op_gradient(
    op_type: str, place: int, dy: Array, xs: Sequence[Array], attrs: Attrs
) -> Array:
    """The gradient of an op by one of its inputs. Raises FormulaError as `forward` does."""
    if op_type not in NUMPY_GRADIENTS:
        raise FormulaError(
            f"numpy has no gradient of {op_type}; there is: {', '.join(NUMPY_GRADIENTS)}"
        )
    return np.asarray(NUMPY_GRADIENTS[op_type](place, dy, xs, attrs)).astype(dy.dtype)


NUMPY_WINDOWS: Mapping[str, ForwardFunction] = {
    "conv2d": windows.convolve,
    "conv2d_transpose": lambda dy, w, x, attrs: windows.by_input(dy, w, x.shape, attrs),
    "depthwise_conv2d": lambda x, w, attrs: windows.convolve(x, w, attrs, depthwise=True),
    "depthwise_conv2d_transpose": lambda dy, w, x, attrs: windows.by_input(
        dy, w, x.shape, attrs, depthwise=True
    ),
    "avg_pool": windows.average,
    "avg_pool_transpose": lambda dy, x, attrs: windows.average_by_input(x, dy, attrs),
    "max_pool": windows.max_pool,
    "max_pool_transpose": lambda dy, x, attrs: windows.largest_by_input(x, dy, attrs),
    "bias_add": lambda x, bias, attrs: x + _channels(bias, attrs),
}


def numpy_windowed(function: str, given: Sequence[Array], attrs: Attrs) -> Array:
    """A function of formulas with the windows of an op. Raises FormulaError where it has none."""
    check_windows(function, attrs)
    return np.asarray(NUMPY_WINDOWS[function](*given, attrs)).astype(given[0].dtype)


def _matrices(first: str, second: str) -> tuple[ForwardFunction, NumpyGradient]:
    def of(a: Array, b: Array, attrs: Attrs) -> Array:
        return functions.matmul(a, b, bool(attrs.get(first)), bool(attrs.get(second)))

    def numpy_op_gradient(place: int, dy: Array, xs: Sequence[Array], attrs: Attrs) -> Array:
        a, b = (
            np.swapaxes(x, -1, -2) if attrs.get(name) else x
            for x, name in zip(xs, (first, second), strict=True)
        )
        found = dy @ np.swapaxes(b, -1, -2) if place == 0 else np.swapaxes(a, -1, -2) @ dy
        turned = np.swapaxes(found, -1, -2) if attrs.get((first, second)[place]) else found
        return sum_like(turned, xs[place])

    return of, numpy_op_gradient


def _convolved(depthwise: bool) -> tuple[ForwardFunction, NumpyGradient]:
    def of(x: Array, weights: Array, attrs: Attrs) -> Array:
        return windows.convolve(x, weights, attrs, depthwise)

    def numpy_op_gradient(place: int, dy: Array, xs: Sequence[Array], attrs: Attrs) -> Array:
        x, weights = xs
        if place == 0:
            return windows.by_input(dy, weights, x.shape, attrs, depthwise)
        return windows.by_filter(x, dy, weights.shape, attrs, depthwise)

    return of, numpy_op_gradient


def _transposed(place: int, dy: Array, xs: Sequence[Array], attrs: Attrs) -> Array:
    if place == 2:
        return windows.convolve(dy, xs[1], attrs)
    return windows.by_filter(dy, xs[2], xs[1].shape, attrs)


def _channels(bias: Array, attrs: Attrs) -> Array:
    return bias.reshape(1, -1, 1, 1) if attrs.get("data_format") == "NCHW" else bias


def _bias(place: int, dy: Array, xs: Sequence[Array], attrs: Attrs) -> Array:
    return dy if place == 0 else sum_like(dy, _channels(xs[1], attrs)).reshape(-1)


def _reduced(mean: bool) -> tuple[ForwardFunction, NumpyGradient]:
    reduce: Any = np.mean if mean else np.sum

    def of(x: Array, axes: Array, attrs: Attrs) -> Array:
        kept = bool(attrs.get("keep_dims"))
        return np.asarray(reduce(x, axis=tuple(np.ravel(axes)), keepdims=kept))

    def numpy_op_gradient(place: int, dy: Array, xs: Sequence[Array], attrs: Attrs) -> Array:
        x, axes = xs
        whole = dy.reshape(x.sum(axis=tuple(np.ravel(axes)), keepdims=True).shape)
        return np.broadcast_to(whole * (dy.size / x.size if mean else 1), x.shape)

    return of, numpy_op_gradient


def _normalised(*xs: Any) -> Array:
    (x, scale, offset, mean, variance), attrs = xs[:-1], xs[-1]
    found: Array = (x - mean) / np.sqrt(variance + float(attrs["epsilon"])) * scale + offset
    return found


def _normalised_own(place: int, dy: Array, xs: Sequence[Array], attrs: Attrs) -> Array:
    found: Array = dy * (xs[1] / np.sqrt(xs[4] + float(attrs["epsilon"])))
    return found


def _slope(of: Callable[[Array, Attrs], Array]) -> NumpyGradient:
    """Of an op that works element by element: dy times the derivative at x."""
    return lambda place, dy, xs, attrs: dy * of(xs[0], attrs)


def _exp(x: Array) -> Array:
    found: Array = np.exp(np.minimum(x, 0))
    return found


def _softmax(x: Array, attrs: Attrs) -> Array:
    tops = np.exp(x - x.max(axis=-1, keepdims=True))
    found: Array = tops / tops.sum(axis=-1, keepdims=True)
    return found


def _softmax_own(place: int, dy: Array, xs: Sequence[Array], attrs: Attrs) -> Array:
    y = _softmax(xs[0], attrs)
    found: Array = (dy - (dy * y).sum(axis=-1, keepdims=True)) * y
    return found


def _of_two(first: Any, second: Any) -> NumpyGradient:
    """Of an op of a and b: dy times these functions of a and b, summed to their shapes."""
    return lambda place, dy, xs, attrs: sum_like(
        dy * (first, second)[place](*np.broadcast_arrays(*xs)), xs[place]
    )


_ELEMENTWISE: Mapping[str, tuple[Any, Any]] = {
    "Relu": (lambda x, _: functions.relu(x), lambda x, _: x > 0),
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
    "Softplus": (lambda x, _: functions.softplus(x), lambda x, _: functions.sigmoid(x)),
    "Softsign": (lambda x, _: x / (1 + abs(x)), lambda x, _: 1 / np.square(1 + abs(x))),
    "Sigmoid": (
        lambda x, _: functions.sigmoid(x),
        lambda x, _: functions.sigmoid(x) * functions.sigmoid(-x),
    ),
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
}


def _ignoring_attrs(of: Any) -> ForwardFunction:
    return lambda a, b, _: of(a, b)


_BOTH: Mapping[str, tuple[ForwardFunction, NumpyGradient]] = {
    "MatMul": _matrices("transpose_a", "transpose_b"),
    **dict.fromkeys(("BatchMatMul", "BatchMatMulV2"), _matrices("adj_x", "adj_y")),
    "Conv2D": _convolved(depthwise=False),
    "DepthwiseConv2dNative": _convolved(depthwise=True),
    "BiasAdd": (lambda x, bias, attrs: x + _channels(bias, attrs), _bias),
    "AvgPool": (
        windows.average,
        lambda place, dy, xs, attrs: windows.average_by_input(xs[0], dy, attrs),
    ),
    "MaxPool": (
        windows.max_pool,
        lambda place, dy, xs, attrs: windows.largest_by_input(xs[0], dy, attrs),
    ),
    "Sum": _reduced(mean=False),
    "Mean": _reduced(mean=True),
    **dict.fromkeys(
        ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"), (_normalised, _normalised_own)
    ),
    "Softmax": (_softmax, _softmax_own),
    **{name: (of, _slope(slope)) for name, (of, slope) in _ELEMENTWISE.items()},
    **{name: (_ignoring_attrs(of), _of_two(*slopes)) for name, (of, *slopes) in _PAIRS.items()},
}

NUMPY_FORWARD: Mapping[str, ForwardFunction] = {
    **{name: of for name, (of, _) in _BOTH.items()},
    "Conv2DBackpropInput": lambda sizes, weights, x, attrs: windows.by_input(
        x, weights, tuple(sizes), attrs
    ),
}
NUMPY_GRADIENTS: Mapping[str, NumpyGradient] = {
    **{name: gradient for name, (_, gradient) in _BOTH.items()},
    "Conv2DBackpropInput": _transposed,
}

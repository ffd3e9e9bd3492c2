"""Convolution, pooling and their transposes by name, with the op's own attrs.

The op is the one that the gradient is for or, in a match as one op, its convolution or pooling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from graphpatch.errors import FormulaError
from graphpatch.gradients.own_at import OpCall
from graphpatch.gradients.program import Program, Value
from graphpatch.gradients.signature import Signature


def _by_op(op_type: str) -> Callable[[OpCall], Value]:
    return lambda at: at.op(op_type, *at.xs)


def _image_gradient(op_type: str) -> Callable[[OpCall], Value]:
    """Of (dy, filter, x): an image of the shape of x."""
    return lambda at: at.op(op_type, at.sizes(2), at.xs[1], at.xs[0], shape=at.xs[2].shape)


def _mean_back(at: OpCall) -> Value:
    dy, x = at.xs
    return at.op("AvgPoolGrad", at.sizes(1), dy, shape=x.shape)


def _largest_back(at: OpCall) -> Value:
    dy, x = at.xs
    return at.op("MaxPoolGrad", x, at.op("MaxPool", x), dy, shape=x.shape)


WINDOWS: Mapping[str, tuple[str, Callable[[OpCall], Value]]] = {
    "conv2d": ("strides", _by_op("Conv2D")),
    "conv2d_transpose": ("strides", _image_gradient("Conv2DBackpropInput")),
    "depthwise_conv2d": ("strides", _by_op("DepthwiseConv2dNative")),
    "depthwise_conv2d_transpose": (
        "strides",
        _image_gradient("DepthwiseConv2dNativeBackpropInput"),
    ),
    "avg_pool": ("ksize", lambda at: at.op("AvgPool", *at.xs)),
    "avg_pool_transpose": ("ksize", _mean_back),
    "max_pool": ("ksize", lambda at: at.op("MaxPool", *at.xs)),
    "max_pool_transpose": ("ksize", _largest_back),
    "bias_add": ("", lambda at: at.op("BiasAdd", *at.xs, shape=at.xs[0].shape)),
}
"""By name, the attr without which there is no such op, and what it is made of."""


def windowed(
    program: Program, signature: Signature, function: str, given: Sequence[Value]
) -> Value:
    """What a function of this name computes. Raises FormulaError where the op has no windows."""
    check_windows(function, signature.attrs)
    dtypes = {one.dtype for one in given}
    if len(dtypes) > 1:
        raise FormulaError(f"{function} meets {', '.join(sorted(dtypes))}; write: cast_like(...)")
    return WINDOWS[function][1](OpCall(program, signature, tuple(given)))


def check_windows(function: str, attrs: Mapping[str, object]) -> None:
    """Raise FormulaError where an op of these attrs has not what a function takes from it."""
    needed, _ = WINDOWS[function]
    if needed and needed not in attrs:
        raise FormulaError(
            f"{function} takes {needed} and padding from the op, or from the one convolution or "
            f"pooling of a match as one op; here is none"
        )

"""Functions of the formula language that numpy lacks, or has under other rules.

Arrays come in the dtype that the function is computed in; options come by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]


def numpy_function(name: str) -> Callable[..., Any]:
    """The function of this name: one of this file, or else numpy's."""
    from graphpatch.gradients import numpy_along

    own: dict[str, Callable[..., Any]] = _OWN
    return own.get(name) or getattr(numpy_along, name, None) or getattr(np, name)


def power(base: Array, exponent: Array) -> Array:
    """`base ** exponent`; for the numbers 0.5 and -0.5 the square root, so NaN below 0."""
    if exponent.ndim == 0 and abs(exponent) == 0.5:
        return np.sqrt(base) if exponent > 0 else rsqrt(base)
    found: Array = np.power(base, exponent)
    return found


def rsqrt(x: Array) -> Array:
    """1 / sqrt(x)."""
    return 1 / np.sqrt(x)


def relu(x: Array) -> Array:
    """The positive part: x where positive, else 0; NaN for NaN."""
    return np.maximum(x, np.zeros_like(x))


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), which does not overflow."""
    tail = np.exp(-np.abs(x))
    larger: Array = np.where(x < 0, tail, np.ones_like(x))
    found: Array = larger / (1 + tail)
    return found


def softplus(x: Array) -> Array:
    """log(1 + exp(x)), which does not overflow."""
    return np.logaddexp(x, np.zeros_like(x))


def erf(x: Array) -> Array:
    """The error function, element by element."""
    found: Array = np.vectorize(math.erf, otypes=[np.float64])(x)
    return found.astype(x.dtype)


def clip(x: Array, low: Array, high: Array) -> Array:
    """The nearest to x within low and high; high where these are the wrong way round."""
    return np.minimum(np.maximum(x, low), high)


def stop(x: Array) -> Array:
    """X itself: there is nothing to stop here."""
    return x


def cast_like(value: Array, like: Array) -> Array:
    """The value in the dtype of another."""
    return value.astype(like.dtype)


def _reduced_axes(x: Array, axes: Sequence[int] | None, from_axis: int) -> tuple[int, ...]:
    return tuple(axes) if axes is not None else tuple(range(from_axis, x.ndim))


def _reduction(ufunc: Callable[..., Array]) -> Callable[..., Array]:
    def reduce(
        x: Array,
        axes: Sequence[int] | None = None,
        from_axis: int = 0,
        keepdims: bool = False,
    ) -> Array:
        return ufunc(x, axis=_reduced_axes(x, axes, from_axis), keepdims=keepdims)

    return reduce


def norm(x: Array, **options: Any) -> Array:
    """The Euclidean norm: the square root of the sum of squares."""
    return np.sqrt(_reduction(np.sum)(x * x, **options))


def reshape_like(value: Array, like: Array) -> Array:
    """The value with the shape of another."""
    return value.reshape(like.shape)


def broadcast_like(value: Array, like: Array) -> Array:
    """The value repeated up to the shape of another."""
    return np.broadcast_to(value, like.shape)


def sum_like(value: Array, like: Array) -> Array:
    """The value summed down to the shape of another."""
    sizes = (1,) * (value.ndim - like.ndim) + like.shape
    axes = tuple(axis for axis, size in enumerate(sizes) if size == 1)
    total: Array = value.sum(axis=axes, keepdims=True)
    return total.reshape(like.shape)


def transpose(x: Array, perm: Sequence[int] | None = None) -> Array:
    """The axes in the order of perm; the last two swapped without."""
    return np.swapaxes(x, -1, -2) if perm is None else np.transpose(x, perm)


def matmul(a: Array, b: Array, transpose_a: bool = False, transpose_b: bool = False) -> Array:
    """The matrix product over the last two axes."""
    left = np.swapaxes(a, -1, -2) if transpose_a else a
    right = np.swapaxes(b, -1, -2) if transpose_b else b
    product: Array = np.matmul(left, right)
    return product


_OWN: dict[str, Callable[..., Any]] = {
    "pow": power,
    "rsqrt": rsqrt,
    "relu": relu,
    "sigmoid": sigmoid,
    "softplus": softplus,
    "erf": erf,
    "clip": clip,
    "stop": stop,
    "cast_like": cast_like,
    "sum": _reduction(np.sum),
    "mean": _reduction(np.mean),
    "max": _reduction(np.max),
    "min": _reduction(np.min),
    "norm": norm,
    "reshape_like": reshape_like,
    "broadcast_like": broadcast_like,
    "sum_like": sum_like,
    "transpose": transpose,
    "matmul": matmul,
}

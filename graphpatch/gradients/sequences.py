"""Functions of the formula language that take more than one TensorFlow op.

Each op is known to TensorFlow 1.15 and 2.x. NaN passes through by comparisons and SelectV2, not by
Maximum, Minimum, Max, Min and Sign: TensorFlow 1.15 computes these without looking for NaN. What
TensorFlow's optimiser would rewrite without regard to NaN and infinities is spelled otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from graphpatch.gradients.ops import SCALAR, UNKNOWN, BroadcastShape, Value, op

_ERF_IS_ONE = 30.0
SEED_2 = 1
"""The second seed: with both 0, TensorFlow would draw other numbers in each process."""


def power(base: Value, exponent: Value) -> Value:
    """Return `base ** exponent`, for the numbers 2, 0.5 and -0.5 by Square, Sqrt and Rsqrt.

    The optimiser would do the same, but take roots in float32.
    """
    if exponent.number == 2:
        return op("Square", base)
    if exponent.number in (0.5, -0.5):
        root = "Sqrt" if exponent.number > 0 else "Rsqrt"
        return op(root, base.cast("float64")).cast(base.dtype)
    return op("Pow", base, exponent)


def contrary(condition: Value) -> Value:
    """Negate a condition.

    The optimiser takes LogicalNot of `a < b` for `a >= b`, which is wrong about NaN.
    """
    return op("SelectV2", condition, False, True)


def maximum(a: Value, b: Value) -> Value:
    """Return the larger of the two, NaN where one is."""
    return _extremum("Greater", a, b)


def minimum(a: Value, b: Value) -> Value:
    """Return the smaller of the two, NaN where one is."""
    return _extremum("Less", a, b)


def _extremum(beats: str, a: Value, b: Value) -> Value:
    """Return the one that `beats` the other; b where neither does, as one may be NaN."""
    if _is_number(b):
        a, b = b, a
    wins = op(beats, a, b)
    if not _is_number(a):
        wins = op("LogicalOr", wins, op("IsNan", a))
    return op("SelectV2", wins, a, b)


def _is_number(value: Value) -> bool:
    return value.constant is not None and not any(map(math.isnan, value.constant.numbers))


def clip(x: Value, low: Value, high: Value) -> Value:
    """Return `minimum(maximum(x, low), high)`."""
    return minimum(maximum(x, low), high)


def sign(x: Value) -> Value:
    """Return -1, 0 or 1, NaN for NaN."""
    return op("SelectV2", op("IsNan", x), x, op("Sign", x))


def erf(x: Value) -> Value:
    """Return the error function, which TensorFlow 2.21 gives as NaN for infinite doubles."""
    if x.dtype == "float64":
        low, high = (x.program.scalar(end, x.dtype) for end in (-_ERF_IS_ONE, _ERF_IS_ONE))
        x = clip(x, low, high)
    return op("Erf", x)


def cast_like(value: Value, like: Value) -> Value:
    """Return the value in the dtype of another."""
    return value.cast(like.dtype)


def reshape_like(value: Value, like: Value) -> Value:
    """Return the value with the shape of another that has as many elements."""
    return op("Reshape", value, like.sizes, shape=like.shape)


def broadcast_like(value: Value, like: Value) -> Value:
    """Repeat the value up to the shape of another."""
    return op("BroadcastTo", value, like.sizes, shape=like.shape)


def sum_like(value: Value, like: Value) -> Value:
    """Sum the value down to the shape of another, over the axes where that is repeated."""
    return sum_to(value, like.sizes, value.sizes, like.shape)


def sum_to(value: Value, shape: Value, sizes: Value, known: BroadcastShape) -> Value:
    """Sum a value of these sizes down to a shape of which this much is known."""
    total = op("Sum", value, op("BroadcastGradientArgs", shape, sizes), keep_dims=False)
    return op("Reshape", total, shape, shape=known)


def transpose(x: Value, perm: Sequence[int] | None = None) -> Value:
    """Put the axes in the order of `perm`; swap the last two where it is silent."""
    if perm is not None:
        return op("Transpose", x, x.program.vector(*perm))
    rank = op("Rank", x, shape=SCALAR)  # the order is 0, 1, ..., rank - 1, rank - 2
    ends, before = rank - x.program.vector(1, 2), rank - 2
    axes = op("Range", rank.like(0), before, 1)
    return op("Transpose", x, op("ConcatV2", (axes, ends), rank.like(0)))


def matmul(a: Value, b: Value, transpose_a: bool = False, transpose_b: bool = False) -> Value:
    """Multiply matrices over the last two axes; the axes before them are broadcast."""
    return op("BatchMatMulV2", a, b, adj_x=transpose_a, adj_y=transpose_b)


Reduced = Callable[[str, Value], Value]
"""What reduces a value by an op of this type, over the axes that are asked for."""


def extreme(op_type: str) -> Callable[[Reduced, Value], Value]:
    """Reduce by Max or Min, to NaN where `Any` finds one among the elements."""

    def reduce(by: Reduced, x: Value) -> Value:
        extremum, spoilt = by(op_type, x), by("Any", op("IsNan", x))
        return op("SelectV2", spoilt, x.like(math.nan), extremum)

    return reduce


def euclidean(by: Reduced, x: Value) -> Value:
    """Reduce to the square root of the sum of squares."""
    return op("Sqrt", by("Sum", op("Square", x)))


def reduction(reduce: Callable[[Reduced, Value], Value]) -> Callable[..., Value]:
    """Return a function that reduces over the given axes, over all from one on, or over all."""

    def build(
        x: Value, axes: Sequence[int] | None = None, from_axis: int = 0, keepdims: bool = False
    ) -> Value:
        if axes is not None:
            over = x.program.vector(*axes)
        else:
            first, step = (x.program.scalar(number, "int32") for number in (from_axis, 1))
            over = op("Range", first, op("Rank", x, shape=SCALAR), step)
        shape = SCALAR if axes is None and from_axis == 0 else UNKNOWN
        if keepdims:
            shape = BroadcastShape(x.shape.most, frozenset())
        return reduce(lambda kind, value: op(kind, value, over, shape=shape, keep_dims=keepdims), x)

    return build


def joined(*vectors: Value) -> Value:
    """Join vectors of int32 to one."""
    if len(vectors) == 1:
        return vectors[0]
    return op("ConcatV2", vectors, vectors[0].like(0))


def part_of(sizes: Value, start: int, stop: int | None) -> Value:
    """Cut a vector from `start` to `stop`, or to its end."""
    ends = map(sizes.program.vector, (start, stop or 0, 1))
    to_end: dict[str, Any] = {"end_mask": 1} if stop is None else {}
    return op("StridedSlice", sizes, *ends, **to_end)


def size_along(sizes: Value, axis: int) -> Value:
    """Return the size along an axis, a vector of one int32."""
    return part_of(sizes, axis, None if axis == -1 else axis + 1)


def before_axis(sizes: Value, axis: int) -> list[Value]:
    """Return the sizes before an axis."""
    return [part_of(sizes, 0, axis)] if axis else []


def split(x: Value, parts: int, index: int, axis: int = 0) -> Value:
    """Return part `index` of `parts` equal ones: raises, as it runs, where they are not equal."""
    if index >= parts:
        raise ValueError(f"index counts from 0 to {parts - 1}, and this is {index}")
    part = op("Split", x.program.scalar(axis, "int32"), x, num_split=parts)
    return replace(part, output=index)


def concat(*tensors: Value, axis: int = 0) -> Value:
    """Join tensors along an axis."""
    return op("ConcatV2", tensors, tensors[0].program.scalar(axis, "int32"))


def gather(x: Value, indices: Value, axis: int = 0) -> Value:
    """Take the parts of x at these indices along an axis."""
    return op("GatherV2", x, indices, x.program.scalar(axis, "int32"))


def quantile(x: Value, q: float, from_axis: int = 0) -> Value:
    """Return element floor(q * (n - 1)) of the n in order, along one axis of size 1 each."""
    sizes, vector = x.sizes, x.program.vector
    lead, rest = before_axis(sizes, from_axis), part_of(sizes, from_axis, None)
    rows = op("Reshape", x, joined(*lead, vector(-1)))
    count = op("Reshape", size_along(rows.sizes, -1), vector(), shape=SCALAR)
    place = op("Floor", (count.cast("float64") - 1.0) * q)
    element = op("NthElement", rows, place.cast("int32"))
    return op("Reshape", element, joined(*lead, op("OnesLike", rest)))


def random_like(op_type: str) -> Callable[..., Value]:
    """Return what draws numbers by an op of this type, in the shape and dtype of x."""

    def drawn(x: Value, seed: int) -> Value:
        seeds = {"seed": seed, "seed2": SEED_2}
        return op(op_type, x.sizes, shape=x.shape, dtype="float32", **seeds).cast(x.dtype)

    return drawn

"""Functions of the formula language that take more than one TensorFlow op.

Each op is known to TensorFlow 1.15 and 2.x. NaN passes through by comparisons and SelectV2, not by
Maximum, Minimum, Max, Min and Sign: TensorFlow 1.15 computes these without looking for NaN. What
TensorFlow's optimiser would rewrite without regard to NaN and infinities is spelled otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from graphpatch.gradients.ops import SCALAR, UNKNOWN, BroadcastShape, Program, Value

_ERF_IS_ONE = 30.0
SEED_2 = 1
"""The second seed: with both 0, TensorFlow would draw other numbers in each process."""


def power(program: Program, base: Value, exponent: Value) -> Value:
    """Return `base ** exponent`, for the numbers 2, 0.5 and -0.5 by Square, Sqrt and Rsqrt.

    The optimiser would do the same, but take roots in float32.
    """
    known = exponent.constant
    number = known.numbers[0] if known is not None and not known.shape else None
    if number == 2:
        return program.op("Square", base)
    if number in (0.5, -0.5):
        root = program.op("Sqrt" if number > 0 else "Rsqrt", program.cast(base, "float64"))
        return program.cast(root, base.dtype)
    return program.op("Pow", base, exponent)


def contrary(program: Program, condition: Value) -> Value:
    """Negate a condition.

    The optimiser takes LogicalNot of `a < b` for `a >= b`, which is wrong about NaN.
    """
    false, true = program.scalar(False, "bool"), program.scalar(True, "bool")
    return program.op("SelectV2", condition, false, true)


def maximum(program: Program, a: Value, b: Value) -> Value:
    """Return the larger of the two, NaN where one is."""
    return _extremum(program, "Greater", a, b)


def minimum(program: Program, a: Value, b: Value) -> Value:
    """Return the smaller of the two, NaN where one is."""
    return _extremum(program, "Less", a, b)


def _extremum(program: Program, beats: str, a: Value, b: Value) -> Value:
    """Return the one that `beats` the other; b where neither does, as one may be NaN."""
    if _is_number(b):
        a, b = b, a
    wins = program.op(beats, a, b)
    if not _is_number(a):
        wins = program.op("LogicalOr", wins, program.op("IsNan", a))
    return program.op("SelectV2", wins, a, b)


def _is_number(value: Value) -> bool:
    return value.constant is not None and not any(map(math.isnan, value.constant.numbers))


def clip(program: Program, x: Value, low: Value, high: Value) -> Value:
    """Return `minimum(maximum(x, low), high)`."""
    return minimum(program, maximum(program, x, low), high)


def sign(program: Program, x: Value) -> Value:
    """Return -1, 0 or 1, NaN for NaN."""
    return program.op("SelectV2", program.op("IsNan", x), x, program.op("Sign", x))


def erf(program: Program, x: Value) -> Value:
    """Return the error function, which TensorFlow 2.21 gives as NaN for infinite doubles."""
    if x.dtype == "float64":
        low, high = (program.scalar(end, x.dtype) for end in (-_ERF_IS_ONE, _ERF_IS_ONE))
        x = clip(program, x, low, high)
    return program.op("Erf", x)


def cast_like(program: Program, value: Value, like: Value) -> Value:
    """Return the value in the dtype of another."""
    return program.cast(value, like.dtype)


def reshape_like(program: Program, value: Value, like: Value) -> Value:
    """Return the value with the shape of another that has as many elements."""
    return program.op("Reshape", value, program.shape_of(like), shape=like.shape)


def broadcast_like(program: Program, value: Value, like: Value) -> Value:
    """Repeat the value up to the shape of another."""
    return program.op("BroadcastTo", value, program.shape_of(like), shape=like.shape)


def sum_like(program: Program, value: Value, like: Value, sizes: Value | None = None) -> Value:
    """Sum the value down to the shape of another, over the axes where that is repeated.

    `sizes` are those of the value, where they are at hand.
    """
    shape = program.shape_of(like)
    return sum_to(program, value, shape, sizes or program.shape_of(value), like.shape)


def sum_to(
    program: Program, value: Value, shape: Value, sizes: Value, known: BroadcastShape
) -> Value:
    """Sum a value of these sizes down to a shape of which this much is known."""
    axes = program.op("BroadcastGradientArgs", shape, sizes, shape=UNKNOWN)
    total = program.op("Sum", value, axes, shape=UNKNOWN, keep_dims=False)
    return program.op("Reshape", total, shape, shape=known)


def transpose(program: Program, x: Value, perm: Sequence[int] | None = None) -> Value:
    """Put the axes in the order of `perm`; swap the last two where it is silent."""
    if perm is not None:
        order = program.vector(*perm)
    else:  # 0, 1, ..., rank - 1, rank - 2
        rank = program.op("Rank", x, shape=SCALAR)
        ends = program.op("Sub", rank, program.vector(1, 2), shape=UNKNOWN)
        before = program.op("Sub", rank, program.scalar(2, "int32"))
        zero, one = program.scalar(0, "int32"), program.scalar(1, "int32")
        others = program.op("Range", zero, before, one, shape=UNKNOWN)
        order = program.op("ConcatV2", (others, ends), zero, shape=UNKNOWN)
    return program.op("Transpose", x, order, shape=UNKNOWN)


def matmul(
    program: Program, a: Value, b: Value, transpose_a: bool = False, transpose_b: bool = False
) -> Value:
    """Multiply matrices over the last two axes; the axes before them are broadcast."""
    return program.op("BatchMatMulV2", a, b, shape=UNKNOWN, adj_x=transpose_a, adj_y=transpose_b)


Reduce = Callable[[Program, Value, Value, BroadcastShape, bool], Value]


def by_op(op_type: str) -> Reduce:
    """Reduce by one op."""
    return lambda program, x, over, shape, keepdims: program.op(
        op_type, x, over, shape=shape, keep_dims=keepdims
    )


def extreme(op_type: str) -> Reduce:
    """Reduce by Max or Min, to NaN where `Any` finds one among the elements."""

    def reduce(
        program: Program, x: Value, over: Value, shape: BroadcastShape, keepdims: bool
    ) -> Value:
        extremum = by_op(op_type)(program, x, over, shape, keepdims)
        spoilt = by_op("Any")(program, program.op("IsNan", x), over, shape, keepdims)
        return program.op("SelectV2", spoilt, program.scalar(math.nan, x.dtype), extremum)

    return reduce


def euclidean(
    program: Program, x: Value, over: Value, shape: BroadcastShape, keepdims: bool
) -> Value:
    """Reduce to the square root of the sum of squares."""
    squares = program.op("Square", x)
    return program.op("Sqrt", by_op("Sum")(program, squares, over, shape, keepdims))


def reduction(reduce: Reduce) -> Callable[..., Value]:
    """Return a function that reduces over the given axes, over all from one on, or over all."""

    def build(
        program: Program,
        x: Value,
        axes: Sequence[int] | None = None,
        from_axis: int = 0,
        keepdims: bool = False,
    ) -> Value:
        if axes is not None:
            over = program.vector(*axes)
        else:
            first, step = program.scalar(from_axis, "int32"), program.scalar(1, "int32")
            rank = program.op("Rank", x, shape=SCALAR)
            over = program.op("Range", first, rank, step, shape=UNKNOWN)
        shape = SCALAR if axes is None and from_axis == 0 else UNKNOWN
        if keepdims:
            shape = BroadcastShape(x.shape.most, frozenset())
        return reduce(program, x, over, shape, keepdims)

    return build


def span(program: Program, x: Value, axis: int, start: Value, stop: Value) -> Value:
    """Cut x along an axis from `start` to `stop`, vectors of one int32."""
    others, zero = -axis - 1 if axis < 0 else axis, program.scalar(0, "int32")
    zeros = [program.vector(*[0] * others)] if others else []
    if axis < 0:  # `...` stands for the axes before
        begin, end = ([program.vector(0), edge, *zeros] for edge in (start, stop))
        free = sum(1 << (2 + edge) for edge in range(others))
    else:
        begin, end = ([*zeros, edge] for edge in (start, stop))
        free = (1 << axis) - 1
    ends = (_concatenated(program, begin, zero), _concatenated(program, end, zero))
    ones = program.vector(*[1] * (others + 1 + (axis < 0)))
    masks = {"begin_mask": free, "end_mask": free, "ellipsis_mask": int(axis < 0)}
    return program.op("StridedSlice", x, *ends, ones, shape=UNKNOWN, **masks)


def _concatenated(program: Program, vectors: Sequence[Value], axis: Value) -> Value:
    if len(vectors) == 1:
        return vectors[0]
    return program.op("ConcatV2", tuple(vectors), axis, shape=UNKNOWN)


def span_of(program: Program, sizes: Value, start: int, stop: int) -> Value:
    """Cut a vector from `start` to `stop`; a stop of 0 is its end where start is negative."""
    to_end = int(start < 0 and stop == 0)
    ends = (program.vector(start), program.vector(stop), program.vector(1))
    return program.op("StridedSlice", sizes, *ends, shape=UNKNOWN, end_mask=to_end)


def split(program: Program, x: Value, parts: int, index: int, axis: int = 0) -> Value:
    """Return part `index` of `parts` equal ones: raises, as it runs, where they are not equal.

    x gets one more axis, of `parts`, before the one that is split.
    """
    if index >= parts:
        raise ValueError(f"index counts from 0 to {parts - 1}, and this is {index}")
    sizes, zero = program.shape_of(x), program.scalar(0, "int32")
    before = _until(program, sizes, axis)
    after = [] if axis == -1 else [_sizes_from(program, sizes, axis + 1)]
    whole, count = span_of(program, sizes, axis, axis + 1), program.vector(parts)
    each = program.op("FloorDiv", whole, count, shape=UNKNOWN)
    target = _concatenated(program, (*before, count, each, *after), zero)
    folded = program.op("Reshape", x, target, shape=UNKNOWN)
    at = axis - 1 if axis < 0 else axis
    part = span(program, folded, at, program.vector(index), program.vector(index + 1))
    return program.op(
        "Reshape", part, _concatenated(program, (*before, each, *after), zero), shape=UNKNOWN
    )


def _until(program: Program, sizes: Value, axis: int) -> list[Value]:
    """Return the sizes before an axis."""
    if axis == 0:
        return []
    ends = (program.vector(0), program.vector(axis), program.vector(1))
    return [program.op("StridedSlice", sizes, *ends, shape=UNKNOWN)]


def _sizes_from(program: Program, sizes: Value, axis: int) -> Value:
    """Return the sizes from an axis on."""
    ends = (program.vector(axis), program.vector(0), program.vector(1))
    return program.op("StridedSlice", sizes, *ends, shape=UNKNOWN, end_mask=1)


def concat(program: Program, *tensors: Value, axis: int = 0) -> Value:
    """Join tensors along an axis."""
    return program.op("ConcatV2", tensors, program.scalar(axis, "int32"), shape=UNKNOWN)


def with_size(program: Program, x: Value, sizes: Value, axis: int, size: Value) -> Value:
    """Reshape x to these sizes, but for this one along an axis, a vector of one int32."""
    after = [] if axis == -1 else [_sizes_from(program, sizes, axis + 1)]
    target = _concatenated(
        program, (*_until(program, sizes, axis), size, *after), program.scalar(0, "int32")
    )
    return program.op("Reshape", x, target, shape=UNKNOWN)


def to_front(program: Program, sizes: Value, axis: int) -> Value:
    """Return the order of the axes of a tensor of these sizes that puts one of them first."""
    zero, one = program.scalar(0, "int32"), program.scalar(1, "int32")
    rank = program.op("Size", sizes, shape=SCALAR, out_type="int32")
    axes = program.op("Range", zero, rank, one, shape=UNKNOWN)
    after = [] if axis == -1 else [_sizes_from(program, axes, axis + 1)]
    this = span_of(program, axes, axis, axis + 1)
    return _concatenated(program, (this, *_until(program, axes, axis), *after), zero)


def gather(program: Program, x: Value, indices: Value, axis: int = 0) -> Value:
    """Take the parts of x at these indices along an axis."""
    return program.op("GatherV2", x, indices, program.scalar(axis, "int32"), shape=UNKNOWN)


def quantile(program: Program, x: Value, q: float, from_axis: int = 0) -> Value:
    """Return element floor(q * (n - 1)) of the n in order, along one axis of size 1 each."""
    sizes, zero = program.shape_of(x), program.scalar(0, "int32")
    lead = _until(program, sizes, from_axis)
    rest = _sizes_from(program, sizes, from_axis)
    flat = _concatenated(program, (*lead, program.vector(-1)), zero)
    rows = program.op("Reshape", x, flat, shape=UNKNOWN)
    last = span_of(program, program.shape_of(rows), -1, 0)
    count = program.op("Reshape", last, program.vector(), shape=SCALAR)
    one = program.scalar(1.0, "float64")
    steps = program.op("Sub", program.cast(count, "float64"), one)
    place = program.op("Floor", program.op("Mul", steps, program.scalar(q, "float64")))
    element = program.op("NthElement", rows, program.op("Cast", place, DstT="int32"), shape=UNKNOWN)
    sizes_kept = _concatenated(program, (*lead, program.op("OnesLike", rest)), zero)
    return program.op("Reshape", element, sizes_kept, shape=UNKNOWN)


def random_like(op_type: str) -> Callable[..., Value]:
    """Return what draws numbers by an op of this type, in the shape and dtype of x."""

    def drawn(program: Program, x: Value, seed: int) -> Value:
        sizes = program.shape_of(x)
        seeds = {"seed": seed, "seed2": SEED_2}
        numbers = program.op(op_type, sizes, shape=x.shape, dtype="float32", **seeds)
        return program.cast(numbers, x.dtype)

    return drawn

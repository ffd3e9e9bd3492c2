"""Functions of the formula language that take more than one TensorFlow op.

Each op is known to TensorFlow 1.15 and 2.x. NaN passes through by comparisons and SelectV2, not by
Maximum, Minimum, Max, Min and Sign: TensorFlow 1.15 computes these without looking for NaN. What
TensorFlow's optimiser would rewrite without regard to NaN and infinities is spelled otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from graphpatch.gradients.broadcast_shape import SCALAR, UNKNOWN, BroadcastShape, sizes_set_to_1
from graphpatch.gradients.program import Program, Value

_ERF_IS_ONE = 30.0


def power(program: Program, base: Value, exponent: Value) -> Value:
    """`base ** exponent`, for the numbers 2, 0.5 and -0.5 by Square, Sqrt and Rsqrt.

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
    """Whether the condition does not hold.

    The optimiser takes LogicalNot of `a < b` for `a >= b`, which is wrong about NaN.
    """
    false, true = program.scalar(False, "bool"), program.scalar(True, "bool")
    return program.op("SelectV2", condition, false, true)


def maximum(program: Program, a: Value, b: Value) -> Value:
    """The larger of the two, NaN where one is."""
    return _extremum(program, "Greater", a, b)


def minimum(program: Program, a: Value, b: Value) -> Value:
    """The smaller of the two, NaN where one is."""
    return _extremum(program, "Less", a, b)


def _extremum(program: Program, beats: str, a: Value, b: Value) -> Value:
    """The one that `beats` the other. Where neither does, one may be NaN, and b is taken."""
    if _is_number(b):
        a, b = b, a
    wins = program.op(beats, a, b)
    if not _is_number(a):
        wins = program.op("LogicalOr", wins, program.op("IsNan", a))
    return program.op("SelectV2", wins, a, b)


def _is_number(value: Value) -> bool:
    return value.constant is not None and not any(map(math.isnan, value.constant.numbers))


def clip(program: Program, x: Value, low: Value, high: Value) -> Value:
    """`minimum(maximum(x, low), high)`."""
    return minimum(program, maximum(program, x, low), high)


def sign(program: Program, x: Value) -> Value:
    """-1, 0 or 1, NaN for NaN."""
    return program.op("SelectV2", program.op("IsNan", x), x, program.op("Sign", x))


def erf(program: Program, x: Value) -> Value:
    """The error function, which TensorFlow 2.21 gives as NaN for infinite doubles."""
    if x.dtype == "float64":
        low, high = (program.scalar(end, x.dtype) for end in (-_ERF_IS_ONE, _ERF_IS_ONE))
        x = clip(program, x, low, high)
    return program.op("Erf", x)


def cast_like(program: Program, value: Value, like: Value) -> Value:
    """The value in the dtype of another."""
    return program.cast(value, like.dtype)


def reshape_like(program: Program, value: Value, like: Value) -> Value:
    """The value with the shape of another that has as many elements."""
    return program.op("Reshape", value, program.shape_of(like), shape=like.shape)


def broadcast_like(program: Program, value: Value, like: Value) -> Value:
    """The value repeated up to the shape of another."""
    return program.op("BroadcastTo", value, program.shape_of(like), shape=like.shape)


def sum_like(program: Program, value: Value, like: Value, sizes: Value | None = None) -> Value:
    """The value summed down to the shape of another, over the axes where that is repeated.

    `sizes` are those of the value, where they are at hand.
    """
    shape = program.shape_of(like)
    return sum_to(program, value, shape, sizes or program.shape_of(value), like.shape)


def sum_to(
    program: Program, value: Value, shape: Value, sizes: Value, known: BroadcastShape
) -> Value:
    """The value, which has these sizes, summed down to a shape of which this much is known."""
    axes = program.op("BroadcastGradientArgs", shape, sizes, shape=UNKNOWN)
    total = program.op("Sum", value, axes, shape=UNKNOWN, keep_dims=False)
    return program.op("Reshape", total, shape, shape=known)


def transpose(program: Program, x: Value, perm: Sequence[int] | None = None) -> Value:
    """The axes in the order of `perm`, the last two swapped where it is silent."""
    order = program.vector(*perm) if perm is not None else _last_two_swapped(program, x)
    return program.op("Transpose", x, order, shape=UNKNOWN)


def _last_two_swapped(program: Program, x: Value) -> Value:
    """0, 1, ..., rank - 1, rank - 2."""
    rank = program.op("Rank", x, shape=SCALAR)
    ends = program.op("Sub", rank, program.vector(1, 2), shape=UNKNOWN)
    before = program.op("Sub", rank, program.scalar(2, "int32"))
    zero, one = program.scalar(0, "int32"), program.scalar(1, "int32")
    others = program.op("Range", zero, before, one, shape=UNKNOWN)
    return program.op("ConcatV2", (others, ends), zero, shape=UNKNOWN)


def matmul(
    program: Program, a: Value, b: Value, transpose_a: bool = False, transpose_b: bool = False
) -> Value:
    """The matrix product over the last two axes; the axes before them are broadcast."""
    return program.op("BatchMatMulV2", a, b, shape=UNKNOWN, adj_x=transpose_a, adj_y=transpose_b)


class Reduction:
    """A reduction by one op, over the given axes, over all from one on, or over all."""

    def __init__(self, op_type: str) -> None:
        self.op_type = op_type

    def __call__(
        self,
        program: Program,
        x: Value,
        axes: Sequence[int] | None = None,
        from_axis: int = 0,
        keepdims: bool = False,
    ) -> Value:
        """One value for each place along the axes that stay."""
        over = program.vector(*axes) if axes is not None else _axes_from(program, x, from_axis)
        shape = _reduced_shape(x, axes is None and from_axis == 0, keepdims)
        return self.reduce(program, x, over, shape, keepdims)

    def reduce(
        self, program: Program, x: Value, over: Value, shape: BroadcastShape, keepdims: bool
    ) -> Value:
        """The op itself."""
        return program.op(self.op_type, x, over, shape=shape, keep_dims=keepdims)


def _axes_from(program: Program, x: Value, first: int) -> Value:
    """first, first + 1, ..., rank - 1."""
    start, one = program.scalar(first, "int32"), program.scalar(1, "int32")
    return program.op("Range", start, program.op("Rank", x, shape=SCALAR), one, shape=UNKNOWN)


def _reduced_shape(x: Value, over_all: bool, keepdims: bool) -> BroadcastShape:
    if keepdims:
        return sizes_set_to_1(x.shape)
    return SCALAR if over_all else UNKNOWN


class Extreme(Reduction):
    """Max or Min, NaN where one of the elements is."""

    def reduce(
        self, program: Program, x: Value, over: Value, shape: BroadcastShape, keepdims: bool
    ) -> Value:
        """The op, and NaN in its place where `Any` finds one."""
        found = super().reduce(program, x, over, shape, keepdims)
        nans = program.op("IsNan", x)
        spoilt = program.op("Any", nans, over, shape=shape, keep_dims=keepdims)
        return program.op("SelectV2", spoilt, program.scalar(math.nan, x.dtype), found)


class Norm(Reduction):
    """The Euclidean norm: the square root of the sum of squares."""

    def reduce(
        self, program: Program, x: Value, over: Value, shape: BroadcastShape, keepdims: bool
    ) -> Value:
        """Square, the sum, Sqrt."""
        squares = program.op("Square", x)
        return program.op("Sqrt", super().reduce(program, squares, over, shape, keepdims))

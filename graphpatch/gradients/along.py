"""Functions of the formula language that cut and join tensors along an axis, or draw numbers."""

from __future__ import annotations

from collections.abc import Sequence

from graphpatch.gradients.broadcast_shape import SCALAR, UNKNOWN
from graphpatch.gradients.program import Program, Value


def span(program: Program, x: Value, axis: int, start: Value, stop: Value) -> Value:
    """The part of x along an axis from `start` to `stop`, vectors of one int32."""
    others, zero = -axis - 1 if axis < 0 else axis, program.scalar(0, "int32")
    zeros = [program.vector(*[0] * others)] if others else []
    if axis < 0:  # `...` stands for the axes before
        begin, end = ([program.vector(0), one, *zeros] for one in (start, stop))
        free = sum(1 << (2 + one) for one in range(others))
    else:
        begin, end = ([*zeros, one] for one in (start, stop))
        free = (1 << axis) - 1
    ends = (_concatenated(program, begin, zero), _concatenated(program, end, zero))
    ones = program.vector(*[1] * (others + 1 + (axis < 0)))
    masks = {"begin_mask": free, "end_mask": free, "ellipsis_mask": int(axis < 0)}
    return program.op("StridedSlice", x, *ends, ones, shape=UNKNOWN, **masks)


def _concatenated(program: Program, vectors: Sequence[Value], axis: Value) -> Value:
    if len(vectors) == 1:
        return vectors[0]
    return program.op("ConcatV2", tuple(vectors), axis, shape=UNKNOWN)


def size(program: Program, x: Value, axis: int) -> Value:
    """The size of x along an axis, a vector of one int32."""
    return span_of(program, program.shape_of(x), axis, axis + 1)


def span_of(program: Program, sizes: Value, start: int, stop: int) -> Value:
    """The elements of a vector from `start` to `stop`; 0 as stop is its end where start is < 0."""
    to_end = int(start < 0 and stop == 0)
    ends = (program.vector(start), program.vector(stop), program.vector(1))
    return program.op("StridedSlice", sizes, *ends, shape=UNKNOWN, end_mask=to_end)


def split(program: Program, x: Value, parts: int, index: int, axis: int = 0) -> Value:
    """Part `index` of `parts` equal ones: raises, as it runs, where they are not equal.

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
    one = span(program, folded, at, program.vector(index), program.vector(index + 1))
    return program.op(
        "Reshape", one, _concatenated(program, (*before, each, *after), zero), shape=UNKNOWN
    )


def _until(program: Program, sizes: Value, axis: int) -> list[Value]:
    """The sizes before an axis."""
    if axis == 0:
        return []
    ends = (program.vector(0), program.vector(axis), program.vector(1))
    return [program.op("StridedSlice", sizes, *ends, shape=UNKNOWN)]


def _sizes_from(program: Program, sizes: Value, axis: int) -> Value:
    """The sizes from an axis on."""
    ends = (program.vector(axis), program.vector(0), program.vector(1))
    return program.op("StridedSlice", sizes, *ends, shape=UNKNOWN, end_mask=1)


def concat(program: Program, *tensors: Value, axis: int = 0) -> Value:
    """The tensors one after the other along an axis."""
    return program.op("ConcatV2", tensors, program.scalar(axis, "int32"), shape=UNKNOWN)


def with_size(program: Program, x: Value, sizes: Value, axis: int, size: Value) -> Value:
    """X with these sizes, but for this one along an axis, a vector of one int32."""
    after = [] if axis == -1 else [_sizes_from(program, sizes, axis + 1)]
    target = _concatenated(
        program, (*_until(program, sizes, axis), size, *after), program.scalar(0, "int32")
    )
    return program.op("Reshape", x, target, shape=UNKNOWN)


def to_front(program: Program, sizes: Value, axis: int) -> Value:
    """The order of the axes of a tensor of these sizes that puts one of them first."""
    zero, one = program.scalar(0, "int32"), program.scalar(1, "int32")
    rank = program.op("Size", sizes, shape=SCALAR, out_type="int32")
    axes = program.op("Range", zero, rank, one, shape=UNKNOWN)
    after = [] if axis == -1 else [_sizes_from(program, axes, axis + 1)]
    this = span_of(program, axes, axis, axis + 1)
    return _concatenated(program, (this, *_until(program, axes, axis), *after), zero)


def gather(program: Program, x: Value, indices: Value, axis: int = 0) -> Value:
    """The parts of x at these places along an axis."""
    return program.op("GatherV2", x, indices, program.scalar(axis, "int32"), shape=UNKNOWN)


def quantile(program: Program, x: Value, q: float, from_axis: int = 0) -> Value:
    """The element at place floor(q * (n - 1)) of the n in order, along one axis of size 1 each."""
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
    found = program.op("NthElement", rows, program.op("Cast", place, DstT="int32"), shape=UNKNOWN)
    kept = _concatenated(program, (*lead, program.op("OnesLike", rest)), zero)
    return program.op("Reshape", found, kept, shape=UNKNOWN)


SEED_2 = 1
"""The second seed: with both 0, TensorFlow would draw other numbers in each process."""


def normal_like(program: Program, x: Value, seed: int) -> Value:
    """Numbers of the standard normal distribution, in the shape and dtype of x."""
    drawn = program.op(
        "RandomStandardNormal",
        program.shape_of(x),
        shape=x.shape,
        dtype="float32",
        seed=seed,
        seed2=SEED_2,
    )
    return program.cast(drawn, x.dtype)

"""The shapes of what takes parts of arrays: slices, and elements by their places."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from graphpatch.differentiation.op_shapes import (
    OpShapes,
    ShapeRule,
    Sizes,
    axis_of,
    unknown_of_rank,
)


def _cut_shape(op: OpShapes) -> Sizes:
    """Of `Slice`: the sizes, where -1 is all behind the beginning."""
    shape, begin, sizes = op.shapes[0], op.numbers[1], op.known(2)
    if sizes is None:
        spelled = op.spelled(2)
        rank = len(shape) if shape is not None else len(spelled) if spelled is not None else None
        return None if rank is None else unknown_of_rank(rank)
    whole = shape if shape is not None else unknown_of_rank(len(sizes))
    starts = begin.values if begin is not None else unknown_of_rank(len(sizes)) or ()
    return tuple(
        (None if one is None or start is None else one - start) if size == -1 else size
        for one, start, size in zip(whole or (), starts, sizes, strict=True)
    )


class _Taken(NamedTuple):
    """What a strided slice takes of one axis; `place` is where its numbers stand."""

    place: int
    axis: int | None  # None: a new axis
    is_dropped: bool


def _strided_shape(op: OpShapes) -> Sizes:
    shape, strides = op.shapes[0], op.known(3)
    if shape is None or strides is None:
        return None
    found, taken = list[int | None](), list(_taken_axes(op, len(shape), len(strides)))
    for place, axis, is_dropped in taken:
        if axis is None:
            found.append(1)
        elif not is_dropped:
            size = shape[axis]
            found.append(size if place < 0 else _steps(op, place, size, strides[place]))
    return tuple(found)


def _taken_axes(op: OpShapes, rank: int, count: int) -> Iterator[_Taken]:
    """The axes that a strided slice gives, in order; what an ellipsis takes has place -1."""
    masks = {key: op.attr(f"{key}_mask") or 0 for key in ("ellipsis", "new_axis", "shrink_axis")}
    has = {key: [bool(mask >> n & 1) for n in range(count)] for key, mask in masks.items()}
    used = sum(not e and not n for e, n in zip(has["ellipsis"], has["new_axis"], strict=True))
    axis = 0
    for place in range(count):
        if has["ellipsis"][place]:
            for _ in range(rank - used):
                yield _Taken(-1, axis, False)
                axis += 1
        elif has["new_axis"][place]:
            yield _Taken(place, None, False)
        else:
            yield _Taken(place, axis, has["shrink_axis"][place])
            axis += 1
    for rest in range(axis, rank):
        yield _Taken(-1, rest, False)


def _steps(op: OpShapes, place: int, size: int | None, stride: int) -> int | None:
    """How many elements a slice takes of an axis."""
    masked = [bool((op.attr(key) or 0) >> place & 1) for key in ("begin_mask", "end_mask")]
    known = [op.known(slot) for slot in (1, 2)]
    if None in known and not all(masked):
        return None
    ends = [
        None if is_open or numbers is None else numbers[place]
        for is_open, numbers in zip(masked, known, strict=True)
    ]
    return None if size is None else len(range(*slice(ends[0], ends[1], stride).indices(size)))


def _gathered_shape(op: OpShapes) -> Sizes:
    return _picked_shape(op, 0, 0)


def _gathered_along_shape(op: OpShapes) -> Sizes:
    return _picked_shape(op, op.number(2), op.attr("batch_dims") or 0)


def _picked_shape(op: OpShapes, number: int | None, batch: int) -> Sizes:
    shape, picks = op.shapes[0], op.shapes[1]
    if shape is None or picks is None:
        return None
    axis = axis_of(number, len(shape))
    if axis is None:
        return unknown_of_rank(len(shape) + len(picks) - 1 - batch)
    first = batch + len(picks) if batch < 0 else batch
    return (*shape[:axis], *picks[first:], *shape[axis + 1 :])


def _gathered_points_shape(op: OpShapes) -> Sizes:
    shape, picks = op.shapes[0], op.shapes[1]
    if shape is None or not picks or picks[-1] is None:
        return None
    return (*picks[:-1], *shape[picks[-1] :])


PART_SHAPES: dict[str, ShapeRule] = {
    "Slice": _cut_shape,
    "StridedSlice": _strided_shape,
    "Gather": _gathered_shape,
    "ResourceGather": _gathered_shape,
    "GatherV2": _gathered_along_shape,
    "GatherNd": _gathered_points_shape,
}

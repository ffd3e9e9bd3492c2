"""The shapes of what joins, splits, fills and turns arrays."""

from __future__ import annotations

from collections.abc import Sequence

from graphpatch.differentiation.op_shapes import (
    OpShapes,
    ShapeRule,
    Sizes,
    axis_of,
    known_size,
    merged_shape,
    product,
    total,
    unknown_of_rank,
)


def _reshaped_shape(op: OpShapes) -> Sizes:
    """The shape that the numbers spell; one size that they leave open is told by all elements."""
    found, count = op.spelled(1), product(op.shapes[0] or (None,)) if op.shapes[0] != () else 1
    if found is None or found.count(None) != 1 or count is None:
        return found
    rest = product([size for size in found if size is not None])
    if not rest or count % rest:
        return found
    return tuple(count // rest if size is None else size for size in found)


def _expanded_shape(op: OpShapes) -> Sizes:
    shape, number = op.shapes[0], op.number(1)
    if shape is None:
        return None
    axis = axis_of(number, len(shape) + 1)
    return None if axis is None else (*shape[:axis], 1, *shape[axis:])


def _squeezed_shape(op: OpShapes) -> Sizes:
    shape, named = op.shapes[0], op.attr("squeeze_dims")
    if shape is None or (not named and None in shape):
        return None
    gone = {axis % len(shape) for axis in named} if named else set(range(len(shape)))
    return tuple(n for axis, n in enumerate(shape) if not (axis in gone and (named or n == 1)))


def _transposed_shape(op: OpShapes) -> Sizes:
    shape, order, listed = op.shapes[0], op.known(1), op.shapes[1]
    if shape is not None and order is not None:
        return tuple(shape[axis] for axis in order)
    if shape is not None:
        return unknown_of_rank(len(shape))
    return None if listed is None or listed[0] is None else unknown_of_rank(listed[0])


def _packed_shape(op: OpShapes) -> Sizes:
    each = merged_shape(op.shapes)
    if each is None:
        return None
    axis = axis_of(op.attr("axis") or 0, len(each) + 1)
    return None if axis is None else (*each[:axis], len(op.shapes), *each[axis:])


def _unpacked_shape(op: OpShapes) -> Sizes:
    shape = op.shapes[0]
    axis = None if shape is None else axis_of(op.attr("axis") or 0, len(shape))
    return None if shape is None or axis is None else shape[:axis] + shape[axis + 1 :]


def _concat_shape(parts: Sequence[Sizes], number: int | None) -> Sizes:
    """The shape of parts one after the other along an axis."""
    rank = next((len(one) for one in parts if one is not None), None)
    if rank is None:
        return None
    axis = axis_of(number, rank)
    if axis is None:
        return unknown_of_rank(rank)
    filled = [unknown_of_rank(rank) if one is None else one for one in parts]
    rest = merged_shape([_with_size(one, axis, None) for one in filled])
    return _with_size(rest, axis, total([None if one is None else one[axis] for one in filled]))


def _with_size(shape: Sizes, axis: int, size: int | None) -> Sizes:
    return None if shape is None else (*shape[:axis], size, *shape[axis + 1 :])


def _split_shape(op: OpShapes) -> Sizes:
    shape, number, count = op.shapes[1], op.number(0), op.attr("num_split")
    if shape is None:
        return None
    axis = axis_of(number, len(shape))
    if axis is None:
        return unknown_of_rank(len(shape))
    size = shape[axis]
    return _with_size(shape, axis, None if size is None else size // count)


def _split_by_sizes_shape(op: OpShapes) -> Sizes:
    shape, sizes, number = op.shapes[0], op.known(1), op.number(2)
    if shape is None:
        return None
    axis = axis_of(number, len(shape))
    if axis is None:
        return unknown_of_rank(len(shape))
    size, whole = None if sizes is None else sizes[op.output], shape[axis]
    if size == -1 and sizes is not None:
        size = None if whole is None else whole - sum(one for one in sizes if one != -1)
    return _with_size(shape, axis, size)


def _tiled_shape(op: OpShapes) -> Sizes:
    shape, times = op.shapes[0], op.spelled(1)
    if shape is None or times is None:
        known = shape if times is None else times
        return None if known is None else unknown_of_rank(len(known))
    return tuple(product(pair) for pair in zip(shape, times, strict=True))


def _padded_shape(op: OpShapes) -> Sizes:
    shape, pads, listed = op.shapes[0], op.known(1), op.shapes[1]
    if pads is None or shape is None:
        rank = len(shape) if shape is not None else listed[0] if listed else None
        return None if rank is None else unknown_of_rank(rank)
    around = zip(pads[::2], pads[1::2], strict=True)
    return tuple(total((size, *pair)) for size, pair in zip(shape, around, strict=True))


def _one_hot_shape(op: OpShapes) -> Sizes:
    shape, depth = op.shapes[0], op.number(1)
    if shape is None:
        return None
    axis = axis_of(op.attr("axis"), len(shape) + 1)
    return None if axis is None else (*shape[:axis], depth, *shape[axis:])


def _range_shape(op: OpShapes) -> Sizes:
    numbers = [op.number(slot) for slot in range(3)]
    start, end, step = numbers
    if start is None or end is None or not step:
        return (None,)
    return (len(range(start, end, step)),)


def _filled_shape(op: OpShapes) -> Sizes:
    return op.spelled(0)


def _spelled_second_shape(op: OpShapes) -> Sizes:
    return op.spelled(1)


def _spelled_third_shape(op: OpShapes) -> Sizes:
    return op.spelled(2)


def _named_shape(op: OpShapes) -> Sizes:
    """The shape that an attr tells."""
    sizes = op.attr("shape")
    return None if sizes is None else tuple(map(known_size, sizes))


def _elements_shape(op: OpShapes) -> Sizes:
    """Of what a TensorArray gives: as many elements as are asked for, of the shape of an attr."""
    asked, each = op.shapes[1], op.attr("element_shape")
    return None if asked is None or each is None else (*asked, *map(known_size, each))


def _ensured_shape(op: OpShapes) -> Sizes:
    return merged_shape([op.shapes[0], _named_shape(op)])


def _blocks_shape(op: OpShapes, grow: bool) -> Sizes:
    """Blocks of the image into channels, or back."""
    shape, size = op.shapes[0], op.attr("block_size")
    if shape is None or op.attr("data_format") != "NHWC" or len(shape) != 4:
        return None
    rows = [n if n is None else n * size if grow else n // size for n in shape[1:3]]
    channels = shape[3]
    if channels is not None:
        channels = channels // size**2 if grow else channels * size**2
    return (shape[0], *rows, channels)


RANDOM_OPS = "RandomUniform RandomStandardNormal RandomUniformInt TruncatedNormal".split()
RANDOM_OPS += [f"Stateless{name}" for name in RANDOM_OPS]
ARRAY_SHAPES: dict[str, ShapeRule] = {
    **dict.fromkeys((*RANDOM_OPS, "ParameterizedTruncatedNormal", "Fill", "Empty"), _filled_shape),
    "Reshape": _reshaped_shape,
    "QuantizedReshape": _reshaped_shape,
    "ExpandDims": _expanded_shape,
    "Squeeze": _squeezed_shape,
    "Transpose": _transposed_shape,
    "Pack": _packed_shape,
    "Unpack": _unpacked_shape,
    "ConcatV2": lambda op: _concat_shape(op.shapes[:-1], op.number(len(op.shapes) - 1)),
    "Concat": lambda op: _concat_shape(op.shapes[1:], op.number(0)),
    "Split": _split_shape,
    "SplitV": _split_by_sizes_shape,
    "Tile": _tiled_shape,
    "Pad": _padded_shape,
    "PadV2": _padded_shape,
    "MirrorPad": _padded_shape,
    "OneHot": _one_hot_shape,
    "Range": _range_shape,
    "BroadcastTo": _spelled_second_shape,
    "ScatterNd": _spelled_third_shape,
    "TensorArrayGatherV3": _elements_shape,
    "EnsureShape": _ensured_shape,
    "DepthToSpace": lambda op: _blocks_shape(op, grow=True),
    "SpaceToDepth": lambda op: _blocks_shape(op, grow=False),
}

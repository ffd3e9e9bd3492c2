"""The shape of output 0 by op type, where it is neither that of an input nor that of all together.

As TensorFlow's shape inference has it; an op that is missing here counts as not known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest

from graphpatch.control_flow.op_types import LOOP_COND, TENSOR_ARRAY
from graphpatch.differentiation.shape_windows import WINDOW_SHAPES, Shape
from graphpatch.graph.body import Node
from graphpatch.graph.op_types import RESOURCE_VARIABLE
from graphpatch.graph.tensor import constant

SHAPE_SIZES = 64  # more numbers than a shape or a list of axes has
ShapeRule = Callable[[Node, Sequence[Shape]], Shape]


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """The shape of tensors of these shapes together; None where one has no known rank."""
    if any(one is None for one in shapes):
        return None
    rows = [tuple(reversed(one)) for one in shapes if one is not None]
    columns = zip_longest(*rows, fillvalue=1)
    return tuple(reversed([_together(sizes) for sizes in columns]))


def _together(sizes: Sequence[int | None]) -> int | None:
    large = {size for size in sizes if size is not None and size != 1}
    if large:
        return large.pop()
    return None if None in sizes else 1


def _const(node: Node, shapes: Sequence[Shape]) -> Shape:
    found = constant(node)
    return None if found is None else found.shape


def _shape_of_shape(node: Node, shapes: Sequence[Shape]) -> Shape:
    return None if shapes[0] is None else (len(shapes[0]),)


def _scalar(node: Node, shapes: Sequence[Shape]) -> Shape:
    return ()


def _bool_attr(node: Node, key: str) -> bool:
    value = node.attr(key)
    return value is not None and value.b


def _matmul_shape(node: Node, shapes: Sequence[Shape]) -> Shape:
    """TensorFlow takes both for matrices, known or not."""
    one, two = (
        shape if shape is not None and len(shape) == 2 else (None, None) for shape in shapes
    )
    return one[_bool_attr(node, "transpose_a")], two[not _bool_attr(node, "transpose_b")]


def _reduce_shape(node: Node, shapes: Sequence[Shape]) -> Shape:
    """Without the axes, which a constant names."""
    shape, axes = shapes[0], _ints(node, 1)
    if axes is None or shape is None:
        return None
    gone = {axis % len(shape) for axis in axes} if shape else set()
    if _bool_attr(node, "keep_dims"):
        return tuple(1 if place in gone else size for place, size in enumerate(shape))
    return tuple(size for place, size in enumerate(shape) if place not in gone)


def _reshape_shape(node: Node, shapes: Sequence[Shape]) -> Shape:
    sizes = _ints(node, 1)
    return None if sizes is None else tuple(size if size >= 0 else None for size in sizes)


def _fill_shape(node: Node, shapes: Sequence[Shape]) -> Shape:
    sizes = _ints(node, 0)
    return None if sizes is None else tuple(sizes)


def _slice_shape(node: Node, shapes: Sequence[Shape]) -> Shape:
    """One number of a list, as in `shape(x)[0]`."""
    mask = node.attr("shrink_axis_mask")
    is_number = shapes[0] is not None and len(shapes[0]) == 1 and mask is not None and mask.i == 1
    return () if is_number else None


def _pack_shape(node: Node, shapes: Sequence[Shape]) -> Shape:
    """A list of numbers."""
    return (len(shapes),) if all(one == () for one in shapes) else None


def _ints(node: Node, slot: int) -> list[int] | None:
    """The integers of a constant that an op reads."""
    producer = node.body.producer(node.data_inputs[slot])
    if producer is None or producer.op != "Const":
        return None
    found = constant(producer)
    if found is None or found.size > SHAPE_SIZES:
        return None
    import numpy as np  # few rules need it, and its threads keep workers from being forked

    pieces = [np.resize(*piece) for piece in found.pieces()]
    if not pieces:  # an empty list, or a constant without its values
        return None if found.size else []
    return [int(one) for one in np.concatenate(pieces)]


REDUCED = "Sum Mean Max Min Prod All Any".split()

RULES: dict[str, ShapeRule] = {
    "Const": _const,
    "Shape": _shape_of_shape,
    "Rank": _scalar,
    "Size": _scalar,
    "MatMul": _matmul_shape,
    "Reshape": _reshape_shape,
    "Fill": _fill_shape,
    "StridedSlice": _slice_shape,
    "Pack": _pack_shape,
    "SelectV2": lambda node, shapes: broadcast(shapes),
    LOOP_COND: _scalar,
    RESOURCE_VARIABLE: _scalar,
    **dict.fromkeys(REDUCED, _reduce_shape),
    **WINDOW_SHAPES,
}

SCALARS = {
    (TENSOR_ARRAY, 1),
    ("TensorArrayGradV3", 1),
    ("TensorArrayWriteV3", 0),
    ("TensorArrayScatterV3", 0),
    ("TensorArraySplitV3", 0),
    ("TensorArraySizeV3", 0),
}
"""The flow of a TensorArray is a number, and so is its size."""

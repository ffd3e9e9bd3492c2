"""The integers of small tensors, of which TensorFlow makes shapes as it imports a graph.

Of a shape some numbers may be known and others not; TensorFlow follows such tensors through the few
op types that put shapes together (`PARTLY_KNOWN`), and computes others where all that they read are
constants (`OF_CONSTANTS`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from itertools import chain

from graphpatch.differentiation.op_shapes import Integers, Numbers, OpShapes, Sizes, product
from graphpatch.graph.body import Node
from graphpatch.graph.op_types import GIVES_ON
from graphpatch.graph.tensor import constant

MOST_NUMBERS = 64  # more than a shape or a list of axes has
LARGEST = 1 << 31  # from here on an int32 is another number
INTEGERS = frozenset({"int32", "int64"})
EXACT = {"float32": 1 << 24, "float64": LARGEST}  # up to here they have all integers
OF_ANY_LENGTH = frozenset({"BroadcastGradientArgs", "DynamicStitch"})  # as far as shapes tell
MEASURES = frozenset({"Const", "Shape", "ShapeN", "Rank", "Size"})

NumberRule = Callable[[OpShapes], Integers | None]


def numbers_of(op: OpShapes, shape: Sizes) -> Numbers | None:
    """The numbers of what an op gives, whose shape is this; None where they are not known."""
    size = product(shape) if shape is not None else None
    if (size is None and op.node.op not in OF_ANY_LENGTH) or (size or 0) > MOST_NUMBERS:
        return None
    of_constants = all(one is not None and one.is_constant for one in op.numbers)
    if op.node.op in PARTLY_KNOWN:
        found = PARTLY_KNOWN[op.node.op](op)
    elif op.node.op in OF_CONSTANTS and of_constants:
        found = OF_CONSTANTS[op.node.op](op)
    else:
        return None
    if found is None or (size is not None and len(found) != size):
        return None
    if any(one is not None and abs(one) >= LARGEST for one in found):
        return None
    is_constant = of_constants or op.node.op in MEASURES or _is_size(op)
    return Numbers(found, is_constant and None not in found)


def _is_size(op: OpShapes) -> bool:
    """Whether an op takes one number of a shape."""
    read = op.node.body.producer(op.node.data_inputs[0]) if op.node.data_inputs else None
    is_one = op.node.op == "StridedSlice" and op.attr("shrink_axis_mask") == 1
    return is_one and read is not None and read.op == "Shape"


def _constant_numbers(op: OpShapes) -> Integers | None:
    found = constant(op.node)
    if found is None or found.dtype not in INTEGERS or found.size > MOST_NUMBERS:
        return None
    import numpy as np  # few rules need it, and its threads keep workers from being forked

    pieces = [np.resize(*piece) for piece in found.pieces()]
    if not pieces:  # an empty list, or a constant without its values
        return None if found.size else ()
    return tuple(int(one) for one in np.concatenate(pieces))


def _size_numbers(op: OpShapes) -> Integers | None:
    return op.shapes[0]


def _rank_numbers(op: OpShapes) -> Integers | None:
    return None if op.shapes[0] is None else (len(op.shapes[0]),)


def _count_numbers(op: OpShapes) -> Integers | None:
    count = None if op.shapes[0] is None else product(op.shapes[0])
    return None if count is None else (count,)


def _pack_numbers(op: OpShapes) -> Integers | None:
    if op.shapes[0] == ():
        return tuple(op.number(slot) for slot in range(len(op.shapes)))
    if op.attr("axis"):
        return None
    parts = [op.known(slot) for slot in range(len(op.shapes))]
    return None if None in parts else tuple(chain.from_iterable(one or () for one in parts))


def _concat_numbers(op: OpShapes, slots: Sequence[int]) -> Integers | None:
    """Lists one after the other; of one that is not known its length tells how many are open."""
    parts = [_list_numbers(op, slot) for slot in slots]
    if any(one is None for one in parts):
        return None
    return tuple(chain.from_iterable(one or () for one in parts))


def _list_numbers(op: OpShapes, slot: int) -> Integers | None:
    shape = op.shapes[slot]
    if shape is None or len(shape) != 1 or shape[0] is None or shape[0] > MOST_NUMBERS:
        return None
    found = op.numbers[slot]
    return (None,) * shape[0] if found is None else found.values


def _strided_numbers(op: OpShapes) -> Integers | None:
    """A slice of a list, or one of its numbers."""
    found, begin, end, step = op.numbers[0], op.known(1), op.known(2), op.known(3)
    shape = op.shapes[0]
    if shape is None or len(shape) != 1 or found is None:
        return None
    if not begin or not end or not step or op.attr("ellipsis_mask") or op.attr("new_axis_mask"):
        return None
    if op.attr("shrink_axis_mask"):
        return (found.values[begin[0]],)
    first = None if op.attr("begin_mask") else begin[0]
    last = None if op.attr("end_mask") else end[0]
    return found.values[slice(first, last, step[0])]


def _cast_numbers(op: OpShapes) -> Integers | None:
    """Of a shape that is known in part, TensorFlow follows casts between integers."""
    found, dtypes = op.numbers[0], {op.attr("SrcT"), op.attr("DstT")}
    if found is None or dtypes <= INTEGERS:
        return None if found is None else found.values
    most = min(EXACT.get(dtype, LARGEST if dtype in INTEGERS else 0) for dtype in dtypes)
    is_exact = all(one is not None and abs(one) <= most for one in found.values)
    return found.values if found.is_constant and is_exact else None


def _first_numbers(op: OpShapes) -> Integers | None:
    found = op.numbers[0]
    return None if found is None else found.values


def _each_numbers(compute: Callable[[int, int], int]) -> NumberRule:
    """Of two lists, or of a list and a number, each number with the other."""

    def computed(op: OpShapes) -> Integers | None:
        one, two = op.known(0) or [], op.known(1) or []
        count = max(len(one), len(two))
        if op.attr("T") not in INTEGERS or {len(one), len(two)} - {1, count}:
            return None
        one, two = (some if len(some) == count else some * count for some in (one, two))
        return tuple(map(compute, one, two))

    return computed


def _all_numbers(compute: Callable[[Sequence[int]], int]) -> NumberRule:
    """Of all numbers of a list together."""

    def computed(op: OpShapes) -> Integers | None:
        found, shape = op.known(0) or [], op.shapes[0] or ()
        is_list = len(shape) == 1 and op.attr("T") in INTEGERS
        return (compute(found),) if is_list and op.known(1) in ([0], [-1]) else None

    return computed


def _gather_numbers(op: OpShapes) -> Integers | None:
    found, picks = op.known(0) or [], op.known(1) or []
    return tuple(found[one] for one in picks) if len(op.shapes[0] or ()) == 1 else None


def _slice_numbers(op: OpShapes) -> Integers | None:
    [start], [size] = op.known(1) or [], op.known(2) or []
    found = op.known(0) or []
    return tuple(found[start : len(found) if size == -1 else start + size])


def _range_numbers(op: OpShapes) -> Integers | None:
    start, end, step = (op.number(slot) or 0 for slot in range(3))
    found = range(start, end, step)
    return tuple(found) if len(found) <= MOST_NUMBERS else None


def _fill_numbers(op: OpShapes) -> Integers | None:
    count = product(op.known(0) or ()) or 0
    return (op.number(1),) * count if count <= MOST_NUMBERS else None


def _reversed_numbers(op: OpShapes) -> Integers | None:
    return tuple(reversed(op.known(0) or [])) if len(op.shapes[0] or ()) == 1 else None


def _summed_axes_numbers(op: OpShapes) -> Integers | None:
    """Of two shapes the axes of size 1, or none, of the one that the output is for.

    TensorFlow names those along which neither is repeated too, unless the shapes are the same.
    """
    pair = op.known(0) or [], op.known(1) or []
    if pair[0] == pair[1]:
        return ()
    mine, rank = pair[op.output], max(map(len, pair))
    sizes = [1] * (rank - len(mine)) + mine
    return tuple(axis for axis, size in enumerate(sizes) if size == 1)


def _stitched_numbers(op: OpShapes) -> Integers | None:
    """Numbers by the places that others name; one that is named twice is the last."""
    half = len(op.numbers) // 2
    found = dict[int, int]()
    for slot in range(half):
        found.update(zip(op.known(slot) or [], op.known(half + slot) or [], strict=True))
    return tuple(found[place] for place in range(len(found)))


def gives_numbers(node: Node) -> bool:
    """Whether the numbers of what an op gives may be known."""
    return node.op in PARTLY_KNOWN or node.op in OF_CONSTANTS


PARTLY_KNOWN: dict[str, NumberRule] = {
    "Const": _constant_numbers,
    "Shape": _size_numbers,
    "ShapeN": _size_numbers,
    "Rank": _rank_numbers,
    "Size": _count_numbers,
    "Pack": _pack_numbers,
    "ConcatV2": lambda op: _concat_numbers(op, range(len(op.shapes) - 1)),
    "Concat": lambda op: _concat_numbers(op, range(1, len(op.shapes))),
    "StridedSlice": _strided_numbers,
    "Cast": _cast_numbers,
}

OF_CONSTANTS: dict[str, NumberRule] = {
    **dict.fromkeys((*GIVES_ON, "ExpandDims", "Squeeze", "Reshape"), _first_numbers),
    "Add": _each_numbers(operator.add),
    "AddV2": _each_numbers(operator.add),
    "Sub": _each_numbers(operator.sub),
    "Mul": _each_numbers(operator.mul),
    "Neg": lambda op: tuple(-one for one in op.known(0) or []),
    "FloorDiv": _each_numbers(operator.floordiv),
    "FloorMod": _each_numbers(operator.mod),
    "Maximum": _each_numbers(max),
    "Minimum": _each_numbers(min),
    "Sum": _all_numbers(sum),
    "Prod": _all_numbers(math.prod),
    "Max": _all_numbers(max),
    "Min": _all_numbers(min),
    "BroadcastGradientArgs": _summed_axes_numbers,
    "DynamicStitch": _stitched_numbers,
    "Gather": _gather_numbers,
    "GatherV2": _gather_numbers,
    "Slice": _slice_numbers,
    "Range": _range_numbers,
    "Fill": _fill_numbers,
    "ReverseV2": _reversed_numbers,
}

"""Shapes of tensors as TensorFlow infers them on import: what the file says, and plain ops.

The file says them in `_output_shapes`, placeholders, constants and variables. From there they are
followed through ops that keep, reduce or combine shapes plainly. A shape that needs more counts as
not known; `verify` and `doctor --run` ask TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from math import prod
from typing import Any, NamedTuple

import msgspec

from graphpatch.control_flow.contexts import is_constant
from graphpatch.differentiation.wiring import Tensor, Wiring, handle_origin
from graphpatch.errors import ModelError
from graphpatch.graph import attrs
from graphpatch.graph import op_types as types
from graphpatch.graph.node import Node
from graphpatch.protos import TensorShapeProto

Sizes = tuple[int | None, ...] | None
"""The sizes of a tensor, None for one that is not known; None where the rank is not."""

LARGEST_RANK = 254  # that TensorFlow makes tensors of
MOST_INTEGERS = 64  # more than a shape or a list of axes has
LARGEST = 1 << 31  # from here on an int32 is another number
GIVEN_ON = 8  # ops by which a function gives an argument on, at most
SCALAR_IS_UNKNOWN = 21  # up to this version of GraphDefs a placeholder without sizes has any shape

DECLARED = types.PLACEHOLDERS | {types.OPTIONAL_PLACEHOLDER, *types.REF_VARIABLES}
VARIABLE = types.RESOURCE_VARIABLE
LISTED = types.PIPELINES | types.IFS | types.CASES  # that list the shapes of their outputs
# What a rule meets in a broken graph, or where a shape that it needs is not known.
NOT_KNOWN = (ModelError, LookupError, ValueError, TypeError, ArithmeticError, AttributeError)


class OpShapes(NamedTuple):
    """An op, one of its outputs, the shapes of its inputs, and the integers of small ones."""

    wiring: Wiring
    node: Node
    output: int
    shapes: Sequence[Any]
    integers: Sequence[Any]

    def spelled(self, slot: int) -> Sizes:
        """Return the shape that the integers of an input spell, as far as they are known."""
        integers, [rank] = self.integers[slot], self.shapes[slot]
        if integers is None:
            return (None,) * rank if rank <= LARGEST_RANK else None
        return _known(integers)

    def attr(self, key: str) -> Any:
        """Return an attr as JSON has it, or its default."""
        value, op = self.node.attr(key), self.node.opdef
        default = None if op is None else op.defaults.get(key)
        return default if value is None else attrs.as_json(value)


def sizes_in_words(sizes: Sizes) -> str:
    """Return a shape as text; ? for a size that is not known."""
    words = ("?" if size is None else str(size) for size in sizes or ())
    return "not known" if sizes is None else f"[{', '.join(words)}]"


def merged_shape(shapes: Sequence[Sizes]) -> Sizes:
    """Return what is known of one shape that all of these are."""
    known = [shape for shape in shapes if shape is not None]
    if not known or len(set(map(len, known))) > 1:
        return None
    columns = zip(*known, strict=True)
    return tuple(next((size for size in sizes if size is not None), None) for sizes in columns)


def broadcast(shapes: Sequence[Sizes]) -> Sizes:
    """Return the shape of tensors of these shapes together; None where a rank is not known."""
    known = [shape[::-1] for shape in shapes if shape is not None]
    sizes = tuple(map(_broadcast_size, zip_longest(*known, fillvalue=1)))[::-1]
    return sizes if known and len(known) == len(shapes) else None


def _broadcast_size(sizes: Sequence[int | None]) -> int | None:
    large = next((size for size in sizes if size is not None and size > 1), None)
    return large if large or None in sizes else min(size for size in sizes if size is not None)


def _known(sizes: Iterable[int | None]) -> Sizes:
    return tuple(size if size is not None and size >= 0 else None for size in sizes)


def _known_sizes(shape: TensorShapeProto) -> Sizes:
    is_ranked = not shape.unknown_rank and len(shape.dim) <= LARGEST_RANK
    return _known(dim.size for dim in shape.dim) if is_ranked else None


def _axis(number: int, rank: int) -> int:
    if not -rank <= number < rank:
        raise ValueError("not an axis")
    return number % rank


def _with_size(shape: Any, axis: int, *sizes: int | None, gone: int = 1) -> Sizes:
    return *shape[:axis], *sizes, *shape[axis + gone :]


def _with_axis(shape: Any, number: int, size: int) -> Sizes:
    return _with_size(shape, _axis(number, len(shape) + 1), size, gone=0)


def _without(shape: Any, axes: Iterable[int], keeps: bool = False) -> Sizes:
    gone = {axis % len(shape) for axis in axes}
    rest = (axis for axis in range(len(shape)) if keeps or axis not in gone)
    return tuple(1 if axis in gone else shape[axis] for axis in rest)


def _declared(op: OpShapes) -> Sizes:
    """Read an attr; where TensorFlow once spelled any shape as that of a number, nothing."""
    node, value = op.node, op.node.attr("shape")
    sizes = None if value is None else _known_sizes(value.shape)
    is_old = node.op == types.PLACEHOLDER and node.body.library.producer <= SCALAR_IS_UNKNOWN
    return None if sizes == () and (is_old or node.op == types.OLD_VARIABLE) else sizes


def _variable(op: OpShapes) -> Sizes:
    """Read what the handle tells, wherever it enters a loop or branch."""
    handle, _ = handle_origin(op.wiring, op.wiring.inputs(op.node.index)[0])
    variable: Any = op.wiring.node(handle)
    return _known_sizes(variable.attr("shape").shape) if variable.op == VARIABLE else None


def _merged(op: OpShapes) -> Sizes:
    """Join shapes: what comes round a loop is not known when its Merge is imported."""
    if op.output:
        return ()
    columns = zip(*op.shapes, strict=True)
    return tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in columns)


def _matmul(op: OpShapes) -> Sizes:
    """Multiply two matrices: TensorFlow takes both for such, known or not."""
    a, b = (shape if shape and len(shape) == 2 else (None, None) for shape in op.shapes)
    return a[bool(op.attr("transpose_a"))], b[not op.attr("transpose_b")]


def _reduced(op: OpShapes) -> Sizes:
    """Leave out the axes, which a constant names."""
    shape, axes, keeps = op.shapes[0], op.integers[1], op.attr("keep_dims")
    if axes is None:
        return (None,) * len(shape) if keeps else None
    return _without(shape, axes, keeps)


def _reshaped(op: OpShapes) -> Sizes:
    """Return what the integers spell; one size that they leave open is told by all elements."""
    shape, sizes = op.shapes[0], op.spelled(1)
    rest = prod(size for size in sizes or () if size is not None)
    is_open = sizes is not None and sizes.count(None) == 1 and rest > 0
    if not is_open or shape is None or None in shape or prod(shape) % rest:
        return sizes
    return tuple(prod(shape) // rest if size is None else size for size in sizes or ())


def _squeezed(op: OpShapes) -> Sizes:
    shape, axes = op.shapes[0], op.attr("squeeze_dims")
    if axes:
        return _without(shape, axes)
    return None if None in shape else tuple(size for size in shape if size != 1)


def _joined(op: OpShapes) -> Sizes:
    """Put parts one after the other along an axis."""
    parts = op.shapes[:-1]
    axis = _axis(op.integers[-1][0], max(len(part) for part in parts if part is not None))
    sizes: list[Any] = [None if part is None else part[axis] for part in parts]
    rest = merged_shape([part and _with_size(part, axis, 0) for part in parts])
    return _with_size(rest, axis, None if None in sizes else sum(sizes))


def _split(op: OpShapes) -> Sizes:
    """Return one of several parts of equal size."""
    shape, axis = op.shapes[1], _axis(op.integers[0][0], len(op.shapes[1]))
    return _with_size(shape, axis, shape[axis] and shape[axis] // op.attr("num_split"))


def _strided(op: OpShapes) -> Sizes:
    """Return the shape of a slice of constant ends, without new axes or an ellipsis."""
    (begin, end, strides), shape = op.integers[1:], op.shapes[0]
    if op.attr("new_axis_mask") or op.attr("ellipsis_mask") or None in (*begin, *end, *strides):
        return None
    sizes = []
    for n, size in enumerate(shape[: len(strides)]):
        if op.attr("shrink_axis_mask") >> n & 1:
            continue
        first = None if op.attr("begin_mask") >> n & 1 else begin[n]
        last = None if op.attr("end_mask") >> n & 1 else end[n]
        cut = slice(first, last, strides[n])
        sizes.append(None if size is None else len(range(*cut.indices(size))))
    return *sizes, *shape[len(strides) :]


def _windows(op: OpShapes) -> Sizes:
    """Return an image after a convolution's or a pooling's windows, by strides and padding."""
    image, window, padding = op.shapes[0], op.attr("ksize"), op.attr("padding")
    if not window:
        *window, before, depth = op.shapes[1]
        if op.node.op.startswith("Depthwise"):
            depth = before and depth and before * depth
        channel = 1 if str(op.attr("data_format")).startswith("NC") else len(image) - 1
        image, window = _with_size(image, channel, depth), [1, *window]
        window.insert(channel, 1)
    strides, dilations = op.attr("strides"), op.attr("dilations") or [1] * len(image)
    sizes: list[int | None] = []
    for room, size, stride, dilation in zip(image, window, strides, dilations, strict=True):
        if room is None or size is None:
            sizes.append(None)
        elif padding == "SAME":
            sizes.append((room + stride - 1) // stride)
        else:
            sizes.append(max((room - (size - 1) * dilation - 1 + stride) // stride, 0))
    return None if padding == "EXPLICIT" else tuple(sizes)


KEEPING_IMAGES = ("BiasAdd", "BiasAddV1", "LRN")
NORMALIZATIONS = ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
ARRAYS = (types.TENSOR_ARRAY, "TensorArrayGradV3")
SCALARS = (
    "Rank Size L2Loss ScalarSummary HistogramSummary MergeSummary IsVariableInitialized"
    " VarIsInitializedOp TensorArrayWriteV3 TensorArrayScatterV3 TensorArraySplitV3"
    f" TensorArraySizeV3 {types.LOOP_COND} {VARIABLE}"
).split()
FILLED = "Fill Empty RandomUniform RandomStandardNormal RandomUniformInt TruncatedNormal".split()
RESIZED = ("ResizeArea", "ResizeBicubic", "ResizeBilinear", "ResizeNearestNeighbor")
WINDOWS = "Conv2D Conv3D DepthwiseConv2dNative MaxPool AvgPool MaxPool3D AvgPool3D".split()

Rule = Callable[[OpShapes], Sizes]

# The shape of an output by op type, as TensorFlow's shape inference has it; of output 0 alone where
# the op type is not in EACH_OUTPUT.
RULES: dict[str, Rule] = {
    "Const": lambda op: getattr(attrs.constant(op.node), "shape", None),
    **dict.fromkeys(DECLARED, _declared),
    "ReadVariableOp": _variable,
    **dict.fromkeys(types.MERGES, _merged),
    **dict.fromkeys(types.ENTERS, lambda op: op.shapes[0] if is_constant(op.node) else None),
    **dict.fromkeys(
        (*KEEPING_IMAGES, *NORMALIZATIONS, *types.ALL_SWITCHES), lambda op: op.shapes[0]
    ),
    **dict.fromkeys(SCALARS, lambda op: ()),
    **dict.fromkeys(FILLED, lambda op: op.spelled(0)),
    "Shape": lambda op: (None if op.shapes[0] is None else len(op.shapes[0]),),
    "BroadcastGradientArgs": lambda op: (None,),
    **dict.fromkeys(ARRAYS, lambda op: () if op.output else (2,)),
    "StackV2": lambda op: (2,),
    "MatMul": _matmul,
    "SelectV2": lambda op: broadcast(op.shapes),
    **dict.fromkeys(("Sum", "Mean", "Max", "Min", "Prod", "All", "Any"), _reduced),
    "Reshape": _reshaped,
    "ExpandDims": lambda op: _with_axis(op.shapes[0], op.integers[1][0], 1),
    "Squeeze": _squeezed,
    "Transpose": lambda op: tuple(op.shapes[0][axis] for axis in op.integers[1]),
    "Pack": lambda op: _with_axis(merged_shape(op.shapes), op.attr("axis"), len(op.shapes)),
    "Unpack": lambda op: _with_size(op.shapes[0], _axis(op.attr("axis"), len(op.shapes[0]))),
    "ConcatV2": _joined,
    "Split": _split,
    "StridedSlice": _strided,
    **dict.fromkeys(WINDOWS, _windows),
    **dict.fromkeys(
        RESIZED, lambda op: _with_size(op.shapes[0], 1, *(op.integers[1] or (None, None)), gone=2)
    ),
}
EACH_OUTPUT = (
    types.ALL_SWITCHES | types.MERGES | {*("Split", "Unpack", "BroadcastGradientArgs", *ARRAYS)}
)


def _constant_integers(op: OpShapes) -> Sizes:
    tensor = attrs.constant(op.node)
    if tensor is None or tensor.dtype not in ("int32", "int64") or tensor.size > MOST_INTEGERS:
        return None
    import numpy as np  # few rules need it, and its threads keep workers from being forked

    integers = tuple(int(n) for piece in tensor.pieces() for n in np.resize(*piece))
    return integers if all(abs(number) < LARGEST for number in integers) else None


# The integers of what an op gives, of which TensorFlow makes shapes.
INTEGERS: dict[str, Rule] = {
    "Const": _constant_integers,
    "Shape": lambda op: op.shapes[0],
    "Pack": lambda op: tuple(i and i[0] for i in op.integers) if () in op.shapes else None,
}


class Shapes(msgspec.Struct, eq=False):
    """The shapes of the tensors of a body, as far as they are known; each inferred once."""

    wiring: Wiring
    _shapes: dict[Tensor, Sizes] = msgspec.field(default_factory=dict)
    _integers: dict[Tensor, Sizes] = msgspec.field(default_factory=dict)
    _listed: dict[int, list[Sizes]] = msgspec.field(default_factory=dict)
    _functions: dict[str, Wiring] = msgspec.field(default_factory=dict)

    def is_known(self, tensor: Tensor) -> bool:
        """Return whether every size of a tensor is known."""
        sizes = self.of(tensor)
        return sizes is not None and None not in sizes

    def of(self, tensor: Tensor) -> Sizes:
        """Return the sizes of a tensor, None for one that is not known; None without a rank."""
        todo, reads = [tensor], dict[Tensor, Sequence[Tensor | None]]()
        while tensor not in self._shapes:
            last = todo[-1]
            if last not in reads:  # those that are there already are read round a loop
                read = reads[last] = self._read(last)
                todo += [t for t in read if t and t not in self._shapes and t not in reads]
            elif todo.pop() not in self._shapes:
                self._shapes[last] = self._inferred(last, reads[last])
        return self._shapes[tensor]

    def _read(self, tensor: Tensor) -> Sequence[Tensor | None]:
        """Return the tensors whose shapes tell that of this one; None for what is read too early.

        TensorFlow makes what leads round a loop, and decides it, only when the rest is there.
        """
        node, output = self.wiring.node(tensor[0]), tensor[1]
        if node is None or (node.op not in INTEGERS and self._told(node, output) is not None):
            return ()
        is_call = node.op in node.body.library.signatures
        if not is_call and (node.opdef is None or (output and node.op not in EACH_OUTPUT)):
            return ()
        try:
            inputs = self.wiring.inputs(node.index)
            if is_call:
                inputs = self._given_on(node, output, inputs)
        except NOT_KNOWN:
            return ()
        ops = node.body.heads.ops
        return [None if read[0] >= 0 and ops[read[0]] in types.FIXED else read for read in inputs]

    def _inferred(self, tensor: Tensor, read: Sequence[Tensor | None]) -> Sizes:
        node, output = self.wiring.node(tensor[0]), tensor[1]
        if node is None:
            return None
        shapes, integers = (
            [None if t is None else known.get(t) for t in read]
            for known in (self._shapes, self._integers)
        )
        op = OpShapes(self.wiring, node, output, shapes, integers)
        sizes = self._told(node, output)
        sizes = _by_rule(RULES.get(node.op, _as_inputs), op) if sizes is None else sizes
        if sizes is not None and len(sizes) > LARGEST_RANK:  # which no run can make
            return None
        if node.op in INTEGERS and sizes is not None:
            values = _by_rule(INTEGERS[node.op], op)
            size = prod(item or 0 for item in sizes)
            self._integers[tensor] = values if values and len(values) == size else None
        return sizes

    def _told(self, node: Node, output: int) -> Sizes:
        """Read what an attr tells of an output; of all outputs it is read once."""
        if node.index not in self._listed:
            keys = ("_output_shapes", *(["output_shapes"] if node.op in LISTED else []))
            values = (value for key in keys if (value := node.attr(key)) is not None)
            listed = next((value.list.shape for value in values), ())
            self._listed[node.index] = list(map(_known_sizes, listed))
        sizes = self._listed[node.index]
        return sizes[output] if output < len(sizes) else None

    def _given_on(self, call: Node, output: int, inputs: list[Tensor]) -> list[Tensor]:
        """Return the input of a call that its function gives on as this output; or none."""
        if call.op not in self._functions:
            graph: Any = call.body.library.graph()
            self._functions[call.op] = Wiring(graph.functions[call.op])
        wiring = self._functions[call.op]
        index, _ = wiring.returned[output]
        for _ in range(GIVEN_ON):
            if index >= 0 and wiring.body.heads.ops[index] in types.GIVES_ON:
                index, _ = wiring.inputs(index)[0]
        return inputs[-1 - index : -index] if index < 0 else []


def _by_rule(rule: Rule, op: OpShapes) -> Sizes:
    try:
        return rule(op)
    except NOT_KNOWN:
        return None


def _as_inputs(op: OpShapes) -> Sizes:
    """Return the shape that an op keeps or broadcasts; of a call, that which its function keeps."""
    known = op.node.opdef
    if known is None or op.node.op in op.node.body.library.signatures:
        return merged_shape(op.shapes)
    if known.broadcasts:
        return broadcast(op.shapes)
    return merged_shape([op.shapes[slot] for slot in known.keeps_shape if slot < len(op.shapes)])

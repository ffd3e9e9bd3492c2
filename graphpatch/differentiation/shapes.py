"""Shapes of tensors as TensorFlow infers them on import: what the file says, and plain ops.

The file says them in `_output_shapes`, placeholders, constants and variables. From there they are
followed through ops that keep, reduce or combine shapes plainly. A shape that needs more counts as
not known; `verify` and `doctor --run` ask TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from math import prod
from typing import Any, NamedTuple

import msgspec

from graphpatch.control_flow.contexts import is_constant
from graphpatch.differentiation.wiring import Tensor, Wiring, handle_origin
from graphpatch.errors import ModelError
from graphpatch.graph import attrs
from graphpatch.graph import op_types as types
from graphpatch.graph.attrs import constant
from graphpatch.graph.node import Node
from graphpatch.graph.op_types import (
    ALL_SWITCHES,
    ENTERS,
    FIXED,
    LOOP_COND,
    MERGES,
    TENSOR_ARRAY,
)
from graphpatch.protos import TensorShapeProto

Sizes = tuple[int | None, ...] | None
"""The sizes of a tensor, None for one that is not known; None where the rank is not."""

LARGEST_RANK = 254  # that TensorFlow makes tensors of
MOST_INTEGERS = 64  # more than a shape or a list of axes has
LARGEST = 1 << 31  # from here on an int32 is another number
GIVEN_ON = 8  # ops by which a function gives an argument on, at most
SCALAR_IS_UNKNOWN = 21  # up to this version of GraphDefs a placeholder without sizes has any shape

DECLARED = types.PLACEHOLDERS | {types.OPTIONAL_PLACEHOLDER, *types.REF_VARIABLES}
LISTED = types.PIPELINES | types.IFS | types.CASES  # that list the shapes of their outputs
# What a rule meets in a broken graph, or where a shape that it needs is not known.
NOT_KNOWN = (LookupError, ValueError, TypeError, ArithmeticError, AttributeError, StopIteration)


class OpShapes(NamedTuple):
    """An op, one of its outputs, the shapes of its inputs, and the integers of small ones."""

    node: Node
    output: int
    shapes: Sequence[Any]
    integers: Sequence[Any]

    def number(self, slot: int) -> Any:
        """Return the one integer of an input."""
        [number] = self.integers[slot]
        return number

    def spelled(self, slot: int) -> Sizes:
        """Return the shape that the integers of an input spell, as far as they are known."""
        integers, [rank] = self.integers[slot], self.shapes[slot]
        if integers is None:
            return (None,) * rank if rank <= LARGEST_RANK else None
        return tuple(map(_known_size, integers))

    def attr(self, key: str) -> Any:
        """Return an attr as JSON has it, or its default."""
        value, op = self.node.attr(key), self.node.opdef
        if value is not None:
            return attrs.as_json(value)
        return None if op is None else op.defaults.get(key)


def sizes_in_words(sizes: Sizes) -> str:
    """Return a shape as text; ? for a size that is not known."""
    if sizes is None:
        return "not known"
    return f"[{', '.join('?' if size is None else str(size) for size in sizes)}]"


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
    if len(known) < len(shapes):
        return None
    return tuple(map(_broadcast_size, zip_longest(*known, fillvalue=1)))[::-1]


def _broadcast_size(sizes: Sequence[int | None]) -> int | None:
    large = next((size for size in sizes if size is not None and size > 1), None)
    return large if large or None in sizes else min(size for size in sizes if size is not None)


def _known_size(size: int | None) -> int | None:
    return size if size is not None and size >= 0 else None


def _known_sizes(shape: TensorShapeProto) -> Sizes:
    if shape.unknown_rank or len(shape.dim) > LARGEST_RANK:
        return None
    return tuple(_known_size(dim.size) for dim in shape.dim)


def _axis(number: int, rank: int) -> int:
    if not -rank <= number < rank:
        raise ValueError("not an axis")
    return number % rank


def _with_axis(shape: Any, number: int, size: int | None) -> Sizes:
    axis = _axis(number, len(shape) + 1)
    return *shape[:axis], size, *shape[axis:]


def _with_size(shape: Any, axis: int, *sizes: int | None) -> Sizes:
    return *shape[:axis], *sizes, *shape[axis + 1 :]


def _declared(op: OpShapes) -> Sizes:
    """Read an attr; where TensorFlow once spelled any shape as that of a number, nothing."""
    value, node = op.node.attr("shape"), op.node
    sizes = None if value is None else _known_sizes(value.shape)
    is_old = node.op == types.PLACEHOLDER and node.body.library.producer <= SCALAR_IS_UNKNOWN
    return None if sizes == () and (is_old or node.op == types.OLD_VARIABLE) else sizes


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
    gone = {axis % len(shape) for axis in axes} if shape else set()
    rest = enumerate(shape)
    return tuple(1 if n in gone else size for n, size in rest if keeps or n not in gone)


def _reshaped(op: OpShapes) -> Sizes:
    """Return what the integers spell; one size that they leave open is told by all elements."""
    shape, sizes = op.shapes[0], op.spelled(1)
    if sizes is None or shape is None or None in shape or sizes.count(None) != 1:
        return sizes
    count, rest = prod(shape), prod(size for size in sizes if size is not None)
    if not rest or count % rest:
        return sizes
    return tuple(count // rest if size is None else size for size in sizes)


def _squeezed(op: OpShapes) -> Sizes:
    shape, named = op.shapes[0], op.attr("squeeze_dims")
    if not named and None in shape:
        return None
    gone = {axis % len(shape) for axis in named} if named else set(range(len(shape)))
    return tuple(n for axis, n in enumerate(shape) if not (axis in gone and (named or n == 1)))


def _joined(op: OpShapes) -> Sizes:
    """Put parts one after the other along an axis."""
    parts, number = op.shapes[:-1], op.number(-1)
    axis = _axis(number, next(len(part) for part in parts if part is not None))
    sizes: list[Any] = [None if part is None else part[axis] for part in parts]
    rest = merged_shape([part and _with_size(part, axis, 0) for part in parts])
    return _with_size(rest, axis, None if None in sizes else sum(sizes))


def _split(op: OpShapes) -> Sizes:
    """Return one of several parts of equal size."""
    shape, axis = op.shapes[1], _axis(op.number(0), len(op.shapes[1]))
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


def _channel(op: OpShapes) -> int:
    layout = op.attr("data_format")
    is_first = isinstance(layout, str) and layout.startswith("NC")
    return 1 if is_first else len(op.shapes[0]) - 1


def _windows(op: OpShapes) -> Sizes:
    """Return an image after a convolution's or a pooling's windows, by strides and padding."""
    image, pool, channel = op.shapes[0], op.attr("ksize"), _channel(op)
    axes = [axis for axis in range(len(image)) if axis not in (0, channel)]
    strides, dilations = op.attr("strides"), op.attr("dilations") or [1] * len(image)
    if pool:
        window, depth = [pool[axis] for axis in axes], image[channel]
        depth = depth and depth // pool[channel]
    else:
        *window, before, depth = op.shapes[1]
        if op.node.op.startswith("Depthwise"):
            depth = before and depth and before * depth
    sizes = list(_with_size(image, channel, depth) or ())
    for axis, size in zip(axes, window, strict=True):
        room, stride = image[axis], strides[axis]
        if room is None or size is None or op.attr("padding") == "EXPLICIT":
            sizes[axis] = None
        elif op.attr("padding") == "SAME":
            sizes[axis] = (room + stride - 1) // stride
        else:
            sizes[axis] = max((room - (size - 1) * dilations[axis] - 1 + stride) // stride, 0)
    return tuple(sizes)


KEEPING_IMAGES = ("BiasAdd", "BiasAddV1", "LRN")
SCALARS = (
    "Rank Size L2Loss ScalarSummary HistogramSummary MergeSummary IsVariableInitialized"
    " VarIsInitializedOp TensorArrayWriteV3 TensorArrayScatterV3 TensorArraySplitV3"
    f" TensorArraySizeV3 {LOOP_COND} {types.RESOURCE_VARIABLE}"
).split()
FILLED = "Fill Empty RandomUniform RandomStandardNormal RandomUniformInt TruncatedNormal".split()
NORMALIZATIONS = ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
WINDOWS = "Conv2D Conv3D DepthwiseConv2dNative MaxPool AvgPool MaxPool3D AvgPool3D".split()

Rule = Callable[[OpShapes], Sizes]

# The shape of an output by op type, as TensorFlow's shape inference has it; of output 0 alone where
# the op type is not in EACH_OUTPUT.
RULES: dict[str, Rule] = {
    "Const": lambda op: getattr(constant(op.node), "shape", None),
    **dict.fromkeys(DECLARED, _declared),
    **dict.fromkeys(MERGES, _merged),
    **dict.fromkeys(ENTERS, lambda op: op.shapes[0] if is_constant(op.node) else None),
    **dict.fromkeys((*KEEPING_IMAGES, *NORMALIZATIONS, *ALL_SWITCHES), lambda op: op.shapes[0]),
    **dict.fromkeys(SCALARS, lambda op: ()),
    **dict.fromkeys(FILLED, lambda op: op.spelled(0)),
    "Shape": lambda op: (None if op.shapes[0] is None else len(op.shapes[0]),),
    "BroadcastGradientArgs": lambda op: (None,),
    **dict.fromkeys((TENSOR_ARRAY, "TensorArrayGradV3"), lambda op: () if op.output else (2,)),
    "StackV2": lambda op: (2,),
    "MatMul": _matmul,
    "SelectV2": lambda op: broadcast(op.shapes),
    **dict.fromkeys(("Sum", "Mean", "Max", "Min", "Prod", "All", "Any"), _reduced),
    "Reshape": _reshaped,
    "ExpandDims": lambda op: _with_axis(op.shapes[0], op.number(1), 1),
    "Squeeze": _squeezed,
    "Transpose": lambda op: tuple(op.shapes[0][axis] for axis in op.integers[1]),
    "Pack": lambda op: _with_axis(merged_shape(op.shapes), op.attr("axis"), len(op.shapes)),
    "Unpack": lambda op: _with_size(op.shapes[0], _axis(op.attr("axis"), len(op.shapes[0]))),
    "ConcatV2": _joined,
    "Split": _split,
    "StridedSlice": _strided,
    **dict.fromkeys(WINDOWS, _windows),
}
EACH_OUTPUT = {
    *("Split", "Unpack", "BroadcastGradientArgs", TENSOR_ARRAY, "TensorArrayGradV3"),
    *(*ALL_SWITCHES, *MERGES),
}


def _constant_integers(op: OpShapes) -> Sizes:
    tensor = constant(op.node)
    if tensor is None or tensor.dtype not in ("int32", "int64") or tensor.size > MOST_INTEGERS:
        return None
    import numpy as np  # few rules need it, and its threads keep workers from being forked

    pieces = [np.resize(*piece) for piece in tensor.pieces()]
    if not pieces:  # an empty list, or a constant without its values
        return None if tensor.size else ()
    integers = tuple(int(number) for number in np.concatenate(pieces))
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
    _lists: dict[tuple[int, str], list[Sizes]] = msgspec.field(default_factory=dict)
    _arguments: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)

    def is_known(self, tensor: Tensor) -> bool:
        """Return whether every size of a tensor is known."""
        sizes = self.of(tensor)
        return sizes is not None and None not in sizes

    def if_known(self, tensor: Tensor) -> Sizes:
        """Return the sizes of a tensor; None also where a broken graph has not what it reads."""
        try:
            return self.of(tensor)
        except (ModelError, LookupError):
            return None

    def of(self, tensor: Tensor) -> Sizes:
        """Return the sizes of a tensor, None for one that is not known; None without a rank."""
        todo, begun = [tensor], set[Tensor]()
        while todo:
            last = todo.pop()
            if last in self._shapes:
                continue
            read = [] if last in begun else list(dict.fromkeys(self._read(last)))
            begun.add(last)  # one that is asked again meanwhile is read round a loop
            missing = [t for t in read if t and t not in self._shapes and t not in begun]
            if missing:
                todo += [last, *missing]
            else:
                self._shapes[last] = self._inferred(last)
        return self._shapes[tensor]

    def _read(self, tensor: Tensor) -> Sequence[Tensor | None]:
        """Return the tensors whose shapes tell that of this one; None for what is read too early.

        TensorFlow makes what leads round a loop, and decides it, only when the rest is there.
        """
        node, output = self.wiring.node(tensor[0]), tensor[1]
        if node is None or node.op in LISTED:
            return ()
        inputs: Sequence[Tensor] = self.wiring.inputs(node.index)
        if _is_call(node):
            place = self._argument_given_on(node, output)
            inputs = () if place is None else inputs[place : place + 1]
        elif output and node.op not in EACH_OUTPUT:
            return ()
        noted = self._listed(node, "_output_shapes", output)
        if noted is not None and node.op not in INTEGERS:
            return ()
        producers = ((read, self.wiring.node(read[0])) for read in inputs)
        return [None if node and node.op in FIXED else read for read, node in producers]

    def _inferred(self, tensor: Tensor) -> Sizes:
        node, output = self.wiring.node(tensor[0]), tensor[1]
        if node is None:
            return None
        shapes, integers = (
            [None if read is None else known.get(read) for read in self._read(tensor)]
            for known in (self._shapes, self._integers)
        )
        op = OpShapes(node, output, shapes, integers)
        sizes = self._listed(node, "_output_shapes", output)
        sizes = self._by_op(op) if sizes is None else sizes
        if sizes is not None and len(sizes) > LARGEST_RANK:  # which no run can make
            return None
        if node.op in INTEGERS and sizes is not None:
            values = _by_rule(INTEGERS[node.op], op)
            size = prod(item or 0 for item in sizes)
            self._integers[tensor] = values if values and len(values) == size else None
        return sizes

    def _by_op(self, op: OpShapes) -> Sizes:
        node = op.node
        if node.op in LISTED:
            return self._listed(node, "output_shapes", op.output)
        if node.op == "ReadVariableOp":  # the handle tells, wherever it enters a loop or branch
            read = self.wiring.inputs(node.index)
            origin = self.wiring.node(handle_origin(self.wiring, read[0])[0]) if read else None
            is_variable = origin is not None and origin.op == types.RESOURCE_VARIABLE
            value = origin.attr("shape") if origin is not None and is_variable else None
            return None if value is None else _known_sizes(value.shape)
        if _is_call(node):
            return op.shapes[0] if op.shapes else None
        if op.output and node.op not in EACH_OUTPUT:
            return None
        return _by_rule(RULES.get(node.op, _as_inputs), op)

    def _listed(self, node: Node, key: str, output: int) -> Sizes:
        """Read what an attr tells of an output; of all outputs it is read once."""
        place = node.index, key
        if place not in self._lists:
            value = node.attr(key)
            listed = () if value is None else value.list.shape
            self._lists[place] = list(map(_known_sizes, listed))
        sizes = self._lists[place]
        return sizes[output] if output < len(sizes) else None

    def _argument_given_on(self, call: Node, output: int) -> int | None:
        """Return the argument that the function of a call gives on as this output, or None."""
        graph = call.body.library.graph()
        body = None if graph is None else graph.functions.get(call.op)
        outputs = body.signature.output_arg if body is not None and body.signature else ()
        if body is None or output >= len(outputs):
            return None
        if call.op not in self._arguments:
            self._arguments[call.op] = {name: n for n, name in enumerate(body.arguments)}
        text = body.ret.get(outputs[output].name, "")
        for _ in range(GIVEN_ON):
            node = body.producer(text)
            if node is not None and node.op in types.GIVES_ON and node.data_inputs:
                text = node.data_inputs[0]
        return self._arguments[call.op].get(text)


def _by_rule(rule: Rule, op: OpShapes) -> Sizes:
    try:
        return rule(op)
    except NOT_KNOWN:
        return None


def _is_call(node: Node) -> bool:
    return node.op in node.body.library.signatures


def _as_inputs(op: OpShapes) -> Sizes:
    """Return the shape of an op that keeps that of an input, or broadcasts its inputs."""
    known = op.node.opdef
    if known is None or not known.keeps_shape:
        return None
    if known.broadcasts:
        return broadcast(op.shapes)
    return merged_shape([op.shapes[slot] for slot in known.keeps_shape if slot < len(op.shapes)])

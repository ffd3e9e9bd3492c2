"""Shapes of tensors as TensorFlow infers them on import: what the file says, and plain ops.

The file says them in `_output_shapes`, placeholders, constants and variables. From there they are
followed through ops that keep, reduce or combine shapes plainly. A shape that needs more counts as
not known; `verify` and `doctor --run` ask TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice, zip_longest
from math import prod
from typing import Any, NamedTuple

import msgspec

from graphpatch.control_flow.contexts import is_constant
from graphpatch.control_flow.op_types import (
    ALL_SWITCHES,
    ENTERS,
    FIXED,
    LOOP_COND,
    MERGES,
    TENSOR_ARRAY,
)
from graphpatch.differentiation.wiring import Tensor, Wiring, handle_origin
from graphpatch.errors import ModelError
from graphpatch.graph import attrs
from graphpatch.graph import op_types as types
from graphpatch.graph.attrs import constant
from graphpatch.graph.node import Node
from graphpatch.protos import AttrValue, TensorShapeProto

Sizes = tuple[int | None, ...] | None
"""The sizes of a tensor, None for one that is not known; None where the rank is not."""

LARGEST_RANK = 254  # that TensorFlow makes tensors of
MOST_INTEGERS = 64  # more than a shape or a list of axes has
LARGEST = 1 << 31  # from here on an int32 is another number
KEPT_OUTPUTS = 16  # outputs from which on a list of their shapes is kept
GIVEN_ON = 8  # ops by which a function gives an argument on, at most
SCALAR_IS_UNKNOWN = 21  # up to this version of GraphDefs a placeholder without sizes has any shape

DECLARED = types.PLACEHOLDERS | {types.OPTIONAL_PLACEHOLDER, *types.REF_VARIABLES}
LISTED = types.PIPELINES | types.IFS | types.CASES  # that list the shapes of their outputs
# What a rule meets in a broken graph, or where a shape that it needs is not known.
NOT_TOLD = (LookupError, ValueError, TypeError, ArithmeticError, AttributeError, StopIteration)


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
        default = (
            next((declared.default for declared in op.attrs if declared.name == key), None)
            if op
            else None
        )
        return list(default) if isinstance(default, tuple) else default


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
    """Of what comes round a loop nothing is known when its Merge is imported."""
    if op.output:
        return ()
    columns = zip(*op.shapes, strict=True)
    return tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in columns)


def _matmul(op: OpShapes) -> Sizes:
    """TensorFlow takes both for matrices, known or not."""
    a, b = (shape if shape and len(shape) == 2 else (None, None) for shape in op.shapes)
    return a[bool(op.attr("transpose_a"))], b[not op.attr("transpose_b")]


def _reduced(op: OpShapes) -> Sizes:
    """Without the axes, which a constant names."""
    shape, axes, keeps = op.shapes[0], op.integers[1], op.attr("keep_dims")
    if axes is None:
        return (None,) * len(shape) if keeps else None
    gone = {axis % len(shape) for axis in axes} if shape else set()
    rest = enumerate(shape)
    return tuple(1 if n in gone else size for n, size in rest if keeps or n not in gone)


def _losses(op: OpShapes) -> Sizes:
    """One loss for each row, and a gradient for each logit."""
    logits = op.shapes[0] if op.node.op.startswith("Sparse") else merged_shape(op.shapes)
    return logits if op.output or logits is None else tuple(logits[:1])


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


def _joined(parts: Sequence[Any], number: int) -> Sizes:
    """Parts one after the other along an axis."""
    axis = _axis(number, next(len(part) for part in parts if part is not None))
    sizes: list[Any] = [None if part is None else part[axis] for part in parts]
    size = None if None in sizes else sum(sizes)
    return _with_size(
        merged_shape([part and _with_size(part, axis, 0) for part in parts]), axis, size
    )


def _split(op: OpShapes) -> Sizes:
    """One of several parts of equal size, or of the sizes that input 1 lists."""
    if op.node.op == "Split":
        shape, axis = op.shapes[1], _axis(op.number(0), len(op.shapes[1]))
        whole = shape[axis]
        return _with_size(shape, axis, None if whole is None else whole // op.attr("num_split"))
    shape, axis = op.shapes[0], _axis(op.number(2), len(op.shapes[0]))
    return _with_size(shape, axis, _known_size(op.integers[1][op.output]))


def _strided(op: OpShapes) -> Sizes:
    """Of a slice whose ends are constants."""
    (begin, end, strides), axes = op.integers[1:], iter(op.shapes[0])
    if None in (*begin, *end, *strides):
        return None
    masks = {key: op.attr(f"{key}_mask") for key in ("begin", "end", "new_axis", "shrink_axis")}
    ellipsis, sizes, places = op.attr("ellipsis_mask"), list[int | None](), range(len(strides))
    named = sum(not (ellipsis | masks["new_axis"]) >> n & 1 for n in places)
    for n in places:
        is_set = {key: bool(mask >> n & 1) for key, mask in masks.items()}
        if ellipsis >> n & 1:
            sizes += islice(axes, len(op.shapes[0]) - named)
        elif is_set["new_axis"]:
            sizes.append(1)
        elif (size := next(axes)) is None or is_set["shrink_axis"]:
            sizes += [] if is_set["shrink_axis"] else [None]
        else:
            first = None if is_set["begin"] else begin[n]
            last = None if is_set["end"] else end[n]
            sizes.append(len(range(*slice(first, last, strides[n]).indices(size))))
    return *sizes, *axes


def _gathered(op: OpShapes) -> Sizes:
    (shape, picks), is_along = op.shapes[:2], op.node.op == "GatherV2"
    axis = _axis(op.number(2) if is_along else 0, len(shape))
    batch = op.attr("batch_dims") if is_along else 0
    return _with_size(shape, axis, *picks[batch + len(picks) * (batch < 0) :])


def _padded(op: OpShapes) -> Sizes:
    pads = op.integers[1]
    around = zip(op.shapes[0], pads[::2], pads[1::2], strict=True)
    return tuple(None if row[0] is None else sum(row) for row in around)


def _channel(op: OpShapes) -> int:
    layout = op.attr("data_format")
    is_first = isinstance(layout, str) and layout.startswith("NC")
    return 1 if is_first else len(op.shapes[0]) - 1


def _windows(op: OpShapes) -> Sizes:
    """Of a convolution or a pooling: an image after windows, in the op's strides and padding."""
    image, pool, channel, rank = op.shapes[0], op.attr("ksize"), _channel(op), len(op.shapes[0])
    axes = [axis for axis in range(rank) if axis not in (0, channel)]
    strides, dilations = op.attr("strides"), op.attr("dilations") or [1] * rank
    pads, depth = op.attr("explicit_paddings") or [0] * rank * 2, image[channel]
    if pool:
        window, depths = [pool[axis] for axis in axes], [depth and depth // pool[channel]]
    else:
        *window, _, depth = op.shapes[1]
        depths = op.shapes[1][-2:] if op.node.op.startswith("Depthwise") else [depth]
    sizes = list(_with_size(image, channel, None if None in depths else prod(depths)) or ())
    for axis, size in zip(axes, window, strict=True):
        room, stride = image[axis], strides[axis]
        if room is None or size is None:
            sizes[axis] = None
        elif op.attr("padding") == "SAME":
            sizes[axis] = (room + stride - 1) // stride
        else:
            reach = (size - 1) * dilations[axis] + 1 - sum(pads[2 * axis : 2 * axis + 2])
            sizes[axis] = max((room - reach + stride) // stride, 0)
    return tuple(sizes)


def _normalized(op: OpShapes) -> Sizes:
    """Return the image, and lists of its channels, of which scale and offset tell too how many."""
    image = op.shapes[0]
    own = None if image is None else (image[_channel(op)],)
    channels = merged_shape([own, *op.shapes[1:3]])
    if op.output:
        return channels if op.output < STATISTICS else None
    return image and channels and _with_size(image, _channel(op), *channels)


STATISTICS = 5  # outputs of a normalisation whose shapes are known: the image and four lists
KEEPING_IMAGES = ("BiasAdd", "BiasAddV1", "LRN")
KEEPING = "ReverseV2 ReverseSequence IdentityN MaxPoolGrad FakeQuantWithMinMaxVars".split()
SCALARS = (
    "Rank Size L2Loss ScalarSummary HistogramSummary MergeSummary IsVariableInitialized"
    " VarIsInitializedOp TensorArrayWriteV3 TensorArrayScatterV3 TensorArraySplitV3"
    f" TensorArraySizeV3 {LOOP_COND} {types.RESOURCE_VARIABLE}"
).split()
FILLED = "Fill Empty RandomUniform RandomStandardNormal RandomUniformInt TruncatedNormal".split()
NORMALIZATIONS = ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
LOSSES = ("SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits")
WINDOWS = "Conv2D Conv3D DepthwiseConv2dNative MaxPool AvgPool MaxPool3D AvgPool3D".split()

Rule = Callable[[OpShapes], Sizes]

# The shape of an output by op type, as TensorFlow's shape inference has it; of output 0 alone where
# the op type is not in EACH_OUTPUT.
RULES: dict[str, Rule] = {
    "Const": lambda op: getattr(constant(op.node), "shape", None),
    **dict.fromkeys(DECLARED, _declared),
    **dict.fromkeys(MERGES, _merged),
    **dict.fromkeys(ENTERS, lambda op: op.shapes[0] if is_constant(op.node) else None),
    **dict.fromkeys((*KEEPING_IMAGES, *KEEPING, *ALL_SWITCHES), lambda op: op.shapes[0]),
    **dict.fromkeys(SCALARS, lambda op: ()),
    **dict.fromkeys(FILLED, lambda op: op.spelled(0)),
    "Shape": lambda op: (None if op.shapes[0] is None else len(op.shapes[0]),),
    "BroadcastGradientArgs": lambda op: (None,),
    **dict.fromkeys((TENSOR_ARRAY, "TensorArrayGradV3"), lambda op: () if op.output else (2,)),
    "StackV2": lambda op: (2,),
    "MatMul": _matmul,
    "SelectV2": lambda op: broadcast(op.shapes),
    **dict.fromkeys(("Sum", "Mean", "Max", "Min", "Prod", "All", "Any"), _reduced),
    **dict.fromkeys(LOSSES, _losses),
    "Reshape": _reshaped,
    "ExpandDims": lambda op: _with_axis(op.shapes[0], op.number(1), 1),
    "Squeeze": _squeezed,
    "Transpose": lambda op: tuple(op.shapes[0][axis] for axis in op.integers[1]),
    "Pack": lambda op: _with_axis(merged_shape(op.shapes), op.attr("axis"), len(op.shapes)),
    "Unpack": lambda op: _with_size(op.shapes[0], _axis(op.attr("axis"), len(op.shapes[0]))),
    "ConcatV2": lambda op: _joined(op.shapes[:-1], op.number(-1)),
    "Concat": lambda op: _joined(op.shapes[1:], op.number(0)),
    **dict.fromkeys(("Split", "SplitV"), _split),
    "StridedSlice": _strided,
    **dict.fromkeys(("Gather", "ResourceGather", "GatherV2"), _gathered),
    **dict.fromkeys(("Pad", "PadV2", "MirrorPad"), _padded),
    "OneHot": lambda op: _with_axis(op.shapes[0], op.attr("axis"), op.number(1)),
    **dict.fromkeys(WINDOWS, _windows),
    **dict.fromkeys(NORMALIZATIONS, _normalized),
}
EACH_OUTPUT = {
    *("Split", "SplitV", "Unpack", "BroadcastGradientArgs", "IdentityN", TENSOR_ARRAY),
    *("TensorArrayGradV3", *NORMALIZATIONS, *LOSSES, *ALL_SWITCHES, *MERGES, *LISTED),
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
    "Pack": lambda op: tuple(one and one[0] for one in op.integers) if () in op.shapes else None,
}


class Shapes(msgspec.Struct, eq=False):
    """The shapes of the tensors of a body, as far as they are known; each inferred once."""

    wiring: Wiring
    _shapes: dict[Tensor, Sizes] = msgspec.field(default_factory=dict)
    _integers: dict[Tensor, Sizes] = msgspec.field(default_factory=dict)
    _lists: dict[tuple[int, str], AttrValue] = msgspec.field(default_factory=dict)
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
            last = todo[-1]
            missing = [
                producer
                for producer in (() if last in begun else dict.fromkeys(self._read(last)))
                if producer not in self._shapes and producer not in begun
            ]
            begun.add(last)  # one that is asked again meanwhile is read round a loop
            todo += missing
            if not missing:
                todo.pop()
                if last not in self._shapes:
                    self._shapes[last] = self._inferred(last)
        return self._shapes[tensor]

    def _read(self, tensor: Tensor) -> Iterator[Tensor]:
        """Yield the tensors whose shapes tell that of this one."""
        node = self.wiring.node(tensor[0])
        if node is None or tensor in self._shapes or node.op in LISTED:
            return
        if tensor[1] and node.op not in EACH_OUTPUT and not _is_call(node):
            return
        noted = self._listed(node, "_output_shapes", tensor[1])
        if noted is None or None in noted or node.op in INTEGERS:
            for read in self._inputs(node, tensor[1]):
                before = self.wiring.node(read[0])
                if before is None or before.op not in FIXED:  # that is not there yet on import
                    yield read

    def _inputs(self, node: Node, output: int) -> list[Tensor]:
        inputs = self.wiring.inputs(node.index)
        if _is_call(node):
            place = self._argument_given_on(node, output)
            return [] if place is None else inputs[place : place + 1]
        return inputs[output : output + 1] if node.op == "IdentityN" else inputs

    def _inferred(self, tensor: Tensor) -> Sizes:
        node, output = self.wiring.node(tensor[0]), tensor[1]
        if node is None:
            return None
        noted = self._listed(node, "_output_shapes", output)
        if noted is not None and None not in noted and node.op not in INTEGERS:
            return noted
        read = set(self._read(tensor))
        known = [item if item in read else None for item in self._inputs(node, output)]
        shapes, integers = (
            [None if item is None else some.get(item) for item in known]
            for some in (self._shapes, self._integers)
        )
        op = OpShapes(node, output, shapes, integers)
        sizes = merged_shape([noted, self._by_op(op)])
        if sizes is not None and len(sizes) > LARGEST_RANK:  # which no run can make
            return None
        if node.op in INTEGERS and sizes is not None:
            values = _told(INTEGERS[node.op], op)
            size = prod(item or 0 for item in sizes)
            self._integers[tensor] = values if values and len(values) == size else None
        return sizes

    def _by_op(self, op: OpShapes) -> Sizes:
        node, rule = op.node, RULES.get(op.node.op, _kept)
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
        return None if op.output and node.op not in EACH_OUTPUT else _told(rule, op)

    def _listed(self, node: Node, key: str, output: int) -> Sizes:
        """Read what an attr tells of an output; of many outputs it is read once."""
        value = self._lists.get((node.index, key)) or node.attr(key)
        if value is None or output >= len(value.list.shape):
            return None
        if len(value.list.shape) > KEPT_OUTPUTS:
            self._lists[node.index, key] = value
        return _known_sizes(value.list.shape[output])

    def _argument_given_on(self, call: Node, output: int) -> int | None:
        """Return the argument that the function of a call gives on as this output, or None."""
        body = call.body.library.function(call.op)
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


def _told(rule: Rule, op: OpShapes) -> Sizes:
    try:
        return rule(op)
    except NOT_TOLD:
        return None


def _is_call(node: Node) -> bool:
    return node.op in node.body.library.signatures


def _kept(op: OpShapes) -> Sizes:
    """Return the shape of an op that keeps that of an input, or broadcasts its inputs."""
    known = op.node.opdef
    if known is None or not known.keeps_shape:
        return None
    if known.broadcasts:
        return broadcast(op.shapes)
    return merged_shape([op.shapes[slot] for slot in known.keeps_shape if slot < len(op.shapes)])

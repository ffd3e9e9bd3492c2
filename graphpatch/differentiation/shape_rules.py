"""The shapes of what ops give, by op type, where they are not simply those of what ops read.

As TensorFlow's shape inference has it; an op that is missing here counts as not known.
"""

from __future__ import annotations

from graphpatch.control_flow.op_types import LOOP_COND, TENSOR_ARRAY
from graphpatch.differentiation.array_shapes import ARRAY_SHAPES
from graphpatch.differentiation.op_shapes import (
    OpShapes,
    ShapeRule,
    Sizes,
    axis_of,
    broadcast,
    merged_shape,
)
from graphpatch.differentiation.part_shapes import PART_SHAPES
from graphpatch.differentiation.shape_windows import (
    NORMALIZED,
    NORMALIZED_BACK,
    WINDOW_SHAPES,
    kept_from_input,
)
from graphpatch.graph.op_types import RESOURCE_VARIABLE
from graphpatch.graph.tensor import constant


def _const_shape(op: OpShapes) -> Sizes:
    found = constant(op.node)
    return None if found is None else found.shape


def _rank_list_shape(op: OpShapes) -> Sizes:
    return (None,) if op.shapes[0] is None else (len(op.shapes[0]),)


def _scalar_shape(op: OpShapes) -> Sizes:
    return ()


def _list_shape(op: OpShapes) -> Sizes:
    return (None,)


def _pair_shape(op: OpShapes) -> Sizes:
    return (2,)


def _matmul_shape(op: OpShapes) -> Sizes:
    """TensorFlow takes both for matrices, known or not."""
    one, two = (
        shape if shape is not None and len(shape) == 2 else (None, None) for shape in op.shapes
    )
    return one[bool(op.attr("transpose_a"))], two[not op.attr("transpose_b")]


def _matmuls_shape(op: OpShapes) -> Sizes:
    """Matrices in the last two axes, whose other axes are broadcast."""
    one, two = op.shapes
    if one is None or two is None:
        return None
    batch = broadcast([one[:-2], two[:-2]])
    row, column = one[-1 if op.attr("adj_x") else -2], two[-2 if op.attr("adj_y") else -1]
    return None if batch is None else (*batch, row, column)


def _reduction_shape(op: OpShapes) -> Sizes:
    """Without the axes, which a constant names."""
    shape, axes, keeps = op.shapes[0], op.known(1), op.attr("keep_dims")
    if shape is None:
        return None
    if axes is None:
        return (None,) * len(shape) if keeps else None
    gone = {axis % len(shape) for axis in axes} if shape else set()
    if keeps:
        return tuple(1 if place in gone else size for place, size in enumerate(shape))
    return tuple(size for place, size in enumerate(shape) if place not in gone)


def _without_axis_shape(op: OpShapes) -> Sizes:
    """Of `ArgMax`: without one axis; TensorFlow takes a number for a number."""
    shape = op.shapes[0]
    if not shape:
        return shape
    axis = axis_of(op.number(1), len(shape))
    return (None,) * (len(shape) - 1) if axis is None else shape[:axis] + shape[axis + 1 :]


def _places_shape(op: OpShapes) -> Sizes:
    """Of `Where`: as many rows as are true, each with an index for each axis."""
    shape = op.shapes[0]
    return (None, None if shape is None else len(shape))


def _losses_shape(op: OpShapes) -> Sizes:
    """One loss for each row, and a gradient for each logit."""
    is_sparse = op.node.op.startswith("Sparse")
    logits = op.shapes[0] if is_sparse else merged_shape(op.shapes)
    if op.output:
        return logits
    return None if logits is None else logits[:1]


def _resized_shape(op: OpShapes) -> Sizes:
    image, size = op.shapes[0], op.known(1)
    batch, channels = (image[0], image[3]) if image is not None else (None, None)
    return (batch, *(size if size is not None else (None, None)), channels)


def _largest_shape(op: OpShapes) -> Sizes:
    """Of `TopKV2`: so many of the last axis."""
    shape = op.shapes[0]
    return None if shape is None else (*shape[:-1], op.number(1))


def _quantized_shape(op: OpShapes) -> Sizes:
    """The tensor, and both ends of its range, of which there may be more along an axis."""
    if not op.output:
        return op.shapes[0]
    return () if op.attr("axis") == WHOLE_TENSOR else None


def _numbered_segments_shape(op: OpShapes) -> Sizes:
    """As many sums as a number says, of what is behind the axes of the segments."""
    shape, ids = op.shapes[0], op.shapes[1]
    return None if shape is None or ids is None else (op.number(2), *shape[len(ids) :])


def _as_all_shape(op: OpShapes) -> Sizes:
    return merged_shape(op.shapes)


def _segments_shape(op: OpShapes) -> Sizes:
    """Sums of rows by segment: how many there are, only the numbers tell."""
    return None if op.shapes[0] is None else (None, *op.shapes[0][1:])


REDUCED = "Sum Mean Max Min Prod All Any".split()
KEEPING = (
    "ReverseV2 ReverseSequence FakeQuantWithMinMaxVarsPerChannel FakeQuantWithMinMaxVars IdentityN "
    "InvertPermutation ApplyAdam ApplyGradientDescent ApplyMomentum ApplyRMSProp ApplyAdagrad "
    "MatrixBandPart RGBToHSV HSVToRGB AdjustSaturation AdjustContrastv2 AdjustHue"
).split()
SCALAR_OPS = (
    "Rank Size L2Loss ScalarSummary HistogramSummary MergeSummary ImageSummary ShardedFilename "
    "ShardedFilespec IsVariableInitialized VarIsInitializedOp TensorListReserve"
).split()

WHOLE_TENSOR = -1  # in place of an axis
QUANTIZED = "QuantizedReshape QuantizedConv2D QuantizedRelu Requantize".split()

RULES: dict[str, ShapeRule] = {
    "Const": _const_shape,
    "Shape": _rank_list_shape,
    "ShapeN": _rank_list_shape,
    "MatMul": _matmul_shape,
    **dict.fromkeys(("BatchMatMul", "BatchMatMulV2"), _matmuls_shape),
    "SelectV2": lambda op: broadcast(op.shapes),
    **dict.fromkeys(("ArgMax", "ArgMin"), _without_axis_shape),
    "Where": _places_shape,
    "BroadcastGradientArgs": _list_shape,
    **dict.fromkeys((TENSOR_ARRAY, "StackV2"), _pair_shape),
    "SparseSoftmaxCrossEntropyWithLogits": _losses_shape,
    "SoftmaxCrossEntropyWithLogits": _losses_shape,
    **dict.fromkeys(("ResizeBilinear", "ResizeNearestNeighbor", "ResizeBicubic"), _resized_shape),
    "ResizeArea": _resized_shape,
    "TopKV2": _largest_shape,
    **dict.fromkeys(("SegmentSum", "SegmentMean", "SegmentMax", "SegmentMin"), _segments_shape),
    **dict.fromkeys(("UnsortedSegmentSum", "UnsortedSegmentMax"), _numbered_segments_shape),
    **dict.fromkeys(("UnsortedSegmentMin", "UnsortedSegmentProd"), _numbered_segments_shape),
    **dict.fromkeys(("LRNGrad", "AccumulateNV2"), _as_all_shape),
    "RequantizationRange": _scalar_shape,
    "QuantizeV2": _quantized_shape,
    **dict.fromkeys(SCALAR_OPS, _scalar_shape),
    LOOP_COND: _scalar_shape,
    RESOURCE_VARIABLE: _scalar_shape,
    **dict.fromkeys(REDUCED, _reduction_shape),
    **dict.fromkeys(KEEPING, kept_from_input),
    **ARRAY_SHAPES,
    **PART_SHAPES,
    **WINDOW_SHAPES,
}
"""The rule of an op type; of output 0 alone, where the op type is not in BY_OUTPUT."""

BY_OUTPUT = frozenset(
    {
        *("Split", "SplitV", "Unpack", "BroadcastGradientArgs", "TopKV2"),
        *("RequantizationRange", "QuantizeV2"),
        *NORMALIZED,
        *NORMALIZED_BACK,
        *("SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits"),
    }
)
"""Op types whose rules tell the shape of each output."""

BY_SLOT = frozenset({"IdentityN", "ShapeN"})
"""Op types whose outputs are each of the input with their number alone."""

SCALARS = {
    (TENSOR_ARRAY, 1),
    ("TensorArrayGradV3", 1),
    ("TensorArrayWriteV3", 0),
    ("TensorArrayScatterV3", 0),
    ("TensorArraySplitV3", 0),
    ("TensorArraySizeV3", 0),
    *((op, output) for op in QUANTIZED for output in (1, 2)),
}
"""The flow of a TensorArray is a number, and so is its size, and the range of quantized tensors."""

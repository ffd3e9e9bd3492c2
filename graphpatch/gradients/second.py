"""Second derivatives that TensorFlow lacks: the gradients of ops that compute gradients.

TensorFlow registers none for them (`tf.gradients` raises LookupError), or None (ResizeBilinearGrad,
FakeQuant*Gradient). What is linear in the upstream gradient that an op reads has the forward op as
its gradient there.
"""

from __future__ import annotations

from collections.abc import Mapping

from graphpatch.errors import FormulaError
from graphpatch.gradients.ops import FLOATS, UNKNOWN, Value
from graphpatch.gradients.own import OP_GRADIENTS, OpCall, OpGradient


def _sizes(at: OpCall, value: Value, *axes: int) -> Value:
    """Return the sizes of some axes of a value, as a vector."""
    program = at.program
    axis, sizes = program.scalar(0, "int32"), program.shape_of(value)
    return program.op("GatherV2", sizes, program.vector(*axes), axis, shape=UNKNOWN, batch_dims=0)


def _by_forward(op_type: str, *reads: int, slot: int = 0, axes: tuple[int, ...] = ()) -> OpGradient:
    """Return the forward op, of dy and what the op reads at other slots.

    The sizes of these `axes` of what it reads at `slot` come behind dy.
    """

    def gradient(at: OpCall, place: int, dy: Value) -> Value:
        sizes = [_sizes(at, at.xs[slot], *axes)] if axes else []
        return at.op(op_type, dy, *sizes, *(at.xs[read] for read in reads))

    return gradient


def _crop(at: OpCall, place: int, dy: Value) -> Value:
    """Return that of CropAndResizeGradImage, of the crops' gradients or the boxes."""
    grads, boxes, box_indices, _ = at.xs
    if place == 0:
        return at.op("CropAndResize", dy, boxes, box_indices, _sizes(at, grads, 1, 2))
    return at.op("CropAndResizeGradBoxes", grads, dy, boxes, box_indices)


def _softsign(at: OpCall, place: int, dy: Value) -> Value:
    """Return that of g / (1 + |x|) ** 2, made of ops that have gradients themselves."""
    program, (g, x) = at.program, at.xs
    wide = program.op("Add", program.scalar(1.0, x.dtype), program.op("Abs", x))
    slope = program.op("RealDiv", dy, program.op("Square", wide))
    if place == 0:
        return slope
    twice = program.op("Mul", program.scalar(-2.0, x.dtype), program.op("Mul", g, slope))
    return program.op("Mul", twice, program.op("RealDiv", program.op("Sign", x), wide))


def _segments(kind: str) -> OpGradient:
    """Return the sums of what dy has at the indices, by segment, divided by their numbers."""

    def gradient(at: OpCall, place: int, dy: Value) -> Value:
        program, (grads, indices, segments, _) = at.program, at.xs
        rows = program.op("Squeeze", _sizes(at, grads, 0), shape=UNKNOWN)
        zero, one = program.scalar(0, "int32"), program.scalar(1.0, dy.dtype)
        parts = program.op("GatherV2", dy, indices, zero, shape=UNKNOWN, batch_dims=0)
        sums = program.op("UnsortedSegmentSum", parts, segments, rows, shape=grads.shape)
        if kind == "Sum":
            return sums
        each = program.op("BroadcastTo", one, program.shape_of(segments), shape=UNKNOWN)
        counts = program.op("UnsortedSegmentSum", each, segments, rows, shape=UNKNOWN)
        counts = program.op("Maximum", counts, one, shape=UNKNOWN)
        if kind == "SqrtN":
            counts = program.op("Sqrt", counts, shape=UNKNOWN)
        rank = program.op("Rank", grads, shape=UNKNOWN)
        axes = program.op("Range", program.scalar(1, "int32"), rank, program.scalar(1, "int32"))
        column = program.op("Sum", grads, axes, shape=UNKNOWN, keep_dims=True)
        counts = program.op("Reshape", counts, program.shape_of(column), shape=UNKNOWN)
        return program.op("RealDiv", sums, counts, shape=grads.shape)

    return gradient


def _max_pool(at: OpCall, place: int, dy: Value) -> Value:
    """Return the elements of dy at the largest elements, whose places `argmax` has."""
    program, (image, grad, argmax) = at.program, at.xs
    count = program.op(
        "Prod", program.shape_of(dy), program.vector(0), shape=UNKNOWN, keep_dims=True
    )
    flat = program.op("Reshape", dy, count, shape=UNKNOWN)
    index = program.cast(argmax, "int32")
    if not at.signature.attrs.get("include_batch_in_index", False):
        batch = program.op("Squeeze", _sizes(at, image, 0), shape=UNKNOWN)
        each = program.op(
            "Prod", _sizes(at, image, 1, 2, 3), program.vector(0), shape=UNKNOWN, keep_dims=False
        )
        zero, one = program.scalar(0, "int32"), program.scalar(1, "int32")
        numbers = program.op("Range", zero, batch, one, shape=UNKNOWN)
        starts = program.op("Mul", numbers, each, shape=UNKNOWN)
        column = program.op("Reshape", starts, program.vector(-1, 1, 1, 1), shape=UNKNOWN)
        index = program.op("Add", index, column, shape=UNKNOWN)
    return program.op(
        "GatherV2", flat, index, program.scalar(0, "int32"), shape=grad.shape, batch_dims=0
    )


def _lrn(at: OpCall, place: int, dy: Value) -> Value:
    """Return that of the gradient of x * s ** -beta, where s = bias + alpha * window(x * x).

    It reads x alone: the output of LRN, which the op reads too, counts as computed of x here, so
    that nothing is left for the third input.
    """
    program, (g, x, _) = at.program, at.xs
    attrs = at.signature.attrs
    numbers = {"depth_radius": 5, "bias": 1.0, "alpha": 1.0, "beta": 0.5} | dict(attrs)
    alpha, beta = float(str(numbers["alpha"])), float(str(numbers["beta"]))

    def times(*factors: Value | float) -> Value:
        values = [f if isinstance(f, Value) else program.scalar(f, x.dtype) for f in factors]
        product = values[0]
        for value in values[1:]:
            product = program.op("Mul", product, value)
        return product

    channels = _sizes(at, x, 3, 3)
    ones = program.op("BroadcastTo", program.scalar(1.0, x.dtype), channels, shape=UNKNOWN)
    radius = program.scalar(int(str(numbers["depth_radius"])), "int32")
    band = program.op("MatrixBandPart", ones, radius, radius, shape=UNKNOWN)

    def window(value: Value) -> Value:
        rows = program.op("Reshape", value, _rows(at, x), shape=UNKNOWN)
        sums = program.op("MatMul", rows, band, shape=UNKNOWN, transpose_a=False, transpose_b=False)
        return program.op("Reshape", sums, program.shape_of(x), shape=x.shape)

    def power(exponent: float) -> Value:
        return program.op("Pow", s, program.scalar(exponent, x.dtype))

    squares = times(alpha, window(times(x, x)))
    s = program.op("Add", program.scalar(float(str(numbers["bias"])), x.dtype), squares)
    around = window(times(x, dy))
    if place == 0:
        near = times(2 * alpha * beta, x, power(-beta - 1), around)
        return program.op("Sub", times(dy, power(-beta)), near)
    terms = (
        times(2 * alpha * beta, x, window(times(g, dy, power(-beta - 1)))),
        times(2 * alpha * beta, g, power(-beta - 1), around),
        times(2 * alpha * beta, dy, window(times(g, x, power(-beta - 1)))),
        times(
            -4 * alpha * alpha * beta * (beta + 1),
            x,
            window(times(g, x, power(-beta - 2), around)),
        ),
    )
    total = terms[0]
    for term in terms[1:]:
        total = program.op("Add", total, term)
    return program.op("Neg", total)


def _rows(at: OpCall, x: Value) -> Value:
    """Return the sizes of a matrix whose rows are the channels of each pixel."""
    axis = at.program.scalar(0, "int32")
    return at.program.op("ConcatV2", (at.program.vector(-1), _sizes(at, x, 3)), axis, shape=UNKNOWN)


OWN = "own(dy)"
SECOND: Mapping[str, tuple[tuple[str | None, ...], OpGradient]] = {
    "CropAndResizeGradImage": ((OWN, OWN, None, None), _crop),
    "FakeQuantWithMinMaxArgsGradient": (
        (OWN, None),
        _by_forward("FakeQuantWithMinMaxArgsGradient", 1),
    ),
    "LRNGrad": ((OWN, OWN, None), _lrn),
    "MaxPoolGradWithArgmax": ((None, OWN, None), _max_pool),
    **{
        f"Resize{kind}Grad": ((OWN, None), _by_forward(f"Resize{kind}", axes=(1, 2)))
        for kind in ("Bicubic", "Bilinear")
    },
    "ResizeNearestNeighborGrad": (
        (OWN, None),
        _by_forward("ResizeNearestNeighbor", axes=(1, 2)),
    ),
    "ScaleAndTranslateGrad": (
        (OWN, None, None, None),
        _by_forward("ScaleAndTranslate", 2, 3, axes=(1, 2)),
    ),
    "SoftsignGrad": ((OWN, OWN), _softsign),
    **{
        f"SparseSegment{kind}Grad": ((OWN, None, None, None), _segments(kind))
        for kind in ("Mean", "SqrtN", "Sum")
    },
}
"""By op type, a formula for each of its inputs, and what `own(dy)` of it is."""


def op_gradient(at: OpCall, place: int, dy: Value) -> Value:
    """Return the op's gradient with respect to an input. Raises FormulaError for unknown ops."""
    op_type, like = at.signature.op_type, at.xs[place]
    if op_type not in OP_GRADIENTS.keys() | SECOND.keys():
        known = ", ".join([*OP_GRADIENTS, *SECOND])
        raise FormulaError(f"own(dy) is known for {known}, not for {op_type}")
    if like.dtype not in FLOATS:
        raise FormulaError(f"input {place} of {op_type} is {like.dtype}: it has no gradient")
    own = SECOND[op_type][1] if op_type in SECOND else OP_GRADIENTS[op_type]
    result = own(at, place, dy)
    if result.shape == like.shape:
        return result
    return at.program.op("Identity", result, shape=like.shape)

"""What comes back through the steps that formulas are lowered to, by op type."""

from __future__ import annotations

from collections.abc import Mapping

from graphpatch.gradients import op_sequences
from graphpatch.gradients.adjoint import Adjoint, Back
from graphpatch.gradients.adjoint_ops import OF_OPS
from graphpatch.gradients.broadcast_shape import SCALAR, UNKNOWN, broadcast_together
from graphpatch.gradients.program import Step, Value


def _unchanged(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    return came


def _negative(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    return adjoint.program.op("Neg", came)


def _cast(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    return adjoint.program.cast(came, next(step.tensors).dtype)


def _elementwise(build: Back) -> Back:
    """Of an op that may have repeated this input: what comes back is summed to its shape."""

    def back(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
        tensors = list(step.tensors)
        whole = broadcast_together(*map(adjoint.shape, tensors))
        return adjoint.elementwise(build(adjoint, step, came, place), tensors[place], whole)

    return back


def _difference(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    return came if place == 0 else adjoint.program.op("Neg", came)


def _mul_adjoint(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    other = list(step.tensors)[1 - place]
    return adjoint.program.op("Mul", came, adjoint.fixed(other), shape=came.shape)


def _quotient(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    by = adjoint.fixed(list(step.tensors)[1])
    return adjoint.program.op("RealDiv", came, by, shape=came.shape)


def _choice(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    condition, zero = next(step.tensors), adjoint.program.scalar(0.0, came.dtype)
    pair = (came, zero) if place == 1 else (zero, came)
    return adjoint.program.op("SelectV2", condition, *pair, shape=came.shape)


def _sum(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    program, (value, axes) = adjoint.program, step.tensors
    if not dict(step.attrs)["keep_dims"] and came.shape != SCALAR:
        kept = program.op("Sum", value, axes, shape=UNKNOWN, keep_dims=True)
        came = program.op("Reshape", came, program.shape_of(kept), shape=UNKNOWN)
    return adjoint.repeated(came, value)


def _reshape(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    value = next(step.tensors)
    return adjoint.program.op("Reshape", came, adjoint.sizes(value), shape=adjoint.shape(value))


def _repetition(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    return adjoint.summed(came, next(step.tensors))


def _transpose(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    order = adjoint.program.op("InvertPermutation", list(step.tensors)[1])
    return adjoint.program.op("Transpose", came, order, shape=UNKNOWN)


def _matmul_adjoint(adjoint: Adjoint, step: Step, came: Value, place: int) -> Value:
    """Of C = A B with A, B as `adj_x`, `adj_y` say; the axes before the last two are summed."""
    program, attrs, (a, b) = adjoint.program, dict(step.attrs), step.tensors
    adj_x, adj_y = bool(attrs["adj_x"]), bool(attrs["adj_y"])
    value, other = (a, adjoint.fixed(b)) if place == 0 else (b, adjoint.fixed(a))
    if place == 0:
        left, right = (other, came) if adj_x else (came, other)
        flags = (adj_y, True) if adj_x else (False, not adj_y)
    else:
        left, right = (came, other) if adj_y else (other, came)
        flags = (True, adj_x) if adj_y else (not adj_x, False)
    return adjoint.summed(op_sequences.matmul(program, left, right, *flags), value)


BACK: Mapping[str, Back] = {
    "Identity": _unchanged,
    "StopGradient": _unchanged,
    "Neg": _negative,
    "Cast": _cast,
    "AddV2": _elementwise(_unchanged),
    "Sub": _elementwise(_difference),
    "Mul": _elementwise(_mul_adjoint),
    "RealDiv": _elementwise(_quotient),
    "SelectV2": _elementwise(_choice),
    "Sum": _sum,
    "Reshape": _reshape,
    "BroadcastTo": _repetition,
    "Transpose": _transpose,
    "BatchMatMulV2": _matmul_adjoint,
    **OF_OPS,
}
"""What an op gives back to an input that it is linear in, of what came to its result."""

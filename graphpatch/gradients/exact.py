"""Where a gradient that TensorFlow registers is, for one op, exactly a gradient of ours."""

from __future__ import annotations

from graphpatch.gradients.spec import Computed, LibraryGradient
from graphpatch.graph.op_types import OPTIONAL_PLACEHOLDER
from graphpatch.opdefs import OpDef

# TensorFlow's gradient of Identity is dy, that of Neg -dy, that of Sign zeros of the input's shape.
IDENTITY, NEG, ZERO = "Identity", "Neg", "Sign"

GIVE_DY = frozenset({"Identity", "RefIdentity", OPTIONAL_PLACEHOLDER})
"""Op types whose own gradient by input 0 is dy as it comes."""

BUILT_IN = "built-in"
"""What a report says of a gradient that the file stores as the name of one of TensorFlow's own."""

BUILT_IN_KEYS = {
    LibraryGradient("identity"): IDENTITY,
    LibraryGradient("straight_through"): IDENTITY,
    LibraryGradient("scale", (("factor", 1.0),)): IDENTITY,
    LibraryGradient("scale", (("factor", -1.0),)): NEG,
    LibraryGradient("reverse", (("strength", 1.0),)): NEG,
    LibraryGradient("zero"): ZERO,
}


def built_in_key(gradient: Computed, op: OpDef | None) -> str | None:
    """The op type whose registered gradient is this one, of an op with one input and output."""
    if op is None or not _is_unary(op):
        return None
    return BUILT_IN_KEYS.get(gradient) if isinstance(gradient, LibraryGradient) else None


def _is_unary(op: OpDef) -> bool:
    lists = any(arg.is_list for arg in (*op.inputs, *op.outputs))
    return len(op.inputs) == len(op.outputs) == 1 and not lists

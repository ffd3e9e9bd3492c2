"""Where a gradient flows: through which tensors, and into which inputs of an op."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import cache
from typing import Literal

from graphpatch import opdefs
from graphpatch.control_flow.op_types import CONTROL_FLOW, MERGES
from graphpatch.differentiation import gradient_table
from graphpatch.differentiation.override_keys import gradient_type, is_registered, override_key
from graphpatch.dtypes import DIFFERENTIABLE, HANDLES
from graphpatch.graph.node import Node
from graphpatch.opdefs import FlatArg

Flow = Literal["flows", "zero", "none"]

TRAINABLE = DIFFERENTIABLE | HANDLES
"""The dtypes of tensors behind which TensorFlow looks for ops to differentiate."""


def carries(arg: FlatArg) -> bool:
    """Whether gradients flow through a tensor: a float or complex one that is not a reference."""
    return arg.dtype in DIFFERENTIABLE and not arg.is_ref


def is_asked_for(arg: FlatArg) -> bool:
    """Return whether TensorFlow may ask an op that gives this tensor for its gradient.

    A reference counts as what it refers to, the handle of a variable or list as what it holds.
    """
    return arg.dtype is None or arg.dtype in TRAINABLE


def why_not(arg: FlatArg) -> str:
    """Return why nothing flows back through a tensor."""
    if arg.is_ref:
        return f"is a reference to a variable ({arg.dtype}_ref): patch the op that reads it"
    if arg.dtype is None:
        return "has a dtype that the NodeDef does not tell"
    if arg.dtype in HANDLES:
        return f"is a handle ({arg.dtype}): patch the outputs of the op that reads what it holds"
    return f"is {arg.dtype}, which carries no gradient"


def into(op_type: str, slot: int, count: int, dtype: str | None, output: str | None = None) -> Flow:
    """Return what comes to an input of this dtype of an op with `count` inputs, from its outputs.

    `output` is the declared output at which alone a gradient comes to the op; default: any. Of an
    op type without a registered gradient it is nothing.
    """
    known = opdefs.lookup(op_type)
    if known is None or known.gradient != "registered" or dtype not in TRAINABLE:
        return "none"
    asked = gradient_table.recorded_gradient(op_type) is not None or op_type in CONTROL_FLOW
    if dtype in HANDLES and not asked:
        return "none"
    outputs = gradient_table.outputs_of(op_type, slot, count)
    if outputs is None:
        return "none"
    return "flows" if (outputs if output is None else output in outputs) else "zero"


def gives(op_type: str) -> Literal["", "zero", "none"]:
    """What the registered gradient of an op type gives for all its inputs, where nothing flows.

    A step function has a gradient that is registered, and None or zero.
    """
    row = gradient_table.recorded_gradient(op_type)
    rows = row.inputs if row is not None else ()
    if not rows or any(rows):
        return ""
    return "none" if all(row is None for row in rows) else "zero"


def is_step(op_type: str) -> bool:
    """Whether an op type gives what could carry a gradient, and its own is None for all inputs."""
    known = opdefs.lookup(op_type)
    if known is None or gives(op_type) != "none":
        return False
    return any(
        arg.type_attr and arg.type_attr == known.inputs[0].type_attr for arg in known.outputs
    )


@cache
def may_be_zero(op_type: str) -> bool:
    """Whether some input of an op type gets zeros, at least where some outputs have no gradient."""
    known, recorded = opdefs.lookup(op_type), gradient_table.recorded_gradient(op_type)
    if known is None or recorded is None:
        return False
    return any(row is not None and len(row) < len(known.outputs) for row in recorded.inputs)


def reads_shape_alone(op_type: str) -> bool:
    """Return whether an op type looks at the shapes of what it reads, and at no values."""
    return op_type in gradient_table.gradient_table().shape_readers


def gives_sizes(node: Node, slot: int) -> bool:
    """Return whether an op takes a size, axis or place from an input, or only looks at its shape.

    No values come back through such an input, whatever gradient the op is given.
    """
    known = node.opdef
    if reads_shape_alone(node.op) or known is None:
        return known is not None
    place = gradient_table.declared(known, slot, len(node.data_inputs))
    return place is not None and known.inputs[place].name in gradient_table.SIZES


def is_asked_apart(op_type: str, knows_shapes: Callable[[], bool]) -> bool:
    """Whether a gradient is computed from upstream gradients alone: no tensor of the op is read.

    `knows_shapes` says whether TensorFlow knows the shapes of what the op reads.
    """
    if op_type in CONTROL_FLOW:
        return op_type not in MERGES
    row = gradient_table.recorded_gradient(op_type)
    shapes = row.shapes if row is not None else ""
    return shapes == "never" or (shapes == "unknown" and knows_shapes())


def refused(node: Node, op_type: str) -> str:
    """What the registered gradient of an op type raises at an op with these attrs; or nothing."""
    row = gradient_table.recorded_gradient(op_type)
    for name, (value, says) in row.refuses.items() if row is not None else ():
        attr = node.attr(name)
        if attr is not None and attr.b == value:
            return says
    return row.raises if row is not None else ""


def is_none(node: Node, slot: int) -> bool:
    """Whether TensorFlow gives None for an input of an op, by the op's type or by its override.

    Not for one whose gradient is not known: that of a function, or of a key of somebody's own.
    """
    key = override_key(node)
    known = node.opdef if key is None else opdefs.lookup(key)
    if known is None or known.gradient == "missing":
        return False
    if known.gradient == "none":
        return True
    # Control inputs come last, so they need not all be looked at to know how many they are.
    count = bisect_left(node.inputs, True, key=lambda text: text.startswith("^"))
    return gradient_table.outputs_of(gradient_type(node), slot, count) is None


def lets_through(node: Node) -> bool:
    """Whether a gradient comes back through an op to one of its inputs, as far as is known."""
    key = override_key(node)
    if key is not None and not is_registered(key):
        return True
    known = node.opdef if key is None else opdefs.lookup(key)
    if known is None or known.gradient == "missing":
        return True
    return known.gradient == "registered" and gives(gradient_type(node)) != "none"

"""Where a gradient flows: through which tensors, into which inputs of an op, and by whose gradient.

The table `data/gradients.json` is made by `scripts/make_gradients.py`, which calls the gradient
function of every op type that TensorFlow 2.x, or 1.15 with tf.contrib, registers one for.
"""

from __future__ import annotations

import pkgutil
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache
from typing import Literal

import msgspec

from graphpatch import opdefs
from graphpatch.decoding import decode
from graphpatch.graph import attrs, provenance
from graphpatch.graph.node import Node
from graphpatch.graph.op_types import CONTROL_FLOW, MERGES
from graphpatch.opdefs import DIFFERENTIABLE, HANDLES, FlatArg

# Inputs that tell sizes, axes and places, by the names that TensorFlow gives them: they come of
# shapes, which do not change with values. A decision, where the table of gradients has facts: it
# says that a gradient reads them.
SIZES = frozenset(
    "axis begin block_shape concat_dim crops end multiples paddings perm reduction_indices shape"
    " shift split_dim strides".split()
)

Rows = tuple[tuple[int, ...] | None, ...]
"""For each input that an op declares: the declared outputs whose upstream gradient reaches it.

None where the gradient is None; nothing where it is a tensor that is always zero.
"""


class GradientRow(msgspec.Struct, frozen=True, gc=False):
    """What the gradient function of an op type gives.

    `reads` has for each input the declared inputs from whose values its gradient is computed, and
    -1 where it is computed from those of outputs; nothing where all gradients are computed from
    upstream gradients and shapes. Then `shapes` says which shapes of the op's tensors are read when
    the gradient runs: never any, or those that are unknown before; it is empty where all may be.
    `raises` is what it raises, whatever it is asked, and `refuses` what with which value of a flag,
    by attr. `before` are the rows of TensorFlow 1.15, where they differ. Without rows, no trial
    could be made.
    """

    name: str
    inputs: Rows = ()
    reads: Rows = ()
    shapes: Literal["", "never", "unknown"] = ""
    raises: str = ""
    refuses: dict[str, tuple[bool, str]] = {}
    before: Rows = ()

    def flows_to(self, place: int) -> bool:
        """Return whether a declared input gets a gradient."""
        return place < len(self.inputs) and self.inputs[place] is not None

    def read_for(self, place: int) -> frozenset[int]:
        """Return the inputs from whose values that of an input is computed; -1: the outputs."""
        return frozenset(self.reads[place] or ()) if self.reads else frozenset()


class GradientTable(msgspec.Struct, frozen=True):
    """The shipped file: the TensorFlow versions that were asked, and what they give.

    `shape_readers` are the ops that look at the shape alone of what they read.
    """

    tensorflow: tuple[str, str]
    shape_readers: frozenset[str]
    ops: tuple[GradientRow, ...]


@cache
def gradient_table() -> GradientTable:
    """Return the shipped table, read on first use."""
    data = pkgutil.get_data("graphpatch", "data/gradients.json")
    assert data is not None, "graphpatch is installed without its table of gradients"
    return decode(data, GradientTable)


@cache
def _rows_by_op() -> dict[str, GradientRow]:
    return {op.name: op for op in gradient_table().ops}


def recorded_gradient(op_type: str) -> GradientRow | None:
    """Return what the gradient of this op type gives, or None where none was asked."""
    return _rows_by_op().get(op_type)


def outputs_of(op_type: str, slot: int, count: int) -> frozenset[str] | None:
    """Return declared outputs whose upstream gradient reaches an input slot of an op with `count`.

    None where the gradient of that input is None. All outputs where no trial could be made.
    """
    known = opdefs.lookup(op_type)
    return _outputs_at(op_type, None if known is None else declared(known, slot, count))


@cache
def _outputs_at(op_type: str, place: int | None) -> frozenset[str] | None:
    """Return the same of an input that an op declares; None stands for one that it does not."""
    known, row = opdefs.lookup(op_type), recorded_gradient(op_type)
    names = [arg.name for arg in known.outputs] if known is not None else []
    if row is None or place is None or place >= len(row.inputs):
        return frozenset(names)
    numbers = row.inputs[place]
    return None if numbers is None else frozenset(names[output] for output in numbers)


def declared(op: opdefs.OpDef, slot: int, count: int) -> int | None:
    """Return which declared input a slot is; an op's lists of tensors are of one length."""
    lists = [arg.is_list for arg in op.inputs]
    each = (count - len(lists) + sum(lists)) // sum(lists) if any(lists) else 1
    for place, is_list in enumerate(lists):
        slot -= each if is_list else 1
        if slot < 0:
            return place
    return None


PYTHON = "EagerPyFunc"  # its gradient is a program, where the process has it


def is_linear(op_type: str, varies: Sequence[bool], is_constant: Sequence[bool]) -> bool:
    """Return whether what flows back through an op is the same for all values of its inputs.

    `varies` and `is_constant` say for each input whether its value changes, and whether it never
    does; neither is so of an input that is fed. What flows to a constant does not count.
    """
    known, row = opdefs.lookup(op_type), recorded_gradient(op_type)
    if op_type == PYTHON:
        return False
    if row is None or not row.inputs:
        return row is not None and bool(row.raises)  # no gradient, so none that depends on values
    assert known is not None, f"{op_type} is in the table of gradients alone"
    places = [declared(known, slot, len(varies)) for slot in range(len(varies))]
    changing = {place for place, flag in zip(places, varies, strict=True) if flag}
    asked = {place for place, flag in zip(places, is_constant, strict=True) if not flag}
    reads = [row.read_for(place) for place in asked if place is not None and row.flows_to(place)]
    same = {*SIZES, "flow_in"}  # the flow of a TensorArray orders its ops, and has no value
    fixed = {n for n, arg in enumerate(known.inputs) if n not in changing or arg.name in same}
    return any(varies) and all(flag <= fixed for flag in reads)


Flow = Literal["flows", "zero", "none"]

TRAINABLE = DIFFERENTIABLE | HANDLES
"""The dtypes of tensors behind which TensorFlow looks for ops to differentiate."""


def carries(arg: FlatArg) -> bool:
    """Return whether gradients flow through a tensor: a float or complex one, no reference."""
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
    asked = recorded_gradient(op_type) is not None or op_type in CONTROL_FLOW
    if dtype in HANDLES and not asked:
        return "none"
    outputs = outputs_of(op_type, slot, count)
    if outputs is None:
        return "none"
    return "flows" if (outputs if output is None else output in outputs) else "zero"


def gives(op_type: str) -> Literal["", "zero", "none"]:
    """Return what an op type's gradient gives for all its inputs, where nothing flows.

    A step function has a gradient that is registered, and None or zero.
    """
    row = recorded_gradient(op_type)
    rows = row.inputs if row is not None else ()
    if not rows or any(rows):
        return ""
    return "none" if all(row is None for row in rows) else "zero"


def is_step(op_type: str) -> bool:
    """Return whether an op type's outputs could carry a gradient, and its own is None."""
    known = opdefs.lookup(op_type)
    if known is None or gives(op_type) != "none":
        return False
    return any(
        arg.type_attr and arg.type_attr == known.inputs[0].type_attr for arg in known.outputs
    )


@cache
def may_be_zero(op_type: str) -> bool:
    """Return whether an input of an op type gets zeros, at least where outputs have none."""
    known, recorded = opdefs.lookup(op_type), recorded_gradient(op_type)
    if known is None or recorded is None:
        return False
    return any(row is not None and len(row) < len(known.outputs) for row in recorded.inputs)


def reads_shape_alone(op_type: str) -> bool:
    """Return whether an op type looks at the shapes of what it reads, and at no values."""
    return op_type in gradient_table().shape_readers


def gives_sizes(node: Node, slot: int) -> bool:
    """Return whether an op takes a size, axis or place from an input, or only looks at its shape.

    No values come back through such an input, whatever gradient the op is given.
    """
    known = node.opdef
    if reads_shape_alone(node.op) or known is None:
        return known is not None
    place = declared(known, slot, len(node.data_inputs))
    return place is not None and known.inputs[place].name in SIZES


def is_asked_apart(op_type: str, knows_shapes: Callable[[], bool]) -> bool:
    """Return whether a gradient is made of upstream gradients alone: no tensor is read.

    `knows_shapes` says whether TensorFlow knows the shapes of what the op reads.
    """
    if op_type in CONTROL_FLOW:
        return op_type not in MERGES
    row = recorded_gradient(op_type)
    shapes = row.shapes if row is not None else ""
    return shapes == "never" or (shapes == "unknown" and knows_shapes())


def refused(node: Node, op_type: str) -> str:
    """Return what the gradient of an op type raises at an op with these attrs; or nothing."""
    row = recorded_gradient(op_type)
    for name, (value, says) in row.refuses.items() if row is not None else ():
        attr = node.attr(name)
        if attr is not None and attr.b == value:
            return says
    return row.raises if row is not None else ""


def _known_gradient(node: Node) -> opdefs.OpDef | None:
    """Return the op type whose gradient is taken, where it is known and may be asked.

    Not that of a function, or of a key of somebody's own.
    """
    key = override_key(node)
    known = node.opdef if key is None else opdefs.lookup(key)
    return None if known is None or known.gradient == "missing" else known


def is_none(node: Node, slot: int) -> bool:
    """Return whether an input of an op gets None, by the op's type or by its override."""
    known = _known_gradient(node)
    if known is None or known.gradient == "none":
        return known is not None
    # Control inputs come last, so they need not all be looked at to know how many they are.
    count = bisect_left(node.inputs, True, key=lambda text: text.startswith("^"))
    return outputs_of(gradient_type(node), slot, count) is None


def lets_through(node: Node) -> bool:
    """Return whether a gradient comes through an op to an input, as far as is known."""
    known = _known_gradient(node)
    if known is None:
        return True
    return known.gradient == "registered" and gives(gradient_type(node)) != "none"


CUSTOM = "CustomGradient-"
"""How the keys begin that tf.custom_gradient makes; no other process registers them."""


def override_key(node: Node) -> str | None:
    """Return the key under which TensorFlow looks for the op's gradient, if not the type."""
    value = node.attr(attrs.OVERRIDE)
    return None if value is None else value.s.decode(errors="backslashreplace")


def gradient_type(node: Node) -> str:
    """Return the op type whose gradient TensorFlow takes: its own, or an override's."""
    return override_key(node) or node.op


def is_registered(key: str) -> bool:
    """Return whether TensorFlow itself registers a gradient under this key."""
    known = opdefs.lookup(key)
    return known is not None and known.gradient != "missing"


CARRIED = "carried"


def rule_of(node: Node) -> str:
    """Return the rule that added an op, or gave it its inputs or gradient; or nothing."""
    return next((author.rule for author in reversed(provenance.rules_that_touched(node))), "")


def is_of_rule(node: Node) -> bool:
    """Return whether a rule put the op there."""
    return node.body.is_ours or provenance.is_added(node)


def is_carrier(node: Node) -> bool:
    """Return whether an op calls a function of ours, of which the library names the gradient."""
    return node.op in node.body.library.gradients and provenance.record(node) is not None

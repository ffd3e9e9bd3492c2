"""Into which inputs of each op type TensorFlow's gradient flows, without TensorFlow.

The table `data/gradients.json` is made by `scripts/make_gradients.py`, which calls the gradient
function of every op type that TensorFlow 2.x, or 1.15 with tf.contrib, registers one for.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from functools import cache
from typing import Literal

import msgspec

from graphpatch import opdefs
from graphpatch.decoding import decode

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
        """The declared inputs from whose values that of an input is computed; -1: the outputs."""
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
    data = pkgutil.get_data("graphpatch.data", "gradients.json")
    assert data is not None, "graphpatch is installed without its table of gradients"
    return decode(data, GradientTable)


@cache
def _rows_by_op() -> dict[str, GradientRow]:
    return {op.name: op for op in gradient_table().ops}


def recorded_gradient(op_type: str) -> GradientRow | None:
    """Return what the gradient of this op type gives, or None where none was asked."""
    return _rows_by_op().get(op_type)


def outputs_of(op_type: str, slot: int, count: int) -> frozenset[str] | None:
    """The declared outputs whose upstream gradient reaches an input slot of an op with `count`.

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
    """Which of the inputs that an op declares a slot is; its lists of tensors are of one length."""
    lists = [arg.is_list for arg in op.inputs]
    each = (count - len(lists) + sum(lists)) // sum(lists) if any(lists) else 1
    for place, is_list in enumerate(lists):
        slot -= each if is_list else 1
        if slot < 0:
            return place
    return None


PYTHON = "EagerPyFunc"  # its gradient is a program, where the process has it


def is_linear(op_type: str, varies: Sequence[bool], is_constant: Sequence[bool]) -> bool:
    """Whether what flows back through an op is the same for all values of the inputs that vary.

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
    fixed = {n for n, arg in enumerate(known.inputs) if n not in changing or arg.name in SIZES}
    return any(varies) and all(flag <= fixed for flag in reads)

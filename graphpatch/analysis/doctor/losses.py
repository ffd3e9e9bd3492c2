"""Which tensors somebody may want the gradient of, of those that are computed and not read."""

from __future__ import annotations

from graphpatch.control_flow.op_types import ALL_SWITCHES, ENTERS
from graphpatch.differentiation.hidden import is_in_gradients
from graphpatch.differentiation.wiring import Tensor, Wiring
from graphpatch.dtypes import NO_NUMBERS

# Ends of branches and stacks of loops, and what writes to variables.
NO_LOSS = ALL_SWITCHES | ENTERS | {"StackPush", "StackPushV2", "VarIsInitializedOp"}
UPDATES = ("Apply", "Assign", "Resource", "Scatter", "SparseApply")
NO_FLOATS = NO_NUMBERS | {"bool"}


def may_be_loss(wiring: Wiring, tensor: Tensor) -> bool:
    """Whether a tensor may be one: no update, initialiser or saver, no end of a branch.

    Nor a reference to a variable, a condition, text or a handle, nor what tf.gradients added.
    """
    index, output = tensor
    arg = wiring.outputs(index)[output]
    node = wiring.node(index)
    if node is None or arg.is_ref or arg.dtype in NO_FLOATS:
        return False
    op = node.op
    if op in NO_LOSS or op.startswith(UPDATES) or is_in_gradients(node):
        return False
    before = wiring.node(wiring.inputs(index)[0][0])
    return op != "Identity" or before is None or before.op not in ALL_SWITCHES

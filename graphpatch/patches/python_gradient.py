"""A gradient function of the user's, traced for an op that a rule matched."""

from __future__ import annotations

from collections.abc import Sequence

from graphpatch.above import FromAbove
from graphpatch.errors import PatchError
from graphpatch.gradients.spec import PythonGradient
from graphpatch.gradients.traced_function import OpDtypes, TracedFunction
from graphpatch.graph import attrs
from graphpatch.graph.body import Node
from graphpatch.graph.edit import Editor
from graphpatch.opdefs import FlatArg
from graphpatch.patches import op_args

trace: FromAbove[[str, OpDtypes], TracedFunction] = FromAbove("trace")


def traced_for_op(gradient: PythonGradient, op: OpDtypes, editor: Editor) -> TracedFunction:
    """The gradient function for one op; what TensorFlow 1.15 does not know of it is noted."""
    found = trace(gradient.path, op)
    if found.newer:
        editor.note(
            f"{gradient.path} uses ops that TensorFlow 1.15 does not know: "
            f"{', '.join(found.newer)}; the file loads in TensorFlow 2 alone"
        )
    return found


def dtypes_of_op(node: Node) -> OpDtypes:
    """An op as its gradient function sees it."""
    inputs, outputs = (
        _known_dtypes(node, flat)
        for flat in (op_args.known_inputs(node), op_args.known_outputs(node))
    )
    return OpDtypes(node.op, node.name, inputs, outputs, node.attrs(), node.device)


def dtypes_of_filter(node: Node, dtype: str) -> OpDtypes:
    """The op in line with a tensor of `node`, which gives it on."""
    values = {"T": attrs.dtype(dtype)}
    return OpDtypes("Identity", node.name, (dtype,), (dtype,), values, node.device)


def _known_dtypes(node: Node, flat: Sequence[FlatArg]) -> tuple[str, ...]:
    for arg in flat:
        if arg.dtype is None:
            raise PatchError(f"{node}: {arg.name} {op_args.why_not(arg)}")
    return tuple(arg.dtype or "" for arg in flat)

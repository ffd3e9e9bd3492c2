"""Tensors of the graph that a formula reads by name: `tensor("global_step:0")`.

What carries the gradient of an op reads them forward, where the op stands. So each must be in the
op's body and in the same loop and branch, and must not be computed from the op.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from graphpatch.control_flow.contexts import control_flow
from graphpatch.control_flow.op_types import NEXTS
from graphpatch.dtypes import DTYPE_NAMES, HANDLES
from graphpatch.errors import PatchError, did_you_mean
from graphpatch.gradients.spec import Gradient, InlineFormula
from graphpatch.graph import attrs
from graphpatch.graph.editor import Editor
from graphpatch.graph.node import Node
from graphpatch.graph.op_types import RESOURCE_VARIABLE
from graphpatch.graph.walk import outputs_there, tensor_named, upstream
from graphpatch.names import TensorName
from graphpatch.opdefs import tensor_index
from graphpatch.patches import op_args
from graphpatch.patches.reach import all_in_control_flow


class NamedTensor(NamedTuple):
    """A tensor as inputs spell it, and its dtype; of the handle of a variable that of the value."""

    text: str
    dtype: str
    is_handle: bool = False


def named_tensors(gradient: Gradient) -> tuple[str, ...]:
    """Return the tensors that a gradient reads by name."""
    return gradient.formula.tensors if isinstance(gradient, InlineFormula) else ()


def read_by_name(gradient: Gradient, node: Node, editor: Editor) -> list[NamedTensor]:
    """Return the tensors that the gradient of an op is to read; variables are read beside it."""
    tensors = check_named(gradient, [node], editor)
    return [_value(tensor, node, editor) if tensor.is_handle else tensor for tensor in tensors]


def _value(handle: NamedTensor, node: Node, editor: Editor) -> NamedTensor:
    typed = {"dtype": attrs.dtype(handle.dtype)}
    read = editor.add(f"{node.name}/read", "ReadVariableOp", [handle.text], typed, node, True)
    return NamedTensor(read.tensor(0), handle.dtype)


def check_named(gradient: Gradient, ops: Sequence[Node], editor: Editor) -> list[NamedTensor]:
    """Return the tensors that a gradient of these ops, of which one is patched, reads by name.

    Raises PatchError where what carries it cannot read one of them. Of one patch the first answer
    holds, whatever it put in the place of the ops since.
    """
    tensors = []
    for name in named_tensors(gradient):
        question = ("named", editor.patched, name)
        tensors.append(editor.cached(question, partial(_checked, name, ops, editor)))
    return tensors


def _checked(name: str, ops: Sequence[Node], editor: Editor) -> NamedTensor:
    node, body = ops[-1], ops[-1].body
    reads = f"{node}: the formula reads tensor({name!r})"
    tensor = tensor_named(body, name)
    if tensor is None:
        where = "the graph" if body.is_main else f"function {body.label}"
        near = did_you_mean(name.partition(":")[0], [*body.by_name, *body.arguments])
        there = outputs_there([body], name) or f"{where} has no such tensor{near}"
        raise PatchError(f"{reads}, and {there}")
    before = editor.cached(
        ("before", body.label, tensor),
        lambda: upstream(body, [tensor], control=True, last=lambda n: body.heads.ops[n] in NEXTS),
    )
    after = next((op for op in ops if op.index < len(before) and before[op.index]), None)
    if after is not None:
        raise PatchError(
            f"{reads}, which is computed from {after}; it can read what is there before the op, "
            f"and as y what the op gives"
        )
    producer = body.producer(str(tensor))
    if producer is not None and not _is_together(producer, tensor, node, editor):
        raise PatchError(
            f"{reads}, which is not in the same v1 loop or branch; name a tensor that is, such as "
            f"the Enter or the Switch by which it comes in"
        )
    dtype = _dtype_of(producer, tensor, node)
    if dtype not in HANDLES:
        return NamedTensor(str(tensor), dtype)
    held = producer.attr("dtype") if producer is not None else None
    if producer is None or producer.op != RESOURCE_VARIABLE or held is None:
        raise PatchError(f"{reads}, which is a {dtype}; name the tensor that its value is read to")
    return NamedTensor(str(tensor), DTYPE_NAMES[held.type], is_handle=True)


def _is_together(producer: Node, tensor: TensorName, node: Node, editor: Editor) -> bool:
    """Return whether an op and the tensor of another are in one v1 loop and branch."""
    if not all_in_control_flow(node.body, editor):
        return True
    flow = editor.cached(("contexts", node.body.label), lambda: control_flow(node.body))
    return flow.given(producer.index, str(tensor)) is flow.context(node.index)


def _dtype_of(producer: Node | None, tensor: TensorName, node: Node) -> str:
    if producer is None:
        return DTYPE_NAMES[node.body.arguments[tensor.op]]
    outputs = op_args.known_outputs(producer)
    is_main = node.body.is_main
    place = tensor.index if is_main else tensor_index(outputs, tensor.arg, tensor.index)
    dtype = outputs[place or 0].dtype
    if dtype is None:
        raise PatchError(f"{producer}: {outputs[place or 0].name} {op_args.why_not(outputs[0])}")
    return dtype

"""Ops behind a function carrier, where a Session differentiates their function as a whole.

There a StopGradient passes zeros on, and TensorFlow asks for the gradients of the ops behind it.
Nothing may flow back into them, not even zeros: of zeros, a gradient may be NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensorboard.compat.proto.attr_value_pb2 import AttrValue
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto

from graphpatch import names
from graphpatch.graph import attrs
from graphpatch.graph.body import Node
from graphpatch.graph.edit import Editor
from graphpatch.graph.op_types import OPTIONAL_PLACEHOLDER
from graphpatch.patches import op_args
from graphpatch.patches.enclose import FUSED, HARMLESS, IN_PLACE, enclose, needs_none
from graphpatch.patches.inline import InlineOp, on_inputs
from graphpatch.patches.place import place_of

Zeros = Callable[[Node], tuple[InlineOp, Callable[[Node], None]]]
"""Of an op: a call that gives a tensor on, and zeros back; what is to be done with each call."""


def isolate(behind: Sequence[Node], zeros: Zeros, editor: Editor) -> None:
    """Let nothing flow back into these ops, which are behind one carrier.

    On a tape, for which a TF2 SavedModel is meant, a StopGradient stops.
    """
    ops = [node for node in behind if node.data_inputs]
    if not editor.graph.around.is_object_based and _may_be_fused(ops):
        _wrap_inputs(ops, zeros, editor)
        return
    for node in behind:
        if not needs_none(node):
            _enclosed_alone(node, zeros, editor)


def _may_be_fused(ops: Sequence[Node]) -> bool:
    """Whether TensorFlow may compute several ops as one, whose bits are not those of the ops."""
    types = {node.op for node in ops}
    return len(ops) > 1 and bool(types & FUSED) and types <= FUSED | HARMLESS


def _wrap_inputs(ops: Sequence[Node], zeros: Zeros, editor: Editor) -> None:
    """Put one call before each tensor that they read from outside; they stay as they are."""
    inside, calls = {node.name for node in ops}, dict[str, str]()
    inline, keep_it = zeros(ops[-1])
    for node in ops:
        for slot, (text, arg) in enumerate(
            zip(node.data_inputs, op_args.known_inputs(node), strict=True)
        ):
            tensor = str(names.parse(text))
            if names.op_of(text) in inside or not op_args.carries(arg) or _is_source(node, slot):
                continue
            if tensor not in calls:
                name = f"{node.name}/{inline.suffix}_{slot}"
                op, values = inline.of(arg.dtype or "")
                call = editor.add(name, op, [text], values, beside=node, before=True)
                keep_it(call)
                calls[tensor] = call.tensor(0)
            editor.set_input(node, slot, calls[tensor])


def _enclosed_alone(node: Node, zeros: Zeros, editor: Editor) -> None:
    if editor.graph.around.is_object_based:
        editor.note(
            f"function {node.body.label}: a Session, unlike a tape, asks for {node.op}'s own "
            f"gradient too, of zeros; that fails where TensorFlow has none in functions, and "
            f"spoils the new one where it is infinite"
        )
        return
    if node.op in IN_PLACE:
        inline, keep_it = zeros(node)
        for slot in range(len(node.data_inputs)):
            for call in () if _is_source(node, slot) else on_inputs(node, editor, inline, slot):
                keep_it(call)
        return
    gradient = enclose(node, editor)
    outputs = [node.tensor(output) for output in range(len(node.outputs or ()))]
    keep_gradient_function(node, gradient, outputs, editor)


def _is_source(node: Node, slot: int) -> bool:
    """Whether the op reads a constant or the like there, which takes no gradient in a function."""
    producer = node.body.producer(node.data_inputs[slot])
    return producer is not None and op_args.is_source(producer)


def keep_gradient_function(
    call: Node, gradient: str, upstream: Sequence[str], editor: Editor
) -> None:
    """Keep the gradient function of the function that `call` calls with the body it is in.

    `upstream` are tensors like the upstream gradients. Where the body is differentiated as a whole,
    too, the unread call must read nothing of it: SymbolicGradient of 1.15 would wait for what flows
    back through the call, and silently give no gradient.

    TensorFlow 2 copies with the body of a While, If or Case only the functions that it calls as
    ops. So the body calls a gradient function once, and nobody reads what it gives; it never runs.
    """
    place = place_of(call, editor)
    if not place.op_by_op:
        return
    question = ("kept", call.body.label, gradient)

    def add() -> Node:
        shared = place.ignoring is not None
        inputs = _stand_ins(call, gradient, editor) if shared else [*call.data_inputs, *upstream]
        return editor.add(f"{call.name}/gradient", gradient, inputs, {}, call)

    editor.cached(question, add)


def _stand_ins(call: Node, gradient: str, editor: Editor) -> list[str]:
    """A tensor of no known shape for each input of the gradient function."""
    dtypes = [arg.dtype for arg in editor.graph.library.signatures[gradient].inputs]
    made = {dtype: _placeholder_with_zero(call, dtype, editor) for dtype in dict.fromkeys(dtypes)}
    return [made[dtype] for dtype in dtypes]


def _placeholder_with_zero(call: Node, dtype: str, editor: Editor) -> str:
    typed = {"dtype": attrs.dtype(dtype)}
    zero = AttrValue(tensor=TensorProto(dtype=typed["dtype"].type, tensor_shape=TensorShapeProto()))
    name = f"{call.name}/{dtype}"
    value = editor.add(f"{name}/value", "Const", [], {**typed, "value": zero}, call)
    unknown = AttrValue(shape=TensorShapeProto(unknown_rank=True))
    given = {**typed, "shape": unknown}
    return editor.add(name, OPTIONAL_PLACEHOLDER, [value.tensor(0)], given, call).tensor(0)

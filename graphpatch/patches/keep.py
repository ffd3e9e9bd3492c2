"""Gradient functions kept with the bodies of While, If and Case.

TensorFlow 2 copies with such a body only the functions that it calls as ops. So the body calls a
gradient function once, and nobody reads what it gives; it never runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorboard.compat.proto.attr_value_pb2 import AttrValue
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto

from graphpatch.graph import attrs
from graphpatch.graph.body import Node
from graphpatch.graph.edit import Editor
from graphpatch.patches.place import place_of


def keep(call: Node, gradient: str, upstream: Sequence[str], editor: Editor) -> None:
    """Keep the gradient function of the function that `call` calls with the body it is in.

    `upstream` are tensors like the upstream gradients. Where the body is differentiated as a whole,
    too, the unread call must read nothing of it: SymbolicGradient of 1.15 would wait for what flows
    back through the call, and silently give no gradient.
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
    made = {dtype: _stand_in(call, dtype, editor) for dtype in dict.fromkeys(dtypes)}
    return [made[dtype] for dtype in dtypes]


def _stand_in(call: Node, dtype: str, editor: Editor) -> str:
    typed = {"dtype": attrs.dtype(dtype)}
    zero = AttrValue(tensor=TensorProto(dtype=typed["dtype"].type, tensor_shape=TensorShapeProto()))
    name = f"{call.name}/{dtype}"
    value = editor.add(f"{name}/value", "Const", [], {**typed, "value": zero}, call)
    unknown = AttrValue(shape=TensorShapeProto(unknown_rank=True))
    given = {**typed, "shape": unknown}
    return editor.add(name, "PlaceholderWithDefault", [value.tensor(0)], given, call).tensor(0)

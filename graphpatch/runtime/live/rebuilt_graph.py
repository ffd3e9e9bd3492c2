"""A patched model as a new live graph, with all that the old one held beside its ops."""

from __future__ import annotations

from typing import Any

from graphpatch.control_flow.stored import CONTEXTS
from graphpatch.differentiation.override_keys import CUSTOM
from graphpatch.formats import Model
from graphpatch.graph.calls import calls
from graphpatch.graph.graph import Graph
from graphpatch.graph.wire import piece_bytes
from graphpatch.runtime.live.collections import carry_collections
from graphpatch.runtime.live.counterparts import Counterparts
from graphpatch.runtime.register import register_gradients
from graphpatch.table import short


def rebuilt_graph(patched: Model, old: Any) -> tuple[Counterparts, list[str]]:
    """A new graph of what was taken from the graph `old` and patched, and notes on it.

    Its gradients of ours are registered in this process.
    """
    import tensorflow as tf
    from tensorflow.python.framework import meta_graph

    message = tf.compat.v1.MetaGraphDef.FromString(
        b"".join(map(piece_bytes, patched.meta_graph(patched.graphs[0])))
    )
    for key in [key for key in message.collection_def if key not in CONTEXTS]:
        del message.collection_def[key]
    register_gradients(patched)
    new = tf.Graph()
    new.seed = old.seed
    with new.as_default():
        meta_graph.import_scoped_meta_graph(message)
    found = Counterparts(old, new)
    notes = [*carry_collections(found), *_carry_python(found, patched)]
    return found, notes


def _carry_python(found: Counterparts, patched: Model) -> list[str]:
    """Carry over what Python holds for the old graph; notes on what it cannot be for the new."""
    functions = getattr(found.old, "_py_funcs_used_in_graph", None)
    if functions is not None:  # tf.py_function's: they live as long as a graph names them
        found.new._py_funcs_used_in_graph = list(functions)
    _carry_call_gradients(found, patched.graphs[0])
    return _custom_gradients(found)


def _carry_call_gradients(found: Counterparts, patched: Graph) -> None:
    """Let calls of tf.functions have the gradient that Python holds, where no rule was inside.

    That of a call with a rule inside is what the function in the library says.
    """
    edited = _edited(patched)
    for op in found.old.get_operations():
        if op._gradient_function is None or op.get_attr("f").name in edited:
            continue
        new = found.new.get_operation_by_name(op.name)
        if new.type == op.type:
            new._gradient_function = op._gradient_function


def _edited(graph: Graph) -> set[str]:
    """The functions in which rules were, or in what they call."""
    found = {name for name, body in graph.functions.items() if body.edited}
    called = {name: {one for _, one in calls(body)} for name, body in graph.functions.items()}
    while more := {name for name, those in called.items() if those & found} - found:
        found |= more
    return found


def _custom_gradients(found: Counterparts) -> list[str]:
    """That gradients of tf.custom_gradient compute with tensors of the old graph."""
    names = [
        op.name
        for op in found.new.get_operations()
        if op.type == "IdentityN" and _gradient_key(op).startswith(CUSTOM)
    ]
    if not names:
        return []
    some = short([repr(name) for name in names], 1)
    return [
        f"{some} has a gradient of tf.custom_gradient: where that function uses "
        f"tensors of the old graph, TensorFlow raises when it builds the gradient; let patch_graph "
        f"patch in place, or use graphpatch.building"
    ]


def _gradient_key(op: Any) -> str:
    value = op.node_def.attr.get("_gradient_op_type")
    return "" if value is None else value.s.decode(errors="backslashreplace")

"""Contexts of v1 loops and branches in the collections of a MetaGraphDef with ops left out."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from graphpatch import names

KINDS = {"while_context": "WhileContextDef", "cond_context": "CondContextDef"}


def pruned_contexts(meta: Any, live: Any, there: Container[str]) -> None:
    """Give `meta` the contexts of `live`, without the ops that are not `there` any more.

    A context whose pivot is gone goes as well, with the contexts inside it.
    """
    from tensorflow.core.protobuf import control_flow_pb2

    for collection, kind in KINDS.items():
        message = getattr(control_flow_pb2, kind)
        found = live.collection_def[collection].bytes_list.value
        contexts = [message.FromString(one) for one in found]
        kept = [one for one in contexts if _prune(one, there)]
        if kept or collection in meta.collection_def:
            values = meta.collection_def[collection].bytes_list.value
            del values[:]
            values.extend(one.SerializeToString(deterministic=True) for one in kept)


def _prune(context: Any, there: Container[str]) -> bool:
    """Take out of a context what is not there; whether the context itself is."""
    if names.op_of(context.pivot_name) not in there:
        return False
    values = context.values_def
    kept = [text for text in values.values if names.op_of(text) in there]
    del values.values[:]
    values.values.extend(kept)
    for key, text in list(values.external_values.items()):
        if names.op_of(key) not in there or names.op_of(text) not in there:
            del values.external_values[key]
    for field in ("loop_exit_names", "loop_enter_names"):
        if hasattr(context, field):
            listed = getattr(context, field)
            named = [text for text in listed if names.op_of(text) in there]
            del listed[:]
            listed.extend(named)
    inside = list(context.nested_contexts)
    del context.nested_contexts[:]
    for one in inside:
        held = getattr(one, one.WhichOneof("ctxt"))
        if _prune(held, there):
            context.nested_contexts.append(one)
    return True

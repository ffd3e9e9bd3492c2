"""Contexts of v1 loops and branches in the collections of a MetaGraphDef with ops left out."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from graphpatch.control_flow.context_collections import CONTEXTS, contexts, is_loop, nested_contexts
from graphpatch.names import op_of


def without_ops(meta: Any, live: Any, there: Container[str]) -> None:
    """Give `meta` the contexts of `live`, without the ops that are not `there` any more.

    Both are MetaGraphDefs. A context whose pivot is gone goes as well, with those inside it.
    """
    for key in CONTEXTS:
        kept = [one for one in contexts(live.collection_def[key], key) if _prune(one, there)]
        if kept or key in meta.collection_def:
            values = meta.collection_def[key].bytes_list.value
            values[:] = [one.SerializeToString(deterministic=True) for one in kept]


def _prune(context: Any, there: Container[str]) -> bool:
    """Take out of a context what is not there; whether the context itself is."""
    if op_of(context.pivot_name) not in there:
        return False
    lists = [context.values_def.values]
    lists += [context.loop_exit_names, context.loop_enter_names] if is_loop(context) else []
    for texts in lists:
        texts[:] = [text for text in texts if op_of(text) in there]
    _prune_external(context.values_def.external_values, there)
    gone = [not _prune(inner, there) for inner in nested_contexts(context)]
    for place in reversed([place for place, is_gone in enumerate(gone) if is_gone]):
        del context.nested_contexts[place]
    return True


def _prune_external(external: Any, there: Container[str]) -> None:
    """In the order of their names, so that what is written is the same on every run."""
    pairs = sorted((one.key, one.value) for one in external)
    del external[:]
    for key, value in pairs:
        if op_of(key) in there and op_of(value) in there:
            external.add(key=key, value=value)

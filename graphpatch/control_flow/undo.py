"""Control-flow contexts as they were before ops were added and moved aside in them.

Tensors that were added stand behind those that a context had: how many it had is written down with
the origin of the model. A collection that is not encoded as we would is written down as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorboard.compat.proto.meta_graph_pb2 import CollectionDef

from graphpatch.control_flow.context_collections import (
    collection_entry,
    context_collections,
    contexts,
    with_nested,
)
from graphpatch.graph.graph import TakenBack
from graphpatch.graph.wire import Field, Source
from graphpatch.names import op_of

COUNTS, RAW = "contexts", "collections"  # the keys in what is written down


def recorded_contexts(source: Source, meta: Field) -> dict[str, Any]:
    """What to write down of the contexts of a MetaGraphDef before anything is changed."""
    counts: dict[str, list[int]] = {}
    raw: dict[str, str] = {}
    for part, key, collection in context_collections(source, meta):
        found = contexts(collection, key)
        counts[key] = [len(one.values_def.values) for one in with_nested(found)]
        collection.bytes_list.value[:] = [
            one.SerializeToString(deterministic=True) for one in found
        ]
        if collection_entry(key, collection) != source.data[part.value : part.end]:
            raw[key] = bytes(source.data[part.start : part.end]).hex()
    return {COUNTS: counts, **({RAW: raw} if raw else {})}


def before(undone: TakenBack, key: str) -> bytes | None:
    """The collection as a whole, where it is known: nothing, if it was not there."""
    if undone.is_whole and key in undone.origin.get(RAW, {}):
        return bytes.fromhex(undone.origin[RAW][key])
    return b"" if undone.is_whole and key not in undone.origin.get(COUNTS, {key: 0}) else None


def take_back(collection: CollectionDef, key: str, undone: TakenBack) -> bool:
    """Take tensors of ops that were dropped out of a collection; whether there were any."""
    if not undone.dropped and not undone.back:
        return False
    found = contexts(collection, key)
    counts = iter(undone.origin.get(COUNTS, {}).get(key, ()))
    for one in with_nested(found):
        _take_back(one, next(counts, len(one.values_def.values)), undone)
    old = list(collection.bytes_list.value)
    collection.bytes_list.value[:] = [one.SerializeToString(deterministic=True) for one in found]
    return list(collection.bytes_list.value) != old


def _take_back(context: Any, count: int, undone: TakenBack) -> None:
    values = context.values_def.values
    lost = undone.dropped | undone.back.keys()
    rest = [] if undone.is_whole else values[count:]
    added = [text for text in rest if op_of(text) not in lost]
    values[:] = [*(_tensor_before(text, undone.back) for text in values[:count]), *added]
    for field in ("loop_exit_names", "loop_enter_names"):
        if hasattr(context, field):
            texts = getattr(context, field)
            texts[:] = [_tensor_before(text, undone.back) for text in texts]


def _tensor_before(text: str, back: Mapping[str, str]) -> str:
    op, colon, output = text.partition(":")
    return f"{back.get(op, op)}{colon}{output}"

"""The collections of a MetaGraphDef that hold control-flow contexts, as they lie in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tensorboard.compat.proto.meta_graph_pb2 import CollectionDef

from graphpatch.control_flow.messages import message_class
from graphpatch.graph.wire import BYTES, Field, Source, encoded, fields, message, utf8

COLLECTION = 4  # the field of MetaGraphDef: map<string, CollectionDef>
CONTEXTS = {"while_context": "WhileContextDef", "cond_context": "CondContextDef"}


def context_collections(source: Source, meta: Field) -> Iterator[tuple[Field, str, CollectionDef]]:
    """The collections of contexts of a MetaGraphDef: where each lies, its key, what it holds."""
    for part in fields(source.data, meta.value, meta.end):
        if part.holds(COLLECTION):
            raw = source.data[part.value : part.end]
            found = {one.number: one for one in fields(raw, 0, len(raw)) if one.wire == BYTES}
            key = utf8(raw, found[1].value, found[1].end) if 1 in found else ""
            if key in CONTEXTS and 2 in found:
                held = raw[found[2].value : found[2].end]
                yield part, key, message(CollectionDef, held)


def collection_entry(key: str, collection: CollectionDef) -> bytes:
    """A collection as an entry of MetaGraphDef.collection_def."""
    return encoded(1, key.encode()) + encoded(2, collection.SerializeToString(deterministic=True))


def contexts(collection: CollectionDef, key: str) -> list[Any]:
    """The contexts of a collection, those that lie in others apart."""
    return [message(message_class(CONTEXTS[key]), raw) for raw in collection.bytes_list.value]


def nested_contexts(context: Any) -> list[Any]:
    """The contexts that lie in this one."""
    return [
        getattr(one, which)
        for one in context.nested_contexts
        for which in ("cond_ctxt", "while_ctxt")
        if one.HasField(which)
    ]


def with_nested(found: Iterable[Any]) -> Iterator[Any]:
    """Contexts, each followed by those that lie in it."""
    for context in found:
        yield context
        yield from with_nested(nested_contexts(context))


def is_loop(context: Any) -> bool:
    """Whether a context is that of a loop, not of a branch."""
    return "loop_exit_names" in context.DESCRIPTOR.fields_by_name

"""The contexts of v1 loops and branches, as a MetaGraphDef holds them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tensorboard.compat.proto.meta_graph_pb2 import CollectionDef

from graphpatch.graph.model_graph import ModelGraph
from graphpatch.graph.wire import BYTES, Field, Source, encoded, fields, message, utf8
from graphpatch.names import op_of

PACKAGE = "graphpatch.control_flow"
TEXT, INT, BOOL, MESSAGE = 9, 5, 8, 11
ONE, MANY = 1, 3

# Of each message its fields: number, name, type, one or many, the message it holds.
PROTO_FIELDS: dict[str, list[tuple[int, str, int, int, str]]] = {
    "ExternalValue": [(1, "key", TEXT, ONE, ""), (2, "value", TEXT, ONE, "")],
    "ValuesDef": [
        (1, "values", TEXT, MANY, ""),
        # A map, as it lies on the wire: its order stays as it was.
        (2, "external_values", MESSAGE, MANY, "ExternalValue"),
    ],
    "ControlFlowContextDef": [
        (1, "cond_ctxt", MESSAGE, ONE, "CondContextDef"),
        (2, "while_ctxt", MESSAGE, ONE, "WhileContextDef"),
    ],
    "CondContextDef": [
        (1, "context_name", TEXT, ONE, ""),
        (2, "pred_name", TEXT, ONE, ""),
        (3, "pivot_name", TEXT, ONE, ""),
        (4, "branch", INT, ONE, ""),
        (5, "values_def", MESSAGE, ONE, "ValuesDef"),
        (6, "nested_contexts", MESSAGE, MANY, "ControlFlowContextDef"),
    ],
    "WhileContextDef": [
        (1, "context_name", TEXT, ONE, ""),
        (2, "parallel_iterations", INT, ONE, ""),
        (3, "back_prop", BOOL, ONE, ""),
        (4, "swap_memory", BOOL, ONE, ""),
        (5, "pivot_name", TEXT, ONE, ""),
        (6, "pivot_for_pred_name", TEXT, ONE, ""),
        (7, "pivot_for_body_name", TEXT, ONE, ""),
        (8, "loop_exit_names", TEXT, MANY, ""),
        (9, "values_def", MESSAGE, ONE, "ValuesDef"),
        (10, "loop_enter_names", TEXT, MANY, ""),
        (11, "maximum_iterations_name", TEXT, ONE, ""),
        (12, "nested_contexts", MESSAGE, MANY, "ControlFlowContextDef"),
    ],
}


@functools.cache
def message_class(name: str) -> Any:
    """The class of one of these messages."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"{PACKAGE}.{name}"))


@functools.cache
def _pool() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="graphpatch/control_flow.proto", package=PACKAGE, syntax="proto3"
    )
    for name, parts in PROTO_FIELDS.items():
        message = file.message_type.add(name=name)
        for number, part, kind, label, held in parts:
            type_name = f".{PACKAGE}.{held}" if held else None
            message.field.add(name=part, number=number, type=kind, label=label, type_name=type_name)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool


@dataclass(frozen=True, slots=True, eq=False)
class StoredLoop:
    """A loop that has its context: its ends by name, and whether gradients may pass it."""

    exits: tuple[str, ...]
    enters: tuple[str, ...]
    back_prop: bool


@dataclass(frozen=True, slots=True)
class StoredContexts:
    """The ops in loops that have contexts, their Exits among them; and those in branches.

    Of an op in a loop it is told in which: the innermost. An op of a loop that lies in a branch is
    not counted to the branch; one of a branch that lies in a loop is in both.
    """

    in_loops: Mapping[str, StoredLoop] = field(default_factory=dict)
    in_branches: frozenset[str] = frozenset()


def stored_contexts(graph: ModelGraph) -> StoredContexts:
    """What the MetaGraphDef around a graph has; a GraphDef has none."""
    in_loops: dict[str, StoredLoop] = {}
    is_branch: dict[str, bool] = {}
    found = (
        () if graph.around.meta is None else context_collections(graph.source, graph.around.meta)
    )
    for _, key, collection in found:
        for context in with_nested(contexts(collection, key)):  # the inner after the outer
            if is_loop(context):
                in_loops |= dict.fromkeys(_ops(context), _loop(context))
            is_branch |= dict.fromkeys(_ops(context), not is_loop(context))
    return StoredContexts(in_loops, frozenset(name for name, told in is_branch.items() if told))


def _loop(context: Any) -> StoredLoop:
    exits, enters = (
        tuple(map(op_of, names)) for names in (context.loop_exit_names, context.loop_enter_names)
    )
    return StoredLoop(exits, enters, context.back_prop)


def _ops(context: Any) -> Iterator[str]:
    """The ops in a context. It lists what it reads from outside too, once more apart."""
    yield from map(op_of, context.loop_exit_names if is_loop(context) else ())
    outside = {pair.key for pair in context.values_def.external_values}
    yield from (op_of(text) for text in context.values_def.values if text not in outside)


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

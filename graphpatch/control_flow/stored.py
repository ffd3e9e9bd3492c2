"""The contexts of v1 loops and branches, as a MetaGraphDef holds them: read, and extended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from graphpatch.graph.graph import ModelGraph, UndoneGraph
from graphpatch.graph.node import Body, Node
from graphpatch.graph.op_types import ENTERS, EXITS, MERGES
from graphpatch.graph.wire import (
    BYTES,
    Field,
    Replacement,
    Source,
    encoded,
    fields,
    message,
    reframed,
    utf8,
)
from graphpatch.names import op_of
from graphpatch.protos import CollectionDef, CondContextDef, WhileContextDef


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
    """Return what the MetaGraphDef around a graph has; a GraphDef has none."""
    in_loops: dict[str, StoredLoop] = {}
    is_branch: dict[str, bool] = {}
    collections = (
        () if graph.around.meta is None else context_collections(graph.source, graph.around.meta)
    )
    for _, key, collection in collections:
        for context in with_nested(contexts(collection, key)):  # the inner after the outer
            if is_loop(context):
                in_loops |= dict.fromkeys(_ops(context), _loop(context))
            is_branch |= dict.fromkeys(_ops(context), not is_loop(context))
    return StoredContexts(in_loops, frozenset(name for name, branch in is_branch.items() if branch))


def _loop(context: Any) -> StoredLoop:
    exits, enters = (
        tuple(map(op_of, names)) for names in (context.loop_exit_names, context.loop_enter_names)
    )
    return StoredLoop(exits, enters, context.back_prop)


def _ops(context: Any) -> Iterator[str]:
    """Yield the ops in a context. It lists what it reads from outside too, once more apart."""
    yield from map(op_of, context.loop_exit_names if is_loop(context) else ())
    outside = {pair.key for pair in context.values_def.external_values}
    yield from (op_of(text) for text in context.values_def.values if text not in outside)


COLLECTION = 4  # the field of MetaGraphDef: map<string, CollectionDef>
CONTEXTS = {"while_context": WhileContextDef, "cond_context": CondContextDef}


def context_collections(source: Source, meta: Field) -> Iterator[tuple[Field, str, CollectionDef]]:
    """Yield the collections of contexts of a MetaGraphDef: place, key and content of each."""
    for part in fields(source.data, meta.value, meta.end):
        if part.holds(COLLECTION):
            raw = source.data[part.value : part.end]
            parts = {
                part_field.number: part_field
                for part_field in fields(raw, 0, len(raw))
                if part_field.wire == BYTES
            }
            key = utf8(raw, parts[1].value, parts[1].end) if 1 in parts else ""
            if key in CONTEXTS and 2 in parts:
                body = raw[parts[2].value : parts[2].end]
                yield part, key, message(CollectionDef, body)


def collection_entry(key: str, collection: CollectionDef) -> bytes:
    """Return a collection as an entry of MetaGraphDef.collection_def."""
    return encoded(1, key.encode()) + encoded(2, collection.SerializeToString(deterministic=True))


def contexts(collection: CollectionDef, key: str) -> list[Any]:
    """Return the contexts of a collection, those that lie in others apart."""
    return [message(CONTEXTS[key], raw) for raw in collection.bytes_list.value]


def nested_contexts(context: Any) -> list[Any]:
    """Return the contexts that lie in this one."""
    return [
        getattr(nested, which)
        for nested in context.nested_contexts
        for which in ("cond_ctxt", "while_ctxt")
        if nested.HasField(which)
    ]


def with_nested(contexts_in: Iterable[Any]) -> Iterator[Any]:
    """Yield contexts, each followed by those that lie in it."""
    for context in contexts_in:
        yield context
        yield from with_nested(nested_contexts(context))


def is_loop(context: Any) -> bool:
    """Return whether a context is that of a loop, not of a branch."""
    return "loop_exit_names" in context.DESCRIPTOR.fields_by_name


def context_replacements(source: Source, meta: Field, graph: ModelGraph) -> Iterator[Replacement]:
    """Yield what replaces the collections of contexts in which ops were added or renamed."""
    body, undone = graph.main, graph.undone
    if not body.placed and undone is None:
        return
    beside = _added_beside(body)
    now = {then: body.heads.names[index] for index, then in body.renamed.items()}

    def extend(messages: list[Any]) -> None:
        for context in messages:
            _extend(context, now, beside)

    for part, key, collection in context_collections(source, meta):
        raw = None if undone is None or body.placed else _original(undone, key)
        if raw is not None:
            yield part.start, part.end, [raw]
            continue
        changed = undone is not None and _undo_collection(collection, key, undone)
        if _rewritten(collection, key, extend) or changed:
            pieces = reframed(source, part.start, [collection_entry(key, collection)])
            yield part.start, part.end, pieces


def has_contexts(source: Source, meta: Field) -> bool:
    """Return whether a MetaGraphDef tells the context of any v1 loop or branch."""
    return any(True for _ in context_collections(source, meta))


@dataclass(frozen=True)
class AddedTensors:
    """The tensors that were added beside an op; `outer` are those outside of its loop."""

    inner: list[str]
    outer: list[str]


def _added_beside(body: Body) -> dict[str, AddedTensors]:
    """Return for each op of the file, by its name there, what was added beside it."""
    added_by_op: dict[str, AddedTensors] = defaultdict(lambda: AddedTensors([], []))
    for root, order in body.placed.items():
        op, at = body.heads.ops[root], order.index(root)
        for place, index in enumerate(order):
            beside, outer = root, (place < at and op in ENTERS) or (place > at and op in EXITS)
            if place < at and op in MERGES:
                # What a branch gives on is still in the branch, which its Merge is not.
                beside = _read_by(body, index)
                outer = body.heads.ops[beside] in EXITS
            added = added_by_op[body.renamed.get(beside, body.heads.names[beside])]
            tensors, node = added.outer if outer else added.inner, Node(body, index)
            tensors += [f"{node.name}:{output}" for output in range(len(node.outputs or ()))]
    return dict(added_by_op)


def _read_by(body: Body, index: int) -> int:
    """Return the op of the file that an added op reads, or beside which what it reads was added."""
    root = body.root[index]
    while body.root.get(index, index) == root:
        index = body.by_name[op_of(body.heads.inputs[index][0])]
    return body.root.get(index, index)


def _rewritten(collection: CollectionDef, key: str, change: Callable[[list[Any]], object]) -> bool:
    """Change the contexts of a collection; return whether they are other bytes now."""
    before, messages = list(collection.bytes_list.value), contexts(collection, key)
    change(messages)
    after = [context.SerializeToString(deterministic=True) for context in messages]
    collection.bytes_list.value[:] = after
    return after != before


def _extend(context: Any, now: dict[str, str], beside: dict[str, AddedTensors]) -> list[str]:
    """Put the added tensors into a context whose ops they stand beside, and rename its borders.

    Returns the tensors that were added at its borders, but belong to the context around it.
    """
    values, borders = context.values_def.values, _borders(context)
    external = {value.key for value in context.values_def.external_values}
    inside = {op_of(text) for text in values if text not in external}
    added, elsewhere = [], set(borders)
    for inner in nested_contexts(context):
        added += _extend(inner, now, beside)
        elsewhere |= _borders(inner)
    for name in sorted(inside & beside.keys()):
        added += beside[name].inner if name in borders or name not in elsewhere else []
        added += beside[name].outer if name not in elsewhere else []
    if borders:
        for texts in (values, context.loop_exit_names, context.loop_enter_names):
            texts[:] = [_renamed(text, now) if op_of(text) in borders else text for text in texts]
    present = set(values)
    values.extend(text for text in dict.fromkeys(added) if text not in present)
    return [text for name in sorted(borders & beside.keys()) for text in beside[name].outer]


def _borders(context: Any) -> set[str]:
    """Return the ops at which a loop's own context begins and ends: Enters, and Exits."""
    if not is_loop(context):
        return set()
    constant = [value.value for value in context.values_def.external_values]
    return {op_of(t) for t in (*context.loop_exit_names, *context.loop_enter_names, *constant)}


def _renamed(text: str, now: Mapping[str, str]) -> str:
    """Return a tensor by the name that its op has now."""
    op, colon, output = text.partition(":")
    return f"{now.get(op, op)}{colon}{output}"


def recorded_contexts(source: Source, meta: Field) -> tuple[dict[str, list[int]], dict[str, str]]:
    """Return what to write down of the contexts of a MetaGraphDef before anything is changed.

    By the keys of the collections: how many tensors each context had, as those that are added stand
    behind these; and, of collections that are not encoded as we would, their bytes in hex.
    """
    counts: dict[str, list[int]] = {}
    raw: dict[str, str] = {}
    for part, key, collection in context_collections(source, meta):
        messages = contexts(collection, key)
        counts[key] = [len(context.values_def.values) for context in with_nested(messages)]
        _rewritten(collection, key, lambda messages: None)
        if collection_entry(key, collection) != source.data[part.value : part.end]:
            raw[key] = bytes(source.data[part.start : part.end]).hex()
    return counts, raw


def _original(undone: UndoneGraph, key: str) -> bytes | None:
    """Return the collection as a whole, where it is known: nothing, if it was not there."""
    was = undone.record
    if key in was.collections:
        return bytes.fromhex(was.collections[key])
    return b"" if was.contexts is not None and key not in was.contexts else None


def _undo_collection(collection: CollectionDef, key: str, undone: UndoneGraph) -> bool:
    """Take tensors of ops that were dropped out of a collection; whether there were any."""

    def undo(messages: list[Any]) -> None:
        counts = iter((undone.record.contexts or {}).get(key, ()))
        for context in with_nested(messages):
            _undo_context(context, next(counts, len(context.values_def.values)), undone)

    return bool(undone.dropped or undone.old_names) and _rewritten(collection, key, undo)


def _undo_context(context: Any, count: int, undone: UndoneGraph) -> None:
    values = context.values_def.values
    values[:] = [_renamed(text, undone.old_names) for text in values[:count]]
    for name in ("loop_exit_names", "loop_enter_names"):
        if hasattr(context, name):
            texts = getattr(context, name)
            texts[:] = [_renamed(text, undone.old_names) for text in texts]

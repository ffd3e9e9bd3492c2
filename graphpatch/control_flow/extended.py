"""Control-flow contexts of a MetaGraphDef, kept right when ops inside them are patched.

`import_meta_graph` puts an op into the context of a v1 loop or branch by the names of its tensors
in the collections `while_context` and `cond_context`. An op that a patch adds is in the context
of the op it stands beside, but outside of a loop where it stands before its Enter or behind its
Exit. An Enter or Exit that was moved aside is named anew.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorboard.compat.proto.meta_graph_pb2 import CollectionDef

from graphpatch.control_flow.context_collections import (
    CONTEXTS,
    collection_entry,
    context_collections,
    contexts,
    is_loop,
    message_class,
    nested_contexts,
    with_nested,
)
from graphpatch.control_flow.op_types import ENTERS, EXITS, MERGES
from graphpatch.graph.body import Body, Node
from graphpatch.graph.model_graph import ModelGraph, UndoneGraph
from graphpatch.graph.wire import Field, Replacement, Source, message, reframed
from graphpatch.names import op_of


def context_replacements(source: Source, meta: Field, graph: ModelGraph) -> Iterator[Replacement]:
    """What comes in place of the collections of contexts in which ops were added or renamed."""
    body, undone = graph.main, graph.undone
    if not body.placed and undone is None:
        return
    beside = _added_beside(body)
    now = {then: body.heads.names[index] for index, then in body.renamed.items()}
    for part, key, collection in context_collections(source, meta):
        raw = None if undone is None or body.placed else _original(undone, key)
        if raw is not None:
            yield Replacement(part.start, part.end, [raw])
            continue
        changed = undone is not None and _undo_collection(collection, key, undone)
        if _extend_all(collection, CONTEXTS[key], now, beside) or changed:
            pieces = reframed(source, part.start, [collection_entry(key, collection)])
            yield Replacement(part.start, part.end, pieces)


def has_contexts(source: Source, meta: Field) -> bool:
    """Whether a MetaGraphDef tells the context of any v1 loop or branch."""
    return any(True for _ in context_collections(source, meta))


@dataclass(frozen=True)
class AddedTensors:
    """The tensors that were added beside an op; `outer` are those outside of its loop."""

    inner: list[str]
    outer: list[str]


def _added_beside(body: Body) -> dict[str, AddedTensors]:
    """For each op of the file, by its name there, what was added beside it."""
    found: dict[str, AddedTensors] = defaultdict(lambda: AddedTensors([], []))
    for root, order in body.placed.items():
        op, at = body.heads.ops[root], order.index(root)
        for place, index in enumerate(order):
            beside, outer = root, (place < at and op in ENTERS) or (place > at and op in EXITS)
            if place < at and op in MERGES:
                # What a branch gives on is still in the branch, which its Merge is not.
                beside = _read_by(body, index)
                outer = body.heads.ops[beside] in EXITS
            added = found[body.renamed.get(beside, body.heads.names[beside])]
            (added.outer if outer else added.inner).extend(_outputs_of(body, [index]))
    return dict(found)


def _read_by(body: Body, index: int) -> int:
    """The op of the file that an added op reads, or beside which what it reads was added."""
    root = body.root[index]
    while body.root.get(index, index) == root:
        index = body.by_name[op_of(body.heads.inputs[index][0])]
    return body.root.get(index, index)


def _outputs_of(body: Body, indices: Sequence[int]) -> list[str]:
    return [
        f"{node.name}:{output}"
        for node in (Node(body, index) for index in indices)
        for output in range(len(node.outputs or ()))
    ]


def _extend_all(
    collection: CollectionDef, kind: str, now: dict[str, str], beside: dict[str, AddedTensors]
) -> bool:
    """Extend the contexts of a collection; whether there was anything to do."""
    before = list(collection.bytes_list.value)
    after = []
    for raw in before:
        context = message(message_class(kind), raw)
        _extend(context, now, beside)
        after.append(context.SerializeToString(deterministic=True))
    if after == before:
        return False
    collection.bytes_list.value[:] = after
    return True


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
    there = set(values)
    values.extend(text for text in dict.fromkeys(added) if text not in there)
    return [text for name in sorted(borders & beside.keys()) for text in beside[name].outer]


def _borders(context: Any) -> set[str]:
    """The ops at which a loop's own context begins and ends: all its Enters, and its Exits."""
    if not is_loop(context):
        return set()
    constant = [value.value for value in context.values_def.external_values]
    return {op_of(t) for t in (*context.loop_exit_names, *context.loop_enter_names, *constant)}


def _renamed(text: str, now: Mapping[str, str]) -> str:
    """A tensor by the name that its op has now."""
    op, colon, output = text.partition(":")
    return f"{now.get(op, op)}{colon}{output}"


def recorded_contexts(source: Source, meta: Field) -> tuple[dict[str, list[int]], dict[str, str]]:
    """What to write down of the contexts of a MetaGraphDef before anything is changed.

    By the keys of the collections: how many tensors each context had, as those that are added stand
    behind these; and, of collections that are not encoded as we would, their bytes in hex.
    """
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
    return counts, raw


def _original(undone: UndoneGraph, key: str) -> bytes | None:
    """The collection as a whole, where it is known: nothing, if it was not there."""
    was = undone.record
    if key in was.collections:
        return bytes.fromhex(was.collections[key])
    return b"" if was.contexts is not None and key not in was.contexts else None


def _undo_collection(collection: CollectionDef, key: str, undone: UndoneGraph) -> bool:
    """Take tensors of ops that were dropped out of a collection; whether there were any."""
    if not undone.dropped and not undone.old_names:
        return False
    found = contexts(collection, key)
    known = undone.record.contexts
    counts = iter(() if known is None else known.get(key, ()))
    for one in with_nested(found):
        _undo_context(one, next(counts, len(one.values_def.values)), undone)
    old = list(collection.bytes_list.value)
    collection.bytes_list.value[:] = [one.SerializeToString(deterministic=True) for one in found]
    return list(collection.bytes_list.value) != old


def _undo_context(context: Any, count: int, undone: UndoneGraph) -> None:
    values = context.values_def.values
    values[:] = [_renamed(text, undone.old_names) for text in values[:count]]
    for field in ("loop_exit_names", "loop_enter_names"):
        if hasattr(context, field):
            texts = getattr(context, field)
            texts[:] = [_renamed(text, undone.old_names) for text in texts]

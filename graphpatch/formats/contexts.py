"""Control-flow contexts of a MetaGraphDef, kept right when ops inside them are patched.

`import_meta_graph` puts an op into the context of a v1 loop or branch by the names of its tensors
in the collections `while_context` and `cond_context`. An op that a patch adds is in the context
of the op it stands beside; an Enter or Exit that was moved aside is named anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tensorboard.compat.proto.meta_graph_pb2 import CollectionDef

from graphpatch.formats.control_flow import message_class
from graphpatch.graph.body import Body, Node
from graphpatch.graph.wire import BYTES, Field, Replacement, Source, encoded, fields, message, utf8
from graphpatch.names import op_of

COLLECTION = 4  # the field of MetaGraphDef: map<string, CollectionDef>
KINDS = {"while_context": "WhileContextDef", "cond_context": "CondContextDef"}


def context_replacements(source: Source, meta: Field, body: Body) -> Iterator[Replacement]:
    """What comes in place of the collections of contexts in which ops were added or renamed."""
    if not body.placed:
        return
    beside = _added_beside(body)
    now = {then: body.heads.names[index] for index, then in body.renamed.items()}
    for part in fields(source.data, meta.value, meta.end):
        if part.holds(COLLECTION):
            raw = source.data[part.value : part.end]
            key, collection = _entry(raw)
            if key in KINDS and _extend_all(collection, KINDS[key], now, beside):
                value = encoded(2, collection.SerializeToString(deterministic=True))
                entry = encoded(1, key.encode()) + value
                yield Replacement(part.start, part.end, [encoded(COLLECTION, entry)])


def _entry(raw: bytes) -> tuple[str, CollectionDef]:
    found = {part.number: part for part in fields(raw, 0, len(raw)) if part.wire == BYTES}
    key = utf8(raw, found[1].value, found[1].end) if 1 in found else ""
    if key not in KINDS or 2 not in found:
        return key, CollectionDef()
    return key, message(CollectionDef, raw[found[2].value : found[2].end])


def _added_beside(body: Body) -> dict[str, list[str]]:
    """For each op of the file, by its name there, the tensors that were added beside it."""
    found = {}
    for root, order in body.placed.items():
        name = body.renamed.get(root, body.heads.names[root])
        found[name] = [text for index in order for text in _tensors(Node(body, index))]
    return found


def _tensors(node: Node) -> list[str]:
    return [f"{node.name}:{output}" for output in range(len(node.outputs or ()))]


def _extend_all(
    collection: CollectionDef, kind: str, now: dict[str, str], beside: dict[str, list[str]]
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


def _extend(context: Any, now: dict[str, str], beside: dict[str, list[str]]) -> None:
    """Put the added tensors into a context whose ops they stand beside, and rename its ends."""
    external = {value.key for value in context.values_def.external_values}
    inside = {op_of(text) for text in context.values_def.values if text not in external}
    there = set(context.values_def.values)
    for name in sorted(inside & beside.keys()):
        context.values_def.values.extend(text for text in beside[name] if text not in there)
    if hasattr(context, "loop_exit_names"):
        for ends in (context.loop_exit_names, context.loop_enter_names):
            ends[:] = [_moved(text, now) for text in ends]
    for nested in context.nested_contexts:
        for inner in ("cond_ctxt", "while_ctxt"):
            if nested.HasField(inner):
                _extend(getattr(nested, inner), now, beside)


def _moved(text: str, now: dict[str, str]) -> str:
    """The tensor of an Enter or Exit, by the name that the op has now."""
    op, colon, output = text.partition(":")
    return f"{now.get(op, op)}{colon}{output}"

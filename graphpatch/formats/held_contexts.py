"""Which v1 loops and branches of a model have their contexts in its file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tensorboard.compat.proto.meta_graph_pb2 import MetaGraphDef

from graphpatch.formats.control_flow import message_class
from graphpatch.formats.model import Model
from graphpatch.graph.wire import BYTES, Field, encoded, fields, message
from graphpatch.names import op_of

COLLECTION = 4  # the field of MetaGraphDef: map<string, CollectionDef>


@dataclass(frozen=True, slots=True)
class Held:
    """The ops in loops that have contexts, their Exits among them; and those in branches."""

    in_loops: frozenset[str] = frozenset()
    in_branches: frozenset[str] = frozenset()


def held_contexts(model: Model) -> list[Held]:
    """What each graph of a model has; a GraphDef has none."""
    path = model.container.path
    if not path:
        return [Held() for _ in model.graphs]
    outer = [Field(0, BYTES, 0, 0, len(model.source.data))]
    for number in path[:-1]:
        outer = [part for one in outer for part in _parts(model, one, number)]
    return [_held(model, meta) for meta in outer]


def _parts(model: Model, outer: Field, number: int) -> list[Field]:
    parts = fields(model.source.data, outer.value, outer.end)
    return [part for part in parts if part.holds(number)]


def _held(model: Model, meta: Field) -> Held:
    in_loops, in_branches = set(), set()
    for part in _parts(model, meta, COLLECTION):
        entry = encoded(COLLECTION, model.source.data[part.value : part.end])
        for key, held in message(MetaGraphDef, entry).collection_def.items():
            for raw in held.bytes_list.value if key == "while_context" else ():
                in_loops |= set(_loop_ops(message(message_class("WhileContextDef"), raw)))
            for raw in held.bytes_list.value if key == "cond_context" else ():
                found = message(message_class("CondContextDef"), raw)
                in_branches |= {op_of(text) for text in found.values_def.values}
                in_loops |= set(_nested_ops(found))
    return Held(frozenset(in_loops), frozenset(in_branches))


def _loop_ops(context: Any) -> Iterator[str]:
    yield from map(op_of, (*context.loop_exit_names, *context.values_def.values))
    yield from _nested_ops(context)


def _nested_ops(context: Any) -> Iterator[str]:
    for nested in context.nested_contexts:
        if nested.HasField("while_ctxt"):
            yield from _loop_ops(nested.while_ctxt)
        elif nested.HasField("cond_ctxt"):
            yield from _nested_ops(nested.cond_ctxt)

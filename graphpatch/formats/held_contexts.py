"""Which v1 loops and branches of a model have their contexts in its file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tensorboard.compat.proto.meta_graph_pb2 import MetaGraphDef

from graphpatch.formats.control_flow import message_class
from graphpatch.formats.model import Model
from graphpatch.graph.wire import BYTES, Field, encoded, fields, message
from graphpatch.names import op_of

KINDS = {"while_context": "WhileContextDef", "cond_context": "CondContextDef"}
COLLECTION = 4  # the field of MetaGraphDef: map<string, CollectionDef>


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """A loop that has its context: its ends by name, and whether gradients may pass it."""

    exits: tuple[str, ...]
    enters: tuple[str, ...]
    back_prop: bool


@dataclass(frozen=True, slots=True)
class Held:
    """The ops in loops that have contexts, their Exits among them; and those in branches.

    Of an op in a loop it is told in which: the innermost. An op of a loop that lies in a branch is
    not counted to the branch; one of a branch that lies in a loop is in both.
    """

    in_loops: Mapping[str, Loop] = field(default_factory=dict)
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
    contexts: list[Any] = []
    for part in _parts(model, meta, COLLECTION):
        entry = encoded(COLLECTION, model.source.data[part.value : part.end])
        for key, held in message(MetaGraphDef, entry).collection_def.items():
            for raw in held.bytes_list.value if key in KINDS else ():
                contexts += _with_nested(message(message_class(KINDS[key]), raw))
    in_loops: dict[str, Loop] = {}
    is_branch: dict[str, bool] = {}
    for context in contexts:  # the inner after the outer
        if _is_loop(context):
            in_loops |= dict.fromkeys(_ops(context), _loop(context))
        is_branch |= dict.fromkeys(_ops(context), not _is_loop(context))
    return Held(in_loops, frozenset(name for name, told in is_branch.items() if told))


def _is_loop(context: Any) -> bool:
    return "loop_exit_names" in context.DESCRIPTOR.fields_by_name


def _loop(context: Any) -> Loop:
    exits, enters = (
        tuple(map(op_of, names)) for names in (context.loop_exit_names, context.loop_enter_names)
    )
    return Loop(exits, enters, context.back_prop)


def _ops(context: Any) -> Iterator[str]:
    """The ops in a context. It lists what it reads from outside too, once more apart."""
    yield from map(op_of, context.loop_exit_names if _is_loop(context) else ())
    outside = {pair.key for pair in context.values_def.external_values}
    yield from (op_of(text) for text in context.values_def.values if text not in outside)


def _with_nested(context: Any) -> Iterator[Any]:
    """A context, then those that lie in it."""
    yield context
    for nested in context.nested_contexts:
        is_loop = nested.HasField("while_ctxt")
        yield from _with_nested(nested.while_ctxt if is_loop else nested.cond_ctxt)

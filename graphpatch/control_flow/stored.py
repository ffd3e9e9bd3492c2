"""Which v1 loops and branches of a model have their contexts in its file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from graphpatch.control_flow.context_collections import (
    context_collections,
    contexts,
    is_loop,
    with_nested,
)
from graphpatch.graph.graph import Graph
from graphpatch.names import op_of


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


def stored_contexts(graph: Graph) -> StoredContexts:
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

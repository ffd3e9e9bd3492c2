"""Nodes and functions taken out of a graph, as the editor's edits are taken back.

`edit` adds and changes nodes and drops none, so that what holds the number of a node stays true
while rules are applied. To drop nodes numbers all others anew: here no rule holds one any more.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from graphpatch.graph.blanks import FilledPayload
from graphpatch.graph.body import Body
from graphpatch.graph.edits import SetInputs
from graphpatch.graph.graph import Graph
from graphpatch.graph.heads import Heads
from graphpatch.graph.large import Large
from graphpatch.graph.nodedef import Payload
from graphpatch.graph.undo_node import UndoneNode
from graphpatch.graph.wire import Field


def drop_nodes(
    graph: Graph,
    old: Body,
    dropped: Collection[int],
    now: Mapping[int, UndoneNode],
    marked: Sequence[int],
) -> Body:
    """Put a body into the graph without the `dropped` nodes, and others as they are `now`.

    All are given by index. `marked` are those that still carry provenance. Returns the body.
    """
    kept = [index for index in range(len(old)) if index not in dropped]
    heads = old.heads
    new = Heads(
        array("Q", (heads.starts[index] for index in kept)),
        [now[i].name if i in now else heads.names[i] for i in kept],
        [now[i].op if i in now else heads.ops[i] for i in kept],
        [tuple(now[i].inputs) if i in now else heads.inputs[i] for i in kept],
    )
    place = {index: at for at, index in enumerate(kept)} if dropped else {}
    new.marked = [range(at, at + 1) for at in (place.get(index, index) for index in marked)]
    edited: dict[int, Payload | FilledPayload | SetInputs] = {
        place.get(index, index): one.signed() for index, one in now.items()
    }
    cut = [*old.cut, *(heads.starts[index] for index in dropped)]
    body = replace(old, heads=new, edited=edited, cut=cut, large=Large())
    if body.is_main:
        graph.main = body
    else:
        graph.functions[body.label] = body
    return body


def drop_functions(
    graph: Graph, names: Collection[str], entries: Sequence[tuple[Field, Field]]
) -> None:
    """Drop functions, and what the libraries of the file say of them: each library and entry."""
    graph.cut = [*graph.cut, *entries]
    graph.functions = {name: one for name, one in graph.functions.items() if name not in names}
    fields = graph.function_fields.items()  # copies of the graph share them
    graph.function_fields = {name: one for name, one in fields if name not in names}
    for name in names:
        del graph.library.signatures[name]
        graph.library.gradients.pop(name, None)

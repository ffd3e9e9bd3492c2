"""In what two models differ around their graphs: versions, signatures, collections, objects."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.meta_graph_pb2 import MetaGraphDef

from graphpatch.formats import Model
from graphpatch.formats.container import GRAPH_DEF
from graphpatch.graph.graph import LIBRARY, Graph
from graphpatch.graph.wire import fields, message

MAPS = ("collection_def", "signature_def")


def differences_around(one: Model, other: Model) -> Iterator[str]:
    """Each difference in a line."""
    if one.container is not other.container:
        yield f"container: {one.container.name} -> {other.container.name}"
    for left, right in zip_longest(one.graphs, other.graphs):
        if left is not None and right is not None:
            if _rest(left) != _rest(right):
                yield "versions or debug_info of the GraphDef"
            if left.around.meta is not None and right.around.meta is not None:
                yield from _metas(meta_around(left), meta_around(right))


def _rest(graph: Graph) -> GraphDef:
    """The GraphDef without its nodes and library."""
    data = graph.source.data
    kept = [data[one.start : one.end] for one in graph.others if one.number != LIBRARY]
    return message(GraphDef, b"".join(kept))


def meta_around(graph: Graph) -> MetaGraphDef:
    """The MetaGraphDef without its GraphDef."""
    data, meta = graph.source.data, graph.around.meta
    if meta is None:
        return MetaGraphDef()
    parts = fields(data, meta.value, meta.end)
    kept = [data[one.start : one.end] for one in parts if one.number != GRAPH_DEF]
    return message(MetaGraphDef, b"".join(kept))


def _metas(one: MetaGraphDef, other: MetaGraphDef) -> Iterator[str]:
    for field in MetaGraphDef.DESCRIPTOR.fields:
        left, right = getattr(one, field.name), getattr(other, field.name)
        if field.name not in MAPS:
            yield from [field.name] if left != right else []
            continue
        for key in sorted({*left, *right}):
            if (key in left) != (key in right) or left[key] != right[key]:
                yield f"{field.name} {key!r}"

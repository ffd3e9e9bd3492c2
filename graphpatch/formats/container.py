"""Where a GraphDef lies inside a file: in none, one or two messages around it."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any

import msgspec

from graphpatch import protos
from graphpatch.errors import ModelError
from graphpatch.graph.graph import ContainerFacts, ModelGraph, Progress, graph_pieces
from graphpatch.graph.wire import (
    BYTES,
    MOST_FIELDS,
    VARINT,
    Field,
    Piece,
    Replacement,
    Source,
    enclosed,
    fields,
    message,
    reframed,
    splice,
    utf8,
)
from graphpatch.names import OP_TYPE
from graphpatch.protos import MetaGraphDef


class Container(msgspec.Struct, frozen=True):
    """A kind of message that holds GraphDefs."""

    name: str

    @property
    def message(self) -> Any:
        """Return the class of the message."""
        return getattr(protos, self.name)


GRAPH, META, SAVED = map(Container, ("GraphDef", "MetaGraphDef", "SavedModel"))

META_GRAPHS = 2  # the field of SavedModel
# Fields of MetaGraphDef; a TF2 SavedModel has an object graph. Tags are a field of its info.
META_INFO, GRAPH_DEF, OBJECT_GRAPH = 1, 2, 7
TAGS = 4


def is_text(head: bytes) -> bool:
    """Return whether a file that starts so is text. Binary ones have control characters."""
    if head[:1] == b"\n" and head[1:2] > b"\x7f":
        return False  # the size of a NodeDef, whose name may be longer than `head`
    return not any(byte < 32 and byte not in b"\t\n\r" for byte in head)


def recognise(source: Source) -> Container:
    """Return which container the bytes are; ModelError where none."""
    data = source.data
    if _is_saved(data):
        return SAVED
    if _is_graph(data, 0, len(data)):
        return GRAPH
    if _is_meta(data, 0, len(data)):
        return META
    why = ""
    try:
        for _ in islice(fields(data, 0, len(data)), MOST_FIELDS):
            pass
    except ModelError as error:  # it is not a message at all
        why = f" ({error})"
    raise ModelError(
        f"not a GraphDef, a MetaGraphDef or a SavedModel{why}; expected a .pb, .pbtxt or .meta "
        "file, or a SavedModel folder"
    )


def open_graphs(
    source: Source, container: Container, progress: Progress | None
) -> list[ModelGraph]:
    """Return the GraphDefs of a file; several where a SavedModel has several MetaGraphDefs."""
    whole = Field(0, BYTES, 0, 0, len(source.data))
    if container is GRAPH:
        return [ModelGraph.open(source, whole.value, whole.end, progress)]
    metas = _fields_numbered(source, whole, META_GRAPHS) if container is SAVED else [whole]
    return [_open_meta(source, meta, progress) for meta in metas]


def _open_meta(source: Source, meta: Field, progress: Progress | None) -> ModelGraph:
    from graphpatch.control_flow.stored import has_contexts

    graphs = _fields_numbered(source, meta, GRAPH_DEF)
    if len(graphs) != 1:
        raise ModelError(f"a MetaGraphDef holds {len(graphs)} GraphDefs; it must hold one")
    graph = ModelGraph.open(source, graphs[0].value, graphs[0].end, progress)
    infos = _fields_numbered(source, meta, META_INFO)
    tags = [tag for info in infos for tag in _fields_numbered(source, info, TAGS)]
    graph.around = ContainerFacts(
        meta,
        ",".join(utf8(source.data, tag.value, tag.end) for tag in tags),
        has_contexts(source, meta),
        is_object_based=bool(_fields_numbered(source, meta, OBJECT_GRAPH)),
    )
    return graph


def container_pieces(
    source: Source, container: Container, ready: Sequence[tuple[ModelGraph, bytes]]
) -> list[Piece]:
    """Return the file with its GraphDefs as they are now, all else as it was.

    With each graph come the fields that its MetaGraphDef gets besides.
    """
    if container is GRAPH:
        return graph_pieces(ready[0][0])  # which may lie in the middle of what it was read from
    if container is META:
        return meta_pieces(source, container, *ready[0])
    replacements = list[Replacement]()
    for graph, more in ready:
        if (meta := graph.around.meta) is not None:
            pieces = reframed(source, meta.start, meta_pieces(source, container, graph, more))
            replacements.append((meta.start, meta.end, pieces))
    return splice(source, 0, len(source.data), replacements)


def meta_pieces(
    source: Source, container: Container, graph: ModelGraph, more: bytes
) -> list[Piece]:
    """Return a MetaGraphDef that holds the graph: the one of the file around it, or a new one."""
    from graphpatch.control_flow.stored import context_replacements

    meta = graph.around.meta
    if container is GRAPH or meta is None:
        # An empty meta_info_def, then the GraphDef: all that import_meta_graph needs.
        return [*enclosed(META_INFO, []), *enclosed(GRAPH_DEF, graph_pieces(graph)), more]
    (part,) = _fields_numbered(source, meta, GRAPH_DEF)
    replacements: list[Replacement] = [
        (part.start, part.end, reframed(source, part.start, graph_pieces(graph))),
        *context_replacements(source, meta, graph),
        *_object_graph(source, meta, graph),
    ]
    pieces = splice(source, meta.value, meta.end, sorted(replacements, key=itemgetter(0)))
    return [*pieces, more] if more else pieces


def _fields_numbered(source: Source, outer: Field, number: int) -> list[Field]:
    return [part for part in fields(source.data, outer.value, outer.end) if part.holds(number)]


def _object_graph(source: Source, meta: Field, graph: ModelGraph) -> Iterator[Replacement]:
    """Yield the object graph with what restores the gradients that the library holds of ours."""
    gone = graph.undone.functions if graph.undone is not None else frozenset()
    if not graph.around.is_object_based or not (graph.restored or gone):
        return
    from graphpatch.formats.saved_model import objects_to_add, without_functions

    (part,) = _fields_numbered(source, meta, OBJECT_GRAPH)
    remaining, count = without_functions(source, part, gone)
    added = objects_to_add(graph.restored, count).SerializeToString(deterministic=True)
    pieces = reframed(source, part.start, [*remaining, added] if added else remaining)
    yield part.start, part.end, pieces


def peek(
    data: bytes | mmap.mmap, start: int, end: int, most: int = 256
) -> dict[tuple[int, int], Field]:
    """Return the first of each kind among a message's first fields, as far as it is a message."""
    parts: dict[tuple[int, int], Field] = {}
    with contextlib.suppress(ModelError):  # of a file cut short, the rest says what it was
        for _, part in zip(range(most), fields(data, start, end), strict=False):
            parts.setdefault((part.number, part.wire), part)
    return parts


def _is_saved(data: bytes | mmap.mmap) -> bool:
    parts = peek(data, 0, len(data))
    meta = parts.get((2, BYTES))
    if meta is None:
        return False
    if (1, VARINT) not in parts:
        return _is_meta(data, meta.value, meta.end)
    # Other messages start with a number too (ONNX does).
    return (GRAPH_DEF, BYTES) in peek(data, meta.value, meta.end)


def _is_meta(data: bytes | mmap.mmap, start: int, end: int) -> bool:
    graph = peek(data, start, end).get((GRAPH_DEF, BYTES))
    return graph is not None and _is_graph(data, graph.value, graph.end)


def _is_graph(data: bytes | mmap.mmap, start: int, end: int) -> bool:
    parts = peek(data, start, end)
    known = {key for key in parts if key[0] <= 5}
    if not known or not known <= {(1, BYTES), (2, BYTES), (3, VARINT), (4, BYTES), (5, BYTES)}:
        return False
    node, library = parts.get((1, BYTES)), parts.get((2, BYTES))
    if node is not None:
        return _is_node(data, node)
    if library is None:
        return True
    function = peek(data, library.value, library.end).get((1, BYTES))
    return function is None or not _is_node(data, function)


def _is_node(data: bytes | mmap.mmap, part: Field) -> bool:
    op = peek(data, part.value, part.end).get((2, BYTES))
    try:
        return op is not None and bool(OP_TYPE.fullmatch(data[op.value : op.end].decode()))
    except UnicodeDecodeError:
        return False


def meta_around(graph: ModelGraph) -> MetaGraphDef:
    """Return the MetaGraphDef without its GraphDef."""
    data, meta = graph.source.data, graph.around.meta
    if meta is None:
        return MetaGraphDef()
    parts = fields(data, meta.value, meta.end)
    around = [data[field.start : field.end] for field in parts if field.number != GRAPH_DEF]
    return message(MetaGraphDef, b"".join(around))

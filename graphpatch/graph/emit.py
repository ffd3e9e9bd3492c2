"""A graph as it is to be written: what no rule touched as the bytes it was."""

from __future__ import annotations

from collections.abc import Iterator

from graphpatch.graph.body import Body, text_entry
from graphpatch.graph.graph import LIBRARY, Graph
from graphpatch.graph.heads import entry
from graphpatch.graph.wire import Field, Piece, Replacement, Span, enclosed, encoded, splice


def graph_pieces(graph: Graph) -> list[Piece]:
    """The GraphDef, as pieces of its source and new bytes."""
    replacements = _nodes(graph.main, 1) + _libraries(graph)
    pieces = splice(graph.source, graph.start, graph.end, sorted(replacements))
    return [*pieces, *_added(graph)]


def library_pieces(graph: Graph) -> list[Piece]:
    """The library of functions alone, as fields of a GraphDef."""
    changed = {one.start: one.pieces for one in _libraries(graph)}
    out: list[Piece] = []
    for other in graph.others:
        if other.holds(LIBRARY):
            out += changed.get(other.start, [Span(graph.source, other.start, other.end)])
    return [*out, *_added(graph)]


def _added(graph: Graph) -> list[Piece]:
    added = graph.added.SerializeToString(deterministic=True)
    return [encoded(LIBRARY, added)] if added else []


def _nodes(body: Body, number: int) -> list[Replacement]:
    """What comes in place of each node that was changed, or beside which nodes were added."""
    out = []
    for index in sorted({body.root.get(i, i) for i in body.edited} | set(body.placed)):
        start = body.heads.starts[index]
        pieces: list[Piece] = []
        for node in body.placed.get(index, [index]):
            pieces += enclosed(number, body.payload(node))
        out.append(Replacement(start, entry(body.source, start)[1], pieces))
    return out


def _libraries(graph: Graph) -> list[Replacement]:
    found: dict[Field, list[Replacement]] = {}
    for name, (library, function) in graph.function_fields.items():
        replacements = sorted([*_nodes(graph.functions[name], 3), *_ret(graph.functions[name])])
        if replacements:
            pieces = splice(graph.source, function.value, function.end, replacements)
            new = Replacement(function.start, function.end, enclosed(1, pieces))
            found.setdefault(library, []).append(new)
    return [
        Replacement(
            library.start,
            library.end,
            enclosed(LIBRARY, splice(graph.source, library.value, library.end, functions)),
        )
        for library, functions in found.items()
    ]


def _ret(body: Body) -> Iterator[Replacement]:
    """The function's outputs that are read from another tensor than in the file."""
    for part in body.others:
        if part.holds(4):
            name, _ = text_entry(body.source, part)
            new = encoded(1, name.encode()) + encoded(2, body.ret[name].encode())
            if body.ret[name] != body.file_ret[name]:
                yield Replacement(part.start, part.end, [encoded(4, new)])

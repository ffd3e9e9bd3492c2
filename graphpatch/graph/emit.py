"""A graph as it is to be written: what no rule touched as the bytes it was."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter

from graphpatch.graph.body import Body
from graphpatch.graph.graph import LIBRARY
from graphpatch.graph.heads import entry
from graphpatch.graph.model_graph import ModelGraph
from graphpatch.graph.nodedef import payload_of
from graphpatch.graph.wire import (
    BYTES,
    Field,
    Piece,
    Placed,
    Replacement,
    Source,
    Span,
    enclosed,
    encoded,
    fields,
    reframed,
    splice,
    utf8,
)


def graph_pieces(graph: ModelGraph) -> list[Piece]:
    """The GraphDef, as pieces of its source and new bytes."""
    changes = [*_changes(graph.main, 1), *_dropped(graph.main), *_libraries(graph)]
    replacements = sorted(changes, key=itemgetter(0))
    pieces = splice(graph.source, graph.start, graph.end, replacements)
    return [*pieces, *_added(graph)]


def library_pieces(graph: ModelGraph) -> list[Piece]:
    """The library of functions alone, as fields of a GraphDef."""
    changed = {one.start: one.pieces for one in _libraries(graph)}
    out: list[Piece] = []
    for other in graph.others:
        if other.holds(LIBRARY):
            out += changed.get(other.start, [Span(graph.source, other.start, other.end)])
    return [*out, *_added(graph)]


def _added(graph: ModelGraph) -> list[Piece]:
    added = graph.added.SerializeToString(deterministic=True)
    return [encoded(LIBRARY, added)] if added else []


def _changes(body: Body, number: int) -> Iterator[Placed]:
    """What comes in place of each node that was changed, or beside which nodes were added."""
    starts, data = body.heads.starts, body.source.data
    for index in sorted((body.edited.keys() - body.root.keys()) | body.placed.keys()):
        start = starts[index]
        end = start + 2 + data[start + 1]
        if data[start + 1] > 0x7F:  # then the length takes more than that byte
            end = entry(body.source, start)[1]
        yield start, end, _as_it_is(body, index, number)


def _dropped(body: Body) -> Iterator[Placed]:
    """Nothing in place of each node that was dropped."""
    return ((start, entry(body.source, start)[1], ()) for start in body.cut)


def _as_it_is(body: Body, index: int, number: int) -> list[Piece]:
    """A node of the file as it is now, and the nodes that were added beside it."""
    pieces: list[Piece] = []
    if index not in body.placed and body.source.data[body.heads.starts[index] + 1] < 0x80:
        return enclosed(number, body.payload(index))
    for node in body.placed.get(index, [index]):
        payload = body.payload(node)
        if node == index and body.source.data[body.heads.starts[index] + 1] > 0x7F:
            pieces += reframed(body.source, body.heads.starts[index], payload)
        else:
            pieces += enclosed(number, payload)
    return payload_of(pieces)


def _libraries(graph: ModelGraph) -> list[Replacement]:
    source = graph.source
    found: dict[Field, list[Replacement]] = {}
    for library, part in graph.cut:
        found.setdefault(library, []).append(Replacement(part.start, part.end, []))
    for name, (library, function) in graph.function_fields.items():
        body = graph.functions[name]
        replacements = sorted([*_dropped(body), *_changes(body, 3), *_ret(body)])
        if replacements:
            pieces = splice(source, function.value, function.end, replacements)
            new = Replacement(
                function.start, function.end, reframed(source, function.start, pieces)
            )
            found.setdefault(library, []).append(new)
    libraries = {
        library: splice(source, library.value, library.end, sorted(parts))
        for library, parts in found.items()
    }
    empty = [library for library, pieces in sorted(libraries.items()) if not pieces]
    if graph.keeps_library and empty == [one for one in graph.others if one.holds(LIBRARY)]:
        del empty[:1]
    return [
        Replacement(
            library.start,
            library.end,
            [] if library in empty else reframed(source, library.start, pieces),
        )
        for library, pieces in libraries.items()
    ]


def _ret(body: Body) -> Iterator[Replacement]:
    """The function's outputs that are read from another tensor than in the file."""
    for part in body.others:
        if part.holds(4):
            name, _ = _text_entry(body.source, part)
            if body.ret[name] != body.file_ret[name]:
                pieces = _with_value(body, part, body.ret[name].encode())
                yield Replacement(part.start, part.end, reframed(body.source, part.start, pieces))


def _with_value(body: Body, entry: Field, value: bytes) -> list[Piece]:
    """The entry of a map with another value, all else of it as it was."""
    old = [f for f in fields(body.source.data, entry.value, entry.end) if f.holds(2)]
    new = [Replacement(one.start, one.end, []) for one in old[:-1]]
    for one in old[-1:]:
        new.append(Replacement(one.start, one.end, reframed(body.source, one.start, [value])))
    return splice(body.source, entry.value, entry.end, new)


def _text_entry(source: Source, field: Field) -> tuple[str, str]:
    """The key and value of an entry of a map of texts."""
    parts = fields(source.data, field.value, field.end)
    found = {part.number: part for part in parts if part.wire == BYTES}
    texts = [utf8(source.data, found[n].value, found[n].end) if n in found else "" for n in (1, 2)]
    return texts[0], texts[1]

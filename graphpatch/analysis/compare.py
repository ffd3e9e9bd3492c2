"""In what two NodeDefs, two constants and two containers differ, in words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphpatch.formats import Model
from graphpatch.formats.model import meta_around
from graphpatch.graph import attrs
from graphpatch.graph.attrs import ConstTensor, constant
from graphpatch.graph.graph import LIBRARY, ModelGraph
from graphpatch.graph.node import NAME, Body, Node, Payload, are_attrs_left
from graphpatch.graph.provenance import PROVENANCE_ATTR
from graphpatch.graph.wire import LARGE, Piece, Span, message, piece_bytes, read_span
from graphpatch.protos import GraphDef, MetaGraphDef
from graphpatch.shown import cut_short, plural

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

MAPS = ("collection_def", "signature_def")
NOTHING = "(none)"
BLOCK = 1 << 20  # bytes of large pieces that are read at a time
MOST_SHOWN = 60  # letters of an attr


def titles(paths: Sequence[str], rules: Sequence[int]) -> list[str]:
    """Return short names that tell models apart; of models of one path by their number of rules."""
    for parts in (1, 2):
        names = [str(Path(*Path(path).parts[-parts:])) for path in paths]
        if len(set(names)) == len(paths):
            return names
    words = [f"with {plural(count, 'rule')}" if count else "without rules" for count in rules]
    if len(set(rules)) < len(rules):
        words = [f"({place})" for place, _ in enumerate(paths, 1)]
    return [f"{Path(paths[0]).name} {words[0]}", *words[1:]]


def differences_around(before: Model, after: Model) -> Iterator[str]:
    """Yield each difference between two containers in a line."""
    if before.container is not after.container:
        yield f"container: {before.container.name} -> {after.container.name}"
    for old, new in zip(before.graphs, after.graphs, strict=False):
        if _rest(old) != _rest(new):
            yield "versions or debug_info of the GraphDef"
        if old.around.meta is not None and new.around.meta is not None:
            yield from _metas(meta_around(old), meta_around(new))


def _rest(graph: ModelGraph) -> GraphDef:
    """Return the GraphDef without its nodes and library."""
    data = graph.source.data
    parts = [data[field.start : field.end] for field in graph.others if field.number != LIBRARY]
    return message(GraphDef, b"".join(parts))


def _metas(before: MetaGraphDef, after: MetaGraphDef) -> Iterator[str]:
    for part in MetaGraphDef.DESCRIPTOR.fields:
        old, new = getattr(before, part.name), getattr(after, part.name)
        if part.name not in MAPS:
            yield from [part.name] if old != new else []
            continue
        for key in sorted({*old, *new}):
            if (key in old) != (key in new) or old[key] != new[key]:
                yield f"{part.name} {key!r}"


def unlike(
    before: Body, after: Body, pairs: Iterable[tuple[int, int]]
) -> Iterator[tuple[Node, Node, list[str]]]:
    """Yield the pairs of nodes that are not the same bytes, with their differences in words."""
    data, data_after = before.source.data, after.source.data
    starts, starts_after = before.heads.starts, after.heads.starts
    sizes = [0] * len(before)
    if not before.edited and not after.edited:
        sizes = [*(end - start for start, end in pairwise(starts)), 0]
    for first, second in pairs:
        # Small nodes of two files: what begins with the bytes of a whole field begins with it.
        if 0 < (size := sizes[first]) < LARGE:
            start, at = starts[first], starts_after[second]
            if data[start : start + size] == data_after[at : at + size]:
                continue
        old, new = before.payload(first), after.payload(second)
        is_same = old.small == new.small and old.parts == new.parts
        if not (is_same and all(map(same_bytes, old.pieces, new.pieces) if old.large else ())):
            nodes = Node(before, first), Node(after, second)
            yield *nodes, _differences(*nodes, old, new)


def same_bytes(a: Piece, b: Piece) -> bool:
    """Return whether two pieces are the same bytes; large ones are read block by block."""
    if isinstance(a, bytes) or isinstance(b, bytes):
        return piece_bytes(a) == piece_bytes(b)
    length = a.end - a.start
    blocks = ((at, min(at + BLOCK, length)) for at in range(0, length, BLOCK))
    # Read and not mapped: mapped pages would count as memory.
    return length == b.end - b.start and all(
        read_span(Span(a.source, a.start + at, a.start + end))
        == read_span(Span(b.source, b.start + at, b.start + end))
        for at, end in blocks
    )


def _differences(before: Node, after: Node, old: Payload, new: Payload) -> list[str]:
    """Return each difference of two NodeDefs in a line, without what rules wrote down."""
    changes: list[str] = []
    is_large = bool(old.large or new.large)
    if not is_large and are_attrs_left(old.small, new.small, NAME):
        return changes
    if before.op != after.op:
        changes.append(f"op type: {before.op} -> {after.op}")
    read, read_after = before.inputs, after.inputs
    pairs = zip_longest(read, read_after, fillvalue=NOTHING) if read != read_after else ()
    for slot, (text, text_after) in enumerate(pairs):
        if text != text_after:
            changes.append(f"input {slot}: {text} -> {text_after}")
    if not is_large and are_attrs_left(old.small, new.small):
        return changes
    if before.device != after.device:
        changes.append(f"device: {before.device or NOTHING} -> {after.device or NOTHING}")
    return changes + list(_changed_attrs(before, after))


def _changed_attrs(before: Node, after: Node) -> Iterator[str]:
    old, new = before.attr_spans(), after.attr_spans()
    for key in sorted((old.keys() | new.keys()) - {PROVENANCE_ATTR}):
        if key in old and key in new and same_bytes(old[key], new[key]):
            continue
        first, second = (constant(n) if key == "value" else None for n in (before, after))
        if first is not None and second is not None:
            difference = _difference_of(first, second)
            yield from [f"value: {difference}"] if difference else []
        elif before.attr(key) != after.attr(key):
            yield f"attr {key}: {_attr_in_words(before, key)} -> {_attr_in_words(after, key)}"


def _attr_in_words(node: Node, key: str) -> str:
    value = node.attr(key)
    return NOTHING if value is None else cut_short(json.dumps(attrs.as_json(value)), MOST_SHOWN)


def _difference_of(before: ConstTensor, after: ConstTensor) -> str:
    """Return how two constants differ, in words; nothing where all elements are the same."""
    if (before.dtype, before.shape) != (after.dtype, after.shape):
        return f"{before.dtype}{list(before.shape)} -> {after.dtype}{list(after.shape)}"
    count, largest = 0, 0.0
    for old, new, length in _aligned(before, after):
        differ = _differ(old, new)
        unequal = int(differ.sum()) * (length if len(differ) == 1 else 1)
        if unequal and old.dtype != object:
            largest = max(largest, float(abs(old.astype("c16") - new.astype("c16")).max()))
        count += unequal
    by = f", by up to {largest:.7g}" if largest else ""
    return f"{count} of {before.size} elements{by}" if count else ""


def _differ(old: Array, new: Array) -> Array:
    import numpy as np

    unequal: Array = old != new
    if old.dtype.kind == "f":
        unequal = unequal & ~(np.isnan(old) & np.isnan(new)) | (np.signbit(old) != np.signbit(new))
    return np.atleast_1d(unequal)


def _aligned(before: ConstTensor, after: ConstTensor) -> Iterator[tuple[Array, Array, int]]:
    """Yield elements of both, and how many; arrays of one element stand for all of them."""
    pieces = before.pieces(), after.pieces()
    (old, m), (new, n) = next(pieces[0], (None, 0)), next(pieces[1], (None, 0))
    while old is not None and new is not None:
        step = min(m, n)
        yield old[:step], new[:step], step
        old, m = (old[step:] if len(old) > 1 else old), m - step
        new, n = (new[step:] if len(new) > 1 else new), n - step
        if not m:
            old, m = next(pieces[0], (None, 0))
        if not n:
            new, n = next(pieces[1], (None, 0))

"""What is written down of a model before its first rule, and how it is had back from that."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import structs

from graphpatch.errors import PatchError
from graphpatch.formats import checksum
from graphpatch.formats.container import GRAPH, open_graphs
from graphpatch.formats.model import Model
from graphpatch.formats.save import FINGERPRINT
from graphpatch.graph.body import Node
from graphpatch.graph.edit import write_origin
from graphpatch.graph.edits import Origin
from graphpatch.graph.graph import LIBRARY
from graphpatch.graph.model_graph import ModelGraph
from graphpatch.graph.provenance import origin as origin_of
from graphpatch.graph.provenance import origin_node
from graphpatch.graph.wire import Source, piece_bytes

FINGERPRINT_MOST = 1 << 16  # bytes; TensorFlow's has less than a hundred


def write_down(model: Model, patched: Model, rules: Mapping[str, Any]) -> None:
    """Write down in a model that was patched what it was; `rules` are the patches by rule id."""
    digest = functools.cache(functools.partial(checksum.of_source, model.source))
    for before, after in zip(model.graphs, patched.graphs, strict=True):
        place = origin_node(before) or _place_of(patched, after)
        if place is None or not after.is_changed:
            continue
        was = origin_of(before) or _origin(model, patched, before, digest)
        was = structs.replace(was, rules={**was.rules, **rules})
        write_origin(after.body(place.body.label), place.index, was)


def _place_of(patched: Model, graph: ModelGraph) -> Node | None:
    """An edited node, of the main graph one that is written; or else of a function."""
    export = patched.export
    written = None if export is None else set(patched.function(export).part.indices)
    for body in graph.bodies:
        for index in sorted(body.edited):
            if written is None or not body.is_main or index in written:
                return Node(body, index)
    return None


def _origin(model: Model, patched: Model, graph: ModelGraph, digest: Callable[[], str]) -> Origin:
    """What cannot be told from the edits alone."""
    file, contexts, collections = _of_file(model, digest), None, dict[str, str]()
    if graph.around.meta is not None:
        from graphpatch.control_flow.extended import recorded_contexts

        contexts, collections = recorded_contexts(model.source, graph.around.meta)
    return Origin(
        container=model.container.name,
        text=file.text,
        size=file.size,
        hash=file.hash,
        exported=patched.export is not None,
        library=any(other.holds(LIBRARY) for other in graph.others),
        contexts=contexts,
        collections=collections,
        fingerprint=_tensorflow_fingerprint(Path(model.path, FINGERPRINT)).hex()
        if model.file
        else "",
        rules={},
    )


def _of_file(model: Model, digest: Callable[[], str]) -> Origin:
    """What the whole file was: before rules changed another of its graphs, if some did."""
    for graph in model.graphs:
        if (known := origin_of(graph)) is not None:
            return known
    if model.live:
        return Origin(rules={})
    size = 0 if model.is_text else len(model.source.data)
    return Origin(text=model.is_text, size=size, hash=digest(), rules={})


def _tensorflow_fingerprint(path: Path) -> bytes:
    """TensorFlow's checksums of a SavedModel; nothing where there are none, or it is not one."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size > FINGERPRINT_MOST:
        return b""
    return path.read_bytes()


def is_original(model: Model) -> bool | None:
    """Whether a model that was taken back is its original; None where that cannot be told."""
    known = next((was for was in origins_before(model) if was.hash), None)
    if known is None or (model.is_text and not known.text):
        return None
    pieces = model.pieces()
    if known.text:
        from graphpatch.formats import text

        pieces = [text.canonical(pieces, model.container)]
    return bool(checksum.checksum(pieces) == known.hash)


def refuse_exported(model: Model) -> None:
    """Raise PatchError where a model holds a part of its original alone."""
    for graph in model.graphs:
        was = origin_of(graph)
        if was is not None and was.exported:
            raise PatchError(
                f"it holds only a part of the {was.container} that it was written from, so "
                f"the original cannot be restored"
            )


def as_before(model: Model) -> Model:
    """The model, of whose graphs every edit was taken back, in the container that it had."""
    was = next(iter(origins_before(model)), Origin(rules={}))
    if was.fingerprint:
        return replace(model, files={FINGERPRINT: bytes.fromhex(was.fingerprint)})
    if was.container == GRAPH.name and model.container is not GRAPH:
        return replace(model, container=GRAPH, file="")
    return model


def origins_before(model: Model) -> list[Origin]:
    """What the graphs of a model that was taken back were, as far as that was written down."""
    found = [graph.undone.origin for graph in model.graphs if graph.undone is not None]
    return [was for was in found if was is not None]


def opened_again(model: Model) -> Model:
    """A copy as if from a file: with what was edited since it was read."""
    if not any(body.edited or body.cut for graph in model.graphs for body in graph.bodies):
        return model.copy()
    source = Source(b"".join(map(piece_bytes, model.pieces())))
    return replace(model, source=source, graphs=open_graphs(source, model.container, None))

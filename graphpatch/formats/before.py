"""What is written down of a model before its first rule, and how it is had back from that."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from graphpatch.errors import PatchError
from graphpatch.formats import checksum
from graphpatch.formats.container import GRAPH, open_graphs
from graphpatch.formats.model import Model
from graphpatch.formats.save import FINGERPRINT
from graphpatch.graph.edit import write_origin
from graphpatch.graph.graph import LIBRARY, Graph
from graphpatch.graph.provenance import origin as origin_of
from graphpatch.graph.provenance import origin_node, place_for_origin
from graphpatch.graph.wire import Source, piece_bytes

FINGERPRINT_MOST = 1 << 16  # bytes; TensorFlow's has less than a hundred
SHARED = ("text", "size", "hash")  # what a record says of the file, whichever graph it is of


def write_down(model: Model, patched: Model, rules: dict[str, Any]) -> None:
    """Write down in a model that was patched what it was; `rules` are the patches by rule id."""
    digest = functools.cache(functools.partial(checksum.of_source, model.source))
    for before, after in zip(model.graphs, patched.graphs, strict=True):
        known = origin_node(before)
        place = _place_of(patched, after) if known is None else (known.body, known.index)
        if place is None or not any(body.edited for body in after.bodies):
            continue
        record = origin_of(before) if known else _record(model, patched, before, digest)
        record = {**record, "rules": {**record.get("rules", {}), **rules}}
        write_origin(after.body(place[0].label), place[1], record)


def _place_of(patched: Model, graph: Graph) -> tuple[Any, int] | None:
    if patched.export is None:
        return place_for_origin(graph)
    return place_for_origin(graph, set(patched.function(patched.export).part.indices))


def _record(
    model: Model, patched: Model, graph: Graph, digest: Callable[[], str]
) -> dict[str, Any]:
    """What cannot be told from the edits alone."""
    record: dict[str, Any] = {"container": model.container.name, **_of_file(model, digest)}
    record |= {"exported": True} if patched.export is not None else {}
    if any(other.holds(LIBRARY) for other in graph.others):
        record["library"] = True
    if graph.around.meta is not None:
        from graphpatch.control_flow import extended

        record |= extended.recorded_contexts(model.source, graph.around.meta)
    if model.file and (fingerprint := _tensorflow_fingerprint(Path(model.path, FINGERPRINT))):
        record["fingerprint"] = fingerprint.hex()
    return record


def _of_file(model: Model, digest: Callable[[], str]) -> dict[str, Any]:
    """What the whole file was: before rules changed another of its graphs, if some did."""
    for graph in model.graphs:
        if known := origin_of(graph):
            return {key: known[key] for key in SHARED if key in known}
    if model.live:
        return {}
    whole = {"text": True} if model.is_text else {"size": len(model.source.data)}
    return {**whole, "hash": digest()}


def _tensorflow_fingerprint(path: Path) -> bytes:
    """TensorFlow's checksums of a SavedModel; nothing where there are none, or it is not one."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size > FINGERPRINT_MOST:
        return b""
    return path.read_bytes()


def is_original(model: Model) -> bool | None:
    """Whether a model that was taken back is its original; None where that cannot be told."""
    origins = [graph.undone.origin for graph in model.graphs if graph.undone is not None]
    known = next((one for one in origins if "hash" in one), None)
    if known is None or (model.is_text and not known.get("text")):
        return None
    pieces = model.pieces()
    if known.get("text"):
        from graphpatch.formats import text

        pieces = [text.canonical(pieces, model.container)]
    return bool(checksum.checksum(pieces) == known["hash"])


def refuse_exported(model: Model) -> None:
    """Raise PatchError where a model holds a part of its original alone."""
    for graph in model.graphs:
        record = origin_of(graph)
        if record.get("exported"):
            raise PatchError(
                f"it holds only a part of the {record['container']} that it was written from, so "
                f"the original cannot be restored"
            )


def as_before(model: Model) -> Model:
    """The model, of whose graphs every edit was taken back, in the container that it had."""
    origins = [graph.undone.origin for graph in model.graphs if graph.undone is not None]
    origin = next((one for one in origins if one), {})
    if "fingerprint" in origin:
        files = {FINGERPRINT: bytes.fromhex(origin["fingerprint"])}
        return replace(model, files=files)
    if origin.get("container") == GRAPH.name and model.container is not GRAPH:
        return replace(model, container=GRAPH, file="")
    return model


def opened_again(model: Model) -> Model:
    """A copy as if from a file: with what was edited since it was read."""
    if not any(body.edited or body.cut for graph in model.graphs for body in graph.bodies):
        return model.copy()
    source = Source(b"".join(map(piece_bytes, model.pieces())))
    return replace(model, source=source, graphs=open_graphs(source, model.container, None))

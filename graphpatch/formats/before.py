"""What is written down of a model before its first rule, and how it is had back from that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from graphpatch.errors import PatchError
from graphpatch.formats.container import GRAPH, open_graphs
from graphpatch.formats.model import FINGERPRINT, Model
from graphpatch.graph.graph import LIBRARY, Graph
from graphpatch.graph.origin import origin as origin_of
from graphpatch.graph.origin import origin_node, place_for_origin, write_origin
from graphpatch.graph.wire import Source, piece_bytes


def write_down(model: Model, patched: Model, rules: dict[str, Any]) -> None:
    """Write down in a model that was patched what it was; `rules` are the patches by rule id."""
    for before, after in zip(model.graphs, patched.graphs, strict=True):
        known = origin_node(before)
        place = _place(patched, after) if known is None else (known.body, known.index)
        if place is None or not any(body.edited for body in after.bodies):
            continue
        record = _record(model, patched, before) if known is None else origin_of(before)
        record = {**record, "rules": {**record.get("rules", {}), **rules}}
        write_origin(after.body(place[0].label), place[1], record)


def _place(patched: Model, graph: Graph) -> tuple[Any, int] | None:
    if patched.export is None:
        return place_for_origin(graph)
    from graphpatch.formats.export import exported

    return place_for_origin(graph, set(exported(graph, patched.export).part.indices))


def _record(model: Model, patched: Model, graph: Graph) -> dict[str, Any]:
    """What cannot be told from the edits alone."""
    record: dict[str, Any] = {"container": model.container.name}
    record |= {"text": True} if model.is_text else {"size": len(model.source.data)}
    record |= {"exported": True} if patched.export is not None else {}
    if any(other.holds(LIBRARY) for other in graph.others):
        record["library"] = True
    if graph.meta is not None:
        from graphpatch.formats import undo_contexts

        record |= undo_contexts.record(model.source, graph.meta)
    fingerprint = Path(model.path, FINGERPRINT)
    if model.file and fingerprint.is_file():
        record["fingerprint"] = fingerprint.read_bytes().hex()
    return record


def refuse_exported(model: Model) -> None:
    """Raise PatchError where a model holds a part of its original alone."""
    for graph in model.graphs:
        record = origin_of(graph)
        if record.get("exported"):
            raise PatchError(
                f"it was written from a {record['container']}, of which it holds a part; the "
                f"original cannot be had from it"
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

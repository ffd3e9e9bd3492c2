"""What is written down of a model before its first rule, and how it is had back from that."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import xxhash
from msgspec import structs

import graphpatch
from graphpatch.errors import PatchError
from graphpatch.formats.model import FINGERPRINT, GRAPH, META, Model, reopened
from graphpatch.formats.output import memory_chunks
from graphpatch.graph.graph import LIBRARY, ModelGraph, carrier, read_record
from graphpatch.graph.provenance import checksum_of_rules, reads_of_patched, written_by_rules
from graphpatch.graph.record import AppliedRule, ModelRecord
from graphpatch.graph.wire import Piece, Span

HASHED_BLOCK = 1 << 25  # bytes that one hash is of
FINGERPRINT_MOST = 1 << 16  # bytes; TensorFlow's has less than a hundred


def write_down(model: Model, patched: Model, rules: Sequence[AppliedRule]) -> None:
    """Write down in a model that was patched what it was, and the rules."""
    digest = functools.cache(lambda: checksum([Span(model.source, 0, len(model.source.data))]))
    export = patched.export
    for before, after in zip(model.graphs, patched.graphs, strict=True):
        if not after.is_changed:
            continue
        was = read_record(before) or _original(model, before, digest)
        if (last := carrier(before)) is not None:
            after.body(last[0].label).open_node(last[1]).record.model = None
        by_rules = written_by_rules(after)
        record = structs.replace(
            was,
            version=graphpatch.__version__,
            live=was.live or model.live,
            exported=was.exported or export is not None,
            rules=(*was.rules, *rules),
            returns={body.label: dict(body.returns) for body in after.bodies if body.returns},
            written="" if export is not None else checksum_of_rules(after, by_rules),
            reads=0 if export is not None else reads_of_patched(by_rules),
        )
        for body, written in by_rules:  # the first node that carries a record carries the model's
            first = next(iter(written), None)
            if export is not None and body.is_main:
                first = next(filter(body.record, patched.exported_graph.part.indices), None)
            if first is not None:
                body.open_node(first).record.model = record
                break


def _original(model: Model, graph: ModelGraph, digest: Callable[[], str]) -> ModelRecord:
    """Return what cannot be told from the records of nodes."""
    if graph.undone is not None:  # rules are applied again after all were taken off
        return structs.replace(graph.undone.record, rules=(), returns={})
    # Of the whole file: before rules changed another of its graphs, if some did.
    file = next(filter(None, map(read_record, model.graphs)), None)
    if file is None and not model.live:
        size = 0 if model.is_text else len(model.source.data)
        file = ModelRecord(text=model.is_text, size=size, hash=digest())
    file = file or ModelRecord()
    contexts, collections = None, dict[str, str]()
    if graph.around.meta is not None:
        from graphpatch.control_flow.stored import recorded_contexts

        contexts, collections = recorded_contexts(model.source, graph.around.meta)
    path = Path(model.path, FINGERPRINT)
    is_there = bool(model.file) and path.is_file() and not path.is_symlink()
    has_fingerprint = is_there and path.stat().st_size <= FINGERPRINT_MOST
    return ModelRecord(
        container=model.container.name,
        text=file.text,
        size=file.size,
        hash=file.hash,
        library=any(part.holds(LIBRARY) for part in graph.others),
        contexts=contexts,
        collections=collections,
        fingerprint=path.read_bytes().hex() if has_fingerprint else "",
    )


def checksum(pieces: Sequence[Piece]) -> str:
    """Return the checksum of bytes, by which `revert` knows whether it gives the original back.

    XXH3 of each block: as fast as memory, so that it costs `apply` little. It finds damage, not
    malice: who can change a file can change the checksum in it.
    """
    hashes, block, room = [], xxhash.xxh3_64(), HASHED_BLOCK
    for data in memory_chunks(pieces):
        while data:
            part, data = data[:room], data[room:]
            block.update(part)
            room -= len(part)
            if not room:
                hashes.append(block.hexdigest())
                block, room = xxhash.xxh3_64(), HASHED_BLOCK
    if room < HASHED_BLOCK or not hashes:
        hashes.append(block.hexdigest())
    return "xxh3:" + ".".join(hashes)


def is_original(model: Model) -> bool | None:
    """Return whether a model that was taken back is its original; None where nobody knows."""
    known = next((was for was in records_before(model) if was.hash), None)
    if known is None or (model.is_text and not known.text):
        return None
    pieces = model.keep_pieces()
    if known.text:
        from graphpatch.formats import text

        pieces = [text.canonical(pieces, model.container)]
    return bool(checksum(pieces) == known.hash)


def refuse_exported(model: Model) -> None:
    """Raise PatchError where a model holds a part of its original alone."""
    for was in filter(None, map(read_record, model.graphs)):
        if was.exported:
            raise PatchError(
                f"it holds only a part of the {was.container} that it was written from, so "
                f"the original cannot be restored"
            )


def as_before(model: Model) -> Model:
    """Return the model, of whose graphs every edit was taken back, in the container that it had."""
    was = next(iter(records_before(model)), ModelRecord())
    if was.fingerprint:
        return replace(model, files={FINGERPRINT: bytes.fromhex(was.fingerprint)})
    if was.container == GRAPH.name and model.container is not GRAPH:
        return replace(model, container=GRAPH, file="")
    return model


def records_before(model: Model) -> list[ModelRecord]:
    """Return what was written down of the graphs of a model that was taken back."""
    return [graph.undone.record for graph in model.graphs if graph.undone is not None]


def opened_again(model: Model) -> Model:
    """Return a copy as if from a file: with what was edited since it was read."""
    if not any(body.edited or body.cut for graph in model.graphs for body in graph.bodies):
        return model.copy()
    return reopened(model, model.container, model.pieces())


def as_meta(model: Model) -> Model:
    """Return a GraphDef as if from the .meta that it is written as; another model as it is.

    Raises ModelError where its contexts cannot be rebuilt.
    """
    if model.container is not GRAPH:
        return model
    return reopened(model, META, model.meta_graph(model.graphs[0]))

"""A model from bytes: what it is, its bytes tell."""

from __future__ import annotations

from pathlib import Path

from graphpatch.errors import ModelError
from graphpatch.formats.container import is_text, open_graphs, recognise
from graphpatch.formats.keras_file import refuse_keras
from graphpatch.formats.model import Model
from graphpatch.graph.heads import Progress
from graphpatch.graph.wire import Source

HEAD = 4096


def opened(data: bytes, label: str, progress: Progress | None = None) -> Model:
    """The model that bytes in memory hold; errors call it `label`."""
    model = opened_at(Path(label), Source(data), "", progress)
    model.in_memory = True
    return model


def opened_at(path: Path, source: Source, file: str, progress: Progress | None) -> Model:
    """The model that lies at `path`; of a SavedModel folder `file` is the message in it."""
    if not source.data[:1]:
        raise ModelError(f"{path} is empty")
    try:
        refuse_keras(path.name, source)
        as_text = is_text(source.data[:HEAD])
        if as_text:
            from graphpatch.formats import text

            data, container = text.parse(source.data[:])
            source = Source(data)
        else:
            container = recognise(source)
        graphs = open_graphs(source, container, progress)
    except ModelError as error:
        raise type(error)(f"{path}: {error}") from error
    return Model(str(path.parent if file else path), source, container, graphs, as_text, file)

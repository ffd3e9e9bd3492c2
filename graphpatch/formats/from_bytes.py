"""A model from bytes: what it is, its bytes tell."""

from __future__ import annotations

from pathlib import Path

from graphpatch.errors import ModelError
from graphpatch.formats.container import Container, is_text, open_graphs, recognise
from graphpatch.formats.foreign import foreign_file, told_by_name
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
        piped = str(path) == "-"
        raise ModelError(f"{'standard input' if piped else path} is empty; expected a model")
    as_text = is_text(source.data[:HEAD])
    try:
        source, container = _recognised(path.name, source, as_text)
        graphs = open_graphs(source, container, progress)
    except ModelError as error:
        raise type(error)(f"{path}: {error}") from error
    return Model(str(path.parent if file else path), source, container, graphs, as_text, file)


def _recognised(name: str, source: Source, as_text: bool) -> tuple[Source, Container]:
    """The binary message of a file and which container it is; of others' files, what they are."""
    try:
        if not as_text:
            return source, recognise(source)
        from graphpatch.formats import text

        data, container = text.parse_text(source.data[:])
        return Source(data), container
    except ModelError as error:
        said = foreign_file(name, source.data) or told_by_name(name)
        raise type(error)(said or str(error)) from error

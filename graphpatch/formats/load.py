"""A model from its path: what it is, its bytes tell, not its name."""

from __future__ import annotations

import sys
from pathlib import Path

from graphpatch.errors import ModelError
from graphpatch.formats.container import is_text, open_graphs, recognise
from graphpatch.formats.keras_file import refuse_keras
from graphpatch.formats.model import FILES, Model
from graphpatch.graph.heads import Progress
from graphpatch.graph.wire import Source, map_file

SAVED_MODEL_FILES = ("saved_model.pb", "saved_model.pbtxt")
HEAD = 4096
MOST = 5  # models of a folder that are named


def load(path: str | Path, progress: Progress | None = None) -> Model:
    """Read a .pb, .pbtxt, .meta or SavedModel folder; `-` reads standard input.

    Weights are not read: they stay in the file, which must not change while the model is used.
    Raises ModelError where there is no such file, or it is no model.
    """
    path = Path(path)
    try:
        if str(path) == "-":
            return _opened(Path("-"), Source(sys.stdin.buffer.read()), "", progress)
        if path.is_dir():
            path = _message_in(path)
        return _opened(path, map_file(path), _folder_file(path), progress)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error


def _opened(path: Path, source: Source, file: str, progress: Progress | None) -> Model:
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


def _message_in(folder: Path) -> Path:
    for name in SAVED_MODEL_FILES:
        if (folder / name).is_file():
            return folder / name
    if (folder / "saved_model.cpb").exists():
        raise ModelError(f"{folder}: saved_model.cpb, a SavedModel in chunks, cannot be read yet")
    found = sorted(path.name for path in folder.iterdir() if path.suffix in FILES)
    more = f"; name a model in it: {', '.join(found[:MOST])}" if found else ""
    raise ModelError(f"{folder} is a folder without {' or '.join(SAVED_MODEL_FILES)}{more}")


def _folder_file(path: Path) -> str:
    """The name of the message, where it stands for the SavedModel folder around it."""
    return path.name if path.name in SAVED_MODEL_FILES else ""


def load_bytes(data: bytes, name: str = "bytes") -> Model:
    """Read the bytes of a .pb, .pbtxt or .meta; messages call them `name`. Raises ModelError."""
    return _opened(Path(name), Source(data), "", None)

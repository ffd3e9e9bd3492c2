"""Writing a model: to a file, to its SavedModel's folder or a new one, or to standard output."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from graphpatch.errors import OutputError
from graphpatch.formats.container import SAVED
from graphpatch.formats.destination import reported
from graphpatch.formats.model import MESSAGE, Model
from graphpatch.formats.output import (
    Confirm,
    write_file,
    write_folder,
    write_new_folder,
    write_pieces,
)
from graphpatch.formats.target import FILES
from graphpatch.graph.heads import Progress
from graphpatch.graph.wire import refuse_changed

# TensorFlow's checksums of saved_model.pb; they would be those of another graph.
FINGERPRINT = "fingerprint.pb"


def write_model(
    model: Model, path: Path, progress: Progress | None, confirm: Confirm | None = None
) -> None:
    """Write a model, whole or not at all; OutputError where it cannot be written there."""
    with reported(path):
        _refuse_input(model, path)
        refuse_changed([model.source])
        in_memory = model.in_memory and model.export is None
        if in_memory and model.container is SAVED and path.suffix not in FILES:
            _refuse_foreign(model, path)
            write_new_folder(path, MESSAGE, model.encoded(""), {}, confirm)
        elif model.file:
            _write_folder(model, path, confirm)
        else:
            write_file(path, model.encoded(path.suffix), progress, confirm)


def _write_folder(model: Model, path: Path, confirm: Confirm | None) -> None:
    if path.suffix in FILES:
        raise OutputError(f"a SavedModel is a folder, and cannot be written as the file {path}")
    if path.is_file():
        raise OutputError(f"{path} is a file, and a SavedModel is a folder")
    if Path(model.path).resolve() in Path(os.path.realpath(path)).parents:
        raise OutputError(f"{path} lies in the model's folder, which is never changed")
    if model.export is not None:
        from graphpatch.formats import new_saved_model

        _refuse_foreign(model, path)
        files = new_saved_model.CHECKPOINT
        write_new_folder(path, model.file, model.pieces(), files, confirm)
        return
    pieces = model.encoded(Path(model.file).suffix)
    write_folder(path, Path(model.path), model.file, pieces, [FINGERPRINT], model.files, confirm)


def _refuse_foreign(model: Model, path: Path) -> None:
    """Raise OutputError for a folder of other things, or one that holds the model itself."""
    if Path(os.path.realpath(path)) in Path(model.path).resolve().parents:
        raise OutputError(f"{path} holds the model itself; a model is never written over")
    if path.is_dir() and any(path.iterdir()) and not (path / MESSAGE).exists():
        raise OutputError(f"{path} is a folder of other things; name one that is not there yet")


def _refuse_input(model: Model, path: Path) -> None:
    is_file = not model.in_memory and model.path != "-"
    if is_file and path.exists() and path.samefile(model.path):
        raise OutputError(f"{path} is the model itself; a model is never written over")


def write_to_stdout(model: Model, progress: Progress | None) -> None:
    """Write the bytes of a model to standard output. Raises OutputError for a SavedModel."""
    if model.file:
        raise OutputError("a SavedModel is a folder, and does not go through a pipe")
    pieces = model.encoded("")
    sys.stdout.flush()
    with reported("standard output"):
        write_pieces(sys.stdout.fileno(), pieces, progress)

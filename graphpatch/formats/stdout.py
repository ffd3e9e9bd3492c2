"""A model to standard output."""

from __future__ import annotations

import sys

from graphpatch.errors import OutputError
from graphpatch.formats.model import Model
from graphpatch.formats.output import reported, write_pieces
from graphpatch.graph.heads import Progress


def write_to_stdout(model: Model, progress: Progress | None) -> None:
    """Write the bytes of a model to standard output. Raises OutputError for a SavedModel."""
    if model.file:
        raise OutputError("a SavedModel is a folder, and does not go through a pipe")
    pieces = model.encoded("")
    sys.stdout.flush()
    with reported("standard output"):
        write_pieces(sys.stdout.fileno(), pieces, progress)

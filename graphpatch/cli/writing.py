"""Where a command writes a model: to a path, or to standard output."""

from __future__ import annotations

import sys

from graphpatch.errors import OutputError
from graphpatch.formats import Model
from graphpatch.formats.output import reported, write_pieces
from graphpatch.graph.heads import Progress


def write(model: Model, output: str, progress: Progress | None) -> None:
    """Write a model to `output`; `-` is standard output."""
    if output != "-":
        model.save(output, progress)
        return
    if model.file:
        raise OutputError("a SavedModel is a folder, and does not go through a pipe")
    pieces = model.encoded("")
    sys.stdout.flush()
    with reported("standard output"):
        write_pieces(sys.stdout.fileno(), pieces, progress)

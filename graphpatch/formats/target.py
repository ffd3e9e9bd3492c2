"""As what a patched model is written, and where."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from graphpatch.formats.output import beside

if TYPE_CHECKING:
    from graphpatch.formats.model import Model


@dataclass(frozen=True, slots=True)
class Export:
    """The tensors that a SavedModel takes and gives, as `x`, `x:0` or `split:1`."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def default_output(model: Model) -> str:
    """Where the patched model goes when nobody says: `MODEL.patched.pb` beside the model."""
    if model.path == "-":
        return "-"
    return beside(Path(model.path), is_folder=bool(model.file))

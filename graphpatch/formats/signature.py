"""What a SavedModel that is made of a graph takes and gives."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Export:
    """The tensors that a SavedModel takes and gives, as `x`, `x:0` or `split:1`."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

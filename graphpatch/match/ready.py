"""Ready patterns for what legacy models contain, by name: `{"pattern": "@swish"}`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ready:
    """A ready pattern: what it stands for, and the forms in which graphs have it."""

    purpose: str
    forms: tuple[str, ...]


READY: dict[str, Ready] = {
    "swish": Ready("x * sigmoid(x)", ("x:_ -> sigmoid:Sigmoid -> mul:Mul; x -> mul",)),
}

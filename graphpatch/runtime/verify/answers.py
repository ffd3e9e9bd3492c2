"""What a model that runs answers: values, gradients, and which ops TensorFlow asked for theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from graphpatch.names import OpKey


@dataclass(frozen=True, slots=True)
class Gradient:
    """One gradient: `tensor` with its value, `none`, or `error` with what TensorFlow says."""

    kind: str
    value: Any = None
    says: str = ""

    def __str__(self) -> str:
        return {"none": "None", "tensor": "a tensor"}.get(self.kind, self.says)


class Runs(Protocol):
    """A model that gives values for its feeds."""

    def run(self, fetches: Sequence[str], optimise: bool) -> tuple[dict[str, Any], dict[str, str]]:
        """The values of those tensors that can be computed, and why the others cannot."""


class Differentiable(Protocol):
    """A model that gives gradients."""

    def gradients(
        self, sources: Sequence[str], target: str, dy: Any
    ) -> tuple[dict[str, Gradient], set[OpKey]]:
        """The gradient of a target, weighted by dy, by each source; and which ops were asked."""

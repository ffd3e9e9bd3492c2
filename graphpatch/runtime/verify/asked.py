"""What a user asks of `verify`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from graphpatch.runtime.values import Values


@dataclass(frozen=True)
class Wanted:
    """Feeds by tensor name; the tensors by which, and of which, gradients are taken."""

    feed: Values = field(default_factory=dict)
    sources: Sequence[str] = ()
    targets: Sequence[str] = ()
    allow_unsafe_ops: bool = False

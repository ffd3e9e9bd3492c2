"""What a user asks of `verify`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from graphpatch.runtime.values import Values


@dataclass(frozen=True)
class Options:
    """Feeds by tensor name; the tensors by which, and of which, gradients are taken.

    `imports` are modules, or .py files, that the processes import before they read a model.
    """

    feed: Values = field(default_factory=dict)
    sources: Sequence[str] = ()
    targets: Sequence[str] = ()
    allow_unsafe_ops: bool = False
    imports: Sequence[str] = ()

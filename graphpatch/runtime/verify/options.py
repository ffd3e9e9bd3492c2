"""What a user asks of `verify`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from graphpatch.graph.heads import Progress
from graphpatch.runtime.values import Values


@dataclass(frozen=True)
class Options:
    """Feeds by tensor name; the tensors by which, and of which, gradients are taken.

    `imports` are modules, or .py files, that the processes import before they read a model.
    `progress` is called with what is done, how much of it, and of how much.
    """

    feed: Values = field(default_factory=dict)
    sources: Sequence[str] = ()
    targets: Sequence[str] = ()
    allow_unsafe_ops: bool = False
    imports: Sequence[str] = ()
    progress: Progress | None = None

    def say(self, what: str, done: int, total: int) -> None:
        """Say how far a stage has come, to whoever wants to know."""
        if self.progress is not None:
            self.progress(what, done, total)

"""What the bodies of a graph share: its functions as op types, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from graphpatch import opdefs

if TYPE_CHECKING:
    from graphpatch.graph.graph import Graph


class Library(msgspec.Struct, eq=False):
    """The functions of a GraphDef, as far as one who calls them must know.

    `signatures` has each function as the op type that a call of it is, `gradients` the name of
    its gradient function where there is one. `producer` is the GraphDef's version. `graph` gives
    the graph that they are of; None for bodies on their own.
    """

    signatures: dict[str, opdefs.OpDef] = msgspec.field(default_factory=dict)
    gradients: dict[str, str] = msgspec.field(default_factory=dict)
    producer: int = 0
    graph: Callable[[], Graph | None] = lambda: None

    def opdef(self, op: str) -> opdefs.OpDef | None:
        """What this op type looks like, or None where neither library nor TensorFlow has it."""
        return self.signatures.get(op) or opdefs.lookup(op)

    def copy(self) -> Library:
        """The same functions, to be added to without this one seeing it."""
        return Library(dict(self.signatures), dict(self.gradients), self.producer)

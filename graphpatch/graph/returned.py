"""The outputs of a function that an edit returns from another tensor, in the order of the edits."""

from __future__ import annotations

from collections.abc import Iterator

from graphpatch.graph.body import Body, Node
from graphpatch.graph.edits import Returned
from graphpatch.graph.provenance import of_kind, touched


def returned(body: Body) -> list[tuple[Node, Returned]]:
    """These edits, oldest first: the node on which each is written down, and what is written."""
    return sorted(_found(body), key=lambda one: one[1].turn)


def turns(body: Body) -> int:
    """The turn of the next such edit."""
    return 1 + max((edit.turn for _, edit in _found(body)), default=-1)


def _found(body: Body) -> Iterator[tuple[Node, Returned]]:
    if not body.is_main:
        for node in touched(body):
            yield from ((node, edit) for edit in of_kind(node, "returned"))

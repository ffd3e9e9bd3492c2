"""The outputs of a function that an edit returns from another tensor, in the order of the edits."""

from __future__ import annotations

from collections.abc import Iterator

from graphpatch.graph.body import Body, Node
from graphpatch.graph.provenance import Entry, entries, touched

RETURNED = "returned"


def returned(body: Body) -> list[tuple[Node, Entry]]:
    """These edits, oldest first: the node on which each is written down, and what is written."""
    return sorted(_found(body), key=lambda one: one[1]["turn"])


def turns(body: Body) -> int:
    """The turn of the next such edit."""
    return 1 + max((entry["turn"] for _, entry in _found(body)), default=-1)


def _found(body: Body) -> Iterator[tuple[Node, Entry]]:
    if not body.is_main:
        for node in touched(body):
            yield from ((node, entry) for entry in entries(node) if entry["did"] == RETURNED)

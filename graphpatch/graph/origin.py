"""What a model was before its first rule, written down on one node of each graph.

`{"did": "origin", "rules": {id: patch}, ...}`: besides the patch of each rule, what `formats` must
know of the container. It stays on its node when further rules come.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import msgspec

from graphpatch.graph import provenance
from graphpatch.graph.body import Body, Node
from graphpatch.graph.graph import Graph
from graphpatch.graph.nodedef import attr_span
from graphpatch.graph.provenance import PROVENANCE_ATTR
from graphpatch.graph.wire import piece_bytes

ORIGIN_BYTES = b'"origin"'


def origin(graph: Graph) -> dict[str, Any]:
    """What is written down; nothing where no rule has changed the graph."""
    node = origin_node(graph)
    found = None if node is None else provenance.origin_on(node)
    if found is None:
        return {}
    record: dict[str, Any] = msgspec.to_builtins(found)
    del record["did"]
    return record


def origin_node(graph: Graph) -> Node | None:
    """The node on which it is written down."""
    for body in graph.bodies:
        for node in provenance.touched(body):
            span = attr_span(body.payload(node.index), PROVENANCE_ATTR)
            if (
                span is not None
                and ORIGIN_BYTES in piece_bytes(span)
                and provenance.origin_on(node)
            ):
                return node
    return None


def place_for_origin(graph: Graph, among: Container[int] | None = None) -> tuple[Body, int] | None:
    """An edited node: of the main graph, and there one of `among`, or else of a function."""
    for body in graph.bodies:
        for index in sorted(body.edited):
            if among is None or not body.is_main or index in among:
                return body, index
    return None

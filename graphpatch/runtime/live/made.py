"""An op that was just made, as a node that rules can look at and patch."""

from __future__ import annotations

from typing import Any

from graphpatch.graph.body import MAIN, Node
from graphpatch.graph.graph import LIBRARY, Graph, open_graph
from graphpatch.graph.wire import Source, encoded

# The fields of GraphDef, FunctionDefLibrary, FunctionDef and OpDef that hold a node in a function.
NODE, FUNCTION, SIGNATURE, NODE_DEF, NAME = 1, 1, 1, 3, 1


def label_of(graph: Any) -> str:
    """What `body` in a match calls a graph: `main`, or the name of the function."""
    return getattr(graph, "name", None) or MAIN


def node_of(op: Any) -> tuple[Graph, Node]:
    """A graph that holds this op alone, in the body that it is in, and its node there."""
    raw, label = op.node_def.SerializeToString(), label_of(op.graph)
    if label == MAIN:
        graph = _opened(encoded(NODE, raw))
        return graph, Node(graph.main, 0)
    function = encoded(SIGNATURE, encoded(NAME, label.encode())) + encoded(NODE_DEF, raw)
    graph = _opened(encoded(LIBRARY, encoded(FUNCTION, function)))
    return graph, Node(graph.functions[label], 0)


def _opened(data: bytes) -> Graph:
    return open_graph(Source(data), 0, len(data))

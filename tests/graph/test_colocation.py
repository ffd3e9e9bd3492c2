"""Colocation with ops that a part of a graph does not hold, in texts that a hostile model has."""

from __future__ import annotations

from graphpatch.graph.functions import Extract, Fed, Part
from graphpatch.protos import GraphDef, NodeDef
from tests.graphs import graphdef, joined, node, opened

CLASSES = [b"loc:@cut", b"loc:@\xff", b"\xfe", b"loc:@a", b"other", b"loc:@b"]
KEPT = [b"\xfe", b"loc:@a", b"other", b"loc:@b"]  # what is no colocation means nothing
GRAPH = opened(
    graphdef(
        node("x", "Placeholder"),
        node("cut", "Relu", "x"),
        node("a", "Tanh", "cut", _class=CLASSES),
        node("b", "Tanh", "a", _class=[b"loc:@\xff"]),
    )
)


def _classes(nodes: list[NodeDef]) -> dict[str, list[bytes]]:
    return {one.name: list(one.attr["_class"].list.s) for one in nodes if "_class" in one.attr}


def test_a_function_is_colocated_with_what_it_holds() -> None:
    payloads = Part(GRAPH.main, {"cut": "given"}, ("b",)).payloads()
    assert _classes([NodeDef.FromString(joined(one.pieces)) for one in payloads]) == {"a": KEPT}


def test_a_part_is_colocated_with_what_it_holds() -> None:
    part = Extract(GRAPH, (Fed("cut:0", "float32", None),), ("b:0",))
    found = GraphDef.FromString(joined(part.pieces()))
    # A placeholder of this name stands for the tensor that is cut.
    assert _classes(list(found.node)) == {"a": [CLASSES[0], *KEPT]}

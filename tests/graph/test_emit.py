from __future__ import annotations

from graphpatch.graph import wire
from graphpatch.graph.editor import Editor
from graphpatch.graph.functions import Extract, Fed, Part
from graphpatch.graph.graph import Graph, ModelGraph, graph_pieces
from graphpatch.graph.record import Author
from graphpatch.graph.wire import LARGE, Source, Span
from graphpatch.protos import GraphDef, NodeDef
from tests import graphs
from tests.graphs import attr, const, function, graphdef, node

STRANGE = wire.encoded(77, b"?" * 40) + b"\x98\x06\x01"


def marked(graph: Graph, *ops: str) -> Graph:
    copy = graph.copy()
    for name in ops:
        body = copy.main if "." not in name else copy.functions[name.partition(".")[0]]
        Editor(copy, Author("r", "i")).set_attr(body.node(name.rpartition(".")[2]), "_a", attr("x"))
    return copy


def without_marks(message: GraphDef) -> GraphDef:
    for nodes in [message.node, *(one.node_def for one in message.library.function)]:
        for one in nodes:
            for key in ("_a", "_graphpatch"):
                one.attr.pop(key, None)
    return message


def test_what_nobody_touched_is_one_span() -> None:
    raw = graphs.sample().SerializeToString()
    source = Source(b"??" + raw + b"??")
    graph = ModelGraph.open(source, 2, 2 + len(raw))
    assert graph_pieces(graph) == [Span(source, 2, 2 + len(raw))]


def test_of_a_touched_large_node_the_tensor_is_a_span() -> None:
    graph = marked(graphs.opened(graphdef(const("c", 4 * LARGE), node("d", "NoOp"))), "c")
    pieces = graph_pieces(graph)
    assert wire.size(piece for piece in pieces if isinstance(piece, bytes)) < 500
    assert without_marks(graphs.parsed(graph)) == graphdef(const("c", 4 * LARGE), node("d", "NoOp"))


def test_nodes_before_between_and_behind_other_fields() -> None:
    nodes = [wire.encoded(1, node(f"n{k}", "NoOp").SerializeToString()) for k in range(4)]
    inner = function("f", ["a"], [node("m", "Neg", "a")], {"b": "m:y:0"})
    library = wire.encoded(2, wire.encoded(1, inner.SerializeToString() + STRANGE) + STRANGE)
    raw = STRANGE + nodes[0] + library + nodes[1] + b"\x18\x15" + nodes[2] + STRANGE + nodes[3]
    graph = graphs.opened(raw)
    assert graphs.written(graph) == raw
    found = graphs.written(marked(graph, "n1"))
    at = raw.index(nodes[1])
    assert found.startswith(raw[:at])
    assert found.endswith(raw[at + len(nodes[1]) :])
    assert without_marks(GraphDef.FromString(found)) == GraphDef.FromString(raw)
    found = graphs.written(marked(graph, "f.m"))
    start, end = raw.index(library), raw.index(library) + len(library)
    assert found.startswith(raw[:start])
    assert found.endswith(raw[end:])
    assert found.count(STRANGE) == raw.count(STRANGE)
    assert without_marks(GraphDef.FromString(found)) == GraphDef.FromString(raw)


# Colocation with ops that a part of a graph does not hold, in texts that a hostile model has.
CLASSES = [b"loc:@cut", b"loc:@\xff", b"\xfe", b"loc:@a", b"other", b"loc:@b"]
KEPT = [b"\xfe", b"loc:@a", b"other", b"loc:@b"]  # what is no colocation means nothing
COLOCATED = graphs.opened(
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
    payloads = Part(COLOCATED.main, {"cut": "given"}, ("b",)).payloads()
    assert _classes([NodeDef.FromString(graphs.joined(one.pieces)) for one in payloads]) == {
        "a": KEPT
    }


def test_a_part_is_colocated_with_what_it_holds() -> None:
    part = Extract(COLOCATED, (Fed("cut:0", "float32", None),), ("b:0",))
    found = GraphDef.FromString(graphs.joined(part.pieces()))
    # A placeholder of this name stands for the tensor that is cut.
    assert _classes(list(found.node)) == {"a": [CLASSES[0], *KEPT]}

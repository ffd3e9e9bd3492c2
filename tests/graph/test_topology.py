from __future__ import annotations

from graphpatch.graph.walk import first_producers
from tests import graphs
from tests.graphs import graphdef, node


def names(start: str) -> list[str]:
    nodes = (
        node("x", "Placeholder"),
        node("a", "Identity", "b"),
        node("b", "Add", "c:0", "x"),
        node("c", "Identity", "a"),
        node("y", "Add", "x", "a"),
        node("z", "Relu", "^a", "^x"),
    )
    main = graphs.opened(graphdef(*nodes)).main
    return [one.name for one in first_producers(main.node(start))]


def test_what_the_first_inputs_come_from() -> None:
    assert names("y") == ["y", "x"]
    assert names("z") == ["z"]
    assert list(first_producers(None)) == []


def test_a_circle_has_an_end() -> None:
    assert names("a") == ["a", "b", "c"]
    assert names("c") == ["c", "a", "b"]

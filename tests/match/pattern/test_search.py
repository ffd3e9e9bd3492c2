"""The search by an index and neighbourhoods, against VF2 over the whole body."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from networkx.algorithms.isomorphism import DiGraphMatcher

from graphpatch.graph.node import Body
from graphpatch.match.pattern.matcher import Finder
from graphpatch.match.select import Binding
from graphpatch.match.spec import Edge, Link, Match, Pattern
from tests import graphs
from tests.draws import draws
from tests.match.pattern import reference
from tests.match.pattern.random_bodies import bodies
from tests.match.pattern.random_patterns import patterns
from tests.match.pattern.searched import bindings

DRAWN = bodies(loops=True).flatmap(lambda body: st.tuples(st.just(body), patterns(body)))
UNHURRIED = settings(deadline=None, suppress_health_check=list(HealthCheck))


@settings(UNHURRIED, max_examples=draws(160))
@given(DRAWN)
def test_the_same_matches_as_by_networkx_on_the_whole_graph(drawn: tuple[Body, Pattern]) -> None:
    compare(*drawn)


@pytest.mark.slow
def test_the_same_matches_in_two_thousand_graphs() -> None:
    """At least a quarter of the patterns match."""
    matched: list[bool] = []

    @settings(UNHURRIED, max_examples=2_000)
    @given(DRAWN)
    def compared(drawn: tuple[Body, Pattern]) -> None:
        matched.append(compare(*drawn))

    compared()
    assert sum(matched) >= len(matched) / 4


@pytest.mark.parametrize(
    "pattern",
    [
        "Relu",
        "Relu -> Mul:1",
        "x:_ -> Relu",
        "Const ->+ Mul|Relu",
        "Relu -> Mul?",
        "c:Const; c -> !Add",
    ],
)
def test_networkx_decides_every_match(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a matcher of networkx that finds nothing, no pattern matches."""
    nodes = [graphs.node("c", "Const"), graphs.node("r", "Relu", "c")]
    body = graphs.main(*nodes, graphs.node("m", "Mul", "c", "r"))
    assert bindings(body, pattern)
    nothing = lambda self: iter(())  # noqa: E731
    monkeypatch.setattr(DiGraphMatcher, "subgraph_monomorphisms_iter", nothing)
    assert not bindings(body, pattern)


def test_a_run_in_a_circle_is_there_once() -> None:
    """It ends where it would go round once more, not at each op of the circle."""
    inside = [graphs.node(name, "Relu", read) for name, read in (("a", "switch:1"), ("b", "a"))]
    body = graphs.main(graphs.node("c", "Const"), *graphs.v1_loop("c", *inside, gives="b"))
    run = Edge("more", "run", Link(repeat=True))
    pattern = Pattern(nodes={"more": Match(op="IsFinite"), "run": Match()}, edges=(run,))
    assert compare(body, pattern)
    found = [one.bound[1] for one in Finder(pattern).matches(body)]
    assert [[body.heads.names[op] for op in one] for one in found] == [
        ["decide", "switch", "a", "b", "next", "merge"],
        ["merge", "decide", "switch", "a", "b", "next", "exit"],
    ]


def test_whether_a_larger_match_replaces_one_is_asked_of_its_first_image() -> None:
    """Without `p1`, `a` and `b` are p0 and p2, the last one; in the larger match `b` is, too."""
    nodes = [graphs.node("n", "Relu", "x"), graphs.node("a", "AddN", "x", "n", N=2)]
    nodes += [graphs.node("b", "Identity", "n"), graphs.node("c", "Relu", "a")]
    body = graphs.main(graphs.node("x", "Placeholder"), *nodes)
    edges = (Edge("t0", "p1"), Edge("t0", "p0"), Edge("p1", "p2"))
    any_op = {"p0": Match(), "p1": Match(), "p2": Match()}
    assert compare(body, Pattern(nodes=any_op, edges=edges, tensors=("t0",), optional=("p1",)))


def compare(body: Body, pattern: Pattern) -> bool:
    """Whether it matches, as both say alike."""
    found = Finder(pattern).matches(body)
    assert len(found) == len({(one.pattern.present, one.bound, one.read) for one in found})
    canonical = [as_canonical(one, pattern) for one in found]
    assert len(canonical) == len(set(canonical)), "a match is there twice, as its mirror image"
    assert set(canonical) == reference.matches(body, pattern)
    assert [one.indices for one in found] == sorted(one.indices for one in found)
    return bool(found)


def as_canonical(binding: Binding, pattern: Pattern) -> Any:
    present = binding.pattern.present
    small = next(one for one in reference.every_variant(pattern) if one.ops.keys() == set(present))
    read = [(tensor.op, tensor.arg, tensor.index) for tensor in binding.read]
    bound = {
        **dict(zip(present, binding.bound, strict=True)),
        **dict(zip(binding.pattern.tensors, read, strict=True)),
    }
    return reference.canonical(small, bound)

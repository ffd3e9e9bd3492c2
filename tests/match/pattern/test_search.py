"""The search by an index and neighbourhoods, against VF2 over the whole body."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from networkx.algorithms.isomorphism import DiGraphMatcher

from graphpatch.graph.node import Body
from graphpatch.match.pattern.matcher import Finder
from graphpatch.match.pattern.overlaps import Binding
from graphpatch.match.spec import Edge, Link, Match, Pattern
from tests import graphs
from tests.match.pattern import reference
from tests.match.pattern.random_bodies import PLACES, bodies
from tests.match.pattern.random_patterns import patterns
from tests.match.pattern.searched import bindings

DRAWN = bodies(PLACES, told=True).flatmap(lambda body: st.tuples(st.just(body), patterns(body)))
UNHURRIED = settings(deadline=None, suppress_health_check=list(HealthCheck))

KEYS = ("attr", "value", "shape", "inside", "taken", "nth", "class", "compared")
BOUND = re.compile(r"\b(above|below|least|most|other)=[-\d]")


def search_as_the_reference(examples: int, **how: Any) -> tuple[Counter[str], Counter[str]]:
    """Compare them on this many patterns; which keys these asked for, and how many matched."""
    asked, matched = Counter[str](), Counter[str]()

    @settings(UNHURRIED, max_examples=examples, **how)
    @given(DRAWN)
    def compared(drawn: tuple[Body, Pattern]) -> None:
        body, pattern = drawn
        keys = {key for one in pattern.nodes.values() for key in one.given()} & {*KEYS}
        keys |= {"compared"} if BOUND.search(repr(pattern)) else set()
        asked.update(keys)
        if compare(body, pattern):
            matched.update(keys)

    compared()
    return asked, matched


@pytest.mark.slow
def test_the_same_matches_as_by_brute_force() -> None:
    asked, matched = search_as_the_reference(100, derandomize=True, database=None)
    assert sum(matched.values()) >= sum(asked.values()) / 4


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


@pytest.mark.slow
def test_the_same_matches_in_two_thousand_graphs() -> None:
    """Each key is drawn often, and matches in a good part of the cases.

    Of 600 patterns 75 to 209 asked for each key, and 35 % to 84 % of these matched.
    """
    asked, matched = search_as_the_reference(2_000)
    for key in KEYS:
        assert asked[key] >= 50, f"{key} is asked for in {asked[key]} patterns alone"
        assert matched[key] >= asked[key] / 5, f"{key}: {matched[key]} of {asked[key]} match"


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

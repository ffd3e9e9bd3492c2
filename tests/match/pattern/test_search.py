"""The search by an index and neighbourhoods, against VF2 over the whole body."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from networkx.algorithms.isomorphism import DiGraphMatcher

from graphpatch.errors import PatternError
from graphpatch.graph.node import Body
from graphpatch.match.binding import Binding
from graphpatch.match.matcher import Finder
from graphpatch.match.spec import Edge, Link, Match, Pattern
from graphpatch.match.syntax import check_pattern
from graphpatch.names import op_of
from tests import graphs
from tests.draws import draws
from tests.match.pattern import reference
from tests.match.pattern.bodies import TYPES, bindings, bodies
from tests.patches.one_op import net

# Random patterns of a random body, small enough for the reference.

WANTED: list[Any] = [*TYPES, "*", ("Relu", "Identity"), "*N"]


@st.composite
def patterns(draw: st.DrawFn, body: Body) -> Pattern:
    """Some ops of a body with links between them, generalised; then marked at random.

    So most have a match, before optional, absent and closed are drawn, which ask for others.
    """
    ops = draw(grown(body))
    names = {index: f"p{place}" for place, index in enumerate(sorted(ops))}
    nodes = {
        name: Match(op=draw(types(body.heads.ops[index]))) for index, name in sorted(names.items())
    }
    edges, tensors = [], []
    for index in sorted(ops):
        for slot, text in enumerate(body.heads.inputs[index]):
            producer = body.by_name.get(op_of(text))
            if producer in names:
                if draw(st.integers(0, 7)):
                    edges.append(Edge(names[producer], names[index], draw(links(body, text, slot))))
            elif draw(st.integers(0, 3)) == 0 and not text.startswith("^"):
                tensor = f"t{draw(st.integers(0, 1))}"
                tensors.append(tensor)
                edges.append(Edge(tensor, names[index], draw(slots(slot))))
    for name in names.values():
        if draw(st.integers(0, 7)) == 0:
            nodes["gone"] = Match(op=draw(st.sampled_from(WANTED)))
            ends = draw(st.permutations([name, "gone"]))
            edges.append(Edge(ends[0], ends[1], Link()))
    draw(st.randoms(use_true_random=False)).shuffle(edges)
    optional = [name for name in names.values() if draw(st.integers(0, 4)) == 0]
    pattern = Pattern(
        nodes=nodes,
        edges=tuple(edges),
        tensors=tuple(dict.fromkeys(tensors)),
        optional=tuple(optional),
        absent=("gone",) if "gone" in nodes else (),
        closed=draw(st.sampled_from([False, False, False, True, ("p0",)])),
    )
    try:
        check_pattern(pattern)
    except PatternError:
        assume(False)
    return pattern


@st.composite
def grown(draw: st.DrawFn, body: Body) -> set[int]:
    """A few ops of a body, each linked with one before."""
    ops = {draw(st.integers(0, len(body) - 1))}
    for _ in range(draw(st.integers(1, 4))):
        near = {
            other
            for reader, inputs in enumerate(body.heads.inputs)
            for producer in (body.by_name.get(op_of(text)) for text in inputs)
            for one, other in ((reader, producer), (producer, reader))
            if one in ops and other is not None and other not in ops
        }
        if near:
            ops.add(draw(st.sampled_from(sorted(near))))
    return ops


def types(op: str) -> st.SearchStrategy[Any]:
    """What an op of this type may be asked to be."""
    return st.sampled_from([op, op, op, None, "*", (op, "Relu"), ("Mul", op), op[:1] + "*"])


def slots(slot: int) -> st.SearchStrategy[Link]:
    return st.sampled_from([Link(), Link(), Link(input=slot), Link(repeat=True)])


@st.composite
def links(draw: st.DrawFn, body: Body, text: str, slot: int) -> Link:
    """A link that this input is, mostly."""
    if text.startswith("^"):
        return Link(control=True)
    found = draw(slots(slot))
    output = draw(st.sampled_from([None, None, None, int(text.rpartition(":")[2] == "1")]))
    return Link(input=found.input, output=output, repeat=found.repeat)


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
    ["Relu -> Mul:1", "x:_ -> Relu", "Const ->+ Mul|Relu", "Relu -> Mul?", "Relu -> !Neg"],
)
def test_networkx_decides_every_match(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a matcher of networkx that finds nothing, no pattern matches."""
    body = graphs.main(*net("c:Const r:Relu(c) m:Mul(c, r)"))
    assert bindings(body, pattern)
    nothing = lambda self: iter(())  # noqa: E731
    monkeypatch.setattr(DiGraphMatcher, "subgraph_monomorphisms_iter", nothing)
    assert not bindings(body, pattern)


def test_a_run_in_a_circle_is_there_once() -> None:
    """It ends where it would go round once more, not at each op of the circle."""
    inside = net("a:Relu(switch:1) b:Relu(a)")
    body = graphs.main(*net("c:Const"), *graphs.v1_loop("c", *inside, gives="b"))
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
    nodes = "x:Placeholder n:Relu(x) a:AddN(x, n, N=2) b:Identity(n) c:Relu(a)"
    body = graphs.main(*net(nodes))
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

"""`between`, `upstream_of` and `downstream_of`, against networkx."""

from __future__ import annotations

from typing import Any

import msgspec
import networkx as nx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import graphpatch
from graphpatch.errors import MatchError
from graphpatch.graph.node import Body
from graphpatch.match.select import holds, select
from graphpatch.match.spec import Between, Match
from graphpatch.names import op_of
from tests import graphs
from tests.draws import draws
from tests.graphs import function, graphdef, main
from tests.match.pattern.bodies import bodies
from tests.patches.one_op import net

INNER = net("""parts:Split(a, b, num_split=2) left:Relu(parts:output:0)
    right:Tanh(parts:output:1) sum:AddV2(left:activations:0, right:y:0) apart:Exp(b, ^sum)""")
GRAPH = graphs.opened(
    graphdef(
        *net("""x:Placeholder parts:Split(x, x, num_split=2) left:Relu(parts) right:Tanh(parts:1)
        sum:AddV2(left, right) after:Exp(x, ^right) out:Identity(sum)
        enter:Enter(x, frame_name=loop) merge:Merge(enter, next, N=2) step:Neg(merge)
        next:NextIteration(step)"""),
        functions=[function("f", ["a", "b"], INNER, {"y": "sum:z:0"})],
    )
)
MAIN, F = {"body": "main"}, {"body": "f"}
CASES: list[tuple[Any, list[str]]] = [
    ({"upstream_of": ["left", "right"], **MAIN}, ["x", "parts", "left", "right"]),
    ({"upstream_of": "next"}, ["x", "enter", "merge", "step", "next"]),
    ({"downstream_of": "parts:1", **MAIN, "control": True}, ["right", "sum", "after", "out"]),
    ({"downstream_of": ["parts", "parts:1"], **MAIN}, ["left", "right", "sum", "out"]),
    # A loop leads back to where it starts.
    ({"downstream_of": "step"}, ["merge", "step", "next"]),
    # Both ends belong to it, or neither does.
    ({"between": {"from": "x", "to": "sum", "ends": False}}, ["parts", "left", "right"]),
    ({"between": {"from": "parts:1", "to": "sum"}, **MAIN}, ["parts", "right", "sum"]),
    ({"between": {"from": ["left", "enter"], "to": ["sum", "next"]}, **MAIN},
     ["left", "sum", "enter", "merge", "step", "next"]),
    # Where it may lead.
    ({"between": {"from": "x", "to": "sum", "within": {"op": ["Split", "Relu"]}}},
     ["x", "parts", "left", "sum"]),
    ({"between": {"from": "x", "to": "sum", "stop_at": {"name": "right"}}},
     ["x", "parts", "left", "sum"]),
    ({"upstream_of": {"of": "sum", "stop_at": {"op": "Split"}}, **MAIN},
     ["parts", "left", "right", "sum"]),
    ({"upstream_of": {"of": "sum", "within": {"op": ["AddV2", "Relu"]}}, **MAIN}, ["left", "sum"]),
    ({"downstream_of": {"of": "parts", "stop_at": {"op": "AddV2"}}, **MAIN}, ["left", "sum"]),
    ({"downstream_of": {"of": ["parts", "parts:1"], "within": {"op": "Tanh"}}, **MAIN}, ["right"]),
    ({"between": {"from": "parts:1", "to": "after"}, "control": True},
     ["parts", "right", "after"]),
    # In a function: its arguments, its own spelling, and `op:1` too.
    ({"upstream_of": "sum:z:0"}, ["parts", "left", "right", "sum"]),
    ({"downstream_of": "parts:1", **F}, ["right", "sum"]),
    ({"downstream_of": "parts:output:1", "control": True}, ["right", "sum", "apart"]),
    ({"between": {"from": "b", "to": "left:activations:0"}}, ["parts", "left"]),
    # A name in both bodies is meant in both.
    ({"downstream_of": "left"}, ["sum", "out", "sum"]),
    # No such tensor.
    ({"upstream_of": "gone"}, []),
    ({"downstream_of": "left:7"}, []),
    # Combined.
    ({"all": [{"downstream_of": "parts"}, {"downstream_of": "parts:1"}], **MAIN}, ["sum", "out"]),
    ({"any": [{"upstream_of": "left"}, {"op": "Exp"}], **MAIN}, ["x", "parts", "left", "after"]),
]  # fmt: skip


@pytest.mark.parametrize(("match", "wanted"), CASES, ids=str)
def test_which_ops_lie_on_the_way(match: Any, wanted: list[str]) -> None:
    assert [one.name for one in select(GRAPH, msgspec.convert(match, Match))] == wanted


@pytest.mark.parametrize(
    "match",
    [
        {"any": [{"downstream_of": "reluu"}, {"op": "Relu"}]},
        {"op": "Relu", "not": {"between": {"from": "x", "to": "reluu"}}},
        {"op": "Relu", "not": {"upstream_of": {"of": "reluu"}}},
        {"upstream_of": {"of": "relu", "stop_at": {"upstream_of": "reluu"}}},
    ],
)
def test_a_tensor_that_is_nowhere_is_told_with_the_nearest(match: Any) -> None:
    with pytest.raises(MatchError, match="no tensor is called 'reluu'; nearest: relu"):
        graphpatch.apply([{"match": match, "patch": {"stop_gradient": True}}], graphs.sample())


# The reference: nodes are ops, edges are uses; a tensor is the op that gives it, or its readers.


def drawn_tensors(body: Body) -> st.SearchStrategy[list[str]]:
    every = {text for node in body for text in node.inputs if text[0] != "^"}
    return st.lists(st.sampled_from(sorted(every) or ["none"]), min_size=1, max_size=2)


def whole(body: Body, control: bool) -> Any:
    graph: Any = nx.DiGraph()
    graph.add_nodes_from(node.name for node in body)
    for one in body:
        for text in one.inputs:
            if op_of(text) in graph and (control or text[0] != "^"):
                graph.add_edge(op_of(text), one.name)
    return graph


def before(body: Body, graph: Any, tensors: list[str]) -> set[str]:
    ends = {text.split(":")[0] for text in tensors} & set(graph)
    return ends.union(*(nx.ancestors(graph, end) for end in ends))


def behind(body: Body, graph: Any, tensors: list[str], control: bool) -> set[str]:
    legal = {one for text in tensors for one in (text, text.removesuffix(":0"), f"{text}:0")}
    legal |= {f"^{text.split(':')[0]}" for text in tensors} if control else set()
    first = {node.name for node in body if legal & set(node.inputs)}
    return first.union(*(nx.descendants(graph, one) for one in first))


def on_paths(
    body: Body, sources: list[str], targets: list[str], control: bool, between: set[str]
) -> set[str]:
    """All ops of all paths, each followed on its own; those at the ends, and those `between`."""
    graph, found = whole(body, control), set[str]()
    ends = {op_of(text) for text in targets} & set(graph)
    for tensor in sources:
        start = {op_of(tensor)} & set(graph)
        if tensor.removesuffix(":0") in [text.removesuffix(":0") for text in targets]:
            found |= start
        paths = [[one] for one in behind(body, nx.create_empty_copy(graph), [tensor], control)]
        while paths:
            path = paths.pop()
            found |= {*path, *start} if path[-1] in ends else set()
            if path[-1] in ends | between:
                paths += [[*path, one] for one in graph.successors(path[-1])]
    return found


# No path leads on through a source where it must stop, though one starts there.
STOPPED = [
    ("x:Const a:Mul(x) y:Add(a)", "a x", "y", "Mul", {"a", "y"}),
    ("x:Const a:Mul(x) y:Add(a)", "x a", "y", "Mul", {"a", "y"}),
    ("a:Const b:Abs(a) c:Relu(b) d:Abs(c)", "a c", "d", "Relu", {"c", "d"}),
]


@pytest.mark.parametrize(("nodes", "sources", "target", "op", "wanted"), STOPPED)
def test_a_path_may_start_where_it_must_stop(
    nodes: str, sources: str, target: str, op: str, wanted: set[str]
) -> None:
    body = main(*net(nodes))
    path = Between(sources=tuple(sources.split()), targets=(target,), stop_at=Match(op=op))
    assert {one.name for one in filter(holds(Match(between=path))(body), body)} == wanted


UNHURRIED = settings(deadline=None, suppress_health_check=list(HealthCheck))
DRAWN = bodies().flatmap(lambda b: st.tuples(st.just(b), drawn_tensors(b), drawn_tensors(b)))


@settings(UNHURRIED, max_examples=draws(50))
@given(DRAWN, st.booleans(), st.sampled_from(["Relu", "Mul", "*N"]), st.booleans())
def test_limited_paths_are_those_that_are_followed_one_by_one(
    drawn: tuple[Body, list[str], list[str]], control: bool, op: str, is_within: bool
) -> None:
    body, sources, targets = drawn
    such = {one.name for one in filter(holds(Match(op=op))(body), body)}
    inner = such if is_within else {one.name for one in body} - such
    limit = {"within" if is_within else "stop_at": Match(op=op)}
    path = Between(sources=tuple(sources), targets=tuple(targets), **limit)
    match = Match(between=path, control=control)
    expected = on_paths(body, sources, targets, control, inner)
    assert {one.name for one in filter(holds(match)(body), body)} == expected
    ends = {op_of(text) for text in (*sources, *targets)}
    match = Match(between=msgspec.structs.replace(path, ends=False), control=control)
    assert {one.name for one in filter(holds(match)(body), body)} == expected - ends


@settings(UNHURRIED, max_examples=draws(300))
@given(DRAWN, st.booleans())
def test_the_same_as_by_networkx(drawn: tuple[Body, list[str], list[str]], control: bool) -> None:
    body, sources, targets = drawn
    graph = whole(body, control)
    upstream = before(body, graph, targets)
    downstream = behind(body, graph, sources, control)
    start, end = tuple(sources), tuple(targets)
    for match, expected in (
        (Match(upstream_of=end, control=control), upstream),
        (Match(downstream_of=start, control=control), downstream),
        (
            Match(between=Between(sources=start, targets=end), control=control),
            on_paths(body, sources, targets, control, set(graph)),
        ),
    ):
        assert {one.name for one in filter(holds(match)(body), body)} == expected

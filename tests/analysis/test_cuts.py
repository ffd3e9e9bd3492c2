"""Is it a cut, which path leads around it, and which tensors are the smallest cut."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpatch.analysis.cuts import (
    START,
    gradient_paths,
    in_frames,
    ordered_cuts,
    path_round,
    smallest_cut,
)
from graphpatch.errors import CutError
from graphpatch.protos import NodeDef
from tests.draws import draws
from tests.graphs import const, graphdef, node, opened, v1_loop


def residual() -> list[NodeDef]:
    """`x -> a -> b -> add -> c -> loss`, round which `x -> skip -> add` goes."""
    return [
        node("x", "Placeholder"),
        node("a", "Relu", "x"),
        node("b", "Tanh", "a"),
        node("skip", "Relu", "x"),
        node("add", "AddV2", "b", "skip"),
        node("c", "Tanh", "add"),
        node("split", "Split", "axis", "c", num_split=2),
        const("axis"),
        node("loss", "Sum", "c", "axis", Tidx="int32"),
        node("elsewhere", "Relu", "a"),
        node("y", "Placeholder"),
        node("size", "Shape", "b"),
    ]


def cuts_of(nodes: Sequence[NodeDef], *cuts: Sequence[str]) -> list[tuple[str, ...]]:
    return ordered_cuts(opened(graphdef(*nodes)), "loss", cuts, ["x"])[1]


CUTS: list[tuple[list[list[str]], list[tuple[str, ...]]]] = [
    ([["add"]], [("add:0",)]),
    ([["c:0"]], [("c:0",)]),
    ([["a", "skip"]], [("a:0", "skip:0")]),
    ([["c"], ["add"], ["b", "skip"]], [("b:0", "skip:0"), ("add:0",), ("c:0",)]),
    ([["b", "skip"], ["a", "skip"]], [("a:0", "skip:0"), ("b:0", "skip:0")]),
]


@pytest.mark.parametrize(("asked", "found"), CUTS)
def test_cuts_in_forward_order(asked: list[list[str]], found: list[tuple[str, ...]]) -> None:
    assert cuts_of(residual(), *asked) == found


REFUSED: list[tuple[list[list[str]], list[str]]] = [
    ([["b"]], ["b:0 is not a cut", "x:0 -> skip:0 -> add:0", "with it: b:0, skip:0", "it: add:0"]),
    ([["skip"]], ["x:0 -> a:0 -> b:0 -> add:0", "near it: add:0"]),
    ([["bb"]], ["no tensor 'bb'", "nearest: b"]),
    ([["deep"]], ["no tensor 'deep'", "nearest: tower/deep"]),
    ([["b:1"]], ["no tensor 'b:1'", "'b' has 1 output,"]),
    ([["^b"]], ["no tensor '^b'"]),
    ([["elsewhere"]], ["elsewhere:0 is not upstream of loss:0"]),
    ([["y"]], ["y:0 is not upstream of loss:0"]),
    ([["axis"]], ["axis:0 does not depend on x:0"]),
    ([["loss"]], ["loss:0 is the loss itself"]),
    ([["x"]], ["x:0 is what the gradient is asked at"]),
    ([["add"], ["add"]], ["two cuts are the same"]),
    ([[]], ["no tensor is named"]),
    ([["relu"]], ["'relu' is a tensor of function f"]),
]


@pytest.mark.parametrize(("asked", "said"), REFUSED)
def test_what_is_no_cut(asked: list[list[str]], said: list[str]) -> None:
    from tests.graphs import function

    inner = function("f", ["a"], [node("relu", "Relu", "a")], {"b": "relu:activations:0"})
    deep = node("tower/deep", "Relu", "x")
    graph = opened(graphdef(*residual(), deep, functions=[inner]))
    with pytest.raises(CutError) as raised:
        ordered_cuts(graph, "loss", asked, ["x"])
    for text in said:
        assert text in str(raised.value)


def test_cuts_that_cross() -> None:
    sides = [
        node(f"{side}{n}", "Relu", f"{side}1" if n == 2 else "x") for side in "ab" for n in (1, 2)
    ]
    nodes = [node("x", "Placeholder"), *sides, node("loss", "AddV2", "a2", "b2")]
    assert len(cuts_of(nodes, ["a1", "b2"])) == 1
    with pytest.raises(CutError, match="cross: neither lies as a whole"):
        cuts_of(nodes, ["a1", "b2"], ["a2", "b1"])


BLOCKED = [
    node("mid", "Round", "x"),
    node("mid", "StopGradient", "x"),
    node("mid", "Cast", "x", SrcT="float32", DstT="int32"),
    node("mid", "Shape", "x", out_type="int32"),
    node("mid", "Relu", "x", _gradient_op_type="Round"),
]


@pytest.mark.parametrize("mid", BLOCKED, ids=lambda mid: mid.op)
def test_no_gradient_flows(mid: NodeDef) -> None:
    nodes = [node("x", "Placeholder"), mid, node("loss", "Cast", "mid", SrcT="int32")]
    if mid.op in {"Round", "StopGradient", "Relu"}:
        nodes[-1] = node("loss", "Relu", "mid")
    with pytest.raises(CutError) as raised:
        cuts_of([*nodes], ["mid"])
    assert f"no gradient flows from loss:0 back to x:0: none passes {mid.op} 'mid'" in str(
        raised.value
    )


X = node("x", "Placeholder")
FLOWS = {
    "by an override": [
        X, node("add", "Round", "x", _gradient_op_type="Identity"), node("loss", "Relu", "add"),
    ],
    "not through what is rounded": [
        *residual()[:6], node("rounded", "Round", "x"), node("loss", "Mul", "c", "rounded"),
    ],
    "not through the means of a batch norm": [
        *residual()[:6], node("loss", "FusedBatchNorm", "c", "y", "y", "x", "x"),
        node("y", "Placeholder"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("case", FLOWS)
def test_a_way_of_the_forward_pass_alone_is_none(case: str) -> None:
    assert cuts_of(FLOWS[case], ["add"]) == [("add:0",)]


def test_no_cut_at_all() -> None:
    with pytest.raises(CutError, match="there is no cut: single ops join x:0 and loss:0"):
        cuts_of([X, node("a", "Relu", "x"), node("loss", "AddV2", "a", "x")], ["a"])


def test_variables_and_loops_are_no_cut() -> None:
    nodes = [
        node("x", "Placeholder"),
        node("h", "Relu", "x"),
        *v1_loop("h", node("body", "Tanh", "switch:1"), gives="body"),
        node("loss", "Relu", "exit"),
    ]
    body = opened(graphdef(*nodes)).main
    inside = {body.heads.names[index] for index in in_frames(body)}
    assert inside == {"enter", "merge", "more", "decide", "switch", "body", "next"}
    assert cuts_of(nodes, ["h"], ["exit"]) == [("h:0",), ("exit:0",)]
    for name in ("enter", "merge", "switch", "body"):
        with pytest.raises(CutError, match="inside a v1 loop or branch") as raised:
            cuts_of(nodes, [name])
        assert "the smallest cut, near it: " in str(raised.value)
    held = [
        node("x", "VarHandleOp", dtype="float32"),
        node("h", "Identity", "x", T="resource"),
        node("read", "ReadVariableOp", "h", dtype="float32"),
        node("loss", "Relu", "read"),
    ]
    assert cuts_of(held, ["read"]) == [("read:0",)]
    with pytest.raises(CutError, match="h:0 cannot be cut at: it is a handle"):
        cuts_of(held, ["h"])


@st.composite
def dags(draw: st.DrawFn) -> list[NodeDef]:
    """Ops that each add up earlier ones; `loss` the last."""
    count = draw(st.integers(1, 8))
    names = ["x", *(f"n{k}" for k in range(count)), "loss"]
    nodes = [node("x", "Placeholder")]
    for place, name in enumerate(names[1:], 1):
        read = draw(st.lists(st.sampled_from(names[:place]), min_size=1, max_size=3))
        op = draw(st.sampled_from(["AddN", "AddN", "Round"])) if len(read) == 1 else "AddN"
        nodes.append(node(name, op, *read, N=len(read)) if op == "AddN" else node(name, op, *read))
    return nodes


@pytest.mark.slow
@given(dags())
@settings(max_examples=draws(200), deadline=None)
def test_the_smallest_cut_is_that_of_all_subsets(nodes: list[NodeDef]) -> None:
    graph = opened(graphdef(*nodes))
    try:
        found = gradient_paths(graph, "loss:0", ["x:0"])
    except CutError:
        return
    inner = sorted(set(found.graph) - {START, "x:0", "loss:0"})
    every = (set(some) for size in range(len(inner) + 1) for some in combinations(inner, size))
    sizes = (len(some) for some in every if not path_round(found, some))
    best, smallest = next(sizes, None), smallest_cut(found)
    if best is None:
        assert smallest == []
        assert found.graph.has_edge("x:0", "loss:0")
    else:
        assert (len(smallest), path_round(found, smallest)) == (best, [])


@given(dags())
@settings(max_examples=draws(100), deadline=None)
def test_a_way_is_a_path_that_passes_no_tensor_of_the_cut(nodes: list[NodeDef]) -> None:
    try:
        found = gradient_paths(opened(graphdef(*nodes)), "loss:0", ["x:0"])
    except CutError:
        return
    for name in set(found.graph) - {START, "x:0", "loss:0"}:
        way = path_round(found, [name])
        if way:
            assert (way[0], way[-1]) == ("x:0", "loss:0")
            assert name not in way
            assert nx.is_path(found.graph, way)
        with_it = smallest_cut(found, [name], kept_tensors=[name])
        assert not with_it or not path_round(found, [name, *with_it])


def test_the_nearest_of_several_is_proposed() -> None:
    chain = [node("x", "Placeholder"), node("t0", "Relu", "x")]
    chain += [node(f"t{k}", "Relu", f"t{k - 1}") for k in range(1, 9)]
    found = gradient_paths(opened(graphdef(*chain, node("loss", "Relu", "t8"))), "loss:0", ["x:0"])
    for k in (0, 4, 8):
        assert smallest_cut(found, [f"t{k}:0"]) == [f"t{k}:0"]

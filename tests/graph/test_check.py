from __future__ import annotations

import pytest

from graphpatch.errors import ModelError
from graphpatch.graph.check import check_graph, foreign
from graphpatch.protos import GraphDef, NodeDef
from tests import graphs
from tests.graphs import function, graphdef, node, opened

X, SPLIT = node("x", "Placeholder"), node("s", "Split", "x", "x", num_split=3)

SOUND = {
    "the sample": graphs.sample(),
    "every spelling": graphdef(
        node("s", "Split", "s", "s", num_split=3), node("a", "AddN", "s", "s:0", "s:2", "^s", N=3)
    ),
    "a loop": graphdef(
        node("merge", "Merge", "next", "next", N=2), node("next", "NextIteration", "merge")
    ),
    "a function": graphdef(
        functions=[
            function(
                "f", ["a", "b"], [node("n", "Add", "a", "b"), node("m", "Neg", "n:z:0", "^n")], {}
            )
        ]
    ),
    "a function called as an op type of any name": graphdef(
        node("a", "^f é:0"), functions=[function("^f é:0", [], [], {})]
    ),
    "the same names in two bodies": graphdef(
        node("n", "NoOp"), functions=[function("f", [], [node("n", "NoOp")], {})]
    ),
}

BROKEN = {
    "five names twice": (
        graphdef(*(node(name, "NoOp") for name in "abcde" * 2)),
        "the main graph: 5 names are not unique: 'a', 'b', 'c' and 2 more",
    ),
    "a name twice in a function": (
        graphdef(functions=[function("f", [], [node("a", "NoOp")] * 2, {})]),
        "function f: 1 names are not unique: 'a'",
    ),
    "an input that names no op": (
        graphdef(node("relu1", "Relu", "x"), node("r", "Relu", "relu2:0")),
        "the main graph: 2 inputs name no op; the first is input 'x' of 'relu1'",
    ),
    "with one that is near": (
        graphdef(node("features", "NoOp"), node("r", "Relu", "featuers:0")),
        "input 'featuers:0' of 'r'; nearest: features",
    ),
    "a control character in an op type": (
        graphdef(node("a", "NoOp"), node("x", "P\rzulaceholder")),
        "the main graph: the op type of 'x' is 'P\\rzulaceholder'; an op type must",
    ),
    "a control input before a data input": (
        graphdef(X, node("y", "Relu", "^x", "x")),
        "Relu 'y': its control input '^x' comes before its input 'x'; control inputs come last",
    ),
    **{
        f"an output of the main graph: {text[:5]}": (
            graphdef(X, SPLIT, node("y", "Relu", text)),
            "an output that is not there",
        )
        for text in ("x:5", "x:a", "x:" + "9" * 5000, "x:²", "s:3")
    },
    **{
        f"an output in a function: {text}, {ret}": (
            graphdef(
                functions=[
                    function(
                        "f",
                        ["a"],
                        [node("n", "Identity", "a"), node("r", "Relu", text)],
                        {"b": ret},
                    )
                ]
            ),
            "not there",
        )
        for text, ret in (
            *(("n:output:99", "r:activations:0"), ("n:other:0", "r:activations:0")),
            ("n:output:0", "r:y:1"),
        )
    },
    "in a function": (
        graphdef(node("x", "NoOp"), functions=[function("f", ["a"], [node("r", "Neg", "x")], {})]),
        "function f: 1 inputs name no op; the first is input 'x' of 'r'",
    ),
}


@pytest.mark.parametrize("message", SOUND.values(), ids=SOUND)
def test_a_sound_graph_is_taken(message: GraphDef) -> None:
    graph = graphs.opened(message)
    check_graph(graph)
    assert list(foreign(graph)) == []


@pytest.mark.parametrize(("message", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_broken_graph_is_refused(message: GraphDef, reason: str) -> None:
    with pytest.raises(ModelError) as raised:
        check_graph(graphs.opened(message))
    assert reason in str(raised.value)


@pytest.mark.parametrize(("nodes", "notes"), [
    ([node(name, "ZeroOut") for name in "ab"],
     ["TensorFlow does not know op type ZeroOut ('a'): it needs its library"]),
    ([node("a", "SdcaFprint")], []),
    ([node("a", "BigQueryReader")],
     ["op type BigQueryReader ('a') is known to TensorFlow 1 alone"]),
    ([node(name, "NoOp") for name in ("ok", "a b", "c d", "e f", "g h")],
     ["the main graph: TensorFlow refuses to import these names: 'a b', 'c d', 'e f' and 1 more"]),
])  # fmt: skip
def test_what_tensorflow_refuses_is_told_once(nodes: list[NodeDef], notes: list[str]) -> None:
    assert list(foreign(opened(graphdef(*nodes)))) == notes

"""Five cases of TVM's test_dataflow_pattern that graphpatch once answered in another way."""

from __future__ import annotations

import pytest

import graphpatch
from graphpatch.match.select import find
from graphpatch.match.spec import Match
from tests import graphs
from tests.graphs import node
from tests.match.pattern.searched import found
from tests.match.pattern.test_traps import scalar

X = node("x", "Placeholder")


def test_what_an_earlier_rule_consumed() -> None:
    """test_double_partition: conv, bias, relu as one op first, then conv, bias as one."""
    bias = scalar("b", 1)
    nodes = [
        X,
        bias,
        node("conv", "Conv2D", "x", "x"),
        node("bias", "BiasAdd", "conv", "b"),
        node("relu", "Relu", "bias"),
        node("conv2", "Conv2D", "relu", "x"),
        node("bias2", "BiasAdd", "conv2", "b"),
    ]
    two, three = (  # the first convolution reads x twice, which is one tensor
        {"override_gradient": {"formula": ["dy", *[None] * others]}, "on": "match"}
        for others in (1, 2)
    )
    rules = [
        {"match": {"pattern": "i:_ -> c:Conv2D:0 -> BiasAdd -> Relu"}, "patch": two},
        {"match": {"pattern": "i:_ -> c:Conv2D:0 -> BiasAdd", "taken": False}, "patch": three},
    ]
    report = graphpatch.apply(rules, graphs.graphdef(*nodes)).report
    assert [[one["op"] for one in rule["matches"]] for rule in report["rules"]] == [
        ["conv", "bias", "relu"],
        ["conv2", "bias2"],
    ]


# test_rewrite_with_pattern_recursion: a product, then casts as often as there are, of which the
# last one counts. There the repeat is tied in three ways: to the cast, and to either alternative.
RUN = [
    X,
    node("dense", "MatMul", "x", "x"),
    *(
        node(f"cast{k}", "Cast", f"cast{k - 1}" if k else "dense", SrcT="float32", DstT="float32")
        for k in range(6)
    ),
]


@pytest.mark.parametrize(
    "pattern", ["MatMul ->+ Cast", "m:MatMul ->+ c:Cast|Identity", "MatMul ->+ Identity|Cast"]
)
def test_a_pattern_that_ends_in_a_run_patches_its_last_op(pattern: str) -> None:
    assert [
        one.name for one in find(graphs.opened(graphs.graphdef(*RUN)), Match(pattern=pattern)).nodes
    ] == ["cast5"]


def test_on_says_otherwise() -> None:
    graph = graphs.opened(graphs.graphdef(*RUN))
    every = find(graph, Match(pattern="MatMul ->+ run:Cast"), ("run",))
    assert [one.name for one in every.nodes] == [f"cast{k}" for k in range(6)]


def test_functions_of_the_model_that_are_called_as_ops_of_tensorflow_s_tests() -> None:
    inner = [node("relu", "Relu", "a")]
    functions = [graphs.function(name, ["a"], inner, {"y": "relu:activations:0"}) for name in "AB"]
    nodes = [X, node("one", "A", "x"), node("two", "B", "one")]
    graph = graphs.opened(graphs.graphdef(*nodes, functions=functions))
    assert found(graph.main, "A[0] -> B:0") == ["one two"]
    assert found(graph.main, "A -> B:1") == []

"""Patterns in the bodies of functions, where inputs are spelled `node:arg:index`."""

from __future__ import annotations

import pytest

from graphpatch.protos import AttrValue
from tests import graphs
from tests.graphs import node
from tests.match.pattern.searched import body, found

X = node("x", "Placeholder")


def test_no_pattern_spans_the_border_of_a_body() -> None:
    called = AttrValue(func={"name": "f"})
    typed = {"Tin": ["float32"], "Tout": ["float32"]}
    inner = [node("conv", "Conv2D", "a", "a"), node("relu", "Relu", "conv:output:0")]
    function = graphs.function("f", ["a"], inner, {"y": "relu:activations:0"})
    graph = graphs.opened(
        graphs.graphdef(
            X,
            node("conv", "Conv2D", "x", "x"),
            node("call", "PartitionedCall", "conv", f=called, **typed),
            node("tanh", "Tanh", "call"),
            functions=[function],
        )
    )
    every = graph.main, graph.functions["f"]
    assert [found(one, "Conv2D -> Relu") for one in every] == [[], ["conv relu"]]
    assert [found(one, "Relu -> Tanh") for one in every] == [[], []]
    assert [found(one, "Conv2D -> PartitionedCall -> Tanh") for one in every] == [
        ["conv call tanh"],
        [],
    ]


IN_FUNCTION = [
    node("parts", "Split", "x", "a", num_split=3),
    node("first", "Relu", "parts:output:0"),
    node("last", "Relu", "parts:output:2"),
    node("norm", "FusedBatchNormV3", "a", "x", "x", "x", "x"),
    node("mean", "Tanh", "norm:batch_mean:0"),
    node("both", "Mul", "first:activations:0", "a"),
    node("after", "Tanh", "x", "^both"),
]
SPELLED: dict[str, tuple[str, list[str]]] = {
    "an output of a list": ("Split[2] -> Relu", ["parts last"]),
    "an output arg of its own": ("FusedBatchNormV3[1] -> Tanh", ["norm mean"]),
    "another output arg": ("FusedBatchNormV3[0] -> Tanh", []),
    "an argument is no op": ("* -> Mul:1", []),
    "it is a tensor from outside": ("a:_ -> Mul:1", ["both"]),
    "the same argument": ("a:_ -> Mul; a -> FusedBatchNormV3", ["both norm"]),
    "two arguments": ("a:_ -> FusedBatchNormV3:0; a -> Split:0", []),
    "slots": ("Relu -> Mul:0", ["first both"]),
    "control edges": ("Mul ^-> Tanh", ["both after"]),
}


@pytest.mark.parametrize(("pattern", "wanted"), SPELLED.values(), ids=SPELLED)
def test_inputs_as_functions_spell_them(pattern: str, wanted: list[str]) -> None:
    assert found(body(*IN_FUNCTION, inputs="x a"), pattern) == wanted

"""Selections as users write them, on real models, against a walk over the GraphDef by hand."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import graphpatch
from graphpatch.match.ready import READY
from graphpatch.match.select import find
from graphpatch.match.spec import Match
from tests.models import catalogue

pytest.importorskip("tensorflow")


class Walk:
    """A GraphDef as TensorFlow parses it: ops by name, who gives and who reads, nothing else."""

    def __init__(self, path: Path) -> None:
        (graph,) = catalogue.graph_defs(path)
        self.nodes: dict[str, Any] = {node.name: node for node in graph.node}

    def of(self, *types: str) -> list[Any]:
        return [node for node in self.nodes.values() if node.op in types]

    def source(self, text: str) -> Any:
        return self.nodes[text.lstrip("^").split(":")[0]]

    def reads(self, node: Any) -> list[Any]:
        return [self.source(text) for text in node.input if text[0] != "^"]

    @functools.cached_property
    def uses(self) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        for node in self.nodes.values():
            for one in self.reads(node):
                found.setdefault(one.name, []).append(node)
        return found

    def readers(self, node: Any) -> list[Any]:
        return self.uses.get(node.name, [])

    def root(self, node: Any) -> Any:
        """What an Identity, Enter or Switch gives on."""
        while node.op in ("Identity", "Enter", "Switch"):
            node = self.reads(node)[0]
        return node

    def before(self, name: str) -> set[str]:
        found, todo = set[str](), [self.nodes[name]]
        while todo:
            node = todo.pop()
            if node.name not in found:
                found.add(node.name)
                todo += self.reads(node)
        return found


@functools.cache
def walked(name: str) -> Walk:
    return Walk(catalogue.models()[name])


RESNET = "resnet_imagenet_34.pbtxt"
MOBILENET = "mobilenet_v1_0.25_128_frozen.pb"
NER = "lstm_crf_ner.meta"
SPEECH = "kws_basic_lstm_s.pb"
FACE = "face_corrector.pb"
DIGITS = "dl4j/lstm_mnist.pb"


def relus_of_block_4(walk: Walk) -> Iterator[str]:
    inside = walk.before("block_layer4") - walk.before("block_layer3")
    found = [
        relu.name
        for relu in walk.of("Relu")
        if relu.name in inside and walk.reads(relu)[0].op == "FusedBatchNorm"
    ]
    by_depth = sorted(found, key=lambda name: len(walk.before(name)))
    last = by_depth[-1]
    yield from (name for name in found if name != last)


def strided(walk: Walk) -> Iterator[str]:
    for conv in walk.of("Conv2D", "DepthwiseConv2dNative"):
        if list(conv.attr["strides"].list.i) == [1, 2, 2, 1]:
            yield conv.name


def epsilons(walk: Walk) -> Iterator[str]:
    for add in walk.of("Add"):
        for one in walk.reads(add):
            values = one.attr["value"].tensor.float_val
            if one.op == "Const" and len(values) == 1 and 0 < values[0] < 0.01:
                yield add.name


def embeddings(walk: Walk) -> Iterator[str]:
    for gather in walk.of("GatherV2"):
        table = walk.reads(gather)[0]
        if table.op == "Identity" and walk.root(table).op == "VariableV2":
            yield gather.name


def loop_weights(walk: Walk) -> Iterator[str]:
    enters = {
        one.name
        for one in walk.of("Enter")
        if walk.root(one).op == "Const"
        and len(walk.root(one).attr["value"].tensor.tensor_shape.dim)
    }
    for node in walk.nodes.values():
        if any(one.name in enters for one in walk.reads(node)) and node.attr["T"].type == 1:
            yield node.name


def cells(walk: Walk) -> Iterator[str]:
    """The outputs of LSTM cells: of four gates of one product, output times tanh of the state."""
    for output in walk.of("Mul"):
        types = sorted(one.op for one in walk.reads(output))
        splits = {
            one.name
            for gate in walk.reads(output)
            for one in walk.reads(gate)
            if gate.op == "Sigmoid" and one.op == "Split"
        }
        states = [walk.reads(one)[0] for one in walk.reads(output) if one.op == "Tanh"]
        if types == ["Sigmoid", "Tanh"] and splits and states[0].op == "Add":
            yield output.name


def trained(walk: Walk) -> Iterator[str]:
    for norm in walk.of("FusedBatchNorm"):
        if norm.input[0].endswith("Switch:1"):
            yield norm.name


CELL = (
    "s:Split[0] -> i:Sigmoid -> m:Mul; s[1] -> j:Tanh -> m -> c:Add -> t:Tanh -> h:Mul;"
    " s[3] -> o:Sigmoid -> h"
)
SELECTIONS: dict[str, tuple[str, dict[str, Any], Callable[[Walk], Iterator[str]], int]] = {
    "every Relu after a batch norm in block 4 except the last": (RESNET,
     {"pattern": "norm:FusedBatchNorm -> relu:Relu", "between": {"from": "block_layer3",
     "to": "block_layer4"}, "nth": ":-1"}, relus_of_block_4, 5),
    "stride-2 convolutions": (MOBILENET,
     {"class": "convolution", "attr": {"strides": [1, 2, 2, 1]}}, strided, 5),
    "where a batch norm adds its epsilon": (MOBILENET,
     {"op": "Add", "inputs": {"any": {"value": {">": 0, "<": 0.01}}}}, epsilons, 27),
    "embedding lookups": (NER,
     {"op": "Gather*", "class": "has_weights", "inputs": {"0": {"op": "Identity"}}}, embeddings, 2),
    "what has weights in the recurrent loop": (SPEECH,
     {"class": "has_weights", "inside": {"loop": "LSTM-Layer/lstm/rnn/while"}}, loop_weights, 2),
    "the LSTM cell": (DIGITS, {"pattern": CELL}, cells, 28),
    "batch norms of the branch for training": (FACE,
     {"op": "FusedBatchNorm", "inside": {"when": True}}, trained, 3),
}  # fmt: skip


@pytest.mark.parametrize(("name", "match", "walk", "count"), SELECTIONS.values(), ids=SELECTIONS)
def test_a_selection_is_what_a_walk_over_the_graph_finds(
    name: str, match: dict[str, Any], walk: Callable[[Walk], Iterator[str]], count: int
) -> None:
    path = catalogue.existing(name)
    found = [node.name for node in graphpatch.select(path, **match)]
    expected = list(walk(walked(name)))
    assert sorted(found) == sorted(expected)
    assert len(found) == count


# The ready patterns find in the real models what is there, and nothing else.


# By a walk of its own over the NodeDefs, without the matcher, and by eye where the two differed: a
# mask of dropout is one, though in a training graph its gradient is multiplied by it too. What is
# not there is 0.
COUNTS: dict[str, dict[str, int]] = json.loads(
    (catalogue.CHECKOUT / "tests/data/ready_counts.json").read_text()
)


@pytest.mark.parametrize("name", catalogue.every_model())
def test_each_is_found_as_often_as_it_is_there(name: str) -> None:
    graphs = graphpatch.load(catalogue.models()[name]).graphs
    found = {
        pattern: sum(find(graph, Match(pattern=f"@{pattern}")).count for graph in graphs)
        for pattern in READY
    }
    assert found == {pattern: COUNTS.get(pattern, {}).get(name, 0) for pattern in READY}

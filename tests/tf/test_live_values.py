"""What functions on graphs return: short to print, whatever the size of the graph."""

from __future__ import annotations

from typing import Any

import pytest

import graphpatch

tf = pytest.importorskip("tensorflow")

RULES = [{"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}]
CUT = "a_rather_long_name_of_a_layer_5/relu"


def build() -> None:
    y = tf.compat.v1.placeholder(tf.float32, [None], name="x")
    for place in range(100):
        y = tf.nn.relu(y, name=f"a_rather_long_name_of_a_layer_{place}/relu")
    tf.reduce_sum(y, name="loss")


def test_a_repr_is_short() -> None:
    with tf.Graph().as_default(), graphpatch.building(RULES) as building:
        build()
    with tf.Graph().as_default() as graph:
        build()
    values: list[Any] = [
        building,
        graphpatch.load(graph),
        graphpatch.split(graph.as_graph_def(), "loss", CUT, "x"),
        graphpatch.gradient_in_parts(graph, "loss", CUT, "x"),
        graphpatch.patch_graph(RULES, graph, in_place=False),
        graphpatch.verify(graph, graph, run=False),
        graphpatch.diagnose(graph, "x", "loss"),
    ]
    for value in values:
        assert len(repr(value)) < 400, repr(value)
        assert repr(value).count("\n") < 3
        assert " at 0x" not in repr(value)

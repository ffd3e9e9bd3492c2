"""What functions on live graphs return: short to print, whatever the size of the graph."""

from __future__ import annotations

from typing import Any

import pytest

import graphpatch

tf = pytest.importorskip("tensorflow")

RULES = [{"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}]


def build(count: int = 300) -> Any:
    y = tf.compat.v1.placeholder(tf.float32, [None], name="x")
    for place in range(count):
        y = tf.nn.relu(y, name=f"a_rather_long_name_of_a_layer_{place}/relu")
    return tf.reduce_sum(y, name="loss")


def test_a_repr_is_short() -> None:
    with tf.Graph().as_default() as graph, graphpatch.building(RULES) as building:
        build()
    with tf.Graph().as_default() as plain:
        build()
    cut = "a_rather_long_name_of_a_layer_5/relu"
    for value in (
        building,
        graphpatch.split(plain.as_graph_def(), "loss", cut, "x"),
        graphpatch.gradient_in_parts(plain, "loss", cut, "x"),
        graphpatch.patch_graph(RULES, plain, in_place=False),
        graphpatch.patch_graph(RULES, plain),
        graphpatch.load(graph),
        graphpatch.verify(plain, plain, run=False),
        graphpatch.diagnose(graph, "x", "loss"),
    ):
        assert len(repr(value)) < 400, repr(value)
        assert repr(value).count("\n") < 3
        assert " at 0x" not in repr(value)

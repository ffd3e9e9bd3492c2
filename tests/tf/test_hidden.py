"""What tf.custom_gradient hides, against TensorFlow."""

from __future__ import annotations

from typing import Any

import pytest

from graphpatch.differentiation.hidden import hidden_ops
from graphpatch.graph.graph import Graph
from tests.graphs import opened

tf = pytest.importorskip("tensorflow")


@tf.custom_gradient  # type: ignore[untyped-decorator]
def two(a: Any, b: Any) -> Any:
    """Two results, of which one has an op that does not depend on the arguments' product."""
    return (tf.tanh(a) * b, tf.nn.relu(b)), lambda d0, d1: (d0, d1)


def swish(x: Any) -> Any:
    return tf.nn.swish(x)


def beside(x: Any) -> Any:
    inner = tf.sigmoid(x)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def doubled(value: Any) -> Any:
        return value * inner, lambda dy: dy * 2.0

    return doubled(x) + tf.square(inner)


def both(x: Any) -> Any:
    first, second = two(x, x + 1.0)
    return first * second


def first_only(x: Any) -> Any:
    return two(x, x + 1.0)[0]


@pytest.mark.parametrize("build", [swish, beside, both, first_only])
def test_hidden_ops_have_no_gradient_and_no_others(build: Any) -> None:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [3], name="x")
        loss = tf.reduce_sum(build(x), name="loss")
        message = graph.as_graph_def()
        inner = [
            op
            for op in graph.get_operations()
            if op.type in {"Mul", "Sigmoid", "Tanh", "Relu", "Square", "AddV2"}
        ]
        reached = {op.name: tf.gradients(loss, op.outputs[0])[0] is not None for op in inner}
    found: Graph = opened(message)
    names = [found.main.heads.names[index] for index in hidden_ops(found.main)]
    assert any(not one for one in reached.values())
    read = {one for name in reached for one in [name] if found.main.readers.get(one)}
    assert {name for name in reached if not reached[name]} & read == set(names) & set(reached)

"""Shapes that graphpatch infers of a graph are those that TensorFlow infers as it imports it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphpatch
from graphpatch.differentiation.shapes import Shapes
from graphpatch.differentiation.wiring import Wiring
from graphpatch.runtime.tf_gradients import control_flow

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1
raw = tf.raw_ops

Case = Callable[[], Any]


def holder(*sizes: int | None, dtype: Any = tf.float32) -> Any:
    return tf1.placeholder(dtype, sizes)


def anything(dtype: Any = tf.float32) -> Any:
    return tf1.placeholder(dtype, None)


def graph_of(build: Case) -> Any:
    with tf.Graph().as_default() as graph:
        build()
    return graph.as_graph_def()


def inferred(message: Any) -> dict[str, list[int | None] | None]:
    """By tensor, the shape that TensorFlow infers."""
    with tf.Graph().as_default() as graph:
        tf1.import_graph_def(message, name="")
    tensors = [tensor for op in graph.get_operations() for tensor in op.outputs]
    return {one.name: None if one.shape.rank is None else one.shape.as_list() for one in tensors}


def ours(message: Any) -> dict[str, list[int | None] | None]:
    """By tensor, the shape that graphpatch infers."""
    main = graphpatch.load(message).graphs[0].main
    shapes = Shapes(Wiring(main))
    found: dict[str, list[int | None] | None] = {}
    for node in main:
        for output in range(len(node.outputs or ())):
            shape = shapes.of((node.index, output))
            found[f"{node.name}:{output}"] = None if shape is None else list(shape)
    return found


# fmt: off
# What TensorFlow knows and graphpatch does not.
NARROWER = {
    "batch norm", "concat", "convolution", "fill", "flatten", "flatten by product", "identities",
    "matmul", "select", "sizes given on", "slices whose ends are computed", "split", "transpose",
}

CASES: dict[str, Case] = {
    "reshape": lambda: [tf.reshape(holder(2, 3), [-1]), tf.reshape(holder(None, 3), [-1, 3]),
                        tf.reshape(anything(), [-1, 4]), tf.reshape(holder(4, 6), [2, -1, 3]),
                        tf.reshape(holder(None, 3), anything(tf.int32)),
                        tf.reshape(holder(None, 3), holder(3, dtype=tf.int32)),
                        tf.reshape(holder(0, 3), [-1, 3]), tf.reshape(holder(1), [])],
    "flatten": lambda: [tf.reshape(x, [tf1.shape(x)[0], -1])
                        for x in (holder(None, 4, 5), holder(7, 4, 5), anything())],
    "flatten by product": lambda: [
        tf.reshape(x, [-1, tf.reduce_prod(tf1.shape(x)[1:])])
        for x in (holder(None, 4, 5), holder(7, 4, 5), holder(7, None))],
    "expand_dims": lambda: [tf1.expand_dims(x, axis) for axis in (0, 1, -1)
                            for x in (holder(None, 3), anything())],
    "expand_dims, axis not known": lambda: tf1.expand_dims(
        holder(2, 3), tf1.placeholder(tf.int32, [])),
    "squeeze": lambda: [tf1.squeeze(holder(1, 3, 1)), tf1.squeeze(holder(1, None)),
                        tf1.squeeze(holder(1, None, 1), [0]), tf1.squeeze(holder(1, 3, 1), [-1]),
                        tf1.squeeze(anything(), [0])],
    "transpose": lambda: [tf.transpose(holder(None, 3, 4), [2, 0, 1]), tf.transpose(holder(2, 3)),
                          tf.transpose(holder(2, 3), holder(2, dtype=tf.int32)),
                          tf.transpose(anything(), [1, 0]), tf.transpose(anything())],
    "stack": lambda: [tf.stack([holder(None, 3), holder(2, None)], axis) for axis in (0, 1, -1)],
    "stack of any": lambda: [tf.stack([anything(), holder(2, None)]), tf.stack([anything()] * 2)],
    "unstack": lambda: [tf.unstack(holder(2, 3, None), axis=axis, num=n)
                        for axis, n in ((0, 2), (1, 3), (-2, 3))] + tf.unstack(anything(), num=2),
    "concat": lambda: [tf.concat([holder(2, 3), holder(None, 4)], 1),
                       tf.concat([holder(2, 3), anything()], 1),
                       tf.concat([holder(None, 3), holder(2, 3)], -2),
                       tf.concat([anything(), anything()], 0),
                       tf.concat([holder(2, 3), holder(2, 4)], tf1.placeholder(tf.int32, []))],
    "split": lambda: [tf.split(holder(4, 6), 2, 1), tf.split(holder(None, 6), 3, -1),
                      tf.split(anything(), 2), tf.split(holder(4, None), 2, 1),
                      raw.Split(axis=tf1.placeholder(tf.int32, []), value=holder(4, 6),
                                num_split=2)],
    "slices whose ends are computed": lambda: [
        cut for i in [tf1.placeholder(tf.int32, [])]
        for cut in (holder(8, 9)[:5, i:], holder(8, 9)[2:, :i], holder(8, 9)[:, ::2, None],
                    holder(8, 9)[i], holder(8, 9)[..., :i])],
    "sizes of nothing": lambda: [holder(0, 3) + holder(None, 1), holder(0, 3) + holder(1, 3),
                                 holder(0) * holder(None)],
    "fill": lambda: [tf.fill([2, 3], 1.0), tf.fill(tf1.shape(holder(None, 3)), 1.0),
                     tf.fill(holder(2, dtype=tf.int32), 1.0), tf.zeros(tf1.shape(anything())),
                     tf.broadcast_to(holder(3), [2, 3])],
    "random": lambda: [tf1.random_uniform([2, 3]), tf1.random_normal(tf1.shape(holder(None, 3))),
                       tf1.truncated_normal(tf.stack([tf1.shape(holder(None, 3))[0], 4])),
                       tf1.random_uniform([2], maxval=3, dtype=tf.int32)],
    "sizes given on": lambda: [tf.zeros(tf.identity(tf1.shape(x)))
                               for x in (holder(2, 3), holder(None, 3))],
    "reduce": lambda: [tf.reduce_sum(x, axis, keepdims=keep) for keep in (True, False)
                       for axis in (None, 1, [0, -1]) for x in (holder(None, 3), holder(2, 3))],
    "reduce, axes not known": lambda: [
        tf.reduce_max(holder(2, 3), tf1.placeholder(tf.int32, [None]), keepdims=keep)
        for keep in (True, False)],
    "matmul": lambda: [tf.matmul(holder(None, 3), holder(3, 5)),
                       tf.matmul(holder(3, None), holder(3, 5), transpose_a=True),
                       tf.matmul(anything(), holder(5, 3), transpose_b=True)],
    "select": lambda: tf.where(holder(2, 1, dtype=tf.bool), holder(None, 3), holder(2, 3)),
    "add_n": lambda: [tf.add_n([holder(None, 3), holder(2, None)]),
                      tf.add_n([anything(), holder(2, 3)])],
    "convolution": lambda: [
        tf.nn.conv2d(holder(None, 8, 8, 3), holder(3, 3, 3, 16), 2, "SAME"),
        tf.nn.conv2d(holder(1, 9, None, 3), holder(3, 3, 3, 16), 2, "VALID"),
        tf.nn.conv2d(holder(1, 8, 8, 3), holder(3, 3, 3, 4), 1, [[0, 0], [1, 2], [3, 0], [0, 0]]),
        tf.nn.conv2d_transpose(holder(None, 4, 4, 8), holder(3, 3, 6, 8), [2, 8, 8, 6], 2),
        tf.nn.depthwise_conv2d(holder(None, 8, 8, 3), holder(3, 3, 3, 2), [1, 1, 1, 1], "SAME"),
        tf.nn.bias_add(holder(None, 3), holder(3))],
    "pooling": lambda: [tf.nn.max_pool2d(holder(None, 9, 9, 3), 2, 2, "VALID"),
                        tf.nn.avg_pool2d(holder(2, None, 9, 3), 3, 2, "SAME")],
    "pooling of channels": lambda: raw.MaxPool(
        input=holder(1, 8, 8, 4), ksize=[1, 1, 1, 2], strides=[1, 1, 1, 2], padding="VALID"),
    "batch norm": lambda: [tf1.nn.fused_batch_norm(holder(None, 4, 4, 3), holder(3), holder(3)),
                           tf1.nn.fused_batch_norm(holder(2, 4, 4, None), holder(3), holder(3)),
                           tf1.nn.fused_batch_norm(holder(2, 3, 4, 4), holder(3), holder(3),
                                                   data_format="NCHW")],
    "identities": lambda: [tf.identity_n([holder(2, None), holder(3)]),
                           tf.ensure_shape(holder(None, 3), [2, None]),
                           tf1.placeholder_with_default(tf.zeros([2, 3]), [None, 3])],
    "a number": lambda: tf.add(tf1.placeholder(tf.float32, []), 1.0),
    "a loop": lambda: tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, tf.tanh(x)),
                                    [0, holder(None, 3)]),
    "variables": lambda: [tf1.Variable(np.zeros((2, 3), np.float32), use_resource=resource) * 2
                          for resource in (False, True)],
}
# fmt: on


def differing(message: Any) -> dict[str, Any]:
    """By tensor, the shape as TensorFlow and as graphpatch infers it, where they differ."""
    one, two = inferred(message), ours(message)
    assert one.keys() == two.keys()
    return {name: (one[name], two[name]) for name in one if one[name] != two[name]}


def wrong(build: Case) -> dict[str, Any]:
    """Where graphpatch says more than TensorFlow of a v1 graph, or another thing."""
    with control_flow(False):
        found = differing(graph_of(build))
    return {name: pair for name, pair in found.items() if contradicts(*pair)}


@pytest.mark.parametrize("case", CASES)
def test_a_shape_is_the_one_that_tensorflow_infers(case: str) -> None:
    if case in NARROWER:
        assert wrong(CASES[case]) == {}
    else:
        with control_flow(False):
            assert differing(graph_of(CASES[case])) == {}


@pytest.mark.every(4)
@pytest.mark.parametrize("case", CASES)
def test_a_shape_of_a_gradient_is_too(case: str) -> None:
    """Training graphs have ops that put shapes together, and ops of gradients alone."""

    def build() -> None:
        made = [one for one in tf.nest.flatten(CASES[case]()) if one.dtype == tf.float32]
        graph = tf1.get_default_graph()
        sources = [op.outputs[0] for op in graph.get_operations() if op.type == "Placeholder"]
        tf1.gradients(made, [one for one in sources if one.dtype == tf.float32])

    assert wrong(build) == {}


def contradicts(right: list[int | None] | None, mine: list[int | None] | None) -> bool:
    """Whether graphpatch says more than TensorFlow, or another thing; less is no fault."""
    if mine is None:
        return False
    return (
        right is None
        or len(right) != len(mine)
        or any(two is not None and one != two for one, two in zip(right, mine, strict=True))
    )


def test_strided_slices_of_all_kinds() -> None:
    chosen = random.Random(3)

    def piece() -> Any:
        kind = chosen.randrange(5)
        if kind == 0:
            return chosen.randrange(-2, 2)
        if kind == 1:
            return tf.newaxis
        ends = [chosen.choice([None, *range(-4, 5)]) for _ in range(2)]
        return slice(*ends, chosen.choice([None, 1, 2, -1, -2]))

    def build() -> None:
        for _ in range(300):
            sizes = [chosen.choice([None, 2, 3, 5]) for _ in range(chosen.randrange(1, 4))]
            used = [piece() for _ in range(chosen.randrange(1, len(sizes) + 1))]
            if chosen.random() < 0.3:
                used.insert(chosen.randrange(len(used) + 1), Ellipsis)
            _ = holder(*sizes)[tuple(used)]

    assert wrong(build) == {}
    assert sum(shape is not None for shape in ours(graph_of(build)).values()) > 400  # of 600


@pytest.mark.parametrize("producer", [0, 21, 22, 1286])
def test_a_placeholder_without_sizes_is_a_number_in_new_graphs_alone(producer: int) -> None:
    def build() -> None:
        x = tf1.placeholder(tf.float32, [])
        raw.VariableV2(shape=[], dtype=tf.float32)
        tf.tanh(x)

    message = graph_of(build)
    message.versions.producer = producer
    assert differing(message) == {}
    assert (ours(message)["Tanh:0"] is None) is (producer < 22)

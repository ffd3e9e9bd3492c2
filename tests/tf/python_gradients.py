"""Gradient functions of TensorFlow's convention, as a user of graphpatch has them in a module."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

WEIGHTS = tf.Variable([1.0, 2.0], name="weights")
NUMBERS = tf.ones([1000])  # fewer than 129 become a constant of the function


def guided(op: Any, dy: Any) -> Any:
    """Guided backprop, and the input as a factor so that all three are read."""
    return tf.where((dy > 0.0) & (op.outputs[0] > 0.0), dy, tf.zeros_like(dy)) * op.inputs[0]


def clipped(_: Any, dy: Any) -> Any:
    return tf.clip_by_value(dy, -0.5, 0.5)


def twice(_: Any, dy: Any) -> Any:
    return [dy + dy]


def leaky(op: Any, dy: Any) -> Any:
    return dy * op.get_attr("alpha")


def weighted(op: Any, dy: Any) -> list[Any]:
    """Of a product: the second factor gets none."""
    return [dy * op.inputs[1], None]


def of_type_and_name(op: Any, dy: Any) -> Any:
    assert op.get_attr("T") is tf.float32
    return dy * float(len(op.type) + 10 * len(op.name))


def of_three(op: Any, *upstream: Any) -> list[Any]:
    """Of a Split: an axis that gets none, and a tensor that gets all three, scaled."""
    assert (len(op.inputs), len(op.outputs)) == (2, 3)
    assert op.get_attr("num_split") == 3
    return [None, tf.concat([upstream[0], 2.0 * upstream[1], 3.0 * upstream[2]], op.inputs[0])]


def of_top_k(op: Any, dy: Any, indices: Any) -> list[Any]:
    """Of a TopKV2, whose second output carries no gradient."""
    assert indices is None
    assert op.outputs[1].dtype == tf.int32
    return [tf.zeros_like(op.inputs[0]) + tf.reduce_sum(dy), None]


def sliced(op: Any, dy: Any) -> list[Any]:
    """Of a GatherV2, as TensorFlow's own: IndexedSlices."""
    shape = tf.shape(op.inputs[0], out_type=tf.int64)
    return [tf.IndexedSlices(dy, op.inputs[1], shape), None, None]


@tf.function
def product(a: Any, b: Any) -> Any:
    return a * b


def with_control_flow(op: Any, dy: Any) -> Any:
    """Calls a tf.function, a While and an If."""
    z = product(op.inputs[0], dy)
    _, z = tf.while_loop(lambda i, _: i < 3, lambda i, z: (i + 1, z * 2.0), [0, z])
    return tf.cond(tf.reduce_sum(z) > 0.0, lambda: z * op.inputs[0], lambda: z)


def newer(op: Any, dy: Any) -> Any:
    return dy * tf.raw_ops.Ndtri(x=op.inputs[0])


def too_many(_: Any, dy: Any) -> list[Any]:
    return [dy, dy]


def nothing(_: Any, dy: Any) -> None:
    return None


def failing(op: Any, dy: Any) -> Any:
    return dy * op.inputs[7]


def of_another_dtype(_: Any, dy: Any) -> Any:
    return tf.cast(dy, tf.float64)


def captures_a_variable(_: Any, dy: Any) -> Any:
    return dy * WEIGHTS


def captures_a_tensor(_: Any, dy: Any) -> Any:
    return dy * tf.reduce_sum(NUMBERS)


def asks_for_the_graph(op: Any, dy: Any) -> Any:
    return dy * len(op.graph.get_operations())

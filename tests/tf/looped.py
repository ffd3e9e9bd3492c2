"""A graph with tensors before, in, between and behind a v1 loop and a v1 branch."""

from __future__ import annotations

from typing import Any


def looped() -> Any:
    """From x, float32 [2], by h, z and w to the scalar `loss`; contexts and all."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    tf1.disable_control_flow_v2()
    try:
        with tf1.Graph().as_default() as graph:
            x = tf1.placeholder(tf.float32, [2], name="x")
            h = tf.tanh(x, name="h")
            _, y = tf1.while_loop(
                lambda k, _: k < 3, lambda k, y: (k + 1, tf.sin(y * h)), [tf.constant(0), h]
            )
            z = tf.identity(y, name="z")
            w = tf1.cond(tf.reduce_sum(z) > 0, lambda: tf.exp(z), lambda: z * z)
            tf.reduce_sum(tf.identity(w, name="w"), name="loss")
    finally:
        tf1.enable_control_flow_v2()
    return graph

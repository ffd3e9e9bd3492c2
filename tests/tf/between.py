"""What lies between gradient and update in training graphs: averages, sums, towers, loss scales."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

tf1 = tf.compat.v1


def _descent() -> Any:
    return tf1.train.GradientDescentOptimizer(0.05)


def of_weights(loss: Any, held: list[Any]) -> Any:
    """Moving averages of the weights after each step, and a rate that decays."""
    step = tf1.train.get_or_create_global_step()
    rate = tf1.train.polynomial_decay(0.05, step, 10, 0.001)
    done = tf1.train.RMSPropOptimizer(rate).minimize(loss, step, var_list=held)
    with tf.control_dependencies([done]):
        return tf1.train.ExponentialMovingAverage(0.9, step).apply(held)


def of_gradients(loss: Any, held: list[Any]) -> Any:
    """The optimizer reads moving averages of the gradients, whose variables are named as these."""
    pairs = _descent().compute_gradients(loss, held)
    average = tf1.train.ExponentialMovingAverage(0.9)
    with tf.control_dependencies([average.apply([gradient for gradient, _ in pairs])]):
        return _descent().apply_gradients([(average.average(g), v) for g, v in pairs])


def accumulated(loss: Any, held: list[Any]) -> Any:
    """Gradients are summed in variables; each second step is one of Adam, in a branch."""
    optimizer = tf1.train.AdamOptimizer(0.05)
    pairs = optimizer.compute_gradients(loss, held)
    sums = [tf1.Variable(tf.zeros(v.shape), trainable=False) for _, v in pairs]
    added = [tf1.assign_add(one, g) for one, (g, _) in zip(sums, pairs, strict=True)]
    with tf.control_dependencies(added):
        count = tf1.assign_add(tf1.train.get_or_create_global_step(), 1)

    def update() -> Any:
        read = [(one * 1.0, v) for one, v in zip(sums, held, strict=True)]
        with tf.control_dependencies([optimizer.apply_gradients(read)]):
            return tf.group(*(tf1.assign(one, tf.zeros(one.shape)) for one in sums))

    with tf.control_dependencies([count]):
        return tf.cond(tf.equal(count % 2, 0), update, tf.no_op)


def towers(loss: Any, held: list[Any]) -> Any:
    """Two towers with half of the batch each; their gradients are averaged."""
    named = tf1.get_default_graph().get_tensor_by_name
    x, label, towers = named("x:0"), named("label:0"), []
    for place in range(2):
        with tf1.name_scope(f"tower_{place}"):
            hidden = tf.tanh(tf.nn.bias_add(tf.matmul(x[place::2], held[0]), held[1]))
            error = tf.square(tf.matmul(hidden, held[2]) - label[place::2])
            of = tf.reduce_mean(error) + 0.5 * loss
            towers.append(_descent().compute_gradients(of, held))
    means = [
        (tf.reduce_mean(tf.stack([gradient for gradient, _ in pairs]), 0), pairs[0][1])
        for pairs in zip(*towers, strict=True)
    ]
    return _descent().apply_gradients(means)


def loss_scale(loss: Any, held: list[Any]) -> Any:
    """The loss is scaled by a variable that grows as long as all gradients are finite."""
    scale = tf1.Variable(8.0, trainable=False, name="scale")
    pairs = _descent().compute_gradients(loss * scale, held)
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient, _ in pairs])
    done = _descent().apply_gradients([(gradient / scale, v) for gradient, v in pairs])
    with tf.control_dependencies([done]):
        return tf1.assign(scale, tf.cond(finite, lambda: scale * 2.0, lambda: scale / 2.0))


def two_losses(loss: Any, held: list[Any]) -> Any:
    """Gradients of two calls of tf.gradients, added."""
    other = loss + tf.reduce_sum(tf.abs(held[0]))
    pairs = zip(tf.gradients(loss, held), tf.gradients(other, held), held, strict=True)
    return _descent().apply_gradients([(one + 0.1 * two, v) for one, two, v in pairs])


def penalty(loss: Any, held: list[Any]) -> Any:
    """A gradient penalty: the loss is computed from a gradient."""
    [dx] = tf.gradients(loss, tf1.get_default_graph().get_tensor_by_name("x:0"))
    return _descent().minimize(loss + 0.1 * tf.reduce_sum(tf.square(dx)), var_list=held)


def logged(loss: Any, held: list[Any]) -> Any:
    """The gradient of something inside is read by who does not train."""
    pairs = _descent().compute_gradients(loss, [*held, loss.op.inputs[0]])
    tf.norm(pairs[-1][0], name="logged")
    return _descent().apply_gradients(pairs[:-1])

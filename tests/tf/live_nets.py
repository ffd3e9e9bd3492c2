"""A net with much beside its ops: variables of both kinds, a queue, savers, tables, contexts."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1


def net(resource: bool = True) -> None:
    """A seeded regression net with dropout: placeholder `x`, loss `loss`."""
    tf1.set_random_seed(7)
    x = tf1.placeholder(tf.float32, [None, 4], name="x")
    target = tf1.placeholder(tf.float32, [None, 1], name="target")
    with tf1.variable_scope("net", use_resource=resource):
        hidden = x
        for place, width in enumerate((8, 8, 1)):
            with tf1.variable_scope(f"layer{place}"):
                w = tf1.get_variable("w", [hidden.shape[1], width])
                b = tf1.get_variable("b", [width], initializer=tf1.zeros_initializer())
            hidden = tf.matmul(hidden, w) + b
            if width > 1:
                hidden = tf1.nn.dropout(tf.nn.relu(hidden, name=f"relu{place}"), rate=0.2)
    tf.reduce_mean(tf.square(hidden - target), name="loss")


def train(graph: Any, steps: int) -> list[np.ndarray]:
    """Train with momentum, and return the trained variables.

    The variables are found in the collection, as TensorFlow's optimizers find them.
    """
    with graph.as_default():
        loss = graph.get_tensor_by_name("loss:0")
        step = tf1.train.MomentumOptimizer(0.05, 0.9).minimize(loss)
        trained = sorted(tf1.trainable_variables(), key=lambda one: one.name)
        init = tf1.global_variables_initializer()
    generator = np.random.default_rng(0)
    with tf1.Session(graph=graph) as running:
        running.run(init)
        for _ in range(steps):
            x = generator.normal(size=[16, 4])
            running.run(step, {"x:0": x, "target:0": x.sum(axis=1, keepdims=True)})
        found: list[np.ndarray] = running.run(trained)
    return found


class Marker:
    """Something of the user's that TensorFlow knows nothing of, and that is of a graph."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.held = {"x": [graph.get_tensor_by_name("x:0")]}


def furnished() -> None:
    """A graph that holds all kinds of things beside its ops."""
    net()
    x = tf1.get_default_graph().get_tensor_by_name("x:0")
    tf1.summary.scalar("loss_summary", tf1.get_default_graph().get_tensor_by_name("loss:0"))
    reference = tf1.get_variable("reference", [], use_resource=False, trainable=False)
    local = tf1.get_variable(
        "local", [], collections=[tf1.GraphKeys.LOCAL_VARIABLES], trainable=False
    )
    tf1.add_to_collection("mine", reference)
    tf1.add_to_collection("mine", x)
    tf1.add_to_collection("mine", {"pair": (x, local), "number": x.op})
    tf1.add_to_collection("numbers", 3)
    tf1.add_to_collection("numbers", "text")
    tf1.add_to_collection("sparse", tf.SparseTensor([[0, 0]], [1.0], [2, 2]))
    tf1.add_to_collection("markers", Marker(tf1.get_default_graph()))
    with tf.device("/cpu:0"):
        tf.identity(x, name="placed")
    with tf1.colocate_with(reference):
        tf.identity(x, name="beside")
    queue = tf1.FIFOQueue(10, tf.float32, shapes=[], name="queue")
    runner = tf1.train.QueueRunner(queue, [queue.enqueue(tf.constant(2.5))])
    tf1.train.add_queue_runner(runner)
    tf.identity(queue.dequeue(), name="dequeued")
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(["a", "b"], [1.0, 2.0]), -1.0
    )
    tf.identity(table.lookup(tf.constant(["b", "c"])), name="looked_up")
    tf.identity(tf.numpy_function(lambda: np.float32(4.0), [], tf.float32), name="from_python")
    iterator = tf1.data.make_initializable_iterator(tf.data.Dataset.range(3))
    tf.identity(iterator.get_next(), name="next")
    with tf1.variable_scope("parts", partitioner=tf1.fixed_size_partitioner(2)):
        tf1.get_variable("split", [4], use_resource=False)
    saver = tf1.train.Saver(name="keeper")
    tf1.add_to_collection(tf1.GraphKeys.SAVERS, saver)
    static = tf1.placeholder_with_default(np.zeros([2, 3], np.float32), None, name="shaped")
    static.set_shape([None, 3])

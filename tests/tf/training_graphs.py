"""Training graphs with their optimizer inside, and what they reach in so many steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

STEPS = 20
SEED = 3
SIZE = 6

RULES = [
    {
        "match": {"name": "features"},
        "patch": {"filter_gradient": {"reverse": {"strength": 0.3}}},
        "expect": 1,
    }
]

Optimize = Callable[[Any, list[Any]], Any]


def batches() -> Iterator[dict[str, np.ndarray]]:
    random = np.random.default_rng(SEED)
    for _ in range(STEPS):
        x = random.normal(size=(4, SIZE)).astype(np.float32)
        yield {"x:0": x, "label:0": x.sum(1, keepdims=True)}


def variables(use_resource: bool) -> list[Any]:
    import tensorflow as tf

    tf1 = tf.compat.v1
    random = np.random.default_rng(SEED)
    return [
        tf1.Variable(
            random.normal(size=size).astype(np.float32), name=name, use_resource=use_resource
        )
        for name, size in (("one", (SIZE, SIZE)), ("bias", (SIZE,)), ("two", (SIZE, 1)))
    ]


def net(x: Any, held: list[Any], identity: Callable[[Any], Any]) -> Any:
    """A prediction; its `features` are where the rules reverse the gradient."""
    import tensorflow as tf

    hidden = tf.nn.bias_add(tf.matmul(x, held[0]), held[1])
    features = identity(tf.tanh(hidden))
    return tf.matmul(features, held[2]) + 0.1 * tf.reduce_sum(hidden, 1, keepdims=True)


def looped(x: Any, held: list[Any], identity: Callable[[Any], Any]) -> Any:
    """The same with a v1 loop before the features."""
    import tensorflow as tf

    def body(step: Any, x: Any) -> tuple[Any, Any]:
        return step + 1, tf.tanh(tf.matmul(x, held[0]))

    _, after = tf.while_loop(lambda step, _: step < 3, body, [0, x])
    return net(after, held, identity)


def embedded(x: Any, held: list[Any], identity: Callable[[Any], Any]) -> Any:
    """The same, rows of a variable looked up: its gradient is sparse."""
    import tensorflow as tf

    rows = tf.cast(tf.abs(x), tf.int32) % SIZE
    return net(tf.reduce_mean(tf.nn.embedding_lookup(held[0], rows), 1), held, identity)


def descent(loss: Any, held: list[Any]) -> Any:
    import tensorflow as tf

    return tf.compat.v1.train.GradientDescentOptimizer(0.05).minimize(loss, var_list=held)


def momentum(loss: Any, held: list[Any]) -> Any:
    """Each gradient clipped by its own norm, with a rate that decays."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    step = tf1.train.get_or_create_global_step()
    rate = tf1.train.exponential_decay(0.05, step, 5, 0.5)
    optimizer = tf1.train.MomentumOptimizer(rate, 0.9)
    pairs = optimizer.compute_gradients(loss, held)
    clipped = [(tf.clip_by_norm(gradient, 0.5), variable) for gradient, variable in pairs]
    return optimizer.apply_gradients(clipped, step)


def adam(loss: Any, held: list[Any]) -> Any:
    """All gradients clipped by their norm together."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    optimizer = tf1.train.AdamOptimizer(0.05)
    gradients, wrt = zip(*optimizer.compute_gradients(loss, held), strict=True)
    clipped, _ = tf.clip_by_global_norm(gradients, 1.0)
    return optimizer.apply_gradients(zip(clipped, wrt, strict=True))


def by_hand(loss: Any, held: list[Any]) -> Any:
    import tensorflow as tf

    tf1 = tf.compat.v1
    found = tf1.gradients(loss, held)
    # A reference variable may be changed while another gradient still reads it.
    with tf.control_dependencies(found):
        found = [tf.identity(dw) for dw in found]
    return tf.group(*(tf1.assign_sub(w, 0.05 * dw) for w, dw in zip(held, found, strict=True)))


def built(
    forward: Callable[..., Any], optimize: Optimize, use_resource: bool, key: str = ""
) -> bytes:
    """The MetaGraphDef; `key` overrides the gradient of `features` as it is built."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    with tf1.Graph().as_default() as graph:
        tf1.set_random_seed(SEED)
        held = variables(use_resource)
        x = tf1.placeholder(tf.float32, [None, SIZE], name="x")
        label = tf1.placeholder(tf.float32, [None, 1], name="label")

        def identity(x: Any) -> Any:
            with graph.gradient_override_map({"Identity": key} if key else {}):
                return tf.identity(x, name="features")

        y = forward(x, held, identity)
        loss = tf.reduce_mean(tf.square(y - label), name="loss")
        tf.group(optimize(loss, held), name="train")
        tf.group(tf1.global_variables_initializer(), name="start")
        return bytes(tf1.train.export_meta_graph(graph=graph).SerializeToString())


def losses(meta: bytes) -> list[bytes]:
    """The bits of the loss before each step.

    TensorFlow does not order the update of a reference variable and other ops that read it. So
    one run in many differs from the others: what two of them agree on is given.
    """
    runs = [_losses(meta)]
    while b"VariableV2" in meta:
        runs.append(_losses(meta))
        if runs[-1] in runs[:-1]:
            break
        assert len(runs) < 5, "no two runs agree"
    return runs[-1]


def _losses(meta: bytes) -> list[bytes]:
    import tensorflow as tf

    tf1 = tf.compat.v1
    config = tf1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    with tf1.Graph().as_default() as graph, tf1.Session(config=config) as session:
        tf1.train.import_meta_graph(tf1.MetaGraphDef.FromString(meta))
        session.run(graph.get_operation_by_name("start"))
        train = graph.get_operation_by_name("train")
        return [session.run(["loss:0", train], feeds)[0].tobytes() for feeds in batches()]

"""Build random graphs of TensorFlow 1, for questions to graphpatch that nobody has asked before.

    python scripts/models/build_random.py FOLDER --seed 1 --count 40

Each has layers of random kinds over a placeholder: dense, activations and step functions, branches
and loops of TensorFlow 1, recurrent cells over a TensorArray, lookups; and a loss. Half of them
have the gradients of the loss and an update. They are written as MetaGraphs with and without the
shapes that TensorFlow inferred, as GraphDefs, and as SavedModels. The same seed gives the same
graphs. Works under TensorFlow 1.15 (Python 3.7) and 2.x.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

UNITS = 4


def tf1() -> Any:
    import tensorflow as tf

    return tf.compat.v1


def weights(rows: int, columns: int) -> Any:
    """Return a variable of its own; of either kind."""
    with tf1().init_scope():  # outside of the loop or branch that is being built
        start = tf1().random_normal([rows, columns], seed=1)
        return tf1().Variable(start, use_resource=rows % 2 == 0)


def dense(x: Any, rng: random.Random) -> Any:
    return tf1().matmul(x, weights(UNITS, UNITS)) + weights(1, UNITS)


def activation(x: Any, rng: random.Random) -> Any:
    names = "relu tanh sigmoid softplus elu relu6 selu".split()
    return getattr(tf1().nn, rng.choice(names))(x)


def step(x: Any, rng: random.Random) -> Any:
    """Return what stops a gradient, in whole or in part."""
    v1 = tf1()
    kinds: list[Callable[[Any], Any]] = [
        v1.round,
        v1.sign,
        v1.floor,
        v1.stop_gradient,
        lambda one: v1.cast(v1.cast(one, v1.int32), v1.float32),
        lambda one: v1.where(one > 0.0, one, v1.zeros_like(one)),
        lambda one: v1.cast(one > 0.0, v1.float32) * one,
    ]
    return rng.choice(kinds)(x)


def branch(x: Any, rng: random.Random) -> Any:
    v1, inner = tf1(), rng.choice([activation, step, dense])
    return v1.cond(v1.reduce_sum(x) > 0.0, lambda: inner(x, rng), lambda: x * 2.0)


def loop(x: Any, rng: random.Random) -> Any:
    """Return a loop over a counter, or until a sum is large; its body is a layer."""
    v1, inner, by_sum = tf1(), rng.choice([activation, step, branch]), rng.random() < 0.3
    w = weights(UNITS, UNITS)

    def going_on(i: Any, state: Any) -> Any:
        return v1.logical_and(i < 3, v1.reduce_sum(state) < 9.0) if by_sum else i < 3

    def body(i: Any, state: Any) -> Any:
        return i + 1, inner(v1.matmul(state, w), rng)

    start = (v1.constant(0), x)
    return v1.while_loop(going_on, body, start, back_prop=rng.random() < 0.9)[1]


def recurrent(x: Any, rng: random.Random) -> Any:
    """Return a cell over the rows of x, which are kept in TensorArrays."""
    v1, w, u = tf1(), weights(UNITS, UNITS), weights(UNITS, UNITS)
    count = v1.shape(x)[0]
    rows = v1.TensorArray(v1.float32, size=count, clear_after_read=False).unstack(x)
    out = v1.TensorArray(v1.float32, size=count)
    squash = rng.choice([v1.tanh, v1.sigmoid, v1.nn.relu])

    def body(i: Any, state: Any, written: Any) -> Any:
        row = v1.reshape(rows.read(i), [1, UNITS])
        new = squash(v1.matmul(row, w) + v1.matmul(state, u))
        return i + 1, new, written.write(i, v1.reshape(new, [UNITS]))

    begin = (v1.constant(0), v1.zeros([1, UNITS]), out)
    found = v1.while_loop(lambda i, state, written: i < count, body, begin)
    return found[1] if rng.random() < 0.3 else found[2].stack()


def lookup(x: Any, rng: random.Random) -> Any:
    v1 = tf1()
    rows = v1.gather(weights(7, UNITS), v1.argmax(x, 1))
    return x + rows if rng.random() < 0.5 else rows


LAYERS = (dense, dense, activation, activation, step, branch, loop, loop, recurrent, lookup)


def build(seed: int) -> Any:
    """Return the graph of a seed, with its rng to go on with."""
    v1, rng = tf1(), random.Random(seed)
    graph = v1.Graph()
    with graph.as_default():
        rows = rng.choice([None, 3])
        x = v1.placeholder(v1.float32, [rows, UNITS], name="x")
        scale = v1.placeholder_with_default(v1.constant(1.0), [], name="scale")
        found = x
        for _ in range(rng.randint(2, 6)):
            found = rng.choice(LAYERS)(found, rng)
        loss = v1.reduce_sum(v1.square(found) * scale, name="loss")
        variables = v1.trainable_variables()
        if variables and rng.random() < 0.5:
            found = v1.gradients(loss, [x, *variables])
            pairs = [(g, v) for g, v in zip(found[1:], variables) if g is not None]
            if pairs:
                v1.train.GradientDescentOptimizer(0.1).apply_gradients(pairs)
    return graph


def write(graph: Any, seed: int, folder: Path) -> None:
    """In the form that its seed has: a MetaGraph, one without shapes, a GraphDef, a SavedModel."""
    v1 = tf1()
    with graph.as_default():
        if seed % 4 == 3:
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                ends = [graph.get_tensor_by_name(name) for name in ("x:0", "loss:0")]
                target = str(folder / f"random-{seed}")
                v1.saved_model.simple_save(session, target, {"x": ends[0]}, {"loss": ends[1]})
            return
        meta = v1.train.export_meta_graph()
    if seed % 4 == 1:
        for node in meta.graph_def.node:
            node.attr.pop("_output_shapes", None)
    message = meta.graph_def if seed % 4 == 2 else meta
    suffix = ".pb" if seed % 4 == 2 else ".meta"
    (folder / f"random-{seed}{suffix}").write_bytes(message.SerializeToString())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1, help="of the first graph")
    parser.add_argument("--count", type=int, default=20)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    tf1().disable_control_flow_v2()
    for seed in range(args.seed, args.seed + args.count):
        write(build(seed), seed, args.folder)


if __name__ == "__main__":
    main()

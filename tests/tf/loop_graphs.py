"""v1 loops and branches as TensorFlow builds them: functions of two floats x and w.

As a script, in whatever TensorFlow there is, 1.15 (Python 3.7) included: loop_graphs.py write
FOLDER writes each as a MetaGraphDef, loop_graphs.py answer FOLDER differentiates those in there.
"""
# ruff: noqa: ANN001, ANN003, ANN201, ANN202

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def repeat(tf1, body, x, times=3, name="loop", **options):
    def step(number, y):
        return number + 1, body(y)

    return tf1.while_loop(lambda number, _: number < times, step, (0, x), name=name, **options)[1]


def counted(tf1, x, w):
    return repeat(tf1, lambda y: tf1.tanh(y * w), x)


def bounded(tf1, x, w):
    return repeat(tf1, lambda y: tf1.tanh(y * w), x, maximum_iterations=2, parallel_iterations=3)


def bounded_by_hand(tf1, x, w):
    def goes_on(number, y):
        return tf1.logical_and(number < 4, y < 9.0)

    return tf1.while_loop(goes_on, lambda n, y: (n + 1, tf1.tanh(y * w)), (0, x))[1]


def data_dependent(tf1, x, w):
    return tf1.while_loop(lambda y: tf1.abs(y) < 3.0, lambda y: y * (w + 1.0) + 0.3, [x])


def several_variables(tf1, x, w):
    def step(number, y, z):
        return number + 1, tf1.tanh(y * w + z), z * x

    found = tf1.while_loop(lambda number, y, z: number < 4, step, (0, x, w))
    return found[1] + tf1.to_float(found[0])


def nested(tf1, x, w):
    def inner(y):
        return repeat(tf1, lambda z: tf1.tanh(z * w + x), y * w, 2, "inner")

    return repeat(tf1, lambda y: tf1.sin(inner(y)), x)


def nested_thrice(tf1, x, w):
    def inner(y):
        return repeat(tf1, lambda z: tf1.sin(z + w), y, 2, "inner")

    def middle(y):
        return repeat(tf1, lambda z: tf1.tanh(inner(z) * x), y, 2, "middle")

    return repeat(tf1, lambda y: tf1.cos(middle(y) * w), x, 2)


def branch(tf1, x, w):
    return tf1.cond(x > 0.0, lambda: tf1.tanh(x * w), lambda: tf1.sin(x * w))


def branch_that_passes_on(tf1, x, w):
    return tf1.cond(x > 0.0, lambda: x, lambda: x * w) * w


def branch_of_constants(tf1, x, w):
    return tf1.cond(x > 0.0, lambda: tf1.constant(2.0), lambda: tf1.constant(3.0)) * x * w


def branches_of_one_predicate(tf1, x, w):
    pred = x > 0.0
    y = tf1.cond(pred, lambda: tf1.tanh(x), lambda: tf1.sin(x))
    z = tf1.cond(pred, lambda: tf1.constant(2.0), lambda: w * y)
    return tf1.cond(pred, lambda: y * z, lambda: z) * w


def inner_branch(tf1, x, y, w):
    return tf1.cond(w > 0.5, lambda: tf1.sin(y) * w, lambda: x)


def branch_in_branch(tf1, x, w):
    return tf1.cond(x > 0.0, lambda: inner_branch(tf1, x, x, w), lambda: tf1.sin(x * w)) + w


def case(tf1, x, w):
    pairs = [(x > 1.0, lambda: x * w), (x > 0.0, lambda: tf1.sin(x * w))]
    return tf1.case(pairs, default=lambda: tf1.tanh(x) * w)


def repeated_branch(tf1, x, w, yes):
    """In each step, what `yes` makes of y where it is large."""
    return repeat(tf1, lambda y: tf1.cond(y > 0.2, lambda: yes(y), lambda: tf1.sin(y * w)) * w, x)


def branch_in_loop(tf1, x, w):
    return repeated_branch(tf1, x, w, lambda y: tf1.tanh(y * w))


def branch_that_passes_on_in_loop(tf1, x, w):
    return repeat(tf1, lambda y: tf1.cond(y > 0.2, lambda: y, lambda: x * w) * w, x)


def branches_in_branches_in_loop(tf1, x, w):
    return repeated_branch(tf1, x, w, lambda y: inner_branch(tf1, x, y, w))


def loop_in_branch(tf1, x, w):
    return tf1.cond(x > 0.0, lambda: counted(tf1, x, w), lambda: tf1.sin(x * w))


def loop_in_branch_in_loop(tf1, x, w):
    def inner(y):
        return repeat(tf1, lambda z: tf1.tanh(z * w), y, 2, "inner") + x

    return repeated_branch(tf1, x, w, inner)


def steps(tf1, x, w):
    return tf1.reshape(tf1.stack([x, 2.0 * x, x * w, w, 0.3 + x, w]), [1, 3, 2])


def scan(tf1, x, w):
    found = tf1.scan(lambda y, one: tf1.tanh(y * w + one), steps(tf1, x, w)[0], tf1.zeros([2]))
    return tf1.reduce_sum(found)


def map_fn(tf1, x, w):
    return tf1.reduce_sum(tf1.map_fn(lambda one: tf1.sin(one * w), steps(tf1, x, w)[0]))


def recurrent(tf1, x, w):
    """What tf.nn.dynamic_rnn makes: TensorArrays, a bound, and a cond where lengths are given."""
    arrays = [tf1.TensorArray(tf1.float32, 3) for _ in "io"]
    read = arrays[0].unstack(tf1.transpose(steps(tf1, x, w), [1, 0, 2]))

    def step(time, out, state):
        moved = lambda: tf1.tanh(read.read(time) + state * w)  # noqa: E731
        state = tf1.cond(time < 2, moved, lambda: state)
        return time + 1, out.write(time, state), state

    start = (tf1.constant(0), arrays[1], tf1.zeros([1, 2]) + x)
    found = tf1.while_loop(lambda time, *_: time < 3, step, start, maximum_iterations=3)
    return tf1.reduce_sum(found[1].stack()) + tf1.reduce_sum(found[2])


GRAPHS = (
    *(counted, bounded, bounded_by_hand, data_dependent, several_variables, nested, nested_thrice),
    *(branch, branch_that_passes_on, branch_of_constants, branches_of_one_predicate),
    *(branch_in_branch, case, branch_in_loop, branch_that_passes_on_in_loop),
    *(branches_in_branches_in_loop, loop_in_branch, loop_in_branch_in_loop, scan, map_fn),
    *(recurrent,),
)
FEEDS = ((0.3, 0.9), (-0.3, 0.9), (1.4, 0.2))


def built(tf1, build):
    """The MetaGraphDef of one of them: placeholders x and w, and what it gives as y."""
    with tf1.Graph().as_default():
        x, w = (tf1.placeholder(tf1.float32, [], name=name) for name in "xw")
        tf1.identity(build(tf1, x, w), name="y")
        return tf1.train.export_meta_graph()


def answers(tf1, graph):
    """y of the graph and its gradients by x and w, for each of the feeds."""
    y, x, w = (graph.get_tensor_by_name(name + ":0") for name in "yxw")
    with graph.as_default():
        found = [y, *tf1.gradients(y, [x, w])]
    assert None not in found, found
    with tf1.Session(graph=graph) as session:
        return [session.run(found, {x: one, w: other}) for one, other in FEEDS]


if __name__ == "__main__":
    import numpy
    import tensorflow

    tf1, folder = tensorflow.compat.v1, Path(sys.argv[2])
    tf1.disable_control_flow_v2()
    if sys.argv[1] == "write":
        for one in GRAPHS:
            path = folder / (one.__name__ + ".meta")
            path.write_bytes(built(tf1, one).SerializeToString())
    else:
        found = {}
        for path in folder.glob("*.meta"):
            with tf1.Graph().as_default() as graph:
                tf1.train.import_meta_graph(str(path))
            found[path.stem] = answers(tf1, graph)
        assert not [name for name in sys.modules if name.startswith("graphpatch")]
        numpy.savez(str(folder / "answers.npz"), **found)

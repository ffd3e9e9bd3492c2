"""v1 loops and branches as TensorFlow builds them: functions of two floats x and w.

As a script, in whatever TensorFlow there is, 1.15 (Python 3.7) included: loop_graphs.py write
FOLDER writes each as a MetaGraphDef, loop_graphs.py answer FOLDER differentiates those in there.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def repeat(tf1, body, x, times=3, name="loop", **options):  # noqa: ANN001, ANN003, ANN201
    def step(number, y):  # noqa: ANN001, ANN202
        return number + 1, body(y)

    return tf1.while_loop(lambda number, _: number < times, step, (0, x), name=name, **options)[1]


def counted(tf1, x, w):  # noqa: ANN001, ANN201
    return repeat(tf1, lambda y: tf1.tanh(y * w), x)


def bounded(tf1, x, w):  # noqa: ANN001, ANN201
    return repeat(tf1, lambda y: tf1.tanh(y * w), x, maximum_iterations=2, parallel_iterations=3)


def bounded_by_hand(tf1, x, w):  # noqa: ANN001, ANN201
    def goes_on(number, y):  # noqa: ANN001, ANN202
        return tf1.logical_and(number < 4, y < 9.0)

    return tf1.while_loop(goes_on, lambda n, y: (n + 1, tf1.tanh(y * w)), (0, x))[1]


def data_dependent(tf1, x, w):  # noqa: ANN001, ANN201
    return tf1.while_loop(lambda y: tf1.abs(y) < 3.0, lambda y: y * (w + 1.0) + 0.3, [x])


def several_variables(tf1, x, w):  # noqa: ANN001, ANN201
    def step(number, y, z):  # noqa: ANN001, ANN202
        return number + 1, tf1.tanh(y * w + z), z * x

    found = tf1.while_loop(lambda number, y, z: number < 4, step, (0, x, w))
    return found[1] + tf1.to_float(found[0])


def nested(tf1, x, w):  # noqa: ANN001, ANN201
    def inner(y):  # noqa: ANN001, ANN202
        return repeat(tf1, lambda z: tf1.tanh(z * w + x), y * w, 2, "inner")

    return repeat(tf1, lambda y: tf1.sin(inner(y)), x)


def nested_thrice(tf1, x, w):  # noqa: ANN001, ANN201
    def inner(y):  # noqa: ANN001, ANN202
        return repeat(tf1, lambda z: tf1.sin(z + w), y, 2, "inner")

    def middle(y):  # noqa: ANN001, ANN202
        return repeat(tf1, lambda z: tf1.tanh(inner(z) * x), y, 2, "middle")

    return repeat(tf1, lambda y: tf1.cos(middle(y) * w), x, 2)


def branch(tf1, x, w):  # noqa: ANN001, ANN201
    return tf1.cond(x > 0.0, lambda: tf1.tanh(x * w), lambda: tf1.sin(x * w))


def branch_that_passes_on(tf1, x, w):  # noqa: ANN001, ANN201
    return tf1.cond(x > 0.0, lambda: x, lambda: x * w) * w


def branch_of_constants(tf1, x, w):  # noqa: ANN001, ANN201
    chosen = tf1.cond(x > 0.0, lambda: tf1.constant(2.0), lambda: tf1.constant(3.0))
    return chosen * x * w


def branches_of_one_predicate(tf1, x, w):  # noqa: ANN001, ANN201
    pred = x > 0.0
    y = tf1.cond(pred, lambda: tf1.tanh(x), lambda: tf1.sin(x))
    z = tf1.cond(pred, lambda: tf1.constant(2.0), lambda: w * y)
    return tf1.cond(pred, lambda: y * z, lambda: z) * w


def branch_in_branch(tf1, x, w):  # noqa: ANN001, ANN201
    def inner():  # noqa: ANN202
        return tf1.cond(w > 0.5, lambda: tf1.sin(x) * w, lambda: x)

    return tf1.cond(x > 0.0, inner, lambda: tf1.sin(x * w)) + w


def case(tf1, x, w):  # noqa: ANN001, ANN201
    pairs = [(x > 1.0, lambda: x * w), (x > 0.0, lambda: tf1.sin(x * w))]
    return tf1.case(pairs, default=lambda: tf1.tanh(x) * w)


def branch_in_loop(tf1, x, w):  # noqa: ANN001, ANN201
    def step(y):  # noqa: ANN001, ANN202
        return tf1.cond(y > 0.2, lambda: tf1.tanh(y * w), lambda: tf1.sin(y * w)) * w

    return repeat(tf1, step, x)


def branch_that_passes_on_in_loop(tf1, x, w):  # noqa: ANN001, ANN201
    return repeat(tf1, lambda y: tf1.cond(y > 0.2, lambda: y, lambda: x * w) * w, x)


def branches_in_branches_in_loop(tf1, x, w):  # noqa: ANN001, ANN201
    def step(y):  # noqa: ANN001, ANN202
        def inner():  # noqa: ANN202
            return tf1.cond(w > 0.5, lambda: tf1.sin(y) * w, lambda: x)

        return tf1.cond(y > 0.2, inner, lambda: tf1.sin(y * w)) * w

    return repeat(tf1, step, x)


def loop_in_branch(tf1, x, w):  # noqa: ANN001, ANN201
    return tf1.cond(x > 0.0, lambda: counted(tf1, x, w), lambda: tf1.sin(x * w))


def loop_in_branch_in_loop(tf1, x, w):  # noqa: ANN001, ANN201
    def inner(y):  # noqa: ANN001, ANN202
        return repeat(tf1, lambda z: tf1.tanh(z * w), y, 2, "inner")

    def step(y):  # noqa: ANN001, ANN202
        return tf1.cond(y > 0.2, lambda: inner(y) + x, lambda: tf1.sin(y * w)) * w

    return repeat(tf1, step, x)


def steps(tf1, x, w):  # noqa: ANN001, ANN201
    return tf1.reshape(tf1.stack([x, 2.0 * x, x * w, w, 0.3 + x, w]), [1, 3, 2])


def scan(tf1, x, w):  # noqa: ANN001, ANN201
    found = tf1.scan(lambda y, one: tf1.tanh(y * w + one), steps(tf1, x, w)[0], tf1.zeros([2]))
    return tf1.reduce_sum(found)


def map_fn(tf1, x, w):  # noqa: ANN001, ANN201
    return tf1.reduce_sum(tf1.map_fn(lambda one: tf1.sin(one * w), steps(tf1, x, w)[0]))


def recurrent(tf1, x, w):  # noqa: ANN001, ANN201
    """What tf.nn.dynamic_rnn makes: TensorArrays, a bound, and a cond where lengths are given."""
    given = steps(tf1, x, w)
    arrays = [tf1.TensorArray(tf1.float32, 3) for _ in "io"]
    read = arrays[0].unstack(tf1.transpose(given, [1, 0, 2]))

    def step(time, out, state):  # noqa: ANN001, ANN202
        def moved():  # noqa: ANN202
            return tf1.tanh(read.read(time) + state * w)

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


def built(tf1, build):  # noqa: ANN001, ANN201
    """The MetaGraphDef of one of them: placeholders x and w, and what it gives as y."""
    with tf1.Graph().as_default():
        x, w = (tf1.placeholder(tf1.float32, [], name=name) for name in "xw")
        tf1.identity(build(tf1, x, w), name="y")
        return tf1.train.export_meta_graph()


FEEDS = ((0.3, 0.9), (-0.3, 0.9), (1.4, 0.2))


def answers(tf1, graph):  # noqa: ANN001, ANN201
    """y of the graph and its gradients by x and w, for each of the feeds."""
    y, x, w = (graph.get_tensor_by_name(name + ":0") for name in "yxw")
    with graph.as_default():
        found = tf1.gradients(y, [x, w])
    assert None not in found, found
    with tf1.Session(graph=graph) as session:
        return [session.run([y] + found, {x: one, w: other}) for one, other in FEEDS]  # noqa: RUF005


def answered(tf1, path):  # noqa: ANN001, ANN201
    with tf1.Graph().as_default() as graph:
        tf1.train.import_meta_graph(path)
    return answers(tf1, graph)


if __name__ == "__main__":
    import tensorflow

    tensorflow.compat.v1.disable_control_flow_v2()
    if sys.argv[1] == "write":
        for one in GRAPHS:
            with open(os.path.join(sys.argv[2], one.__name__ + ".meta"), "wb") as target:  # noqa: PTH118, PTH123
                target.write(built(tensorflow.compat.v1, one).SerializeToString())
    else:
        import numpy

        files = [name for name in os.listdir(sys.argv[2]) if name.endswith(".meta")]  # noqa: PTH208
        paths = {name[:-5]: os.path.join(sys.argv[2], name) for name in files}  # noqa: PTH118
        found = {key: answered(tensorflow.compat.v1, paths[key]) for key in paths}
        assert not [name for name in sys.modules if name.startswith("graphpatch")]
        numpy.savez(os.path.join(sys.argv[2], "answers.npz"), **found)  # noqa: PTH118

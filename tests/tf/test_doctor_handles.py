"""`doctor` foretells gradients by variables and tables that functions are given as handles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import graphpatch
from graphpatch.analysis.doctor.survey import survey
from tests.models.doctor_oracle import Agreement, compare_pairs

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1


def in_branch(x: Any, w: Any) -> Any:
    return tf1.cond(tf1.reduce_sum(x) > 0.0, lambda: x * w, lambda: tf.round(x))


def in_branch_of_none(x: Any, w: Any) -> Any:
    return tf1.cond(tf1.reduce_sum(x) > 0.0, lambda: x * tf.round(w), lambda: x)


def in_loop(x: Any, w: Any) -> Any:
    return tf1.while_loop(lambda i, y: i < 3, lambda i, y: [i + 1, y * w], [0, x])[1]


def in_case(x: Any, w: Any) -> Any:
    number = tf1.cast(x[0], tf.int32)
    return tf.switch_case(number, [lambda: x, lambda: x * w, lambda: tf.sign(x)])


def in_branch_of_loop(x: Any, w: Any) -> Any:
    def step(i: Any, y: Any) -> Any:
        return [i + 1, tf1.cond(i > 1, lambda: y * w, lambda: y)]

    return tf1.while_loop(lambda i, y: i < 3, step, [0, x])[1]


def table() -> Any:
    pairs = tf.lookup.KeyValueTensorInitializer([0], [2.0], key_dtype=tf.int64)
    return tf.lookup.StaticHashTable(pairs, 1.0)


def looked_up_in_branch(x: Any, w: Any) -> Any:
    keys, words = tf1.cast(x, tf.int64), table()
    return tf1.cond(x[0] > 0.0, lambda: x * w * words.lookup(keys), lambda: x)


def looked_up_in_loop(x: Any, w: Any) -> Any:
    keys, words = tf1.cast(x, tf.int64), table()

    def step(i: Any, y: Any) -> Any:
        return [i + 1, y * w * words.lookup(keys)]

    return tf1.while_loop(lambda i, y: i < 3, step, [0, x])[1]


def looked_up_in_call(x: Any, w: Any) -> Any:
    words = table()
    called = tf.function(lambda y: (y * w * words.lookup(tf1.cast(y, tf.int64)), y))
    return tf1.add_n(called(x))


def in_call(x: Any, w: Any) -> Any:
    return tf1.add_n(tf.function(lambda y: (y * w, tf.round(y)))(x))


GRAPHS: list[Callable[[Any, Any], Any]] = [
    in_branch,
    in_branch_of_none,
    in_loop,
    in_case,
    in_branch_of_loop,
    in_call,
    looked_up_in_branch,
    looked_up_in_loop,
    looked_up_in_call,
]


def agreement(build: Callable[[Any, Any], Any], folder: Path) -> Agreement:
    """Of the gradients of y and of what a call gives, by each float and each handle.

    Of no more: TensorFlow 2 keeps the functions that a gradient rewrites for the whole process, and
    another gradient of the same model may rewrite them in another way.
    """
    with tf1.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [2], "x")
        w = tf1.get_variable("w", [2], use_resource=True)
        tf1.identity(build(tf1.negative(x), w), "y")
        meta = tf1.train.export_meta_graph(graph=graph)
    path = folder / "model.meta"
    path.write_bytes(meta.SerializeToString())
    model = graphpatch.load(path)
    given = [
        (f"{node.name}:{place}", arg.dtype)
        for node in model.graphs[0].main
        for place, arg in enumerate(node.outputs or ())
    ]
    floats = [name for name, dtype in given if dtype == "float32"]
    handles = [name for name, dtype in given if dtype == "resource"]
    targets = ["y:0", *(name for name in floats if "PartitionedCall" in name)]
    [seen] = survey(model, [*floats, *handles], targets)
    found = Agreement()
    compare_pairs(meta, seen.diagnoses, found)
    return found


@pytest.mark.every(3)
@pytest.mark.parametrize("build", GRAPHS, ids=lambda build: build.__name__)
def test_it_foretells_the_gradient_by_each_handle(
    build: Callable[[Any, Any], Any], tmp_path: Path
) -> None:
    found = agreement(build, tmp_path)
    assert found.differing == []
    assert found.verdicts["flows"] or found.verdicts["error"]


@pytest.mark.parametrize("kept", [True, False])
def test_an_argument_of_a_main_graph_has_a_gradient_where_the_file_tells_its_shape(
    kept: bool,
) -> None:
    """As Grappler's test graphs have it: a function that updates a variable, called as an op."""

    @tf.function
    def update(variable: Any, x: Any) -> Any:
        tf.raw_ops.AssignAddVariableOp(resource=variable, value=tf.constant(1.0))
        return x * 2.0

    with tf.Graph().as_default() as graph:
        function = update.get_concrete_function(tf.TensorSpec([], tf.resource), tf.TensorSpec([]))
        function.add_to_graph(graph)
    message = graph.as_graph_def()
    name = function.function_def.signature.name
    argument = message.node.add(name="variable", op="_Arg")
    argument.attr["T"].type = tf.resource.as_datatype_enum
    argument.attr["index"].i = 0
    if kept:
        argument.attr["_handle_dtypes"].list.type.append(tf.float32.as_datatype_enum)
        argument.attr["_handle_shapes"].list.shape.add()
    message.node.add(name="x", op="Placeholder").attr["dtype"].type = 1
    message.node.add(name="y", op=name).input.extend(["variable", "x"])
    [pair] = graphpatch.diagnose(message, "x", "y").pairs
    with tf.Graph().as_default() as graph:
        tf.compat.v1.import_graph_def(message, name="")
        ends = graph.get_tensor_by_name("y:0"), graph.get_tensor_by_name("x:0")
        if kept:
            assert tf.compat.v1.gradients(*ends)[0] is not None
        else:
            with pytest.raises(ValueError, match="without handle data"):
                tf.compat.v1.gradients(*ends)
    assert pair.verdict == ("flows" if kept else "error")

"""`doctor` foretells gradients by variables and tables that functions are given as handles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import graphpatch
from graphpatch.analysis.doctor.survey import survey
from tests.models.doctor_oracle import Agreement, compare_pairs

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1


def loop(body: Callable[[Any, Any], Any], x: Any) -> Any:
    return tf1.while_loop(lambda i, _: i < 3, lambda i, y: [i + 1, body(i, y)], [0, x])[1]


def called(function: Callable[[Any], Any], x: Any) -> Any:
    return tf1.add_n(tf.function(function)(x))


def words() -> Callable[[Any], Any]:
    """What a table gives for the numbers of a tensor."""
    pairs = tf.lookup.KeyValueTensorInitializer([0], [2.0], key_dtype=tf.int64)
    table = tf.lookup.StaticHashTable(pairs, 1.0)
    return lambda x: table.lookup(tf1.cast(x, tf.int64))


# Of x, w and a table.
GRAPHS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "branch": lambda x, w, _: tf1.cond(tf1.reduce_sum(x) > 0.0, lambda: x * w, lambda: tf.round(x)),
    "branch of none": lambda x, w, _: tf1.cond(x[0] > 0.0, lambda: x * tf.round(w), lambda: x),
    "loop": lambda x, w, _: loop(lambda _, y: y * w, x),
    "case": lambda x, w, _: tf.switch_case(
        tf1.cast(x[0], tf.int32), [lambda: x, lambda: x * w, lambda: tf.sign(x)]
    ),
    "branch of loop": lambda x, w, _: loop(
        lambda i, y: tf1.cond(i > 1, lambda: y * w, lambda: y), x
    ),
    "call": lambda x, w, _: called(lambda y: (y * w, tf.round(y)), x),
    "looked up in branch": lambda x, w, table: tf1.cond(
        x[0] > 0.0, lambda: x * w * table(x), lambda: x
    ),
    "looked up in loop": lambda x, w, table: loop(lambda _, y: y * w * table(x), x),
    "looked up in call": lambda x, w, table: called(lambda y: (y * w * table(y), y), x),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("name", GRAPHS)
def test_it_foretells_the_gradient_by_each_handle(name: str) -> None:
    """Of the gradients of y and of what a call gives, by each float and each handle.

    Of no more: TensorFlow 2 keeps the functions that a gradient rewrites for the whole process, and
    another gradient of the same model may rewrite them in another way.
    """
    with tf1.Graph().as_default():
        x = tf1.placeholder(tf.float32, [2], "x")
        w = tf1.get_variable("w", [2], use_resource=True)
        tf1.identity(GRAPHS[name](tf1.negative(x), w, words()), "y")
        meta = tf1.train.export_meta_graph()
    model = graphpatch.load(meta)
    given = [
        (f"{node.name}:{place}", arg.dtype)
        for node in model.graphs[0].main
        for place, arg in enumerate(node.outputs or ())
    ]
    floats, handles = ([n for n, one in given if one == dtype] for dtype in ("float32", "resource"))
    targets = ["y:0", *(name for name in floats if "PartitionedCall" in name)]
    [seen] = survey(model, [*floats, *handles], targets)
    found = Agreement()
    compare_pairs(meta, seen.diagnoses, found)
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
    argument = message.node.add(name="variable", op="_Arg")
    argument.attr["T"].type = tf.resource.as_datatype_enum
    argument.attr["index"].i = 0
    if kept:
        argument.attr["_handle_dtypes"].list.type.append(tf.float32.as_datatype_enum)
        argument.attr["_handle_shapes"].list.shape.add()
    message.node.add(name="x", op="Placeholder").attr["dtype"].type = 1
    name = function.function_def.signature.name
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

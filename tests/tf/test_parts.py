"""Gradients in parts against closed form and against TensorFlow's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest

import graphpatch
from graphpatch.errors import CutError
from tests.tf import consumer
from tests.tf.looped import looped

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1

EPSILON = float(np.finfo(np.float32).eps)


def values(**shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        f"{name}:0": random.standard_normal(shape, dtype=np.float32)
        for name, shape in shapes.items()
    }


def rounding(terms: int, absolute: np.ndarray) -> np.ndarray:
    """How far apart two float32 sums of products may be, whose factors are rounded once or twice.

    Each is within (terms + 2) roundings of the exact sum, relative to the sum of absolute values.
    """
    return np.asarray(2 * (terms + 2) * EPSILON * absolute)


def product() -> Any:
    """`h = xW`, `loss = mean(h^2)`."""
    with tf1.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [1, 10], name="x")
        w = tf1.placeholder(tf.float32, [10, 5], name="W")
        tf.reduce_mean(tf.square(tf.matmul(x, w, name="h")), name="loss")
    return graph


def dense(rows: int | None = 3) -> Any:
    """`h = xW + b; y = tanh(h); loss = mse(y, y0)`."""
    with tf1.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [rows, 10], name="x")
        w = tf1.placeholder(tf.float32, [10, 5], name="W")
        b = tf1.placeholder(tf.float32, [5], name="b")
        y0 = tf1.placeholder(tf.float32, [rows, 5], name="y0")
        y = tf.tanh(tf.add(tf.matmul(x, w), b, name="h"), name="y")
        tf.reduce_mean(tf.square(y - y0), name="loss")
    return graph


DENSE = values(x=(3, 10), W=(10, 5), b=(5,), y0=(3, 5))


def whole(graph: Any, wrt: Sequence[str], feeds: Mapping[str, Any]) -> list[Any]:
    """The gradients of the loss, as TensorFlow builds them."""
    with graph.as_default():
        tensors = [graph.get_tensor_by_name(name) for name in wrt]
        loss = graph.get_tensor_by_name("loss:0")
        return consumer.session(graph, tf.gradients(loss, tensors), feeds)


def test_the_parts_multiply_to_the_whole() -> None:
    graph, feeds = product(), values(x=(1, 10), W=(10, 5))
    before = consumer.session(graph, ["loss:0", "h:0"], feeds)
    parts = graphpatch.gradient_in_parts(graph, "loss", "h", "W", jacobian=True, check=True)
    jacobian = parts.jacobians[0]["h:0", "W:0"]
    assert (jacobian.of_shape, jacobian.by_shape) == ((1, 5), (10, 5))
    assert jacobian.tensor.shape == (1, 5, 10, 5)
    at_h, at_w, dh_dw = consumer.session(
        graph, [parts.at_cuts[0]["h:0"], parts.at_wrt["W:0"], jacobian.tensor], feeds
    )
    h = feeds["x:0"] @ feeds["W:0"]
    bound = rounding(10, 2 / 5 * abs(feeds["x:0"]) @ abs(feeds["W:0"]))
    assert (abs(at_h - 2 / 5 * h) <= bound).all()
    assert (abs(at_w - feeds["x:0"].T @ at_h) <= rounding(1, abs(at_w))).all()
    multiplied = np.tensordot(at_h, dh_dw, 2)
    assert (abs(multiplied - at_w) <= rounding(5, np.tensordot(abs(at_h), abs(dh_dw), 2))).all()
    assert consumer.same_bits(at_w, whole(graph, ["W:0"], feeds)[0])
    assert all(map(consumer.same_bits, before, consumer.session(graph, ["loss:0", "h:0"], feeds)))


CUTS: list[Any] = ["h", "y:0", ["h"], [["h"], ["y"]], [["y"], ["h"]]]


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_it_is_the_gradient_of_the_whole(cut: Any) -> None:
    graph = dense()
    parts = graphpatch.gradient_in_parts(graph, "loss", cut, ["W", "b"], check=True)
    assert parts.cuts == ((("h:0",), ("y:0",)) if isinstance(cut[0], list) else parts.cuts)
    found = consumer.session(graph, list(parts.at_wrt.values()), DENSE)
    assert list(parts.at_wrt) == ["W:0", "b:0"]
    assert all(map(consumer.same_bits, found, whole(graph, ["W:0", "b:0"], DENSE)))
    assert tuple(map(tuple, parts.at_cuts)) == parts.cuts
    for at_cut in parts.at_cuts:
        found = consumer.session(graph, list(at_cut.values()), DENSE)
        assert all(map(consumer.same_bits, found, whole(graph, list(at_cut), DENSE)))


def entangled() -> Any:
    """A cut of two tensors of which one is computed from the other, and from what lies before."""
    with tf1.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [4], name="x")
        a = tf.sin(x, name="a")
        b = tf.multiply(a, x, name="b")
        tf.reduce_sum(a * b, name="loss")
    return graph


def test_tensors_of_one_cut_that_depend_on_each_other() -> None:
    graph, feeds = entangled(), values(x=(4,))
    parts = graphpatch.gradient_in_parts(graph, "loss", ["a", "b"], "x", jacobian=True, check=True)
    jacobians = [parts.jacobians[0][name, "x:0"].tensor for name in ("a:0", "b:0")]
    tensors = [*parts.at_cuts[0].values(), parts.at_wrt["x:0"], *jacobians]
    at_a, at_b, at_x, da, db = consumer.session(graph, tensors, feeds)
    x = feeds["x:0"]
    closed = 2 * np.sin(x) * np.cos(x) * x + np.sin(x) ** 2
    for found in (at_x, at_a @ da + at_b @ db):
        assert (abs(found - closed) <= rounding(6, 1 + abs(x) * 3)).all()


def test_a_tensor_that_is_in_two_cuts() -> None:
    with tf1.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [4], name="x")
        skip, y = tf.sin(x, name="skip"), tf.exp(x, name="y")
        tf.reduce_sum(tf.tanh(y, name="z") * skip, name="loss")
    feeds = values(x=(4,))
    parts = graphpatch.gradient_in_parts(
        graph, "loss", [["y", "skip"], ["z", "skip"]], "x", check=True
    )
    (found,) = consumer.session(graph, [parts.at_wrt["x:0"]], feeds)
    assert consumer.same_bits(found, whole(graph, ["x:0"], feeds)[0])


@pytest.mark.parametrize("resource", [True, False])
def test_variables_and_sparse_gradients(resource: bool) -> None:
    with tf1.Graph().as_default() as graph:
        table = tf1.get_variable(
            "table",
            [5, 3],
            use_resource=resource,
            initializer=tf1.random_normal_initializer(seed=1),
        )
        rows = tf.nn.embedding_lookup(table, [0, 2, 2], name="rows")
        tf.reduce_sum(tf.tanh(rows, name="y") ** 2, name="loss")
        parts = graphpatch.gradient_in_parts(graph, "loss", "y", table, check=True, jacobian=True)
        assert parts.jacobians[0]["y:0", "table:0"].tensor.shape == (3, 3, 5, 3)
        expected = tf.convert_to_tensor(tf.gradients(graph.get_tensor_by_name("loss:0"), table)[0])
        with tf1.Session(graph=graph) as session:
            session.run(tf1.global_variables_initializer())
            found, wanted = session.run([parts.at_wrt["table:0"], expected])
            at_y, by = session.run(
                [parts.at_cuts[0]["y:0"], parts.jacobians[0]["y:0", "table:0"].tensor]
            )
    assert abs(wanted).max() > 0.01
    assert consumer.same_bits(found, wanted)
    product = np.tensordot(at_y, by, 2)
    bound = rounding(9, np.tensordot(abs(at_y), abs(by), 2))
    assert (abs(product - found) <= bound).all()


def test_the_check_fails_where_the_parts_are_not_the_whole() -> None:
    graph = dense()
    parts = graphpatch.gradient_in_parts(graph, "loss", "h", "W", check=True)
    wrong = {**DENSE, parts.at_cuts[0]["h:0"]: np.ones((3, 5), np.float32)}
    with pytest.raises(tf.errors.InvalidArgumentError, match="W:0 is not that of the whole"):
        consumer.session(graph, [parts.at_wrt["W:0"]], wrong)


def test_a_jacobian_row_by_row_where_an_op_is_not_vectorized(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = dense()
    made = [graphpatch.gradient_in_parts(graph, "loss", "h", "W", jacobian=True)]
    for error in (ValueError, NotImplementedError):
        monkeypatch.setattr(tf, "vectorized_map", mock.Mock(side_effect=error))
        made.append(graphpatch.gradient_in_parts(graph, "loss", "h", "W", jacobian=True))
    tensors = [parts.jacobians[0]["h:0", "W:0"].tensor for parts in made]
    first, second, third = consumer.session(graph, tensors, DENSE)
    assert consumer.same_bits(first, second)
    assert consumer.same_bits(first, third)


def test_unknown_shapes() -> None:
    graph = dense(None)
    with pytest.raises(CutError, match=r"shape of h:0 is \(None, 5\): a Jacobian needs"):
        graphpatch.gradient_in_parts(graph, "loss", "h", "W", jacobian=True)
    parts = graphpatch.gradient_in_parts(graph, "loss", "h", "W", check=True)
    (found,) = consumer.session(graph, [parts.at_wrt["W:0"]], DENSE)
    assert consumer.same_bits(found, whole(graph, ["W:0"], DENSE)[0])


REFUSED = [
    (("loss", "hh", "W"), "no tensor 'hh' in the main graph; nearest: h"),
    (("los", "h", "W"), "no tensor 'los' in the main graph; nearest: loss"),
    (("loss", "y0", "W"), "y0:0 does not depend on W:0"),
    (("loss", "h", "y0"), "h:0 does not depend on y0:0"),
    (("h", "y", "W"), "y:0 is not upstream of h:0"),
    (("y", "h", "y0"), "y0:0 is not upstream of y:0"),
]


@pytest.mark.parametrize(("arguments", "said"), REFUSED)
def test_bad_input(arguments: tuple[str, str, str], said: str) -> None:
    graph = dense()
    before = len(graph.get_operations())
    with pytest.raises(CutError) as raised:
        graphpatch.gradient_in_parts(graph, *arguments)
    assert said in str(raised.value)
    assert len(graph.get_operations()) == before


def test_a_gradient_that_nobody_registered() -> None:
    with tf1.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [2], name="x")
        with graph.gradient_override_map({"Tanh": "NobodyHasThis"}):
            y = tf.tanh(x, name="y")
        tf.reduce_sum(tf.sin(y, name="z"), name="loss")
    with pytest.raises(CutError, match=r"Tanh.*graphpatch.register_gradients"):
        graphpatch.gradient_in_parts(graph, "loss", "z", "x")


@pytest.mark.every(4)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("cut", ["h", "z", "w", [["h"], ["z"], ["w"]]], ids=str)
def test_v1_loops_and_branches(cut: Any, sign: int) -> None:
    graph, feeds = looped(), {"x:0": np.array([0.7, 0.4], np.float32) * sign}
    parts = graphpatch.gradient_in_parts(graph, "loss", cut, "x", check=True)
    (found,) = consumer.session(graph, [parts.at_wrt["x:0"]], feeds)
    (expected,) = whole(graph, ["x:0"], feeds)
    assert (abs(expected) > 0).all()
    assert (abs(found - expected) <= rounding(12, abs(expected))).all()


def test_a_loop_without_its_contexts() -> None:
    with tf1.Graph().as_default() as graph:
        tf1.import_graph_def(looped().as_graph_def(), name="")
    with pytest.raises(CutError, match=r"v1 loop or branch .* a MetaGraphDef \(.meta\) does"):
        graphpatch.gradient_in_parts(graph, "loss", "h", "x")

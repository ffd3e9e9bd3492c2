"""Gradients in parts, in a graph and in files, against closed form and TensorFlow's own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import graphpatch
from graphpatch.errors import CutError
from graphpatch.runtime.parts import split
from graphpatch.runtime.tf_gradients import control_flow
from tests.conftest import Ran
from tests.tf import consumer
from tests.tf import parts as files
from tests.tf.tensorflow1 import VARIABLE

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


def looped() -> Any:
    """From x, float32 [2], by h, z behind a v1 loop and w behind a branch to the scalar `loss`."""
    with control_flow(False), tf1.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [2], name="x")
        h = tf.tanh(x, name="h")
        _, y = tf1.while_loop(
            lambda k, _: k < 3, lambda k, y: (k + 1, tf.sin(y * h)), [tf.constant(0), h]
        )
        z = tf.identity(y, name="z")
        w = tf1.cond(tf.reduce_sum(z) > 0, lambda: tf.exp(z), lambda: z * z)
        tf.reduce_sum(tf.identity(w, name="w"), name="loss")
    return graph


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


# Files of parts: run one after the other, they give the gradient of the whole.

X = np.linspace(-1.5, 2, 8, dtype=np.float32).reshape(4, 2)


def chain() -> None:
    """Three layers, of which the second reads a second output of a Split, and a size."""
    x = tf1.placeholder(tf.float32, [4, 2], name="x")
    one, other = tf.split(tf.tanh(tf.matmul(x, tf.ones([2, 6]) / 3), name="t"), 2, 1, name="split")
    rows = tf.cast(tf.shape(one)[0], tf.float32)
    h = tf.add(tf.sin(other), tf.stop_gradient(one) * rows, name="h")
    y = tf1.placeholder_with_default(tf.constant(2.0), [], name="scale") * tf.tanh(h)
    tf.reduce_sum(tf.identity(y, name="y") ** 2, name="loss")


def determinant() -> None:
    """Its gradient has ops that TensorFlow 1.15 does not know."""
    x = tf1.placeholder(tf.float32, [2, 2], name="x")
    t = tf.tanh(x, name="t")
    y = tf.linalg.cholesky(tf.matmul(t, t, transpose_b=True), name="c")
    tf.reduce_sum(y, name="loss")


def test_ops_that_tensorflow_1_does_not_know_are_named(
    model: Path, tmp_path: Path, run_cli: Callable[..., Ran], recwarn: pytest.WarningsRecorder
) -> None:
    path = consumer.save(determinant, tmp_path / "determinant.pb")
    with pytest.warns(UserWarning, match=r"MatrixDiagV3.*TensorFlow 1\.15 does not know"):
        split(path, "loss", "t", "x")
    ends = ["--cut", "t", "--loss", "loss", "--wrt", "x", "-o", str(tmp_path / "p"), "--json"]
    done = run_cli("split", str(path), *ends)
    assert "MatrixDiagV3" in done.json["notes"][0]
    recwarn.clear()
    split(model, "loss", "h", "x")
    assert not [one for one in recwarn if one.category is UserWarning]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return consumer.save(chain, tmp_path / "model.pb")


CUTS = [[["h"]], [["t"], ["split:1"], ["h"], ["y"]], [["y"], ["t"]]]


@pytest.mark.every(2)
@pytest.mark.parametrize("cuts", CUTS, ids=str)
def test_the_parts_give_the_gradient_of_the_whole(
    model: Path, tmp_path: Path, cuts: list[list[str]]
) -> None:
    document = files.write(split(graphpatch.load(model), "loss", cuts, ["x"]), tmp_path / "p")
    assert document["inputs"] == ["x:0"]
    assert len(document["parts"]) == len(cuts) + 1
    assert len(document["steps"]) == 2 * len(cuts) + 1
    feeds = {"x:0": X, "scale:0": np.float32(0.5)}  # instead of its default
    found = files.run(tmp_path / "p", feeds)
    (expected,) = consumer.differentiate(model, "loss:0", ["x:0"], feeds)
    assert abs(expected).max() > 0.1
    assert consumer.same_bits(found[document["gradients"]["x:0"]], expected)
    (loss,) = consumer.run(model, feeds, ["loss:0"])
    assert consumer.same_bits(found["loss:0"], loss)


def test_each_part_holds_its_own_ops_alone(model: Path, tmp_path: Path) -> None:
    document = files.write(split(graphpatch.load(model), "loss", [["h"]], ["x"]), tmp_path / "p")
    assert [step["may_feed"] for step in document["steps"]] == [[], ["scale:0"], []]
    names = [
        {node.name for node in graphpatch.load(tmp_path / "p" / f"part{k}.pb").graphs[0].main}
        for k in (1, 2)
    ]
    assert {"x", "t", "h", "gradient/h", "gradient/x"} <= names[0]
    assert {"h", "y", "loss", "gradient/h"} <= names[1]
    assert not {"loss", "y"} & names[0]
    assert not {"x", "t", "gradient/x"} & names[1]


def noisy() -> None:
    x = tf1.placeholder(tf.float32, [4, 2], name="x")
    h = tf.tanh(x * tf.random.uniform([4, 2], 0.5, 2, name="noise"), name="h")
    tf.reduce_sum(tf.nn.dropout(h, 0.5) ** 2, name="loss")


def test_what_was_drawn_is_handed_on(tmp_path: Path) -> None:
    """The first part is run twice, and draws once: the gradient is that of the forward pass."""
    model = consumer.save(noisy, tmp_path / "model.pb")
    document = files.write(split(graphpatch.load(model), "loss", [["h"]], ["x"]), tmp_path / "p")
    drawn = "noise/RandomUniform:0"
    assert [drawn in step["fetch"] for step in document["steps"]] == [True, False, False]
    assert [drawn in step["feed"] for step in document["steps"]] == [False, False, True]
    found = files.run(tmp_path / "p", {"x:0": X})
    noise = found[drawn] * np.float32(1.5) + np.float32(0.5)
    y = np.tanh(X * noise)
    assert np.allclose(found["h:0"], y, rtol=0, atol=1e-6)
    expected = found["gradient/h:0"] * (1 - found["h:0"] ** 2) * noise
    assert np.allclose(found["gradient/x:0"], expected, rtol=1e-5, atol=1e-6)


def counting() -> None:
    x = tf1.placeholder(tf.float32, [4, 2], name="x")
    count = tf1.get_variable("count", [], use_resource=False)
    with tf.control_dependencies([tf1.assign_add(count, 1.0, name="step")]):
        tf.reduce_sum(tf.tanh(x, name="h") ** 2, name="loss")


def drawing() -> None:
    x = tf1.placeholder(tf.float32, [4, 2], name="x")
    drawn = tf.function(lambda v: v * tf.random.uniform([4, 2]), autograph=False)
    tf.reduce_sum(tf.tanh(drawn(x), name="h") ** 2, name="loss")


@pytest.mark.parametrize(("build", "says"), [
    (counting, r"AssignAdd 'step'.* not the same each time"),
    (drawing, "calls a function with RandomUniform"),
])  # fmt: skip
def test_what_would_be_done_twice_is_refused(tmp_path: Path, build: Any, says: str) -> None:
    with pytest.raises(CutError, match=says):
        split(graphpatch.load(consumer.save(build, tmp_path / "model.pb")), "loss", [["h"]], ["x"])


RULES = [
    {"match": {"op": "Tanh"}, "patch": {"filter_gradient": {"clip": {"min": -0.1, "max": 0.1}}}},
    {"match": {"op": "Sin"}, "patch": {"override_gradient": {"formula": "dy * 3"}}},
]


@pytest.mark.parametrize("emit", ["function", "attr"])
def test_a_patched_model_keeps_its_gradients(model: Path, tmp_path: Path, emit: str) -> None:
    target = tmp_path / "patched.pb"
    rules = [{**rule, "emit": emit} for rule in RULES]
    graphpatch.apply(rules, model).model.save(target)
    graphpatch.register_gradients(target)
    document = files.write(split(graphpatch.load(target), "loss", [["h"]], ["x"]), tmp_path / "p")
    found = files.run(tmp_path / "p", {"x:0": X})[document["gradients"]["x:0"]]
    (expected,) = consumer.differentiate(target, "loss:0", ["x:0"], {"x:0": X})
    (stock,) = consumer.differentiate(model, "loss:0", ["x:0"], {"x:0": X})
    assert consumer.same_bits(found, expected)
    assert abs(found - stock).max() > 0.1
    if emit == "function":
        before = graphpatch.load(target).graphs[0].library.gradients
        for name in ("part1.pb", "part2.pb"):
            assert graphpatch.load(tmp_path / "p" / name).graphs[0].library.gradients == before


def test_variables_are_listed_and_restored(tmp_path: Path) -> None:
    def build() -> None:
        x = tf1.placeholder(tf.float32, [4, 2], name="x")
        for name, resource in (("a", True), ("b", False)):
            w = tf1.get_variable(name, [2, 2], use_resource=resource)
            x = tf.tanh(tf.matmul(x, w), name=f"h_{name}")
        tf.reduce_sum(x**2, name="loss")

    model = consumer.save(build, tmp_path / "model.pb")
    document = files.write(
        split(graphpatch.load(model), "loss", [["h_a"]], ["a", "x"]), tmp_path / "p"
    )
    assert [part["variables"] for part in document["parts"]] == [["a"], ["b"]]
    held = {"a": X[:2], "b": X[2:]}
    found = files.run(tmp_path / "p", {"x:0": X, **held})
    h = np.tanh(X @ held["a"])
    y = np.tanh(h @ held["b"])
    at_h = (2 * y * (1 - y**2)) @ held["b"].T
    assert np.allclose(found["gradient/h_a:0"], at_h, rtol=1e-5, atol=1e-6)
    at_a = X.T @ (at_h * (1 - h**2))
    assert np.allclose(found["gradient/a:0"], at_a, rtol=1e-5, atol=1e-6)


@pytest.mark.every(3)
@pytest.mark.parametrize("cuts", [[["h"]], [["z"]], [["h"], ["z"], ["w"]]], ids=str)
def test_v1_loops_and_branches_of_a_metagraph(tmp_path: Path, cuts: list[list[str]]) -> None:
    path = tmp_path / "model.meta"
    graph = looped()
    with graph.as_default():
        tf1.train.export_meta_graph(str(path))
    files.write(split(graphpatch.load(path), "loss", cuts, ["x"]), tmp_path / "p")
    for sign in (1, -1):
        x = np.array([0.7, 0.4], np.float32) * sign
        found = files.run(tmp_path / "p", {"x:0": x})["gradient/x:0"]
        with graph.as_default():
            (dx,) = tf.gradients(
                graph.get_tensor_by_name("loss:0"), [graph.get_tensor_by_name("x:0")]
            )
            (expected,) = consumer.session(graph, [dx], {"x:0": x})
        assert np.allclose(found, expected, rtol=1e-6, atol=0)
    (tmp_path / "bare.pb").write_bytes(graph.as_graph_def().SerializeToString())
    with pytest.raises(CutError, match="a GraphDef holds no control-flow contexts"):
        split(graphpatch.load(tmp_path / "bare.pb"), "loss", cuts, ["x"])


@pytest.mark.slow
@pytest.mark.parametrize("version", ["here", "1.15"])
def test_in_fresh_processes(model: Path, tmp_path: Path, version: str) -> None:
    python = "" if version == "here" else os.environ.get(VARIABLE, "")
    if version != "here" and not python:
        pytest.skip(f"{VARIABLE} names no python3.7 that has tensorflow 1.15")
    target = tmp_path / "patched.pb"
    graphpatch.apply(RULES, model).model.save(target)
    files.write(split(graphpatch.load(target), "loss", [["h"]], ["x"]), tmp_path / "p")
    found = files.run_in_processes(tmp_path / "p", {"x:0": X}, python)
    (expected,) = consumer.differentiate(target, "loss:0", ["x:0"], {"x:0": X})
    assert np.allclose(found["gradient/x:0"], expected, rtol=1e-5, atol=1e-6)
    assert json.loads((tmp_path / "p" / "parts.json").read_text())["version"] == 1

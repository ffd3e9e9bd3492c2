"""Models split in parts: run one after the other, they give the gradient of the whole."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from graphpatch.errors import CutError
from graphpatch.runtime.parts import split
from tests.conftest import Ran
from tests.tf import consumer, parts
from tests.tf.looped import looped
from tests.tf.tensorflow1 import VARIABLE

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1

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
    document = parts.write(split(graphpatch.load(model), "loss", cuts, ["x"]), tmp_path / "p")
    assert document["inputs"] == ["x:0"]
    assert len(document["parts"]) == len(cuts) + 1
    assert len(document["steps"]) == 2 * len(cuts) + 1
    feeds = {"x:0": X, "scale:0": np.float32(0.5)}  # instead of its default
    found = parts.run(tmp_path / "p", feeds)
    (expected,) = consumer.differentiate(model, "loss:0", ["x:0"], feeds)
    assert abs(expected).max() > 0.1
    assert consumer.same_bits(found[document["gradients"]["x:0"]], expected)
    (loss,) = consumer.run(model, feeds, ["loss:0"])
    assert consumer.same_bits(found["loss:0"], loss)


def test_each_part_holds_its_own_ops_alone(model: Path, tmp_path: Path) -> None:
    document = parts.write(split(graphpatch.load(model), "loss", [["h"]], ["x"]), tmp_path / "p")
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
    document = parts.write(split(graphpatch.load(model), "loss", [["h"]], ["x"]), tmp_path / "p")
    drawn = "noise/RandomUniform:0"
    assert [drawn in step["fetch"] for step in document["steps"]] == [True, False, False]
    assert [drawn in step["feed"] for step in document["steps"]] == [False, False, True]
    found = parts.run(tmp_path / "p", {"x:0": X})
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
    document = parts.write(split(graphpatch.load(target), "loss", [["h"]], ["x"]), tmp_path / "p")
    found = parts.run(tmp_path / "p", {"x:0": X})[document["gradients"]["x:0"]]
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
    document = parts.write(
        split(graphpatch.load(model), "loss", [["h_a"]], ["a", "x"]), tmp_path / "p"
    )
    assert [part["variables"] for part in document["parts"]] == [["a"], ["b"]]
    held = {"a": X[:2], "b": X[2:]}
    found = parts.run(tmp_path / "p", {"x:0": X, **held})
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
    parts.write(split(graphpatch.load(path), "loss", cuts, ["x"]), tmp_path / "p")
    for sign in (1, -1):
        x = np.array([0.7, 0.4], np.float32) * sign
        found = parts.run(tmp_path / "p", {"x:0": x})["gradient/x:0"]
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
    parts.write(split(graphpatch.load(target), "loss", [["h"]], ["x"]), tmp_path / "p")
    found = parts.run_in_processes(tmp_path / "p", {"x:0": X}, python)
    (expected,) = consumer.differentiate(target, "loss:0", ["x:0"], {"x:0": X})
    assert np.allclose(found["gradient/x:0"], expected, rtol=1e-5, atol=1e-6)
    assert json.loads((tmp_path / "p" / "parts.json").read_text())["version"] == 1

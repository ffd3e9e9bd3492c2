"""Keys that tf.custom_gradient left: TensorFlow's own get their gradient, authors' a message.

Each graph is that of another process, to which the key means nothing: it is renamed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from tests.tf import tensorflow1

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1

X = np.array([-3.0, -0.5, 0.0, 2.0], np.float32)
OTHERS = b"CustomGradient-990"


def _swish_of_1_15(x: Any) -> Any:
    """As TensorFlow 1.15 has it, and EfficientNet: without a beta."""
    return x * tf.sigmoid(x), lambda dy: dy * tf.sigmoid(x) * (1 + x * (1 - tf.sigmoid(x)))


def _clipped(x: Any) -> Any:
    """An author's: a square with clipped gradients."""
    return x * x, lambda dy: tf.clip_by_value(dy, -1.0, 1.0)


def _gated(x: Any) -> Any:
    """An author's, which has nearly the ops of a swish."""
    return x * tf.sigmoid(tf.abs(x)), lambda dy: dy


def scaled_swish(x: Any) -> Any:
    return tf.nn.swish(x, 1.5)


def _sigmoid_first(x: Any) -> Any:
    result = tf.sigmoid(x) * x
    return result, lambda dy: dy * tf.sigmoid(x) * (1 + x * (1 - tf.sigmoid(x)))


clipped = tf.custom_gradient(_clipped)
OF_TENSORFLOW = (
    tf.nn.swish,
    scaled_swish,
    tf.custom_gradient(_swish_of_1_15),
    tf.custom_gradient(_sigmoid_first),
)
passed_through, recomputed = tf.grad_pass_through(tf.floor), tf.recompute_grad(tf.tanh)
OF_AUTHORS = (clipped, tf.custom_gradient(_gated), passed_through, recomputed)


def gradient(graph: Any) -> Any:
    x, loss = (graph.get_tensor_by_name(name) for name in ("x:0", "loss:0"))
    with graph.as_default(), tf1.Session() as session:
        return session.run(tf1.gradients(loss, x)[0], {x: X})


def imported(model: Any) -> Any:
    with tf1.Graph().as_default() as graph:
        graphpatch.import_model(model)
    return graph


def renamed(graph_def: Any, key: bytes) -> Any:
    """The graph with another key."""
    for node in graph_def.node:
        if node.op == "IdentityN":
            node.attr["_gradient_op_type"].s = key
    return graph_def


def lost(function: Callable[[Any], Any], folder: Path) -> tuple[Path, Any]:
    """The file as another process finds it, and the gradient before it was written."""
    with tf1.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [4], "x")
        tf.reduce_sum(function(x) * tf.constant([1.0, 2.0, -3.0, 0.5]), name="loss")
    path = folder / "model.pb"
    path.write_bytes(renamed(graph.as_graph_def(), OTHERS).SerializeToString())
    with pytest.raises(LookupError, match=r"No gradient|no entry"):
        gradient(imported(path))
    return path, gradient(graph)


@pytest.mark.parametrize("function", OF_TENSORFLOW)
def test_a_swish_gets_its_true_gradient(function: Any, tmp_path: Path) -> None:
    path, expected = lost(function, tmp_path)
    diagnosis = graphpatch.diagnose(path, "x", "loss", fix=True)
    assert [finding.kind for finding in diagnosis.pairs[0].findings] == ["swish"]
    patched = graphpatch.apply(diagnosis.rules, path).model
    np.testing.assert_allclose(gradient(imported(patched)), expected, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("function", OF_AUTHORS)
def test_an_authors_gets_no_rule_and_two_ways(function: Any, tmp_path: Path) -> None:
    path, _ = lost(function, tmp_path)
    diagnosis = graphpatch.diagnose(path, "x", "loss", fix=True)
    [finding] = diagnosis.pairs[0].findings
    assert finding.kind == "custom_gradient"
    assert diagnosis.rules == []
    assert "tf.RegisterGradient" in finding.remedy
    assert "by a formula" in finding.remedy


@pytest.mark.parametrize(
    ("function", "patch"),
    [(passed_through, {"formula": [None, "dy0"]}), (recomputed, "default")],
)
def test_what_is_said_of_those_that_look_like_an_authors(
    function: Any, patch: Any, tmp_path: Path
) -> None:
    path, expected = lost(function, tmp_path)
    [finding] = graphpatch.diagnose(path, "x", "loss").pairs[0].findings
    assert 'tf.recompute_grad, "default" is true' in finding.remedy
    assert 'tf.grad_pass_through, it is the formula [null, "dy0"]' in finding.remedy
    rule = {"match": {"op": "IdentityN"}, "patch": {"override_gradient": patch}}
    patched = graphpatch.apply([rule], path).model
    np.testing.assert_allclose(gradient(imported(patched)), expected, rtol=1e-6)


def test_recompute_grad_leaves_what_an_author_leaves(tmp_path: Path) -> None:
    """So no file tells them apart: the gradient of this author is another one."""
    authors = tf.custom_gradient(lambda x: (tf.tanh(x), lambda dy: -dy))
    files = []
    for function in (recomputed, authors):
        folder = tmp_path / str(len(files))
        folder.mkdir()
        path, _ = lost(function, folder)
        files.append(tf1.GraphDef.FromString(path.read_bytes()))
    assert files[0] == files[1]


def test_the_two_ways_to_give_an_authors(tmp_path: Path) -> None:
    path, expected = lost(clipped, tmp_path)
    formula = {"formula": [None, "clip(dy0, -1, 1)"]}
    rule = {"match": {"op": "IdentityN"}, "patch": {"override_gradient": formula}}
    patched = graphpatch.apply([rule], path).model
    np.testing.assert_array_equal(gradient(imported(patched)), expected)
    key = OTHERS + b"1"
    tf.RegisterGradient(key.decode())(lambda op, dy, _: [None, tf.clip_by_value(dy, -1.0, 1.0)])
    registered = renamed(tf1.GraphDef.FromString(path.read_bytes()), key)
    np.testing.assert_array_equal(gradient(imported(registered)), expected)


# What TensorFlow 1.15 builds and differentiates, with its own tf.nn.swish.
PROGRAM = """
import numpy as np
import tensorflow as tf

with tf.Graph().as_default():
    x = tf.compat.v1.placeholder(tf.float32, [4], "x")
    loss = tf.reduce_sum(tf.nn.swish(x), name="loss")
    with open("model.pb", "wb") as file:
        file.write(tf.compat.v1.get_default_graph().as_graph_def().SerializeToString())
    with tf.compat.v1.Session() as session:
        np.save("dx.npy", session.run(tf.gradients(loss, x)[0], {x: [-3, -0.5, 0, 2]}))
"""


@pytest.mark.slow
def test_the_swish_of_tensorflow_1(tmp_path: Path) -> None:
    tensorflow1.ran("-c", PROGRAM, cwd=tmp_path)
    path = tmp_path / "model.pb"
    diagnosis = graphpatch.diagnose(path, "x", "loss", fix=True)
    assert [finding.kind for finding in diagnosis.pairs[0].findings] == ["swish"]
    graphpatch.apply(diagnosis.rules, path).model.save(tmp_path / "patched.pb")
    graph, asked = (tmp_path / "patched.pb").read_bytes(), ["--gradients", "loss:0", "x:0"]
    found = tensorflow1.fetch(graph, {"x": X}, asked, tmp_path)["gradient:x:0"]
    np.testing.assert_allclose(found, np.load(tmp_path / "dx.npy"), rtol=2e-6)

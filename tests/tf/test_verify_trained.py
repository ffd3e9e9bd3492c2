"""Of a training graph, verify takes no gradients of what the optimizer computes from gradients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import graphpatch
from graphpatch.formats import load
from graphpatch.runtime.verify.session import SessionModel

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1


def net() -> tuple[Any, Any, Any]:
    x = tf1.placeholder(tf.float32, [2, 3], name="x")
    w = tf1.get_variable("w", [3, 3], use_resource=False)
    return x, w, tf.identity(tf.nn.relu(tf.matmul(x, w)), name="y")


def clipped() -> None:
    """The gradients are clipped together, and their norm is an output."""
    _, _, y = net()
    loss = tf.reduce_sum(tf.square(y), name="loss")
    optimizer = tf1.train.AdamOptimizer()
    [(dw, w)] = optimizer.compute_gradients(loss)
    [dw], norm = tf.clip_by_global_norm([dw], 1.0)
    tf.multiply(norm, 2.0, name="norm")
    optimizer.apply_gradients([(dw, w)], name="train")


def penalized() -> None:
    """The loss has a gradient penalty."""
    x, _, y = net()
    [dx] = tf1.gradients(y, [x])
    loss = tf.add(tf.reduce_sum(tf.square(dx)), tf.reduce_sum(y), name="loss")
    tf1.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")


def mapped() -> None:
    """No optimizer: the gradient is what the graph is for."""
    x, _, y = net()
    [dx] = tf1.gradients(y, [x])
    tf.abs(dx, name="map")


@pytest.mark.parametrize(
    ("build", "kept", "left_out"),
    [(clipped, {"loss:0"}, {"norm:0"}), (penalized, {"loss:0"}, set()), (mapped, {"map:0"}, set())],
)
def test_only_what_an_optimizer_computes_is_left_out(
    tmp_path: Path, build: Callable[[], None], kept: set[str], left_out: set[str]
) -> None:
    with tf.Graph().as_default():
        build()
        tf1.train.export_meta_graph(str(tmp_path / "model.meta"))
    model = load(tmp_path / "model.meta")
    worker = SessionModel(model, model.graphs[0])
    _, _, trained = worker.ends(([], []), ([], []), worker.tensors([], [])[0])
    assert kept.isdisjoint(trained)
    assert left_out <= set(trained)


def test_verify_says_what_it_left_out_and_how_far_it_is(tmp_path: Path) -> None:
    with tf.Graph().as_default():
        clipped()
        tf1.train.export_meta_graph(str(tmp_path / "model.meta"))
    rule = {"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}
    patched = graphpatch.apply([rule], tmp_path / "model.meta")
    stages: dict[str, int] = {}
    found = graphpatch.verify(
        tmp_path / "model.meta",
        patched,
        progress=lambda what, done, total: stages.update({what: total}),
    )
    assert found.ok, found.not_compared
    [graph] = found.document()["graphs"]
    assert "loss:0" in {one["to"] for one in graph["gradients"]}
    assert "norm:0" not in {one["to"] for one in graph["gradients"]}
    assert any(
        "that training computes from its gradients" in one for one in graph["gradients_not_taken"]
    )
    assert list(stages) == [
        "starting TensorFlow",
        "importing the models",
        "forward pass",
        "gradients",
    ]


def worded(tmp_path: Path) -> Path:
    """A tagger: words and a keep probability are fed, and a v1 loop reads the embedded words."""
    tf1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default() as graph:
            words = tf1.placeholder(tf.int32, [2, 3], name="words")
            keep = tf1.placeholder(tf.float32, [], name="keep")
            table = tf.constant([[float(row - 2), 1.0] for row in range(5)], name="table")
            time_major = tf.transpose(tf.gather(table, words), [1, 0, 2])
            states = tf.scan(lambda state, x: tf.tanh(state + x, name="state"), time_major)
            tf.multiply(states, keep, name="logits")
    finally:
        tf1.enable_control_flow_v2()
    path = tmp_path / "words.pb"
    path.write_bytes(graph.as_graph_def().SerializeToString())
    return path


def test_a_frozen_rnn_that_is_fed_words_is_verified(tmp_path: Path) -> None:
    path = worded(tmp_path)
    rule = {"match": {"op": "Tanh"}, "patch": {"filter_gradient": {"scale": 0.5}}, "expect": 1}
    found = graphpatch.verify(path, graphpatch.apply([rule], path))
    assert found.ok, [*found.failures, *found.not_compared]
    [graph] = found.document()["graphs"]
    assert not graph["settings"]["control_flow_v2"]
    changed = {one["from"] for one in graph["gradients"] if one["state"] == "changed"}
    assert changed == {"table:0"}

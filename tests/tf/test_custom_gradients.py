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
from tests.tf import consumer, live

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1

X = np.array([-3.0, -0.5, 0.0, 2.0], np.float32)


def swish_gradient(x: Any) -> Callable[[Any], Any]:
    return lambda dy: dy * tf.sigmoid(x) * (1 + x * (1 - tf.sigmoid(x)))


OF_TENSORFLOW = {
    "swish": tf.nn.swish,
    "scaled": lambda x: tf.nn.swish(x, 1.5),
    # As TensorFlow 1.15 has it, and EfficientNet: without a beta.
    "of 1.15": tf.custom_gradient(lambda x: (x * tf.sigmoid(x), swish_gradient(x))),
    "sigmoid first": tf.custom_gradient(lambda x: (tf.sigmoid(x) * x, swish_gradient(x))),
}
# And what gives the gradient back. Of tf.recompute_grad the file is that of an author's.
OF_AUTHORS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "a square with clipped gradients": (
        tf.custom_gradient(lambda x: (x * x, lambda dy: tf.clip_by_value(dy, -1.0, 1.0))),
        {"formula": [None, "clip(dy0, -1, 1)"]},
    ),
    "nearly the ops of a swish": (
        tf.custom_gradient(lambda x: (x * tf.sigmoid(tf.abs(x)), lambda dy: dy)),
        {"formula": [None, "dy0"]},
    ),
    "passed through": (tf.grad_pass_through(tf.floor), {"formula": [None, "dy0"]}),
    "recomputed": (tf.recompute_grad(tf.tanh), "default"),
}


def gradient(graph: Any) -> Any:
    return live.gradients(graph, "loss:0", ["x:0"], {"x:0": X})[0]


def of_another_process(nodes: Any) -> None:
    for node in nodes:
        if node.op == "IdentityN":
            node.attr["_gradient_op_type"].s = b"CustomGradient-990"


def lost(function: Callable[[Any], Any]) -> tuple[Any, Any]:
    """The graph as another process finds it, and the gradient before it was written."""
    with tf1.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [4], "x")
        tf.reduce_sum(function(x) * tf.constant([1.0, 2.0, -3.0, 0.5]), name="loss")
    message = graph.as_graph_def()
    of_another_process(message.node)
    with pytest.raises(LookupError, match=r"No gradient|no entry"):
        gradient(live.imported(message))
    return message, gradient(graph)


@pytest.mark.parametrize("name", OF_TENSORFLOW)
def test_a_swish_gets_its_true_gradient(name: str) -> None:
    message, expected = lost(OF_TENSORFLOW[name])
    diagnosis = graphpatch.diagnose(message, "x", "loss", fix=True)
    assert [finding.kind for finding in diagnosis.pairs[0].findings] == ["swish"]
    found = gradient(live.imported(graphpatch.apply(diagnosis.rules, message)))
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-7)


def test_16601_the_swish_of_a_saved_model(tmp_path: Path) -> None:
    from tensorflow.core.protobuf import saved_model_pb2

    # keras 16601, models 9294, 34211: "ops with unsaved custom gradients".
    module, old, new = tf.Module(), tmp_path / "old", tmp_path / "new"
    signature = [tf.TensorSpec([4], tf.float32, "x")]
    module.call = tf.function(lambda x: {"y": tf.nn.swish(x)}, signature)
    tf.saved_model.save(module, str(old), module.call)
    saved = saved_model_pb2.SavedModel.FromString((old / "saved_model.pb").read_bytes())
    for function in saved.meta_graphs[0].graph_def.library.function:
        of_another_process(function.node_def)
    (old / "saved_model.pb").write_bytes(saved.SerializeToString())
    graphpatch.apply(graphpatch.diagnose(old, fix=True).rules, old).save(new)
    before, after = (
        tf.saved_model.load(str(at)).signatures["serving_default"] for at in (old, new)
    )
    with pytest.raises(LookupError, match="IdentityN"):
        consumer.taped(lambda x: before(x)["y"], X)
    dx = consumer.taped(lambda x: after(x)["y"], X)[1]
    np.testing.assert_allclose(dx, swish_gradient(X)(1.0), rtol=2e-6)


@pytest.mark.parametrize("name", OF_AUTHORS)
def test_an_authors_gets_no_rule_and_two_ways(name: str) -> None:
    function, patch = OF_AUTHORS[name]  # 40166
    message, expected = lost(function)
    diagnosis = graphpatch.diagnose(message, "x", "loss", fix=True)
    [finding] = diagnosis.pairs[0].findings
    assert (finding.kind, diagnosis.rules) == ("custom_gradient", [])
    for text in (
        *("tf.RegisterGradient", "by a formula", 'tf.recompute_grad, "default" is true'),
        'tf.grad_pass_through, it is the formula [null, "dy0"]',
    ):
        assert text in finding.remedy
    rule = {"match": {"op": "IdentityN"}, "patch": {"override_gradient": patch}}
    found = gradient(live.imported(graphpatch.apply([rule], message)))
    np.testing.assert_allclose(found, expected, rtol=1e-6)

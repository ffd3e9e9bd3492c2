"""Why ops in v1 loops have their gradients by functions: what a construction does there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphpatch
from graphpatch.patches import carrier
from tests.tf.batch import graph

tf = pytest.importorskip("tensorflow")

X = np.array([0.1, 0.5, -0.3], np.float32)


def looped(x: Any) -> Any:
    """Three times y = relu(1.5 * y)."""
    _, y = tf.compat.v1.while_loop(
        lambda turn, y: turn < 3,
        lambda turn, y: (turn + 1, tf.nn.relu(y * 1.5, "relu")),
        [tf.constant(0), x],
    )
    return y


def gradient(formula: str, kind: str = "override_gradient") -> tuple[str, Any]:
    """How the gradient of the loop's Relu is stored, and what a Session gives for dx."""
    tf1 = tf.compat.v1
    given = {"formula": formula} if kind == "override_gradient" else formula
    rule = {"match": {"op": "Relu"}, "patch": {kind: given}}
    result = graphpatch.apply([rule], graph(looped, v1=True))
    with tf1.Graph().as_default() as live:
        message = result.meta_graph_def().SerializeToString()
        tf1.train.import_meta_graph(tf1.MetaGraphDef.FromString(message))
        x, y = live.get_tensor_by_name("x:0"), live.get_tensor_by_name("y:0")
        [dx] = tf1.gradients(y, x)
        with tf1.Session(graph=live) as session:
            return result.report["rules"][0]["emit"], session.run(dx, {x: X})


def test_a_function_is_right() -> None:
    emit, dx = gradient("dy * 2")
    assert (emit, list(dx)) == ("function", [27.0] * 3)  # (1.5 * 2) ** 3


def test_a_surrogate_is_a_construction_whose_constants_wait_for_an_op_of_the_loop() -> None:
    emit, dx = gradient("2 * x", "surrogate_gradient")
    assert (emit, list(dx)) == ("construction", [27.0] * 3)


def test_a_construction_with_a_constant_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Const without inputs is in no frame, and TensorFlow runs no op that reads two frames."""
    monkeypatch.setattr(carrier, "in_control_flow", lambda node, editor: False)
    with pytest.raises(tf.errors.InvalidArgumentError):
        gradient("dy * 2")
    emit, dx = gradient("dy * x")  # without one
    monkeypatch.undo()
    assert emit == "construction"
    np.testing.assert_array_equal(dx, gradient("dy * x")[1])

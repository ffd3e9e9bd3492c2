"""Second derivatives through y of gradients that functions carry, against closed form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from tests.tf.consumer import save

tf = pytest.importorskip("tensorflow")

X = np.array([-1.5, -0.2, 0.3, 2.0], np.float32)


def elu(x: Any) -> Any:
    return np.where(x < 0, np.exp(x) - 1, x)


# The op, its gradient, its first and its second derivative.
CASES: dict[str, tuple[str, Any, Any, Any]] = {
    "formula": (
        "Tanh",
        {"formula": "dy * (1 - y * y)"},
        1 - np.tanh(X) ** 2,
        -2 * np.tanh(X) * (1 - np.tanh(X) ** 2),
    ),
    "guided_elu": (
        "Elu",
        "guided_elu",
        np.where(X < 0, elu(X) + 1, 1),
        np.where(X < 0, elu(X) + 1, 0),
    ),
    # m = y / x, and y' = m: (m * x - y) / x ** 2 is zero.
    "deeplift_rescale": ("Tanh", "deeplift_rescale", np.tanh(X) / X, 0 * X),
    # x and y: (y + x * y') where y' = x * y.
    "x and y": (
        "Sigmoid",
        {"formula": "dy * x * y"},
        X / (1 + np.exp(-X)),
        (1 + X * X) / (1 + np.exp(-X)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_second_derivatives_on_a_tape(name: str, tmp_path: Path) -> None:
    op, gradient, first, second = CASES[name]

    def build() -> None:
        x = tf.compat.v1.placeholder(tf.float32, [4], "x")
        tf.identity(getattr(tf.raw_ops, op)(**{_argument(op): x}), "y")

    path = save(build, tmp_path / "model.pb")
    rule = {"match": {"op": op}, "patch": {"override_gradient": gradient}, "emit": "function"}
    result = graphpatch.apply([rule], path)
    result.model.save(tmp_path / "patched.pb")
    graphpatch.register_gradients(tmp_path / "patched.pb")
    graph_def = tf.compat.v1.GraphDef.FromString((tmp_path / "patched.pb").read_bytes())
    net = tf.compat.v1.wrap_function(
        lambda x: tf.graph_util.import_graph_def(graph_def, {"x:0": x}, ["y:0"])[0],
        [tf.TensorSpec([4], tf.float32)],
    )
    x = tf.constant(X)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = net(x)
        dx = inner.gradient(y, x)
    np.testing.assert_allclose(dx, first, rtol=2e-6)
    np.testing.assert_allclose(outer.gradient(dx, x), second, rtol=1e-5, atol=1e-6)


def _argument(op: str) -> str:
    return "features" if op == "Elu" else "x"

"""What joins a forward tensor with another backward: every bit, and on a tape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tf.test_backward_as_cases import X, check_forward, noisy_root, passing, saved_both

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1

BITS = np.array([0x7FC00001, 0xFFC12345, 0x00000001, 0x80000001], np.uint32).view(np.float32)
KINDS_OF_FLOATS = np.concatenate([np.array([0.0, -0.0, np.inf, -np.inf, 1e38], np.float32), BITS])


@pytest.mark.parametrize("emit", ["auto", "function"])
def test_every_kind_of_float_goes_on_bit_for_bit(tmp_path: Path, emit: str) -> None:
    """Also subnormal numbers, which arithmetic flushes, where the clean way is infinite."""

    def build() -> None:
        x = tf1.placeholder(tf.float32, KINDS_OF_FLOATS.shape, name="x")
        tf.reshape(tf.clip_by_value(x, -np.inf, np.inf, name="noisy"), [3, 3], name="z")
        tf.reshape(x, [9], name="surrogated")

    surrogate = {"match": {"name": "surrogated"}, "patch": {"surrogate_gradient": "exp(x) * x"}}
    rules = [{**passing({"name": "noisy"}), "emit": emit}, {**surrogate, "emit": emit}]
    before, after, _ = saved_both(tmp_path, build, *rules)
    check_forward(before, after, ["z:0", "surrogated:0"], {"x:0": KINDS_OF_FLOATS})


@pytest.mark.parametrize("patch", ["backward_as", "surrogate_gradient"])
def test_on_a_tape_and_to_second_order(tmp_path: Path, patch: str) -> None:
    """Without code of ours: whoever loads the file differentiates ops of TensorFlow."""
    surrogate = {"match": {"name": "z"}, "patch": {"surrogate_gradient": "x ** 3"}}
    noiseless = passing({"name": "noisy"}, "z")
    _, after, _ = saved_both(
        tmp_path, noisy_root, surrogate if patch == "surrogate_gradient" else noiseless
    )
    definition = tf1.GraphDef.FromString(after.read_bytes())

    def load(x: Any) -> Any:
        return tf1.import_graph_def(definition, {"x:0": x}, ["z:0", "noisy:0"])

    model = tf1.wrap_function(load, [tf.TensorSpec(X.shape)])
    x = tf.constant(X)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            z, noisy = model(x)
        dx = tape.gradient(z, x)
    d2x = outer.gradient(dx, x)
    if patch == "backward_as":
        assert (dx.numpy().tolist(), d2x.numpy().tolist()) == ([-1.0, -1.0, 1.0], [0.0, 0.0, 0.0])
    else:
        np.testing.assert_allclose(dx, 6 * noisy**3 / x, rtol=1e-5)
        np.testing.assert_allclose(d2x, 30 * noisy**3 / x**2, rtol=1e-4)

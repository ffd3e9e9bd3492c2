"""straight_through: forward func(input), bit for bit; backward the identity."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from tests.tf import consumer

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1

# Every kind of float: signed zeros, subnormals, infinities, and NaNs by their payload.
BITS = np.array([0x7FC00001, 0xFFC12345, 0x00000001, 0x80000001], np.uint32).view(np.float32)
PLAIN = [0.0, -0.0, 0.5, 1.5, -2.5, -0.4, 3.7, 1e-38, -3e38, np.inf, -np.inf, np.nan]
X = np.concatenate([np.array(PLAIN, np.float32), BITS])

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "Round": lambda x: tf.round(x, name="func"),
    "Floor": lambda x: tf.floor(x, name="func"),
    "Ceil": lambda x: tf.math.ceil(x, name="func"),
    "Sign": lambda x: tf.sign(x, name="func"),
    "FakeQuantWithMinMaxVars": lambda x: tf.quantization.fake_quant_with_min_max_vars(
        x, tf.constant(-3.0), tf.constant(3.0), name="func"
    ),
    "Minimum": lambda x: tf.minimum(x, tf.constant(1.0, shape=X.shape), name="func"),
}


@pytest.mark.parametrize("op", FUNCTIONS)
def test_the_op_counts_as_identity(tmp_path: Path, op: str) -> None:
    def build() -> None:
        x = tf1.placeholder(tf.float32, X.shape, name="x")
        tf.multiply(FUNCTIONS[op](x), tf.constant(np.arange(X.size), tf.float32), name="y")

    model, target = consumer.save(build, tmp_path / "model.pb"), tmp_path / "patched.pb"
    rule = {"match": {"name": "func"}, "patch": {"straight_through": True}, "expect": 1}
    result = graphpatch.apply([rule], model)
    result.model.save(target)
    assert result.report["rules"][0]["matches"] == [{"body": "main", "op": "func", "type": op}]
    assert result.report["consumer"] == {"session": [], "tape": []}
    feeds = {"x:0": X}
    both = [consumer.run(path, feeds, ["func:0", "y:0"]) for path in (model, target)]
    assert all(map(consumer.same_bits, *both))
    [before] = consumer.differentiate(model, "y:0", ["x:0"], feeds)
    [after] = consumer.differentiate(target, "y:0", ["x:0"], feeds)
    assert before is None or before.tolist() != after.tolist()
    assert after.tolist() == np.arange(X.size).tolist()

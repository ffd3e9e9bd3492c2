"""straight_through: forward func(input), bit for bit; backward the identity."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from graphpatch.errors import PatchError
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


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_dtypes(tmp_path: Path, dtype: str) -> None:
    with np.errstate(over="ignore"):  # -3e38 is -inf in float16
        values = np.array(PLAIN).astype(tf.as_dtype(dtype).as_numpy_dtype)

    def build() -> None:
        x = tf1.placeholder(dtype, values.shape, name="x")
        tf.floor(x, name="floored")
        tf.maximum(x, tf.constant(0.0, dtype, values.shape), name="clipped")

    model, target = consumer.save(build, tmp_path / "model.pb"), tmp_path / "patched.pb"
    rule = {"match": {"op": ["Floor", "Maximum"]}, "patch": {"straight_through": True}}
    graphpatch.apply([rule], model).model.save(target)
    outputs = ["floored:0", "clipped:0"]
    both = [consumer.run(path, {"x:0": values}, outputs) for path in (model, target)]
    assert all(map(consumer.same_bits, *both))
    for output in outputs:
        [gradient] = consumer.differentiate(target, output, ["x:0"], {"x:0": values})
        assert gradient.tolist() == [1.0] * values.size


def test_by_another_input_than_the_first(tmp_path: Path) -> None:
    def build() -> None:
        a, b = (tf1.placeholder(tf.float32, [2], name=name) for name in "ab")
        tf.multiply(a, b, name="func")

    model, target = consumer.save(build, tmp_path / "model.pb"), tmp_path / "patched.pb"
    rule = {"match": {"name": "func"}, "patch": {"straight_through": {"input": 1}}}
    graphpatch.apply([rule], model).model.save(target)
    feeds = {"a:0": [2.0, np.inf], "b:0": [5.0, np.inf]}
    both = [consumer.run(path, feeds, ["func:0"]) for path in (model, target)]
    assert all(map(consumer.same_bits, *both))
    da, db = consumer.differentiate(target, "func:0", ["a:0", "b:0"], feeds)
    assert da is None
    assert db.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda x: tf.reduce_sum(x, name="func"), "not known to keep the shape"),
        (lambda x: tf.cast(x, tf.int32, name="func"), "no gradient"),
        (lambda x: tf.cast(x, tf.float64, name="func"), "another dtype"),
        (lambda x: tf.split(x, 2, name="func"), "2 outputs"),
    ],
)
def test_what_is_no_identity_is_refused(
    tmp_path: Path, make: Callable[[Any], Any], reason: str
) -> None:
    def build() -> None:
        make(tf1.placeholder(tf.float32, [4], name="x"))

    model = consumer.save(build, tmp_path / "model.pb")
    match = {"name": "func"}
    with pytest.raises(PatchError, match=reason):
        graphpatch.apply([{"match": match, "patch": {"straight_through": True}}], model)

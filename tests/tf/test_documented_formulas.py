"""The documented cases of formulas, by rules files: what a Session then gives, in closed form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tf import consumer

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1

Patch = Callable[[Path, str, Any], Path]


@pytest.fixture
def patch(tmp_path: Path, run_cli: Callable[..., Any], rules_file: Callable[..., Path]) -> Patch:
    """Override the gradient of one op by a rules file and the command line."""

    def patched(model: Path, name: str, gradient: Any) -> Path:
        target = tmp_path / "patched.pb"
        rule = {"match": {"name": name}, "patch": {"override_gradient": {"formula": gradient}}}
        done = run_cli("apply", rules_file(rule), model, "-o", target)
        assert done.code == 0, done.stderr
        return target

    return patched


def test_a_multiply_that_gives_one_input_nothing(tmp_path: Path, patch: Patch) -> None:
    def build() -> None:
        w = tf1.placeholder(tf.float32, [], name="W")
        i = tf1.placeholder(tf.float32, [], name="I")
        tf.multiply(w, i, name="Multiply")

    model, feeds = consumer.save(build, tmp_path / "model.pb"), {"W:0": 3.0, "I:0": 10.0}
    asked = "Multiply:0", ["W:0", "I:0"], feeds
    assert consumer.differentiate(model, *asked) == [10.0, 3.0]
    target = patch(model, "Multiply", ["dy * x1", None])
    assert consumer.differentiate(target, *asked) == [10.0, None]
    assert consumer.run(target, feeds, ["Multiply:0"]) == [30.0]


def test_two_inputs_and_three_outputs(tmp_path: Path, patch: Patch) -> None:
    """Each of three upstream gradients is in what flows back to either input of a call."""

    @tf.function
    def three(a: Any, b: Any) -> Any:
        return a * b, a + b, a - b

    def build() -> None:
        y = three(tf1.placeholder(tf.float32, [], name="a"), tf1.placeholder(tf.float32, [], "b"))
        tf.add_n([2.0 * y[0], 3.0 * y[1], 5.0 * y[2]], name="loss")

    model, feeds = consumer.save(build, tmp_path / "model.pb"), {"a:0": 7.0, "b:0": 11.0}
    asked = "loss:0", ["a:0", "b:0"], feeds
    assert consumer.differentiate(model, *asked) == [2.0 * 11 + 3 + 5, 2.0 * 7 + 3 - 5]
    gradient = ["dy0 + 10 * dy1 + 100 * dy2", "dy0 * dy1 * dy2 + x0 + y1"]
    target = patch(model, "PartitionedCall", gradient)
    assert consumer.differentiate(target, *asked) == [2.0 + 30 + 500, 30.0 + 7 + 18]
    assert consumer.run(target, feeds, ["loss:0"]) == [2.0 * 77 + 3 * 18 - 5 * 4]

"""backward_as: kinds of noise, and what may lie between it and where it stops counting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from tests.tf import consumer

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1

X = np.array([-2.0, -1.0, 1.0], np.float32)
SEEDS = {"seed": 7}


def passing(match: Any, until: Any = None, slot: int = 0) -> dict[str, Any]:
    found = {"input": slot, **({} if until is None else {"until": until})}
    return {"match": match, "patch": {"backward_as": found}}


def saved_both(
    folder: Path, build: Callable[[], object], *rules: Mapping[str, Any]
) -> tuple[Path, Path, graphpatch.Result]:
    """The model as built, as patched, and the result."""
    before, after = consumer.save(build, folder / "before.pb"), folder / "after.pb"
    result = graphpatch.apply(rules, before)
    result.model.save(after)
    assert graphpatch.verify(before, after, run=False).ok
    return before, after, result


def check_forward(before: Path, after: Path, fetches: Sequence[str], feeds: Any) -> None:
    both = [consumer.run(path, feeds, fetches) for path in (before, after)]
    assert all(map(consumer.same_bits, *both))


def x_of() -> Any:
    return tf1.placeholder(tf.float32, X.shape, name="x")


def noisy_root() -> None:
    y = tf.square(x_of(), name="y")
    u = tf.random.uniform(X.shape, 0.9, 1.1, **SEEDS)
    tf.sqrt(tf.multiply(y, u, name="noisy"), name="z")


FEEDS = {"x:0": X}


@pytest.mark.parametrize("until", ["z", ["z:0"], None])
def test_the_gradient_is_the_same_on_every_run(tmp_path: Path, until: Any) -> None:
    before, after, result = saved_both(tmp_path, noisy_root, passing({"name": "noisy"}, until))
    check_forward(before, after, ["z:0", "noisy:0"], FEEDS)
    for _ in range(3):
        [dx] = consumer.differentiate(after, "z:0", ["x:0"], FEEDS)
        assert dx.tolist() == [-1.0, -1.0, 1.0]
    [noisy] = consumer.differentiate(before, "z:0", ["x:0"], FEEDS)
    assert noisy.tolist() != [-1.0, -1.0, 1.0]
    assert result.report["rules"][0]["emit"] == "construction"
    assert not any("still noisy" in note for note in result.report["notes"])


def test_where_the_rule_stops_in_the_middle(tmp_path: Path) -> None:
    def build() -> None:
        noisy_root()
        z = tf1.get_default_graph().get_tensor_by_name("z:0")
        tf.sin(2.0 * z, name="w")

    _, after, result = saved_both(tmp_path, build, passing({"name": "noisy"}, "z"))
    [note] = [one for one in result.report["notes"] if "still noisy" in one]
    assert "still noisy behind z: that of Sin 'w' is taken at a noisy value" in note
    _, after, result = saved_both(tmp_path, build, passing({"name": "noisy"}))
    assert result.report["notes"] == ["in main the noise-free path goes up to w"]
    [dx] = consumer.differentiate(after, "w:0", ["x:0"], FEEDS)
    np.testing.assert_allclose(dx, 2 * np.sign(X) * np.cos(2 * abs(X)), rtol=1e-5)


def test_a_way_beside_it_is_reported(tmp_path: Path) -> None:
    def build() -> None:
        noisy_root()
        noisy = tf1.get_default_graph().get_tensor_by_name("noisy:0")
        tf.exp(noisy, name="other")

    before, after, result = saved_both(tmp_path, build, passing({"name": "noisy"}, "z"))
    [note] = result.report["notes"]
    assert note == "the gradient is still noisy beside z: Exp 'other' reads Mul 'noisy'"
    both = [consumer.differentiate(p, "other:0", ["x:0"], FEEDS)[0] for p in (before, after)]
    assert consumer.same_bits(*both)


def gelu(x: Any) -> Any:
    return x * tf.sigmoid(1.702 * x)


def several(folder: Path, build: Callable[[], object], *rules: Any) -> Path:
    before, after, _ = saved_both(folder, build, *rules)
    ends = [op.name for op in consumer.imported(before).get_operations() if op.name[0] == "z"]
    check_forward(before, after, [f"{name}:0" for name in ends], FEEDS)
    return after


def noise(x: Any, name: str) -> Any:
    return tf.multiply(x, tf.random.uniform(x.shape, 0.5, 1.5, **SEEDS), name=f"noise_{name}")


def test_several_noisy_ops_and_outputs(tmp_path: Path) -> None:
    def build() -> None:
        a = noise(tf.sin(x_of()), "a")
        b = noise(tf.tanh(a), "b")
        tf.exp(b, name="z0")
        tf.square(noise(a * b, "c"), name="z1")

    after = several(tmp_path, build, passing({"name": "noise_*"}))
    a, cos = np.sin(X), np.cos(X)
    b = np.tanh(a)
    [dx] = consumer.differentiate(after, "z0:0", ["x:0"], FEEDS)
    np.testing.assert_allclose(dx, np.exp(b) * (1 - b * b) * cos, rtol=1e-5)
    [dx] = consumer.differentiate(after, "z1:0", ["x:0"], FEEDS)
    np.testing.assert_allclose(dx, 2 * a * b * (b + a * (1 - b * b)) * cos, rtol=1e-4)


@pytest.mark.parametrize("order", [("mul", "add"), ("add", "mul")])
def test_one_rule_after_the_other(tmp_path: Path, order: tuple[str, str]) -> None:
    """Noise that is the first input of one op and the second of another takes two rules."""

    def build() -> None:
        a = tf.multiply(tf.sin(x_of()), tf.random.uniform(X.shape, **SEEDS), name="mul")
        u = tf.random.normal(X.shape, **SEEDS)
        tf.exp(tf.add(u, tf.square(a), name="add"), name="z")

    rules = {"mul": passing({"name": "mul"}), "add": passing({"name": "add"}, slot=1)}
    after = several(tmp_path, build, *(rules[name] for name in order))
    [dx] = consumer.differentiate(after, "z:0", ["x:0"], FEEDS)
    a = np.sin(X)
    np.testing.assert_allclose(dx, np.exp(a * a) * 2 * a * np.cos(X), rtol=1e-5)


def test_branches_that_rejoin(tmp_path: Path) -> None:
    def build() -> None:
        n = noise(x_of(), "n")
        left, right = tf.split(tf.concat([tf.tanh(n), gelu(n)], 0), 2)
        tf.where(n > 0, left, left * right, name="z")

    after = several(tmp_path, build, passing({"op": "Mul", "name": "noise_n"}))
    with tf.GradientTape() as tape:
        x = tf.constant(X)
        tape.watch(x)
        z = tf.where(x > 0, tf.tanh(x), tf.tanh(x) * gelu(x))
    [dx] = consumer.differentiate(after, "z:0", ["x:0"], FEEDS)
    np.testing.assert_allclose(dx, tape.gradient(z, x), rtol=1e-5)


def dropout(x: Any, seed: int) -> Any:
    """Dropout as a frozen training graph has it: what is kept is scaled by 1 / (1 - rate)."""
    kept = tf.random.uniform(tf.shape(x), seed=seed) >= 0.5
    return tf.multiply(x * 2.0, tf.cast(kept, tf.float32), name=f"dropout_{seed}")


def test_dropout_in_training_form(tmp_path: Path) -> None:
    """The second draws its random numbers by the shape of what is noisy: they are shared."""

    def build() -> None:
        h = dropout(tf.tanh(x_of()), 1)
        tf.square(dropout(tf.exp(h), 2), name="z")

    after = several(tmp_path, build, passing({"name": "dropout_*"}))
    drawn = [op.type for op in consumer.imported(after).get_operations()].count("RandomUniform")
    assert drawn == 2
    [dx] = consumer.differentiate(after, "z:0", ["x:0"], FEEDS)
    scale = 2.0
    h = scale * np.tanh(X)
    expected = 2 * (scale * np.exp(h)) ** 2 * scale * (1 - np.tanh(X) ** 2)
    np.testing.assert_allclose(dx, expected, rtol=1e-4)


def test_noise_that_repeats_its_input(tmp_path: Path) -> None:
    """The Mul counts as its input, repeated to the shape that the noise gives it."""

    def build() -> None:
        n = tf.multiply(x_of(), tf.random.uniform([4, 3], **SEEDS), name="noisy")
        tf.reduce_sum(tf.square(n), name="z")

    after = several(tmp_path, build, passing({"name": "noisy"}))
    [dx] = consumer.differentiate(after, "z:0", ["x:0"], FEEDS)
    np.testing.assert_allclose(dx, 4 * 2 * X, rtol=1e-6)


def test_variables_and_placeholders_are_shared(tmp_path: Path) -> None:
    def build() -> None:
        w = tf1.get_variable("w", initializer=[2.0, 3.0, 4.0], use_resource=True)
        p = tf1.placeholder_with_default([1.0, 1.0, 1.0], [3], name="p")
        tf.square(noise(x_of(), "n") * w.read_value() + p, name="z")
        tf1.global_variables_initializer()

    before, after, _ = saved_both(tmp_path, build, passing({"name": "noise_n"}))
    types = [[op.type for op in consumer.imported(p).get_operations()] for p in (before, after)]
    for shared in ("VarHandleOp", "PlaceholderWithDefault", "RandomUniform", "ReadVariableOp"):
        assert types[0].count(shared) == types[1].count(shared) > 0
    graph, found = consumer.imported(after), []
    with graph.as_default(), tf1.Session() as session:
        z, x, p = (graph.get_tensor_by_name(f"{name}:0") for name in "zxp")
        session.run("init")
        found = session.run(tf1.gradients(z, [x, p]), {x: X, p: [0.5, 0.5, 0.5]})
    w = np.array([2, 3, 4], np.float32)
    inner = X * w + 0.5
    np.testing.assert_allclose(found, [2 * inner * w, 2 * inner], rtol=1e-5)


def test_a_loop_and_a_function_between(tmp_path: Path) -> None:
    def build() -> None:
        n = noise(x_of(), "n")
        looped = tf.while_loop(lambda i, _: i < 2, lambda i, a: (i + 1, tf.sin(a)), [0, n])[1]
        tf.identity(tf.function(gelu)(looped), name="z")

    after = several(tmp_path, build, passing({"name": "noise_n"}, "z"))
    with tf.GradientTape() as tape:
        x = tf.constant(X)
        tape.watch(x)
        z = gelu(tf.sin(tf.sin(x)))
    [dx] = consumer.differentiate(after, "z:0", ["x:0"], FEEDS)
    np.testing.assert_allclose(dx, tape.gradient(z, x), rtol=1e-5)


def test_an_overridden_op_between_keeps_its_gradient(tmp_path: Path) -> None:
    def build() -> None:
        tf.square(tf.nn.relu(noise(x_of(), "n"), name="relu"), name="z")

    formula = {"override_gradient": {"formula": "3 * dy"}}
    override = {"match": {"name": "relu"}, "patch": formula}
    after = several(tmp_path, build, override, passing({"name": "noise_n"}))
    [dx] = consumer.differentiate(after, "z:0", ["x:0"], FEEDS)
    np.testing.assert_allclose(dx, 3 * 2 * np.maximum(X, 0), rtol=1e-6)

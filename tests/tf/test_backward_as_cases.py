"""backward_as: kinds of noise, and what may lie between it and where it stops counting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import graphpatch
from tests.tf import consumer, live

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1

X = np.array([-2.0, -1.0, 1.0], np.float32)
FEEDS = {"x:0": X}
SEEDS = {"seed": 7}


def passing(name: str, until: Any = None, slot: int = 0, **match: Any) -> dict[str, Any]:
    found = {"input": slot, **({} if until is None else {"until": until})}
    return {"match": {"name": name, **match}, "patch": {"backward_as": found}}


def patched(build: Callable[[], object], *rules: Any) -> tuple[Any, graphpatch.Result]:
    """The model as built, and the result."""
    before = consumer.built(build)
    result = graphpatch.apply(rules, before)
    assert graphpatch.verify(before, result, run=False).ok
    return before, result


def check_forward(before: Any, after: Any, fetches: list[str], feeds: Any = FEEDS) -> None:
    both = [consumer.run(model, feeds, fetches) for model in (before, after)]
    assert all(map(consumer.same_bits, *both))


def dx_of(model: Any, of: str) -> Any:
    return consumer.differentiate(model, f"{of}:0", ["x:0"], FEEDS)[0]


def x_of() -> Any:
    return tf1.placeholder(tf.float32, X.shape, name="x")


def noisy_root() -> None:
    y = tf.square(x_of(), name="y")
    noisy = tf.multiply(y, tf.random.uniform(X.shape, 0.9, 1.1, **SEEDS), name="noisy")
    tf.sqrt(noisy, name="z")


def with_more(then: Callable[[Any], Any], name: str) -> Callable[[], None]:
    """The root, and what an op of it is read by."""

    def build() -> None:
        noisy_root()
        then(tf1.get_default_graph().get_tensor_by_name(f"{name}:0"))

    return build


@pytest.mark.parametrize("until", ["z", ["z:0"], None])
def test_the_gradient_is_the_same_on_every_run(until: Any) -> None:
    before, result = patched(noisy_root, passing("noisy", until))
    check_forward(before, result.graph_def(), ["z:0", "noisy:0"])
    for _ in range(3):
        assert dx_of(result.graph_def(), "z").tolist() == [-1.0, -1.0, 1.0]
    assert dx_of(before, "z").tolist() != [-1.0, -1.0, 1.0]
    assert result.report["rules"][0]["emit"] == "construction"
    assert not any("still noisy" in note for note in result.report["notes"])


def test_where_the_rule_stops_in_the_middle() -> None:
    build = with_more(lambda z: tf.sin(2.0 * z, name="w"), "z")
    [note] = [
        note
        for note in patched(build, passing("noisy", "z"))[1].report["notes"]
        if "still noisy" in note
    ]
    assert "still noisy behind z: that of Sin 'w' is taken at a noisy value" in note
    _, result = patched(build, passing("noisy"))
    assert result.report["notes"] == ["in main the noise-free path goes up to w"]
    expected = 2 * np.sign(X) * np.cos(2 * abs(X))
    np.testing.assert_allclose(dx_of(result.graph_def(), "w"), expected, rtol=1e-5)


def test_a_way_beside_it_is_reported() -> None:
    build = with_more(lambda noisy: tf.exp(noisy, name="other"), "noisy")
    before, result = patched(build, passing("noisy", "z"))
    [note] = result.report["notes"]
    assert note == "the gradient is still noisy beside z: Exp 'other' reads Mul 'noisy'"
    assert consumer.same_bits(dx_of(before, "other"), dx_of(result.graph_def(), "other"))


def gelu(x: Any) -> Any:
    return x * tf.sigmoid(1.702 * x)


def noise(x: Any, name: str = "n") -> Any:
    return tf.multiply(x, tf.random.uniform(x.shape, 0.5, 1.5, **SEEDS), name=f"noise_{name}")


def several() -> None:
    a = noise(tf.sin(x_of()), "a")
    b = noise(tf.tanh(a), "b")
    tf.exp(b, name="z0")
    tf.square(noise(a * b, "c"), name="z1")


def first_and_second() -> None:
    """Noise that is the first input of one op and the second of another takes two rules."""
    a = tf.multiply(tf.sin(x_of()), tf.random.uniform(X.shape, **SEEDS), name="mul")
    tf.exp(tf.add(tf.random.normal(X.shape, **SEEDS), tf.square(a), name="add"), name="z")


def rejoining() -> None:
    n = noise(x_of())
    left, right = tf.split(tf.concat([tf.tanh(n), gelu(n)], 0), 2)
    tf.where(n > 0, left, left * right, name="z")


def repeating() -> None:
    """The Mul counts as its input, repeated to the shape that the noise gives it."""
    n = tf.multiply(x_of(), tf.random.uniform([4, 3], **SEEDS), name="noise_n")
    tf.reduce_sum(tf.square(n), name="z")


def loop_and_function() -> None:
    looped = tf.while_loop(lambda i, _: i < 2, lambda i, a: (i + 1, tf.sin(a)), [0, noise(x_of())])
    tf.identity(tf.function(gelu)(looped[1]), name="z")


def dropout(x: Any, seed: int) -> Any:
    """Dropout as a frozen training graph has it: what is kept is scaled by 1 / (1 - rate)."""
    kept = tf.random.uniform(tf.shape(x), seed=seed) >= 0.5
    return tf.multiply(x * 2.0, tf.cast(kept, tf.float32), name=f"noise_{seed}")


def in_training_form() -> None:
    """The second draws its random numbers by the shape of what is noisy: they are shared."""
    tf.square(dropout(tf.exp(dropout(tf.tanh(x_of()), 1)), 2), name="z")


class Case(NamedTuple):
    """A graph, its rules, and of each end without noise the gradient, or how it is computed."""

    build: Callable[[], None]
    rules: list[Any]
    expected: dict[str, Any]


A, COS, TANH = np.sin(X), np.cos(X), np.tanh(X)
B = np.tanh(A)
ALL = [passing("noise_*")]
MUL, ADD = passing("mul"), passing("add", slot=1)
SQUARED = {"z": np.exp(A * A) * 2 * A * COS}
# fmt: off
CASES = {
    "several noisy ops and outputs": Case(several, ALL, {
        "z0": np.exp(B) * (1 - B * B) * COS, "z1": 2 * A * B * (B + A * (1 - B * B)) * COS}),
    "one rule after the other": Case(first_and_second, [MUL, ADD], SQUARED),
    "the other way round": Case(first_and_second, [ADD, MUL], SQUARED),
    "branches that rejoin": Case(rejoining, [passing("noise_n", op="Mul")], {
        "z": lambda x: tf.where(x > 0, tf.tanh(x), tf.tanh(x) * gelu(x))}),
    "dropout in training form": Case(in_training_form, ALL, {
        "z": 16 * np.exp(2 * TANH) ** 2 * (1 - TANH**2)}),
    "noise that repeats its input": Case(repeating, ALL, {"z": 4 * 2 * X}),
    "a loop and a function between": Case(loop_and_function, [passing("noise_n", "z")], {
        "z": lambda x: gelu(tf.sin(tf.sin(x)))}),
    "an overridden op between keeps its gradient": Case(
        lambda: tf.square(tf.nn.relu(noise(x_of()), name="relu"), name="z"),
        [live.overridden("relu", {"formula": "3 * dy"}), *ALL], {"z": 3 * 2 * np.maximum(X, 0)}),
}
# fmt: on


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_is_that_without_noise(name: str) -> None:
    case = CASES[name]
    before, result = patched(case.build, *case.rules)
    after = result.graph_def()
    check_forward(before, after, [f"{end}:0" for end in case.expected])
    for end, expected in case.expected.items():
        expected = consumer.taped(expected, X)[1] if callable(expected) else expected
        np.testing.assert_allclose(dx_of(after, end), expected, rtol=1e-4)
    drawn = [[op.op for op in one.node].count("RandomUniform") for one in (before, after)]
    assert drawn[0] == drawn[1]


def test_variables_and_placeholders_are_shared() -> None:
    def build() -> None:
        w = tf1.get_variable("w", initializer=[2.0, 3.0, 4.0], use_resource=True)
        p = tf1.placeholder_with_default([1.0, 1.0, 1.0], [3], name="p")
        tf.square(noise(x_of()) * w.read_value() + p, name="z")
        tf1.global_variables_initializer()

    before, result = patched(build, passing("noise_n"))
    types = [[node.op for node in one.node] for one in (before, result.graph_def())]
    for shared in ("VarHandleOp", "PlaceholderWithDefault", "RandomUniform", "ReadVariableOp"):
        assert types[0].count(shared) == types[1].count(shared) > 0
    graph = consumer.imported(result.graph_def())
    with graph.as_default(), tf1.Session() as session:
        z, x, p = (graph.get_tensor_by_name(f"{name}:0") for name in "zxp")
        session.run("init")
        found = session.run(tf1.gradients(z, [x, p]), {x: X, p: [0.5, 0.5, 0.5]})
    w = np.array([2, 3, 4], np.float32)
    inner = X * w + 0.5
    np.testing.assert_allclose(found, [2 * inner * w, 2 * inner], rtol=1e-5)


# What joins a forward tensor with another backward: every bit, and on a tape.

BITS = np.array([0x7FC00001, 0xFFC12345, 0x00000001, 0x80000001], np.uint32).view(np.float32)
KINDS_OF_FLOATS = np.concatenate([np.array([0.0, -0.0, np.inf, -np.inf, 1e38], np.float32), BITS])


def surrogate(name: str, formula: str) -> dict[str, Any]:
    return {"match": {"name": name}, "patch": {"surrogate_gradient": formula}}


@pytest.mark.parametrize("emit", ["auto", "function"])
def test_every_kind_of_float_goes_on_bit_for_bit(emit: str) -> None:
    """Also subnormal numbers, which arithmetic flushes, where the clean way is infinite."""

    def build() -> None:
        x = tf1.placeholder(tf.float32, KINDS_OF_FLOATS.shape, name="x")
        tf.reshape(tf.clip_by_value(x, -np.inf, np.inf, name="noisy"), [3, 3], name="z")
        tf.reshape(x, [9], name="surrogated")

    rules = [passing("noisy"), surrogate("surrogated", "exp(x) * x")]
    before, result = patched(build, *({**rule, "emit": emit} for rule in rules))
    check_forward(before, result.graph_def(), ["z:0", "surrogated:0"], {"x:0": KINDS_OF_FLOATS})


@pytest.mark.parametrize("rule", [passing("noisy", "z"), surrogate("z", "x ** 3")])
def test_on_a_tape_and_to_second_order(rule: dict[str, Any]) -> None:
    """Without code of ours: whoever loads the file differentiates ops of TensorFlow."""
    definition = patched(noisy_root, rule)[1].graph_def()

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
    if "backward_as" in rule["patch"]:
        assert (dx.numpy().tolist(), d2x.numpy().tolist()) == ([-1.0, -1.0, 1.0], [0.0, 0.0, 0.0])
    else:
        np.testing.assert_allclose(dx, 6 * noisy**3 / x, rtol=1e-5)
        np.testing.assert_allclose(d2x, 30 * noisy**3 / x**2, rtol=1e-4)

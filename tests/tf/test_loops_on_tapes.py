"""v1 loops and branches of a graph file on a tape: as a Session differentiates them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphpatch
from graphpatch.errors import ModelError, OutputError
from graphpatch.runtime.tf_gradients import control_flow
from tests.tf import loop_graphs

tf = pytest.importorskip("tensorflow")
keras_layers = pytest.importorskip("graphpatch.keras")
tf1 = tf.compat.v1

Build = Callable[[Any, Any, Any], Any]
HALF = {"filter_gradient": {"scale": 0.5}}
CUBE = {"override_gradient": {"formula": "dy * dy * dy"}}


def frozen(build: Build) -> graphpatch.Model:
    """What freezing leaves of a graph from x and w to y: no contexts."""
    with control_flow(False):
        meta = loop_graphs.built(tf1, build)
    return graphpatch.load(tf1.graph_util.extract_sub_graph(meta.graph_def, ["y"]))


def in_a_session(model: graphpatch.Model) -> list[Any]:
    with control_flow(False):
        with tf1.Graph().as_default() as graph:
            graphpatch.import_model(model)
        answers: list[Any] = loop_graphs.answers(tf1, graph)
    return answers


def differentiated(f: Callable[[Any], Any], *inputs: Any) -> tuple[Any, ...]:
    """What f gives for a list of tensors, and its gradients with respect to each."""
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        y = f(list(inputs))
    return (y, *tape.gradient(y, inputs))


@pytest.mark.every(4)
@pytest.mark.parametrize("build", loop_graphs.GRAPHS, ids=lambda build: build.__name__)
def test_36581_a_tape_gives_what_a_session_gives(build: Build) -> None:
    # 36581, 60266: no gradient of a v1 loop in TensorFlow 2.
    model = frozen(build)
    layer = keras_layers.PatchedModel(model, ["x", "w"], "y")
    expected = in_a_session(model)
    feeds = [list(map(tf.constant, pair)) for pair in loop_graphs.FEEDS]
    for f in (differentiated, tf.function(differentiated)):
        np.testing.assert_allclose([f(layer, *pair) for pair in feeds], expected, rtol=1e-5)


@pytest.mark.parametrize("emit", ["function", "attr"])
@pytest.mark.parametrize("patch", [HALF, CUBE], ids=["linear", "not linear"])
def test_rules_reach_ops_in_loops_and_branches(patch: dict[str, Any], emit: str) -> None:
    rule = {"match": {"op": "Tanh"}, "patch": patch, "emit": emit}
    model = frozen(loop_graphs.recurrent)
    layer = keras_layers.PatchedModel(model, ["x", "w"], "y", rules=[rule])
    answers = [differentiated(layer, *map(tf.constant, pair)) for pair in loop_graphs.FEEDS]
    expected = in_a_session(graphpatch.apply([rule], model).model)
    np.testing.assert_allclose(answers, expected, rtol=1e-5)
    original = np.array(in_a_session(model))
    np.testing.assert_allclose(original[:, 0], np.array(expected)[:, 0], rtol=1e-5)
    assert (np.abs(original - expected).max(axis=0) > 1e-2).tolist() == [False, True, True]


def test_second_derivatives_of_branches_are_right_and_of_loops_raise() -> None:
    def second(build: Build, x: float, w: float) -> tuple[Any, ...]:
        layer = keras_layers.PatchedModel(frozen(build), ["x", "w"], "y")
        return differentiated(
            lambda pair: differentiated(layer, *pair)[1], tf.constant(x), tf.constant(w)
        )

    # sin(x * w), where x is not positive
    _, dxx, dxw = second(loop_graphs.branch, -0.5, 0.7)
    product = -0.5 * 0.7
    np.testing.assert_allclose(dxx, -0.49 * np.sin(product), rtol=1e-5)
    np.testing.assert_allclose(dxw, np.cos(product) - product * np.sin(product), rtol=1e-5)
    with pytest.raises(TypeError, match="Second-order gradient for while loops not supported"):
        second(loop_graphs.counted, 0.3, 0.9)


def test_several_outputs_and_an_input_without_a_gradient() -> None:
    """Outputs that are no floats, an output of which nothing flows back, and what is cut."""

    def build(tf1: Any, x: Any, w: Any) -> Any:
        count, y = tf1.while_loop(lambda n, y: n < 3, lambda n, y: (n + 1, y * x), (0, x))
        return tf1.identity(
            tf1.identity(y, name="fourth") + tf1.cast(count, tf1.float32) * tf1.round(w)
        )

    layer = keras_layers.PatchedModel(frozen(build), ["x", "w"], ["y", "fourth", "while/Exit"])
    x, w = tf.constant(2.0), tf.constant(3.0)
    with tf.GradientTape() as tape:
        tape.watch([x, w])
        y, fourth, count = layer([x, w])
        loss = 3 * fourth
    assert [y.numpy(), fourth.numpy(), count.numpy()] == [25, 16, 3]
    dx, dw = tape.gradient(loss, [x, w])
    assert (float(dx), dw) == (96, None)
    behind = keras_layers.PatchedModel(frozen(build), ["fourth", "w"], "y")  # the loop counts still
    y, dx, dw = differentiated(behind, x, w)
    assert (float(y), float(dx), dw) == (11, 1, None)


def random_in_a_branch(tf1: Any, x: Any, w: Any) -> Any:
    return tf1.cond(x > 0, lambda: tf1.nn.dropout(x * w, rate=0.5), lambda: x)


def test_a_random_tensor_may_be_an_input() -> None:
    def build(tf1: Any, x: Any, w: Any) -> Any:
        return loop_graphs.counted(tf1, x, w) * tf1.random.uniform([], name="noise")

    layer = keras_layers.PatchedModel(frozen(build), ["x", "w", "noise/RandomUniform"], "y")
    x, w, noise = map(tf.constant, (0.3, 0.9, 0.25))
    y, _, _, dnoise = differentiated(layer, x, w, noise)
    np.testing.assert_allclose(y, dnoise / 4)
    assert float(dnoise) == pytest.approx(np.tanh(0.9 * np.tanh(0.9 * np.tanh(0.27))), rel=1e-5)


def test_what_is_refused() -> None:
    layer = keras_layers.PatchedModel(frozen(random_in_a_branch), ["x", "w"], "y")
    assert float(layer([tf.constant(-3.0), tf.constant(1.0)])) == -3
    with pytest.raises(
        ModelError, match=r"RandomUniform '.*' is random, .* name its tensor among the inputs"
    ):
        differentiated(layer, tf.constant(-3.0), tf.constant(1.0))
    model = frozen(loop_graphs.counted)
    for inputs, outputs in ((["x", "w"], "loop/Tanh"), (["x", "w", "loop/Tanh"], "y")):
        with pytest.raises(OutputError, match="loop/Tanh is inside a v1 loop or branch"):
            keras_layers.PatchedModel(model, inputs, outputs)
    compiled = tf.function(keras_layers.PatchedModel(model, ["x", "w"], "y"), jit_compile=True)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Enter"):  # XLA has no v1 loops
        compiled([tf.constant(1.0), tf.constant(1.0)])

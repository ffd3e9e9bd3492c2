"""Models with layers of graphpatch, for the tests: how each is built, and what it computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.tf import consumer

X = np.array([[-2.0, -1.0, 1.0]], np.float32)
DY = np.array([[5.0, 0.05, -3.0]], np.float32)
GUIDED = [{"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}]
WEIGHTS = np.arange(9, dtype=np.float32).reshape(3, 3) - 4
RELU = np.maximum(X, 0)


@dataclass(frozen=True)
class Case:
    """A layer between Input and output, what it gives for X (None: random) and its dx for DY."""

    build: Callable[[Any, Any, Path], Callable[[Any], Any]]
    value: Any
    dx: Any


def graph_file(folder: Path) -> Path:
    """x [None, 3] -> Relu -> MatMul y, as a frozen GraphDef."""
    import tensorflow as tf

    def build() -> None:
        x = tf.compat.v1.placeholder(tf.float32, [None, 3], name="x")
        tf.matmul(tf.nn.relu(x, name="relu"), tf.constant(WEIGHTS), name="y")

    return consumer.save(build, folder / "graph.pb")


def patched_file(folder: Path, emit: str) -> Path:
    import graphpatch

    rules = [{**rule, "emit": emit} for rule in GUIDED]
    path = folder / f"{emit}.pb"
    if not path.exists():
        graphpatch.apply(rules, graph_file(folder)).model.save(path)
    return path


def noisy_pair(layers: Any, keras: Any) -> Callable[[Any], Any]:
    """Noise, and the way back that ignores it."""
    noise, relu = keras.layers.GaussianNoise(0.1), keras.layers.ReLU()
    return lambda x: layers.BackwardAs()([noise(x, training=True), relu(x)])


def looped_file(folder: Path) -> Path:
    """Relu halved in each of two steps of a v1 loop, then the MatMul."""
    import tensorflow as tf

    def build() -> None:
        x = tf.compat.v1.placeholder(tf.float32, [None, 3], name="x")
        _, halved = tf.while_loop(
            lambda count, _: count < 2, lambda count, x: (count + 1, tf.nn.relu(x) / 2), (0, x)
        )
        tf.matmul(halved, tf.constant(WEIGHTS), name="y")

    return consumer.save(build, folder / "looped.pb", control_flow_v2=False)


def _graph(layers: Any, file: Any, **more: Any) -> Any:
    return layers.PatchedModel(file, "x", "y", **more)


_THROUGH = DY @ WEIGHTS.T
_GUIDED = np.where((X > 0) & (_THROUGH > 0), _THROUGH, 0)
LOOPED = "a graph with a v1 loop"
CASES = {
    "clip": Case(
        lambda layers, *_: layers.GradientFilter({"clip": {"min": -0.1, "max": 0.1}}),
        X, np.clip(DY, -0.1, 0.1),
    ),
    "scale": Case(lambda layers, *_: layers.GradientFilter({"scale": 0.5}), X, DY / 2),
    "reverse": Case(lambda layers, *_: layers.GradientFilter("reverse"), X, -DY),
    "formula": Case(
        lambda layers, *_: layers.GradientFilter({"formula": "dy * square(x)"}), X, DY * X**2
    ),
    "adjustable": Case(
        lambda layers, *_: layers.GradientFilter({"reverse": 0.3}, adjustable=True), X, -0.3 * DY
    ),
    "surrogate": Case(
        lambda layers, *_: layers.Surrogate("sign(x)", "tanh(x)"),
        np.sign(X), DY * (1 - np.tanh(X) ** 2),
    ),
    "surrogate of layers": Case(
        lambda layers, keras, _: layers.Surrogate(
            keras.layers.ReLU(max_value=6.0), keras.layers.ReLU()
        ),
        RELU, np.where(X > 0, DY, 0),
    ),
    "backward as": Case(
        lambda layers, keras, _: noisy_pair(layers, keras), None, np.where(X > 0, DY, 0)
    ),
    "a graph and rules": Case(
        lambda layers, _, folder: _graph(layers, graph_file(folder), rules=GUIDED),
        RELU @ WEIGHTS, _GUIDED,
    ),
    LOOPED: Case(
        lambda layers, _, folder: _graph(layers, looped_file(folder), rules=GUIDED),
        RELU @ WEIGHTS / 4, _GUIDED / 4,
    ),
    "a graph with functions": Case(
        lambda layers, _, folder: _graph(layers, patched_file(folder, "function")),
        RELU @ WEIGHTS, _GUIDED,
    ),
    "a graph with keys": Case(
        lambda layers, _, folder: _graph(layers, patched_file(folder, "attr").read_bytes()),
        RELU @ WEIGHTS, _GUIDED,
    ),
}  # fmt: skip


def model(name: str, layers: Any, keras: Any, folder: Path) -> Any:
    """A functional model of the one layer."""
    image = keras.Input((3,))
    return keras.Model(image, CASES[name].build(layers, keras, folder)(image))

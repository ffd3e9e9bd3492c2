"""backward_as in every place: forward noisy, backward what TensorFlow gives without the noise.

The models are differentiated in fresh processes that cannot import graphpatch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.draws import quick, selected
from tests.tf.batch import RUNTIMES, Batch, X, graph
from tests.tf.places import PLACES, Place

tf = pytest.importorskip("tensorflow")

LONG = ("main", "PartitionedCall", "v1 while", "While", "nested two deep", "v1 cond")
KINDS = {
    "one": lambda a: tf.tanh(noisy(a)),
    "two in a row": lambda a: tf.tanh(noisy(tf.square(noisy(a)))),
    "rejoined": lambda a: rejoined(noisy(a)),
}
CLEAN = {
    "one": lambda a: tf.tanh(a),
    "two in a row": lambda a: tf.tanh(tf.square(a)),
    "rejoined": lambda a: rejoined(a),
}
LIKE = [(place, kind, emit) for place in LONG for kind in KINDS for emit in ("auto", "function")]
REST = [(place, "one", "auto") for place in PLACES if place not in LONG]
CASES = quick(
    LIKE + REST, lambda place, kind, emit: place == LONG[0] or (place in LONG[:3] and kind == "one")
)


def noisy(a: Any) -> Any:
    """Noise that is the same on every run, and through which nothing flows back."""
    return a / (4.5 + tf.floor(5.0 * a))


def rejoined(a: Any) -> Any:
    return tf.tanh(a) * tf.sigmoid(a)


def built(place: Place, kind: str) -> Any:
    return graph(lambda x: place.build(lambda x: tf.sin(KINDS[kind](2.0 * x)) + x, x), place.v1)


def rules(model: Any, emit: str) -> Iterator[dict[str, Any]]:
    """A rule for each body that has noisy ops, up to the Sin in it."""
    graph_def = getattr(model, "graph_def", model)
    bodies = {one.signature.name: one.node_def for one in graph_def.library.function}
    for label, nodes in {"main": graph_def.node, **bodies}.items():
        ends = [node.name for node in nodes if node.op == "Sin"]
        if ends:
            patch = {"backward_as": {"input": 0, "until": ends}}
            yield {"match": {"op": "RealDiv", "body": label}, "patch": patch, "emit": emit}


def reference(place: Place, kind: str) -> Any:
    """The gradient of the sum of y by x: each step at its noisy x, and clean within."""
    x, steps = tf.constant(X), []
    for _ in range(place.times):
        steps.append(x)
        x = tf.sin(KINDS[kind](2 * x)) + x
    dy = tf.ones_like(x)
    for step in reversed(steps):
        with tf.GradientTape() as tape:
            tape.watch(step)
            inner = CLEAN[kind](2 * step)
            clean = tf.sin(inner) + step
        dy = tape.gradient(clean, step, dy)
    return dy.numpy()


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Batch:
    found = Batch(tmp_path_factory.mktemp("backward_as"))
    for place, kind, emit in selected(request, "place", "kind", "emit"):
        model = built(PLACES[place], kind)
        found.add(f"{place}, {kind}, {emit}", model, list(rules(model, emit)))
    return found.run(request)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize(("place", "kind", "emit"), CASES)
def test_the_gradient(batch: Batch, place: str, kind: str, emit: str, runtime: str) -> None:
    name = f"{place}, {kind}, {emit}"
    assert name not in batch.refused, batch.refused[name]
    if PLACES[place].unknown_to == runtime:
        assert "not registered" in batch.error(name, runtime)
        return
    found = batch.gradient(name, runtime)
    np.testing.assert_allclose(found, reference(PLACES[place], kind), rtol=2e-4, atol=1e-5)

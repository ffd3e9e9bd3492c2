"""Real models as TF2 SavedModels: the bits and gradients that a Session gives for the .pb."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from graphpatch.formats import Export
from tests.models import catalogue
from tests.tf import consumer

tf = pytest.importorskip("tensorflow")

FILTER = {
    "match": {"op": ["Relu6", "Tanh", "Sigmoid", "Add"]},
    "patch": {"filter_gradient": {"clip": {"min": -0.05, "max": 0.05}}},
}
LOGITS = "MobilenetV1/Logits/SpatialSqueeze"
MODELS = {
    "mobilenet_v1_0.25_128_frozen.pb": ("input", LOGITS, (1, 128, 128, 3), np.float32),
    "dl4j/lstm_mnist.pb": ("input", "add", (2, 28, 28), np.float64),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_real_model(tmp_path: Path, name: str) -> None:
    source, target, shape, dtype = MODELS[name]
    model = catalogue.existing(name)
    export = Export((source,), (target,))
    result = graphpatch.apply([FILTER], model, export=export)
    assert len(result.report["rules"][0]["matches"]) > 20
    result.model.save(tmp_path / "out")
    graphpatch.apply([FILTER], model).model.save(tmp_path / "out.pb")
    x = np.random.default_rng(0).normal(size=shape).astype(dtype)
    feeds = {f"{source}:0": x}
    [y] = consumer.run(model, feeds, [f"{target}:0"])
    function = tf.saved_model.load(str(tmp_path / "out")).signatures["serving_default"]
    given: dict[str, Any] = {key: tf.constant(x) for key in function.structured_input_signature[1]}
    [found] = function(**given).values()
    assert consumer.same_bits(found, y)
    with tf.GradientTape() as tape:
        tape.watch(given)
        [found] = function(**given).values()
    [dx] = tape.gradient(found, given).values()
    after, before = (
        consumer.differentiate(path, f"{target}:0", [f"{source}:0"], feeds)[0]
        for path in (tmp_path / "out.pb", model)
    )
    np.testing.assert_allclose(dx, after, rtol=1e-3, atol=1e-5 * np.abs(after).max())
    assert not np.allclose(after, before, rtol=1e-2)

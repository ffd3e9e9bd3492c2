"""What iNNvestigate gives for two small nets: tests/data/innvestigate.json.

Usage: python scripts/methods/innvestigate_values.py, in an environment of its own, on Python 3.11:
pip install innvestigate==2.1.2 tensorflow==2.14.1. It needs nothing of graphpatch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import innvestigate  # type: ignore[import-not-found]
import numpy as np
import tensorflow as tf

TARGET = Path(__file__).resolve().parents[2] / "tests" / "data" / "innvestigate.json"
EPSILON = 0.1

# By the name of a test: the analyzer and its options.
ANALYZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gradient": ("gradient", {}),
    "guided_backprop": ("guided_backprop", {}),
    "deconvnet": ("deconvnet", {}),
    "z": ("lrp.z", {}),
    "epsilon": ("lrp.epsilon", {"epsilon": EPSILON}),
    "z_plus": ("lrp.alpha_1_beta_0_IB", {}),
    "alpha_beta": ("lrp.alpha_2_beta_1_IB", {}),
    "alpha_beta_bias": ("lrp.alpha_2_beta_1", {}),
    "w2_first": ("lrp.epsilon", {"epsilon": EPSILON, "input_layer_rule": "WSquare"}),
    "flat_first": ("lrp.epsilon", {"epsilon": EPSILON, "input_layer_rule": "Flat"}),
    "w2": ("lrp.w_square", {}),
    "flat": ("lrp.flat", {}),
    "deep_taylor": ("deep_taylor", {}),
}
# Those of the net with pooling.
POOLED = ("alpha_beta_bias", "w2", "flat", "deep_taylor")


def net() -> Any:
    """Two convolutions and two dense layers."""
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input((4, 4, 1)),
            layers.Conv2D(3, 3, padding="same", activation="relu"),
            layers.Conv2D(4, 2, strides=2, activation="relu"),
            layers.Flatten(),
            layers.Dense(5, activation="relu"),
            layers.Dense(2),
        ]
    )


def pooled_net() -> Any:
    """Two convolutions, a mean and a largest element of windows, and a dense layer."""
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(3, 3, padding="same", activation="relu"),
            layers.AveragePooling2D(2),
            layers.Conv2D(4, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(2),
        ]
    )


def analysed(model: Any, size: int, seed: int, names: Iterable[str]) -> dict[str, Any]:
    """Return weights and an input of a seed, and what the analyzers give for output 0."""
    draw = np.random.default_rng(seed)
    weights = [draw.normal(scale=0.6, size=w.shape).round(2) for w in model.get_weights()]
    model.set_weights(weights)
    x = draw.normal(size=(1, size, size, 1)).round(2)
    values = {}
    for name in names:
        kind, options = ANALYZERS[name]
        analyzer = innvestigate.create_analyzer(
            kind, model, neuron_selection_mode="index", **options
        )
        relevance = analyzer.analyze(x, neuron_selection=0)
        values[name] = np.asarray(relevance, float).ravel().round(7).tolist()
    return {
        "x": x.tolist(),
        "weights": [layer_weights.tolist() for layer_weights in weights],
        "output": model.predict(x)[0].tolist(),
        "values": values,
    }


def main() -> None:
    tf.compat.v1.disable_eager_execution()
    document = {
        "made_by": f"innvestigate {version('innvestigate')}, tensorflow {tf.__version__}",
        **analysed(net(), 4, 3, ANALYZERS),
        "pooled": analysed(pooled_net(), 8, 4, POOLED),
    }
    TARGET.write_text(json.dumps(document) + "\n")


if __name__ == "__main__":
    main()

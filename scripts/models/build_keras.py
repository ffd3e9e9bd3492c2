"""Freeze a net of keras.applications with seeded random weights, for benchmarks.

Usage: build_keras.py NET OUT.pb. The nets are what people patch, their weights do not matter: VGG16
has 138 million parameters (553 MB), ResNet50 has 26 million (102 MB) and many Relu.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # read by TensorFlow when it is imported

import keras
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import (
    convert_variables_to_constants_v2,
)

SEEDS = {"ResNet50": 50, "VGG16": 16}


def build(name: str, path: Path) -> None:
    """Write the frozen net to `path`; its input is `x:0`, float32 [n, 224, 224, 3]."""
    keras.utils.set_random_seed(SEEDS[name])
    net = getattr(keras.applications, name)(weights=None)
    signature = tf.TensorSpec([None, 224, 224, 3], tf.float32, name="x")
    call = tf.function(lambda x: net(x, training=False)).get_concrete_function(signature)
    graph_def = convert_variables_to_constants_v2(call).graph.as_graph_def()
    path.write_bytes(graph_def.SerializeToString(deterministic=True))


if __name__ == "__main__":
    build(sys.argv[1], Path(sys.argv[2]))

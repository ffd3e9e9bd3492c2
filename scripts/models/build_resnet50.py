"""Freeze keras.applications' ResNet50 with seeded random weights: 26 million parameters, 102 MB.

Usage: build_resnet50.py OUT.pb. A net of many Relu, for benchmarks: its weights do not matter.
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

SEED = 50


def build(path: Path) -> None:
    """Write the frozen net to `path`; its input is `x:0`, float32 [n, 224, 224, 3]."""
    keras.utils.set_random_seed(SEED)
    net = keras.applications.ResNet50(weights=None)
    signature = tf.TensorSpec([None, 224, 224, 3], tf.float32, name="x")
    call = tf.function(lambda x: net(x, training=False)).get_concrete_function(signature)
    graph_def = convert_variables_to_constants_v2(call).graph.as_graph_def()
    path.write_bytes(graph_def.SerializeToString(deterministic=True))


if __name__ == "__main__":
    build(Path(sys.argv[1]))

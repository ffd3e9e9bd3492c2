"""The TensorFlow script that `graphpatch apply` is measured against: override all Relu in a file.

Usage: tensorflow_script.py MODEL.pb OUT.pb. Writes the key alone, as `apply --emit attr` does.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # read by TensorFlow when it is imported

import tensorflow as tf


def override(model: Path, output: Path) -> None:
    tf1 = tf.compat.v1
    graph_def = tf1.GraphDef.FromString(model.read_bytes())
    with tf1.Graph().as_default() as graph, graph.gradient_override_map({"Relu": "guided_relu"}):
        tf1.import_graph_def(graph_def, name="")
    output.write_bytes(graph.as_graph_def().SerializeToString())


if __name__ == "__main__":
    override(*map(Path, sys.argv[1:]))

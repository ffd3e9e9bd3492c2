"""Differentiate patched models in a process of their own, under XLA too: run_under_xla.py FOLDER.

FOLDER/jobs.json names GraphDef files with `x:0` and `y:0`. FOLDER/xla.json gets, for each, what the
gradient of y by x adds up to, or the type of the error, on a tape without and with `jit_compile`:
the tape outside of the function, inside of it, and tf.gradients inside; then whether the forward
passes ran. Models named `registered...` get their gradients registered first.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

X = [-0.7, 0.2, 0.6]


def differentiated(tf, path):  # noqa: ANN001, ANN201
    """What came of each way to ask for the gradient, and of the forward pass under XLA."""
    graph_def = tf.compat.v1.GraphDef.FromString(path.read_bytes())
    whole = tf.compat.v1.wrap_function(
        lambda: tf.compat.v1.import_graph_def(graph_def, name=""), []
    ).prune("x:0", "y:0")
    x, found = tf.constant(X), []

    def taped(function, x):  # noqa: ANN001, ANN202
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x)

    for jit in (False, True):
        compiled = tf.function(whole, jit_compile=jit)
        inside = tf.function(lambda x: taped(whole, x), jit_compile=jit)
        gradients = tf.function(lambda x: tf.gradients(whole(x), x)[0], jit_compile=jit)
        for ask in (lambda x, f=compiled: taped(f, x), inside, gradients):
            try:
                found.append(float(tf.reduce_sum(ask(x))))
            except Exception as error:
                found.append(type(error).__name__)
    return found, float(tf.reduce_max(tf.abs(compiled(x) - whole(x))))


def main(folder):  # noqa: ANN001, ANN201
    import tensorflow as tf

    import graphpatch

    found = {}
    for name, file in json.loads((folder / "jobs.json").read_text()).items():
        if name.startswith("registered"):
            graphpatch.register_gradients(folder / file)
        found[name] = differentiated(tf, folder / file)
    (folder / "xla.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Print what keeps constructions whole where a tool rewrites the file: other ops than StopGradient.

    .venv/bin/python scripts/stop_forms.py --runtimes 1.15 2.21

A construction is `Select(true, stop(f), x * stop(h(x)))` with the gradient of AddN. Each form of
`stop` gives its input on and lets nothing flow back: StopGradient, or an op with the gradient of
ZerosLike, which TensorFlow registers as none. Each stands in a file of its own, with a static and
with an unknown shape of x. The TensorFlows are those of `matrix.py`; so are the ways and words.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from matrix import ROOT, RUNTIMES, markdown, measure, present
from matrix_consumer import X

W = np.array([1.0, -1.0, 2.0], np.float32)
KEYED = ("Snapshot", "EnsureShape", "PlaceholderWithDefault", "Squeeze", "Identity")
SIZES = {"static": [3], "unknown": None}


def forms() -> Mapping[str, Callable[[Any, str], Any]]:
    """Ops that give a tensor on; those of KEYED get the gradient of ZerosLike."""
    import tensorflow as tf

    raw = tf.raw_ops

    def shape(x: Any) -> Any:
        return tf.TensorShape(None) if x.shape.rank is None else x.shape

    return {
        "StopGradient": lambda x, name: tf.stop_gradient(x, name=name),
        "Identity": lambda x, name: tf.identity(x, name=name),
        "Snapshot": lambda x, name: raw.Snapshot(input=x, name=name),
        "EnsureShape": lambda x, name: raw.EnsureShape(input=x, shape=shape(x), name=name),
        "PlaceholderWithDefault": lambda x, name: raw.PlaceholderWithDefault(
            input=x, shape=x.shape, name=name
        ),
        "Squeeze(Pack)": lambda x, name: tf.squeeze(tf.stack([x]), [0], name=name),
    }


def linear(x: Any, stop: Callable[[Any, str], Any]) -> Any:
    """Relu forward; backward, dy * sigmoid(4 * x)."""
    import tensorflow as tf

    graph, forward = x.graph, tf.nn.relu(x, name="y/forward")
    with graph.gradient_override_map(dict.fromkeys(KEYED, "ZerosLike")):
        given = stop(forward, "y/stop")
        factor = stop(tf.sigmoid(4.0 * x), "y/factor")
    true = tf.raw_ops.OnesLike(x=tf.raw_ops.Equal(x=given, y=given))
    with graph.gradient_override_map({"Select": "AddN"}):
        return tf.raw_ops.Select(condition=true, x=given, y=x * factor)


def build(folder: Path) -> None:
    """Write all files, and files.json that lists them for `matrix_consumer.py`."""
    import tensorflow as tf

    tf1, listed = tf.compat.v1, []
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    right = W / (1 + np.exp(-4 * X))
    numbers = {"forward": np.maximum(X, 0) * W, "right": right, "default": (X > 0) * W}
    for place, (form, stop) in enumerate(forms().items()):
        for size, shape in SIZES.items():
            with tf1.Graph().as_default():
                x = tf1.placeholder(tf.float32, shape, name="x")
                tf.identity(linear(x, stop) * W, name="y")
                found = tf1.train.export_meta_graph(strip_default_attrs=True).graph_def
            path = f"{place}-{size}.pb"
            (folder / path).write_bytes(found.SerializeToString(deterministic=True))
            told = {key: np.float32(value).tolist() for key, value in numbers.items()}
            name = f"{form}, {size} shape"
            listed.append({"name": name, "kind": "pb", "path": path, "alone": False, **told})
    (folder / "files.json").write_text(json.dumps(listed, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "matrix")
    parser.add_argument("--runtimes", nargs="*", help="1.15 2.21: these alone")
    options = parser.parse_args()
    build(options.folder / "stop_forms")
    found = {}
    for runtime in RUNTIMES:
        if options.runtimes and runtime.version not in options.runtimes:
            continue
        python = present(runtime, options.folder)
        if python is not None:
            output = options.folder / f"stop_forms-{runtime.version}.json"
            found[runtime.version] = measure(python, options.folder / "stop_forms", output)
    print(markdown(found))


if __name__ == "__main__":
    main()

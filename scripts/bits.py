"""Measure what "bit for bit" means: forward passes of patched models beside the unpatched ones.

Each setting of TensorFlow runs in a process of its own: oneDNN off and on, with and without
Grappler (a Session's graph optimiser), and XLA auto-clustering. Each model is patched by functions
(`clip`) and by constructions (`scale`). Printed is the largest difference from the unpatched model
in the same setting, as a part of its largest element; `=` where all bits are equal.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # read by TensorFlow when it is imported

import numpy as np

XLA = "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit"
# Environment, whether Grappler runs.
SETTINGS: dict[str, tuple[dict[str, str], bool]] = {
    "oneDNN off": ({"TF_ENABLE_ONEDNN_OPTS": "0"}, True),
    "oneDNN off, no Grappler": ({"TF_ENABLE_ONEDNN_OPTS": "0"}, False),
    "oneDNN on": ({"TF_ENABLE_ONEDNN_OPTS": "1"}, True),
    "oneDNN on, no Grappler": ({"TF_ENABLE_ONEDNN_OPTS": "1"}, False),
    "XLA auto-clustering": ({"TF_ENABLE_ONEDNN_OPTS": "0", "TF_XLA_FLAGS": XLA}, True),
}
GRADIENTS: dict[str, Any] = {
    "function": {"clip": {"min": -0.1, "max": 0.1}},
    "construction": {"scale": 0.5},
}
SHAPE = (4, 32, 32, 3)


def layers(activation: Callable[[Any], Any], x: Any) -> Any:
    """Four convolutions with biases and activations."""
    import tensorflow as tf

    rng, channels = np.random.default_rng(0), SHAPE[-1]
    for _ in range(4):
        weights = rng.normal(size=(3, 3, channels, 16), scale=(9 * channels) ** -0.5)
        bias = rng.normal(size=16, scale=0.1)
        x = tf.nn.conv2d(x, tf.constant(weights, tf.float32), 1, "SAME")
        x, channels = activation(tf.nn.bias_add(x, tf.constant(bias, tf.float32))), 16
    return x


def models() -> dict[str, tuple[Callable[[Any], Any], dict[str, Any]]]:
    """Return what is built, and what is patched in it."""
    import tensorflow as tf

    def swish(x: Any) -> Any:
        return x * tf.sigmoid(x)

    relu, whole = {"op": "Relu"}, {"pattern": "x:_ -> s:Sigmoid -> m:Mul; x -> m"}
    return {
        "conv, relu": (lambda x: layers(tf.nn.relu, x), relu),
        "conv, swish (Sigmoid)": (lambda x: layers(swish, x), {"op": "Sigmoid"}),
        "conv, swish (as a whole)": (lambda x: layers(swish, x), whole),
        "the same in a function": (lambda x: tf.function(lambda x: layers(swish, x))(x), whole),
        "its Mul alone, in a function": (
            lambda x: tf.function(lambda x: layers(swish, x))(x),
            {"op": "Mul"},
        ),
        "softmax of a product": (
            lambda x: tf.nn.softmax(tf.matmul(tf.reshape(x, [4, -1]), tf.ones([3072, 7]) / 99)),
            {"op": "MatMul"},
        ),
    }


def rule(match: dict[str, Any], gradient: Any) -> dict[str, Any]:
    if match.get("op") == "MatMul":
        return {"match": match, "patch": {"filter_gradient": gradient}}
    if "pattern" not in match:
        return {"match": match, "patch": {"override_gradient": gradient}}
    text = "0.5 * dy * x" if "scale" in gradient else "clip(dy * x, -0.1, 0.1)"
    return {"match": match, "patch": {"override_gradient": {"formula": text}, "on": "match"}}


def write(folder: Path) -> dict[str, list[str]]:
    """Return the files of each model: unpatched, and patched in each way; how it is stored."""
    import tensorflow as tf

    import graphpatch

    jobs: dict[str, list[str]] = {}
    for name, (build, match) in models().items():
        with tf.compat.v1.Graph().as_default() as graph:
            tf.identity(build(tf.compat.v1.placeholder(tf.float32, SHAPE, name="x")), name="y")
        plain = folder / f"{len(jobs)}.pb"
        plain.write_bytes(graph.as_graph_def().SerializeToString())
        for gradient in GRADIENTS.values():
            result = graphpatch.apply([rule(match, gradient)], plain)
            stored = result.report["rules"][0]["emit"]
            target = folder / f"{plain.stem}.{'scale' in gradient}.pb"
            result.model.save(target)
            jobs[f"{name}: {stored}" + " (linear)" * (f"{name}: {stored}" in jobs)] = [
                plain.name,
                target.name,
            ]
    (folder / "jobs.json").write_text(json.dumps(jobs))
    return jobs


def forward(path: Path, grappler: bool) -> Any:
    import tensorflow as tf

    from graphpatch.runtime.graph_run import run_op_by_op, without_grappler

    tf1 = tf.compat.v1
    config, graph_def = tf1.ConfigProto(), tf1.GraphDef.FromString(path.read_bytes())
    if not grappler:
        without_grappler(config)
        run_op_by_op(graph_def)
    with tf1.Graph().as_default() as graph:
        tf1.import_graph_def(graph_def, name="")
        with tf1.Session(graph=graph, config=config) as session:
            images = np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)
            return session.run("y:0", {"x:0": images})


def compare(folder: Path, setting: str) -> dict[str, float]:
    """How far each patched model is from the unpatched one, in this process."""
    found, grappler = {}, SETTINGS[setting][1]
    for name, (plain, patched) in json.loads((folder / "jobs.json").read_text()).items():
        a, b = (forward(folder / file, grappler) for file in (plain, patched))
        equal = a.tobytes() == b.tobytes()
        found[name] = 0.0 if equal else float(np.abs(a - b).max() / np.abs(a).max())
    return found


def main() -> int:
    if len(sys.argv) == 3:
        print(json.dumps(compare(Path(sys.argv[1]), sys.argv[2])))
        return 0
    with tempfile.TemporaryDirectory() as name:
        jobs = write(Path(name))
        print(f"| model, how its gradient is stored | {' | '.join(SETTINGS)} |")
        print("|---|" + "---|" * len(SETTINGS))
        columns = []
        for setting, (settings, _) in SETTINGS.items():
            command = [sys.executable, __file__, name, setting]
            env = {**os.environ, **settings}
            done = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
            columns.append(json.loads(done.stdout.splitlines()[-1]))
    for job in jobs:
        cells = [f"{column[job]:.1e}" if column[job] else "=" for column in columns]
        print(f"| {job} | {' | '.join(cells)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())

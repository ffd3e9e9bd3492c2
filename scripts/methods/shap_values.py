"""What shap's DeepExplainer gives for small nets: tests/data/shap.json.

Usage: python scripts/methods/shap_values.py, in an environment of its own, on Python 3.11:
pip install shap==0.49.1 tensorflow==2.15.1. It needs nothing of graphpatch.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import shap  # type: ignore[import-not-found]
import tensorflow as tf

tf1 = tf.compat.v1
TARGET = Path(__file__).resolve().parents[2] / "tests" / "data" / "shap.json"
SHAPE = (4, 4, 2)
EXAMPLES = 2


def weights(*shape: int) -> Any:
    """Return a constant of a seed."""
    draw = np.random.default_rng(shape)
    return tf.constant(draw.normal(scale=0.6, size=shape).round(2), tf.float32)


def convolutional(x: Any) -> Any:
    """Convolutions, activations, pooling and a softmax."""
    h = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, weights(3, 3, 2, 3), 1, "SAME"), weights(3)))
    h = tf.nn.max_pool2d(h, 2, 2, "VALID")
    h = tf.nn.elu(tf.nn.conv2d(h, weights(2, 2, 3, 4), 1, "SAME"))
    h = tf.nn.softplus(tf.nn.avg_pool2d(h, 2, 2, "VALID"))
    return tf.nn.softmax(tf.matmul(tf.tanh(tf.reshape(h, [-1, 4])), weights(4, 3)))


def recurrent(x: Any) -> Any:
    """Return an LSTM over four steps."""
    steps = tf.reshape(x, [-1, 4, 8])
    h = c = tf.zeros([tf.shape(x)[0], 3])
    for step in range(4):
        gates = tf.matmul(tf.concat([steps[:, step], h], 1), weights(11, 12)) + weights(12)
        i, j, f, o = tf.split(gates, 4, 1)
        # shap cannot tell that a product with what is zeros in all examples does not vary.
        kept = c * tf.sigmoid(f) if step else 0.0
        c = kept + tf.sigmoid(i) * tf.tanh(j)
        h = tf.tanh(c) * tf.sigmoid(o)
    return tf.matmul(h, weights(3, 1))


def functions(x: Any) -> Any:
    """Functions of one tensor, and of two, as a layer norm has them."""
    flat = tf.matmul(tf.reshape(x, [-1, 32]), 0.3 * weights(32, 6))
    mean = tf.reduce_mean(flat, 1, keepdims=True)
    deviation = tf.reduce_mean(tf.math.squared_difference(flat, mean), 1, keepdims=True)
    h = (flat - mean) * tf.math.rsqrt(deviation + 0.01)
    a, b, c = tf.split(h, 3, 1)
    h = tf.exp(0.3 * a) / (1.0 + tf.square(b)) + tf.maximum(b, c) - tf.minimum(a, 0.4 * c)
    return tf.reduce_sum(h, 1, keepdims=True)


NETS: dict[str, Callable[[Any], Any]] = {
    "convolutional": convolutional,
    "recurrent": recurrent,
    "functions": functions,
}


def explained(build: Callable[[Any], Any], seed: int) -> dict[str, Any]:
    """Return a net, examples and a reference of a seed, and the contributions to output 0."""
    data = np.random.default_rng(seed).normal(size=(EXAMPLES + 1, *SHAPE)).round(2)
    examples, reference = data[:EXAMPLES], data[EXAMPLES:]
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        x = tf1.placeholder(tf.float32, [None, *SHAPE], "x")
        y = tf.identity(build(x)[:, :1], "y")
        net = graph.as_graph_def().SerializeToString(deterministic=True)
        explainer = shap.DeepExplainer((x, y), reference, session=session)
        values = explainer.shap_values(examples, check_additivity=True)
        outputs = session.run(y, {x: data}).ravel()
    return {
        "graph": base64.b64encode(net).decode(),
        "examples": examples.tolist(),
        "reference": reference.tolist(),
        "differences": (outputs[:EXAMPLES] - outputs[EXAMPLES:]).tolist(),
        "contributions": np.reshape(values, examples.shape).round(7).tolist(),
    }


def main() -> None:
    tf1.disable_eager_execution()
    nets = {name: explained(build, seed) for seed, (name, build) in enumerate(NETS.items())}
    made_by = f"shap {version('shap')}, tensorflow {tf.__version__}"
    TARGET.write_text(json.dumps({"made_by": made_by, **nets}) + "\n")


if __name__ == "__main__":
    main()

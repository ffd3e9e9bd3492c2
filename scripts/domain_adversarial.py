"""Train a small domain-adversarial net, its gradient reversal made by a rules file.

Source: scikit-learn's digits with their labels. Target: digits moved by one pixel, without labels.
A classifier of the domain reads the features through a gradient reversal, so that the features
come to tell less of the domain. The graph is trained three times from the same start: without
reversal, with one that is written by hand (gradient_override_map), and with one that rules put
into the GraphDef. Prints the accuracies on the target, and those of the domain classifier.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from sklearn.datasets import load_digits

from graphpatch import apply
from graphpatch.formats.model import GRAPH, Model
from graphpatch.graph.graph import ModelGraph, graph_pieces
from graphpatch.graph.wire import Source, piece_bytes

STRENGTH, RATE, STEPS, BATCH, SEED = 0.5, 0.1, 600, 64, 7
KEY = "ReversedByHand"
RULES = [
    {
        "name": "reverse for the domain classifier",
        "match": {"name": "domain/input"},
        "patch": {"filter_gradient": {"reverse": {"strength": STRENGTH}}, "at": "inputs"},
        "expect": 1,
    }
]


@dataclass(frozen=True)
class Accuracy:
    """On the target's digits, and of the domain classifier on both."""

    target: float
    domain: float


def dense(name: str, x: Any, size: int) -> Any:
    import tensorflow as tf

    tf1 = tf.compat.v1
    with tf1.variable_scope(name):
        start = tf1.glorot_uniform_initializer(seed=SEED)
        w = tf1.get_variable("w", [x.shape[-1], size], initializer=start, use_resource=False)
        b = tf1.get_variable("b", [size], initializer=tf1.zeros_initializer(), use_resource=False)
        return tf.nn.bias_add(tf.matmul(x, w), b)


def forward() -> None:
    """Build the forward pass, which all three share: digits of the source come first in a batch."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    image = tf1.placeholder(tf.float32, [None, 64], name="image")
    label = tf1.placeholder(tf.int32, [None], name="label")
    domain = tf1.placeholder(tf.int32, [None], name="which")
    features = tf.nn.relu(dense("features", image, 64))
    digits = tf.identity(dense("digits", features, 10), name="digits/logits")
    told = tf.identity(features, name="domain/input")
    domains = dense("told", tf.nn.relu(dense("hidden", told, 32)), 2)
    tf.identity(domains, name="domain/logits")
    known = digits[: tf.shape(label)[0]]
    cross = tf.nn.sparse_softmax_cross_entropy_with_logits
    tf.reduce_mean(cross(label, known), name="digits/loss")
    tf.reduce_mean(cross(domain, domains), name="domain/loss")


def built(by_hand: bool) -> bytes:
    """Return the GraphDef; with the reversal that one writes by hand."""
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        forward()
        graph_def = graph.as_graph_def()
    for node in graph_def.node:
        if by_hand and node.name == "domain/input":
            node.attr["_gradient_op_type"].s = KEY.encode()
    return bytes(graph_def.SerializeToString())


def by_rules(graph_def: bytes) -> bytes:
    """Return the GraphDef with the reversal that the rules ask for."""
    source = Source(graph_def)
    model = Model("-", source, GRAPH, [ModelGraph.open(source, 0, len(graph_def))])
    patched = apply(RULES, model).model.graphs[0]
    return b"".join(map(piece_bytes, graph_pieces(patched)))


def domains() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Source images, target images, and the labels of both."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    moved = np.roll(images.reshape(-1, 8, 8), 1, axis=2).reshape(-1, 64)
    return images, moved, labels.astype(np.int32)


def trained(graph_def: bytes) -> Accuracy:
    """Train the graph, and see what it has learnt."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    source, target, labels = domains()
    random = np.random.default_rng(SEED)
    with tf.Graph().as_default() as graph:
        tf1.import_graph_def(tf1.GraphDef.FromString(graph_def), name="")
        named = graph.get_tensor_by_name
        held = [op.outputs[0] for op in graph.get_operations() if op.type == "VariableV2"]
        loss = named("digits/loss:0") + named("domain/loss:0")
        found = tf1.gradients(loss, held)
        step = [tf1.assign_sub(w, RATE * dw) for w, dw in zip(held, found, strict=True)]
        start = [f"{w.op.name}/Assign" for w in held]
        with tf1.Session(graph=graph) as session:
            session.run(start)
            for _ in range(STEPS):
                one, other = random.integers(0, len(labels), (2, BATCH))
                feeds = {
                    "image:0": np.concatenate([source[one], target[other]]),
                    "label:0": labels[one],
                    "which:0": np.repeat(np.array([0, 1], np.int32), BATCH),
                }
                session.run([one.op for one in step], feeds)
            logits = session.run("digits/logits:0", {"image:0": target})
            both = {"image:0": np.concatenate([source, target])}
            told = session.run("domain/logits:0", both).argmax(1)
    which = np.repeat([0, 1], len(labels))
    return Accuracy(float((logits.argmax(1) == labels).mean()), float((told == which).mean()))


def register_by_hand() -> None:
    """Register what a script that reverses by hand registers."""
    import tensorflow as tf

    def reversed_gradient(_: Any, dy: Any) -> Any:
        return -STRENGTH * dy

    tf.RegisterGradient(KEY)(reversed_gradient)


def main() -> None:
    register_by_hand()
    plain = built(by_hand=False)
    cases = {"no reversal": plain, "by hand": built(by_hand=True), "by rules": by_rules(plain)}
    for name, graph_def in cases.items():
        found = trained(graph_def)
        print(f"{name:12}  target {found.target:.3f}  domain told {found.domain:.3f}")


if __name__ == "__main__":
    main()

"""DANN on digits: data, net and start that every way of training it shares.

Source: scikit-learn's digits with their labels. Target: digits moved by one pixel, without labels.
In a batch, digits of the source come first. A script too, which TensorFlow 1.15 runs on Python 3.7,
with nothing of graphpatch imported:

    python -m tests.tf.dann build TRAINING.meta
    python -m tests.tf.dann train TRAINING.meta FEEDS.npz LOSSES.npy
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

STRENGTH, RATE, STEPS, BATCH, SEED = 0.3, 0.1, 20, 32, 7
SIZES = {"features": (64, 32), "digits": (32, 10), "hidden": (32, 16), "told": (16, 2)}
WHICH = np.repeat(np.array([0, 1], np.int32), BATCH)


def start() -> dict[str, np.ndarray]:
    """The values of all variables before the first step, by name: `features/w`, `features/b`."""
    random = np.random.default_rng(SEED)
    found = {}
    for name, (given, made) in SIZES.items():
        limit = np.sqrt(6 / (given + made))
        found[f"{name}/w"] = random.uniform(-limit, limit, (given, made)).astype(np.float32)
        found[f"{name}/b"] = np.zeros(made, np.float32)
    return found


def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Images of both domains, and the labels of those of the source, for each step."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    moved = np.roll(images.reshape(-1, 8, 8), 1, axis=2).reshape(-1, 64)
    random = np.random.default_rng(SEED)
    for _ in range(STEPS):
        one, other = random.integers(0, len(labels), (2, BATCH))
        yield np.concatenate([images[one], moved[other]]), labels[one].astype(np.int32)


def losses(digits: Any, domains: Any, labels: Any) -> tuple[Any, Any]:
    """The loss of the digits of the source, and of the domains of both."""
    import tensorflow as tf

    cross = tf.nn.sparse_softmax_cross_entropy_with_logits
    known = cross(labels=labels, logits=digits[: tf.shape(labels)[0]])
    digit = tf.reduce_mean(known, name="digits/loss")
    return digit, tf.reduce_mean(cross(labels=WHICH, logits=domains), name="domain/loss")


def built(reverse: Callable[[Any], Any] = lambda x: x) -> Any:
    """The MetaGraphDef of a training graph, with the train op `train` and the start op `start`."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    with tf1.Graph().as_default() as graph:
        image = tf1.placeholder(tf.float32, [None, 64], name="image")
        label = tf1.placeholder(tf.int32, [None], name="label")
        held = {
            name: tf1.Variable(value, name=name, use_resource=False)
            for name, value in start().items()
        }

        def dense(name: str, x: Any) -> Any:
            product = tf.matmul(x, held[f"{name}/w"], name=f"{name}/product")
            return tf.nn.bias_add(product, held[f"{name}/b"])

        features = tf.nn.relu(dense("features", image))
        told = dense("told", tf.nn.relu(dense("hidden", reverse(features))))
        loss = tf.add(*losses(dense("digits", features), told, label), name="loss")
        tf1.train.GradientDescentOptimizer(RATE).minimize(loss, name="train")
        tf.group(tf1.global_variables_initializer(), name="start")
        return tf1.train.export_meta_graph(graph=graph)


def trained(meta: Any, batches: Iterable[Any]) -> list[tuple[float, float]]:
    """Both losses before each step of the optimizer that is inside."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    with tf1.Graph().as_default() as graph, tf1.Session(graph=graph) as session:
        tf1.train.import_meta_graph(meta)
        session.run(graph.get_operation_by_name("start"))
        wanted = ["digits/loss:0", "domain/loss:0", graph.get_operation_by_name("train")]
        feeds = ({"image:0": image, "label:0": label} for image, label in batches)
        return [tuple(map(float, session.run(wanted, one)[:2])) for one in feeds]


if __name__ == "__main__":
    what, path, *more = sys.argv[1:]
    if what == "build":
        Path(path).write_bytes(built().SerializeToString())
    else:
        given = np.load(more[0])
        np.save(more[1], trained(path, zip(given["images"], given["labels"])))  # noqa: B905

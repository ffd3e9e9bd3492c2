"""DANN on digits as a training graph with its optimizer inside, trained in a Session.

A script too, which TensorFlow 1.15 runs on Python 3.7, with nothing of graphpatch imported:

    python -m tests.tf.dann_session build TRAINING.meta
    python -m tests.tf.dann_session train TRAINING.meta FEEDS.npz LOSSES.npy
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.tf import dann

# What a rules file says of a net that was built without a reversal.
RULES = [
    {
        "name": "reverse for the domain classifier",
        "match": {"name": "hidden/product"},
        "patch": {
            "filter_gradient": {"reverse": {"strength": dann.STRENGTH}},
            "at": "input:0",
        },
        "expect": 1,
    }
]


def built(reverse: Callable[[Any], Any] = lambda x: x) -> bytes:
    """The MetaGraphDef, with the train op `train` and the start op `start`."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    with tf1.Graph().as_default() as graph:
        image = tf1.placeholder(tf.float32, [None, 64], name="image")
        label = tf1.placeholder(tf.int32, [None], name="label")
        held = {
            name: tf1.Variable(value, name=name, use_resource=False)
            for name, value in dann.start().items()
        }
        digit, domain = dann.losses(*dann.net(held.__getitem__, image, reverse), label)
        loss = tf.add(digit, domain, name="loss")
        tf1.train.GradientDescentOptimizer(dann.RATE).minimize(loss, name="train")
        tf.group(tf1.global_variables_initializer(), name="start")
        return bytes(tf1.train.export_meta_graph(graph=graph).SerializeToString())


def by_hand() -> bytes:
    """The same with a reversal that Python makes as the graph is built."""
    import tensorflow as tf

    @tf.custom_gradient
    def reverse(x: Any) -> Any:
        return tf.identity(x), lambda dy: -dann.STRENGTH * dy

    return built(reverse)


def trained(meta: bytes, batches: Sequence[Any]) -> list[tuple[float, float]]:
    """Both losses before each step of the optimizer that is inside."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    with tf1.Graph().as_default() as graph, tf1.Session(graph=graph) as session:
        tf1.train.import_meta_graph(tf1.MetaGraphDef.FromString(meta))
        session.run(graph.get_operation_by_name("start"))
        wanted = ["digits/loss:0", "domain/loss:0", graph.get_operation_by_name("train")]
        found = []
        for image, label in batches:
            digit, domain, _ = session.run(wanted, {"image:0": image, "label:0": label})
            found.append((float(digit), float(domain)))
        return found


def main(what: str, meta: str, feeds: str = "", out: str = "") -> None:
    if what == "build":
        Path(meta).write_bytes(built())
        return
    given = np.load(feeds)
    batches = [(image, given["labels"][step]) for step, image in enumerate(given["images"])]
    np.save(out, trained(Path(meta).read_bytes(), batches))


if __name__ == "__main__":
    main(*sys.argv[1:])

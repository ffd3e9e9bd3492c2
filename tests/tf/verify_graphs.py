"""A small net for `verify`, its patched copy, and ways to break that."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import graphpatch
from tests.tf.consumer import save

RULES = [
    {"name": "guided", "match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}},
    {
        "name": "clipped",
        "match": {"name": "hidden"},
        "patch": {"filter_gradient": {"clip": {"min": -0.1, "max": 0.1}}},
    },
    {"name": "rounded", "match": {"op": "Round"}, "patch": {"straight_through": True}},
]


def net() -> None:
    """x [n, 4] -> round -> two dense layers -> y [n, 3], with noise and a count beside it."""
    import numpy as np
    import tensorflow as tf

    tf1, random = tf.compat.v1, np.random.default_rng(0)
    x = tf1.placeholder(tf.float32, [None, 4], "x")
    rounded = tf.round(x * 8, "round")
    w = tf.constant(random.standard_normal((4, 6)), tf.float32, name="w")
    hidden = tf.identity(tf.nn.relu(tf.matmul(rounded, w), "relu"), "hidden")
    v = tf.constant(random.standard_normal((6, 3)), tf.float32, name="v")
    noise = tf.random.normal([3], name="noise")
    tf.tanh(tf.matmul(hidden, v) + noise, "y")
    tf.argmax(hidden, 1, name="count")


def piped(pipeline: str) -> None:
    """A relu of what an iterator, or a queue, gives next; another output needs a program."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    if pipeline == "iterator":
        handle = tf1.placeholder(tf.string, [], "handle")
        iterator = tf1.data.Iterator.from_string_handle(handle, tf.float32, [None, 4])
        value = iterator.get_next(name="next")
        tf.identity(iterator.string_handle(), "needs_a_program")
    else:
        value = tf.queue.FIFOQueue(2, tf.float32, [[3, 4]]).dequeue("next")
    tf.multiply(tf.nn.relu(value - 0.5, "relu"), 2.0 - value, name="y")


def original(folder: Path) -> Path:
    """The net, in a file."""
    return save(net, folder / "model.pb")


def patched_net(folder: Path, rules: Any = RULES, emit: str = "auto") -> Path:
    """The net, patched, in a file."""
    model = graphpatch.load(folder / "model.pb")
    given = [{**rule, "emit": emit} for rule in rules] if emit != "auto" else rules
    graphpatch.apply(given, model).model.save(folder / "patched.pb")
    return folder / "patched.pb"


def patched_beside(path: Path, *rules: Any) -> Path:
    """The model in this file, patched, in a file or folder beside it."""
    target = path.with_name(f"patched_{path.name}")
    graphpatch.apply(list(rules), graphpatch.load(path)).model.save(target)
    return target


def edited(path: Path, edit: Any) -> Path:
    """The file, its GraphDef changed by `edit`, which gets its nodes by name too."""
    import tensorflow as tf

    message = tf.compat.v1.GraphDef.FromString(path.read_bytes())
    nodes: Mapping[str, Any] = {node.name: node for node in message.node}
    edit(message, nodes)
    path.write_bytes(message.SerializeToString())
    return path

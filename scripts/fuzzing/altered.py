"""Patched files with one node or byte altered: `verify` must notice each that changes anything.

TensorFlow says which do: it runs the forward pass and the gradient of both files, bit for bit.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import graphpatch

RULES: list[dict[str, Any]] = [
    {"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}},
    {"match": {"op": "Tanh"}, "patch": {"filter_gradient": {"clip": {"min": -1, "max": 1}}}},
    {"match": {"op": "Round"}, "patch": {"straight_through": True}},
    {"match": {"op": "Mul"}, "patch": {"override_gradient": {"formula": ["dy * x1 / 2", "dy"]}}},
]
OPS = ("Neg", "Identity", "Tanh", "ZerosLike", "Mul")


def model() -> bytes:
    """Return a model of which each rule matches an op."""
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, 4], name="x")
        hidden = tf.tanh(tf.nn.relu(tf.matmul(x, np.linspace(-1, 1, 16).reshape(4, 4))))
        tf.identity(tf.round(hidden * 3) * hidden, name="y")
    return bytes(graph.as_graph_def().SerializeToString())


def altered_byte(data: bytes, rng: Random) -> bytes:
    """Flip a bit."""
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def altered_node(data: bytes, rng: Random) -> bytes:
    """Make one node another op, let it read another tensor, or take it or an attr away."""
    from tensorflow.compat.v1 import GraphDef

    graph = GraphDef.FromString(data)
    bodies = [graph.node, *(function.node_def for function in graph.library.function)]
    nodes = rng.choice([body for body in bodies if body])
    node = rng.choice(nodes)
    match rng.choice(("op", "input", "input", "attr", "gradient", "producer", "gone")):
        case "op":
            node.op = rng.choice((*OPS, node.op))
        case "input" if node.input:
            node.input[rng.randrange(len(node.input))] = rng.choice(nodes).name
        case "attr" if node.attr:
            node.attr.pop(rng.choice(sorted(node.attr)))
        case "gradient" if graph.library.gradient:
            functions = [gradient.gradient_func for gradient in graph.library.gradient]
            rng.choice(graph.library.gradient).gradient_func = rng.choice(functions)
        case "producer":
            graph.versions.producer = rng.choice((1, 10, 21, 1987))
        case _:
            nodes.remove(node)
    return bytes(graph.SerializeToString())


def computed(data: bytes) -> list[bytes] | str:
    """Return what comes forward and flows back, bit for bit; or the error that is raised."""
    import tensorflow as tf

    tf1, values = tf.compat.v1, np.linspace(-2, 2, 8, dtype=np.float32).reshape(2, 4)
    try:
        with tf.Graph().as_default() as graph:
            tf.graph_util.import_graph_def(tf1.GraphDef.FromString(data), name="")
            x, y = graph.get_tensor_by_name("x:0"), graph.get_tensor_by_name("y:0")
            dx = tf1.gradients(y, x, tf.constant(values + 3))[0]
            with tf1.Session(graph=graph) as session:
                fetched = session.run([y, *([] if dx is None else [dx])], {x: values})
        return [array.tobytes() for array in fetched]
    except Exception as error:
        return type(error).__name__


class _Runner:
    """Runs TensorFlow in a process of its own: some altered graphs abort it."""

    def __init__(self) -> None:
        self.pool = ProcessPoolExecutor(1, get_context("spawn"))

    def computed(self, data: bytes) -> list[bytes] | str:
        """Return what `computed` does, or that the process was aborted."""
        try:
            return self.pool.submit(computed, data).result()
        except BrokenProcessPool:
            self.pool = ProcessPoolExecutor(1, get_context("spawn"))
            return "aborted"


def is_noticed(original: Path, data: bytes, target: Path) -> bool:
    """Return whether `verify` says that something is wrong, without running the model."""
    target.write_bytes(data)
    try:
        return not graphpatch.verify(original, target, run=False).ok
    except graphpatch.GraphpatchError:
        return True


def trials(original: bytes, rules: list[dict[str, Any]], seed: int, count: int) -> Counter[str]:
    """Count the altered files that change what TensorFlow gives, and those that go unnoticed."""
    counts: Counter[str] = Counter(changed=0, missed=0)
    with tempfile.TemporaryDirectory(prefix="altered-") as name:
        path, target = Path(name, "model.pb"), Path(name, "altered.pb")
        path.write_bytes(original)
        graphpatch.apply(rules, path).model.save(target)
        patched = target.read_bytes()
        runner = _Runner()
        expected = runner.computed(patched)
        assert isinstance(expected, list), expected
        for number in range(count):
            rng = Random(f"altered:{seed}:{number}")
            data = rng.choice((altered_byte, altered_node))(patched, rng)
            if runner.computed(data) == expected:
                continue
            counts["changed"] += 1
            if not is_noticed(path, data, target):
                counts["missed"] += 1
                print(f"not noticed: altered:{seed}:{number}", flush=True)
    return counts


def main(arguments: list[str]) -> int:
    """Try altered files; 1 where one goes unnoticed."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz altered")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--inputs", type=int, default=100)
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}", flush=True)
    counts = trials(model(), RULES, options.seed, options.inputs)
    changed, missed = counts["changed"], counts["missed"]
    print(f"{options.inputs} altered, {changed} change what TensorFlow gives, {missed} finds")
    return 1 if missed else 0

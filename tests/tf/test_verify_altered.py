"""Patched files with one node or byte altered: each that changes what TensorFlow gives is seen."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from tests.tf.consumer import save
from tests.tf.test_verify_formulas import AS_ONE, FILTER, OP, SAME, TWICE, functions, products

tf = pytest.importorskip("tensorflow")

RULES = [OP, FILTER, *functions(TWICE), SAME, AS_ONE]


def altered_byte(data: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]


def altered_node(data: bytes, draw: random.Random) -> bytes:
    """One node is another op, or reads another tensor, or lost an attr, or is gone."""
    graph = tf.compat.v1.GraphDef.FromString(data)
    bodies = [graph.node, *(function.node_def for function in graph.library.function)]
    nodes = draw.choice(bodies)
    node = draw.choice(nodes)
    kinds = ["op", "input", "input", "attr", "gradient", "producer", "gone"]
    match draw.choice(kinds):
        case "op":
            node.op = draw.choice(["Neg", "Identity", "Tanh", "ZerosLike", "Mul", node.op])
        case "input" if node.input:
            node.input[draw.randrange(len(node.input))] = draw.choice(nodes).name
        case "attr" if node.attr:
            node.attr.pop(draw.choice(sorted(node.attr)))
        case "gradient" if graph.library.gradient:
            names = [one.gradient_func for one in graph.library.gradient]
            draw.choice(graph.library.gradient).gradient_func = draw.choice(names)
        case "producer":
            graph.versions.producer = draw.choice([1, 10, 21, 1987])
        case _:
            nodes.remove(node)
    return bytes(graph.SerializeToString())


def given(data: bytes) -> list[bytes] | str:
    """What comes forward and flows back, bit for bit; or what is raised."""
    values = np.linspace(-2, 2, 8, dtype=np.float32).reshape(2, 4)
    try:
        with tf.Graph().as_default() as graph:
            tf.graph_util.import_graph_def(tf.compat.v1.GraphDef.FromString(data), name="")
            x, y = graph.get_tensor_by_name("x:0"), graph.get_tensor_by_name("y:0")
            dx = tf.compat.v1.gradients(y, x, tf.constant(values + 3))[0]
            with tf.compat.v1.Session(graph=graph) as session:
                fetched = session.run([y, *([] if dx is None else [dx])], {x: values})
                return [one.tobytes() for one in fetched]
    except Exception as error:
        return type(error).__name__


def is_noticed(original: Path, data: bytes, target: Path) -> bool:
    target.write_bytes(data)
    try:
        return not graphpatch.verify(original, target, run=False).ok
    except graphpatch.GraphpatchError:
        return True


@pytest.mark.parametrize("count", [30, pytest.param(1000, marks=pytest.mark.slow)])
def test_what_changes_what_tensorflow_gives_is_noticed(tmp_path: Path, count: int) -> None:
    original = save(products, tmp_path / "model.pb")
    graphpatch.apply(RULES, original).model.save(tmp_path / "patched.pb")
    data = (tmp_path / "patched.pb").read_bytes()
    draw, right = random.Random(count), given(data)
    changing, missed = 0, list[int]()
    for number in range(count):
        alter: Any = draw.choice([altered_byte, altered_node])
        other = alter(data, draw)
        if other != data and given(other) != right:
            changing += 1
            if not is_noticed(original, other, tmp_path / "altered.pb"):
                missed.append(number)
    assert changing > count / 4
    assert missed == []

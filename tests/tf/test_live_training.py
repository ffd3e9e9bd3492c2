"""Training goes on in a patched graph: live, by file and as TensorFlow itself does it alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch

tf = pytest.importorskip("tensorflow")

from tests.tf import live_nets  # noqa: E402
from tests.tf.consumer import same_bits  # noqa: E402
from tests.tf.live import filtered, overridden  # noqa: E402

tf1 = tf.compat.v1

STEPS = 20
RULES = [
    overridden({"op": "Relu", "name": "net/relu0"}, "guided_relu"),
    filtered({"op": "Relu", "name": "net/relu1"}, {"clip": {"min": -0.02, "max": 0.02}}),
    filtered("net/relu0", {"scale": 0.5}),
]


def graph_of(resource: bool) -> Any:
    with tf.Graph().as_default() as graph:
        live_nets.net(resource)
    return graph


def by_file(resource: bool, folder: Path) -> Any:
    with graph_of(resource).as_default():
        tf1.train.export_meta_graph(str(folder / "net.meta"))
    graphpatch.apply(RULES, folder / "net.meta").model.save(folder / "patched.meta")
    with tf.Graph().as_default() as graph:
        graphpatch.import_model(folder / "patched.meta")
        graph.seed = 7
    return graph


@pytest.mark.every(2)
@pytest.mark.parametrize("resource", [False, True])
def test_twenty_steps_are_the_same_bit_for_bit(resource: bool, tmp_path: Path) -> None:
    file = live_nets.train(by_file(resource, tmp_path), STEPS)
    new = graphpatch.patch_graph(RULES, graph_of(resource), in_place=False)
    same = graphpatch.patch_graph(RULES, graph_of(resource))
    with tf.Graph().as_default() as made, graphpatch.building(RULES):
        live_nets.net(resource)
    assert (new.in_place, same.in_place) == (False, True)
    for graph in (new.graph, same.graph, made):
        found = live_nets.train(graph, STEPS)
        assert len(found) == len(file) == 6
        assert all(map(same_bits, found, file))
    unpatched = live_nets.train(graph_of(resource), STEPS)
    assert not any(map(same_bits, unpatched[2:], file[2:]))


def test_training_goes_on_with_the_values() -> None:
    """The old step is in the patched graph too; momentum slots and all go along."""
    old = graph_of(True)
    with old.as_default():
        step = tf1.train.MomentumOptimizer(0.05, 0.9).minimize(old.get_tensor_by_name("loss:0"))
        init = tf1.global_variables_initializer()
    patched = graphpatch.patch_graph(RULES, old, in_place=False)
    assert any("built before" in note for note in patched.report["notes"])
    x = np.random.default_rng(0).normal(size=[16, 4])
    feeds = {"x:0": x, "target:0": x.sum(axis=1, keepdims=True)}
    with tf1.Session(graph=old) as first, tf1.Session(graph=patched.graph) as second:
        first.run(init)
        for _ in range(10):
            first.run(step, feeds)
        restored = patched.restore(first, second)
        assert sum("Momentum" in name for name in restored) == 6
        second.run(patched.operation(step), feeds)
        assert len(restored) == 12
        biases = [v for v in old.get_collection("variables") if "layer2/b" in v.name]
        assert all(np.isfinite(second.run(patched.variable(bias))).all() for bias in biases)

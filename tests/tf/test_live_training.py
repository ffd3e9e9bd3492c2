"""Training goes on in a patched graph: live, by file and as TensorFlow itself does it alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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

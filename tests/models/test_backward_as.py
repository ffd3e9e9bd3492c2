"""backward_as on real models: the gradient is that of the model without the noise.

The reference is the model in which each noisy op is an Identity of its input.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest

import graphpatch
from tests.models import catalogue, sessions

tf = pytest.importorskip("tensorflow")


class Model(NamedTuple):
    """Which ops count as their input 0, how many there are, and what is fed.

    `shape` stands for a shape that the model does not tell.
    """

    noisy: dict[str, Any]
    count: int
    shape: tuple[int, ...] = (1, 16, 16, 1)
    feeds: Mapping[str, float] = MappingProxyType({})


MODELS = {
    "zoo/uTensor+utensor_cgen__tests_deep_cnn_buggy.pb": Model(
        {"name": ["dropout/mul", "dropout_1/mul"]}, 2, (1, 784), {"keep_prob:0": 0.5}
    ),
    "mobilenet_v1_0.25_128_frozen.pb": Model({"name_regex": ".*Conv2d_[3-5]_.*/Relu6"}, 6),
    "dl4j/lstm_mnist.pb": Model({"op": "Tanh"}, 56),
    "zoo/Saafke+FSRCNN_Tensorflow__models_FSRCNN_x2.pb": Model({"op": "Relu"}, 7),
}


def graph_def_of(path: Path) -> Any:
    """The GraphDef, whose random numbers are those of a seed."""
    (graph_def,) = catalogue.graph_defs(path)
    for node in graph_def.node:
        if "seed2" in node.attr:
            node.attr["seed"].i = node.attr["seed2"].i = 1
    return graph_def


def without(graph_def: Any, noisy: set[str]) -> Any:
    """The GraphDef in which these ops are the Identity of their input 0."""
    found = type(graph_def).FromString(graph_def.SerializeToString())
    for node in found.node:
        if node.name in noisy:
            node.op = "Identity"
            dtype = node.attr["T"].type
            node.ClearField("attr")
            node.attr["T"].type = dtype
            del node.input[1:]
    return found


def run(graph_def: Any, output: str, model: Model) -> tuple[Any, list[Any]]:
    """An output, and the gradient of a weighted sum of it by what is fed and by the variables."""
    graph = catalogue.imported(graph_def)
    feeds = {**dict(sessions._feeds(graph, 1, model.shape)), **model.feeds}
    variables = dict(sessions._variables(graph, 1, ()))
    with graph.as_default():
        y = graph.get_tensor_by_name(output)
        weights = tf.cast(tf.range(tf.size(y)) % 7, y.dtype)
        by = [graph.get_tensor_by_name(name) for name in (*feeds, *variables)]
        found = tf.compat.v1.gradients(tf.reshape(y, [-1]) * weights, by)
        with tf.compat.v1.Session(graph=graph) as session:
            sessions._assign(graph, session, variables)
            dxs = [dx for dx in found if dx is not None]
            return session.run([y, dxs], feeds)


@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_is_that_without_noise(name: str, tmp_path: Path) -> None:
    path = catalogue.existing(name)
    model, source, target = MODELS[name], tmp_path / "model.pb", tmp_path / "patched.pb"
    before = graph_def_of(path)
    source.write_bytes(before.SerializeToString())
    match = {**model.noisy, "body": "main"}
    rule = {"match": match, "patch": {"backward_as": {"input": 0}}, "expect": model.count}
    result = graphpatch.apply([rule], source)
    result.model.save(target)
    assert not any("still noisy" in note for note in result.report["notes"])
    (entry,) = result.report["rules"]
    clean = without(before, {one["op"] for one in entry["matches"]})
    output = list(sessions.float_tensors(catalogue.imported(clean)))[-1]
    y, noisy = run(before, output, model)
    patched, found = run(catalogue.graph_defs(target)[0], output, model)
    other, expected = run(clean, output, model)
    assert sessions.same(y, patched)
    assert not sessions.same(y, other)
    assert len(found) == len(expected) > 0
    for dx, wanted in zip(found, expected, strict=True):
        assert np.isfinite(wanted).all()
        np.testing.assert_allclose(dx, wanted, rtol=1e-5, atol=1e-6 * np.abs(wanted).max())
    assert any(not sessions.same(dx, one) for dx, one in zip(found, noisy, strict=True))

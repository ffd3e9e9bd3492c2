"""Real models split in the middle: the parts give the gradient of the whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from graphpatch.graph.editor import Editor
from graphpatch.graph.record import Author
from tests.graphs import attr
from tests.models import catalogue, sessions
from tests.tf import parts

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1

GUIDED = [{"match": {"op": "Relu6"}, "patch": {"override_gradient": "guided_relu6"}}]


@dataclass(frozen=True)
class Case:
    """A model, and where it is split; `rules` patch it before."""

    model: str
    loss: str
    cuts: list[list[str]]
    wrt: str
    rules: list[dict[str, Any]] = field(default_factory=list)


MOBILENET = "mobilenet_v1_0.25_128_frozen.pb"
MIDDLE = "MobilenetV1/MobilenetV1/Conv2d_5_pointwise/Relu6"
LOGITS = "MobilenetV1/Logits/SpatialSqueeze"
RESNET = "resnet_imagenet_34.pbtxt"
RESNET_LOSS = "softmax_cross_entropy_loss/value"

CASES = {
    "mobilenet": Case(MOBILENET, LOGITS, [[MIDDLE]], "input"),
    "mobilenet, guided": Case(MOBILENET, LOGITS, [[MIDDLE]], "input", GUIDED),
    "resnet, four parts": Case(
        RESNET, RESNET_LOSS, [["add_2"], ["add_6"], ["add_10"]], "conv2d/kernel"
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_parts_give_the_gradient_of_the_whole(name: str, tmp_path: Path) -> None:
    from graphpatch.runtime.parts import split

    case = CASES[name]
    path = prepared(case, tmp_path)
    (graph_def,) = catalogue.graph_defs(path)
    graph = catalogue.imported(graph_def)
    found = split(graphpatch.load(path), case.loss, case.cuts, [case.wrt])
    document = parts.write(found, tmp_path / "parts")
    feeds = dict(sessions._feeds(graph, 1, (1, 16, 16, 1)))
    held = dict(small_weights(graph))
    values = parts.run(tmp_path / "parts", {**feeds, **held})
    (expected,) = whole(graph, case, feeds, held)
    at_wrt = values[next(iter(document["gradients"].values()))]
    assert np.isfinite(expected).all()
    assert abs(expected).max() > 0
    # The same kernels on the same values: what may differ is the order of the sums that threads
    # share, in each of the layers one after the other. A sum of n products is off by no more than
    # n roundings, relative to the sum of absolute values; n is at most 3 * 3 * 512 here.
    epsilon = float(np.finfo(np.float32).eps)
    assert abs(at_wrt - expected).max() <= 3 * 3 * 512 * epsilon * abs(expected).max()


def prepared(case: Case, folder: Path) -> Path:
    """The model, patched, its random ops with a seed: each draws the same in a fresh Session."""
    model = graphpatch.load(catalogue.existing(case.model))
    if case.rules:
        model = graphpatch.apply(case.rules, model).model
    model = model.copy()
    editor = Editor(model.graphs[0], Author("seed", "seed"))
    for node in list(model.graphs[0].main):
        if node.op == "RandomUniform":
            editor.set_attr(node, "seed", attr(3))
            editor.set_attr(node, "seed2", attr(5))
    path = folder / Path(case.model).name
    model.save(path)
    return path


def small_weights(graph: Any) -> Iterator[tuple[str, np.ndarray]]:
    """A value for each float variable, with which no layer blows up."""
    for name, value in sessions._variables(graph, 1, ()):
        if value.dtype == np.float32:
            variance = np.float32("variance" in name)
            yield (
                name.removesuffix(":0"),
                variance + np.float32(0.05) * (abs(value) if variance else value),
            )


def whole(
    graph: Any, case: Case, feeds: Mapping[str, Any], held: Mapping[str, np.ndarray]
) -> list[np.ndarray]:
    loss, wrt = (name if ":" in name else f"{name}:0" for name in (case.loss, case.wrt))
    with graph.as_default():
        found = tf.gradients(graph.get_tensor_by_name(loss), [graph.get_tensor_by_name(wrt)])
        with tf1.Session(graph=graph) as session:
            sessions._assign(graph, session, {f"{name}:0": v for name, v in held.items()})
            values: list[np.ndarray] = session.run(found, feeds)
            return values

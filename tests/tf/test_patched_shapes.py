"""The shapes that TensorFlow infers of a patched graph are those that graphpatch infers."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

import graphpatch
from graphpatch.differentiation.shapes import Shapes
from graphpatch.differentiation.wiring import Wiring
from tests.examples import ROOT

tf1 = tf.compat.v1
DIGITS = ROOT / "scripts" / "models" / "digits.pb"


@pytest.mark.parametrize(
    "patch",
    [
        {"override_gradient": "guided_relu"},
        {"filter_gradient": {"clip": {"min": -1, "max": 1}}},
        {"surrogate_gradient": "tanh(x)"},
        {"stop_gradient": True},
    ],
    ids=lambda patch: next(iter(patch)),
)
def test_activations_behind_a_patch(patch: dict[str, Any], tmp_path: Any) -> None:
    rule = {"match": {"op": ["Relu", "Relu6"]}, "patch": patch}
    graphpatch.apply([rule], DIGITS).save(tmp_path / "patched.pb")
    model = graphpatch.load(tmp_path / "patched.pb")
    main = model.graphs[0].main
    shapes = Shapes(Wiring(main))
    names = ["block1/relu", "block1/pool", "block2/relu", "block2/pool", "dense/relu", "logits"]
    with tf1.Graph().as_default() as graph:
        tf1.import_graph_def(model.graph_def(), name="")
        inferred = {name: graph.get_tensor_by_name(f"{name}:0").shape.as_list() for name in names}
    assert {name: list(shapes.of((main.by_name[name], 0)) or ()) for name in names} == inferred

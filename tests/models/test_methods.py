"""Methods on real models, each by one recipe, against the method as its peers have it.

The models, what they are fed, and the peers are those of `scripts/methods`, which prints the table
of docs/methods-on-models.md.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from tests.models import catalogue, sessions

tf = pytest.importorskip("tensorflow")

sys.path.insert(0, str(catalogue.CHECKOUT / "scripts"))

from methods import peers  # noqa: E402
from methods.__main__ import row  # noqa: E402
from methods.models import SUBJECTS, Subject  # noqa: E402

LIMIT = 1e-5  # of the largest element
NOTHING = {"nothing to patch", "no batch"}


@pytest.fixture(scope="module", autouse=True)
def old_control_flow() -> Any:
    """The detector has v1 loops."""
    tf.compat.v1.disable_control_flow_v2()
    peers.register()
    yield
    tf.compat.v1.enable_control_flow_v2()


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda one: one.label)
def test_each_method_is_that_of_its_peers(subject: Subject) -> None:
    if not Path(subject.file).is_absolute():
        catalogue.existing(subject.file)
    found = row(subject, catalogue.folder())
    assert any(not one.why for one in found.values())
    for method, one in found.items():
        assert one.why in NOTHING if one.why else one.difference <= LIMIT, (method, one.told)


# Guided backprop on real models equals the script that everybody writes for it, bit for bit.


MODELS = {
    "mobilenet_v1_0.25_128_frozen.pb": ("Relu6", 27),
    "zoo/Saafke+FSRCNN_Tensorflow__models_FSRCNN_x2.pb": ("Relu", 7),
}


@pytest.fixture(scope="module")
def classic() -> dict[str, str]:
    """The keys that such a script registers, each for its op type."""
    stock = {"Relu": tf.raw_ops.ReluGrad, "Relu6": tf.raw_ops.Relu6Grad}
    for op_type, gradient in stock.items():

        def guided(op: Any, dy: Any, gradient: Any = gradient) -> Any:
            return tf.where(dy > 0.0, gradient(gradients=dy, features=op.outputs[0]), 0.0 * dy)

        tf.RegisterGradient(f"Classic{op_type}")(guided)
    return {op_type: f"Classic{op_type}" for op_type in stock}


def gradients(graph: Any) -> dict[str, np.ndarray]:
    """The gradients of a model's largest scores by its inputs."""
    feeds = dict(sessions._feeds(graph, 1, (1, 16, 16, 1)))
    variables = dict(sessions._variables(graph, 1, ()))
    output = list(sessions.float_tensors(graph))[-1]
    with graph.as_default():
        score = tf.reduce_max(graph.get_tensor_by_name(output), axis=-1)
        by = [graph.get_tensor_by_name(name) for name in feeds]
        floats = [tensor for tensor in by if tensor.dtype.is_floating]
        found = tf.compat.v1.gradients(score, floats)
        asked = {x.name: dx for x, dx in zip(floats, found, strict=True) if dx is not None}
        with tf.compat.v1.Session(graph=graph) as session:
            sessions._assign(graph, session, variables)
            values: dict[str, np.ndarray] = session.run(asked, feeds)
            return values


@pytest.mark.parametrize("name", MODELS)
def test_it_equals_the_classic_script(name: str, classic: dict[str, str], tmp_path: Path) -> None:
    path, target = catalogue.existing(name), tmp_path / Path(name).name
    op_type, count = MODELS[name]
    rule = {"match": {"op": op_type}, "patch": {"override_gradient": "guided_relu"}}
    result = graphpatch.apply([rule], path)
    result.model.save(target)
    (entry,) = result.report["rules"]
    assert (len(entry["matches"]), entry["emit"]) == (count, "function")
    before, after = (catalogue.graph_defs(one)[0] for one in (path, target))
    stock = gradients(catalogue.imported(before))
    expected = gradients(catalogue.imported(before, classic))
    found = gradients(catalogue.imported(after))
    assert found.keys() == expected.keys() != set()
    for x, dx in expected.items():
        assert np.isfinite(dx).all()
        assert np.abs(dx).max() > 0
        assert not np.array_equal(dx, stock[x])
        assert sessions.same(dx, found[x])

"""`verify` compares the formula of a construction with numpy: on what its ops read, per op."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import graphpatch
from tests.tf.consumer import save
from tests.tf.verify_graphs import edited

tf = pytest.importorskip("tensorflow")

OP = {"match": {"op": "Relu"}, "patch": {"override_gradient": {"formula": "dy * sigmoid(x) * y"}}}
FILTER = {"match": {"op": "Tanh"}, "patch": {"filter_gradient": {"scale": 0.5}}}
TWICE = {"match": {"op": "Square"}, "patch": {"override_gradient": {"formula": "dy * x"}}}
SAME = {"match": {"name": "same"}, "patch": {"override_gradient": {"formula": ["dy * x1", "dy"]}}}
PRODUCT = ["sum_like(dy * x1, x0)", "-sum_like(dy * x0, x1)"]
WHOLE = {
    "match": {"pattern": "x:_ -> s:Sigmoid -> m:Mul; w:_ -> m"},
    "patch": {"override_gradient": {"formula": PRODUCT}, "on": "match"},
}
MATMUL = {
    "match": {"op": "MatMul"},
    "patch": {"override_gradient": "matmul"},
    "emit": "construction",
}


def net() -> None:
    x = tf.compat.v1.placeholder(tf.float32, [2, 4], "x")
    w = tf.constant([[0.5, -1.0, 2.0, 1.0]] * 2, name="w")
    y = tf.multiply(tf.sigmoid(tf.nn.relu(x, "relu")), w, "product")
    y = tf.nn.relu(tf.matmul(tf.square(tf.tanh(y)), tf.ones([4, 4]) / 3), "relu_1")
    tf.identity(tf.multiply(y, y, "same"), "y")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("constructions")
    save(net, found / "model.pb")
    return found


def constructed(folder: Path, *rules: Any) -> Path:
    result = graphpatch.apply(list(rules), folder / "model.pb")
    assert {rule["emit"] for rule in result.report["rules"]} == {"construction"}
    result.model.save(folder / "patched.pb")
    return folder / "patched.pb"


def verified(folder: Path) -> tuple[graphpatch.Verification, dict[str, Any]]:
    found = graphpatch.verify(folder / "model.pb", folder / "patched.pb")
    [graph] = found.document()["graphs"]
    return found, {one["example"]: one for one in graph["formulas"]}


def test_constructions_are_compared(folder: Path) -> None:
    constructed(folder, OP, FILTER, TWICE, SAME, WHOLE, MATMUL)
    found, formulas = verified(folder)
    assert (found.verdict, found.failures, found.not_compared) == ("verified", [], [])
    assert sum(one["ops"] for one in formulas.values()) == 7
    assert all(one["max_error"] <= one["tolerance"] == 2e-5 for one in formulas.values())
    assert formulas["Select 'relu'"]["shapes"] == "float32[2, 4], float32[2, 4]"


def sign(graph: Any, nodes: Any) -> None:
    """Another sign, at the second of two ops that are patched alike."""
    product = nodes[nodes["relu_1"].input[2]]
    flipped = graph.node.add(name="relu_1/backward/flipped", op="Neg", input=product.input[:1])
    flipped.attr["T"].type = 1
    flipped.attr["_graphpatch"].CopyFrom(product.attr["_graphpatch"])
    product.input[0] = flipped.name


def live(graph: Any, nodes: Any) -> None:
    """What multiplies dy is no longer behind a StopGradient."""
    nodes["relu/backward/StopGradient"].op = "Identity"


def scale(graph: Any, nodes: Any) -> None:
    """A constant of a filter, changed."""
    [const] = [n for n in nodes.values() if n.op == "Const" and n.name.startswith("Tanh/backward")]
    const.attr["value"].tensor.float_val[:] = [0.25]
    const.attr["value"].tensor.tensor_content = b""


def swapped(graph: Any, nodes: Any) -> None:
    """The two inputs of a match that counts as one op, exchanged."""
    for node in graph.node:
        if node.name.startswith("product/backward/"):
            other = {"relu": "w", "w": "relu"}
            node.input[:] = [other.get(text, text) for text in node.input]


WRONG = {
    "Select 'relu_1'": sign,
    "Select 'relu'": live,
    "Select 'Tanh'": scale,
    "Select 'product'": swapped,
}


def test_wrong_constructions_are_found(folder: Path) -> None:
    path = constructed(folder, OP, FILTER, TWICE, WHOLE)
    for edit in WRONG.values():
        edited(path, edit)
    found, formulas = verified(folder)
    assert found.verdict == "differs"
    assert {n for n, one in formulas.items() if one["max_error"] > 1e-2} == WRONG.keys()
    assert formulas["Select 'Square'"]["max_error"] <= 2e-5
    for op in WRONG:
        assert any(f"at {op}: TensorFlow and numpy differ" in one for one in found.failures)


def test_a_construction_that_reads_something_else_is_not_verified(folder: Path) -> None:
    def foreign(graph: Any, nodes: Any) -> None:
        for node in graph.node:
            if node.name.startswith("relu_1/backward/"):
                node.input[:] = ["x" if text == "MatMul" else text for text in node.input]

    edited(constructed(folder, OP), foreign)
    found, _ = verified(folder)
    assert found.verdict == "not compared"
    assert any(
        "its construction reads x, which its op does not read" in o for o in found.not_compared
    )


@pytest.mark.slow
def test_constructions_in_the_body_of_a_loop_are_compared(tmp_path: Path) -> None:
    def build() -> None:
        x = tf.compat.v1.placeholder(tf.float32, [3], "x")
        w = tf.constant([0.5, 2.0, -1.0])
        body = lambda n, a: (n + 1, tf.nn.relu(a) + tf.sigmoid(a) * w)  # noqa: E731
        tf.identity(tf.while_loop(lambda n, a: n < 2, body, [0, x])[1], "y")

    save(build, tmp_path / "model.pb")
    constructed(tmp_path, OP, WHOLE)
    found, formulas = verified(tmp_path)
    assert found.failures == []
    assert len(formulas) == 2
    assert all(one["max_error"] <= one["tolerance"] for one in formulas.values())

    def flipped(graph: Any, nodes: Any) -> None:
        [body] = [
            one for one in graph.library.function if any(n.op == "Relu" for n in one.node_def)
        ]
        for node in body.node_def:
            if node.op == "Mul" and node.name.endswith("/backward/Mul"):
                node.op = "Sub"

    edited(tmp_path / "patched.pb", flipped)
    found, _ = verified(tmp_path)
    assert any("TensorFlow and numpy differ" in one for one in found.failures)

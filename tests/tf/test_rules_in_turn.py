"""Two rules on one op: what flows back, whatever key the second match asks by."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import graphpatch
from graphpatch.errors import PatchError
from tests.tf.consumer import differentiate

tf1 = tf.compat.v1
X = np.float32([[-2, -0.5, 0.25, 3]])
UP = np.float32([[4, -4, 4, -4]])
POSITIVE = np.float32([[0, 0, 1, 1]])

FIRST: dict[str, tuple[dict[str, Any], Any]] = {
    "a filter": ({"filter_gradient": {"scale": 0.5}}, lambda dy: 0.5 * dy * POSITIVE),
    "a filter at the input": (
        {"filter_gradient": {"scale": 0.5}, "at": "inputs"},
        lambda dy: 0.5 * dy * POSITIVE,
    ),
    "an override": ({"override_gradient": {"scale": 0.5}}, lambda dy: 0.5 * dy),
    "an override by a function": (
        {"override_gradient": "guided_relu"},
        lambda dy: np.maximum(dy, 0) * POSITIVE,
    ),
    "a surrogate": ({"surrogate_gradient": "3 * x"}, lambda dy: 3 * dy),
    "straight through": ({"straight_through": True}, lambda dy: dy),
}
SECOND: dict[str, dict[str, Any]] = {
    "op": {"op": "Relu"},
    "name": {"name": "net/relu"},
    "path": {"upstream_of": "net/relu", "downstream_of": "net/in"},
    "neighbours": {"inputs": {"any": {"name": "net/in"}}},
    "pattern": {"pattern": "i:Identity -> r:Relu"},
}


def graph_def() -> Any:
    with tf1.Graph().as_default() as graph, tf1.name_scope("net"):
        x = tf1.identity(tf1.placeholder(tf.float32, X.shape, "x"), name="in")
        tf1.identity(tf1.multiply(tf.nn.relu(x, name="relu"), UP, name="up"), name="out")
    return graph.as_graph_def()


def gradient(rules: list[dict[str, Any]]) -> Any:
    patched = graphpatch.apply(rules, graph_def()).graph_def()
    return differentiate(patched, "net/out:0", ["net/x:0"], {"net/x:0": X})[0]


def rule(patch: dict[str, Any], match: dict[str, Any]) -> dict[str, Any]:
    emit = {"emit": patch["emit"]} if "emit" in patch else {}
    return {"match": match, "patch": {k: v for k, v in patch.items() if k != "emit"}, **emit}


@pytest.mark.every(5)
@pytest.mark.parametrize("match", SECOND.values(), ids=SECOND)
@pytest.mark.parametrize(("first", "backward"), FIRST.values(), ids=FIRST)
def test_a_filter_after_a_rule(first: Any, backward: Any, match: Any) -> None:
    """What flows back passes the filter of the later rule first."""
    second = {"filter_gradient": {"clip": {"min": -2, "max": 3}}}
    found = gradient([rule(first, {"op": "Relu"}), rule(second, match)])
    np.testing.assert_allclose(found, backward(np.clip(UP, -2, 3)))


@pytest.mark.parametrize("match", SECOND.values(), ids=SECOND)
@pytest.mark.parametrize("first", [key for key in FIRST if key.startswith("a filter")])
def test_an_override_after_a_filter(first: str, match: Any) -> None:
    """It is the op's own gradient, behind the filter or before it."""
    patch = FIRST[first][0]
    found = gradient(
        [rule(patch, {"op": "Relu"}), rule({"override_gradient": "deconv_relu"}, match)]
    )
    np.testing.assert_allclose(found, np.maximum(0.5 * UP, 0))


@pytest.mark.parametrize("match", SECOND.values(), ids=SECOND)
def test_two_gradients_of_one_op(match: Any) -> None:
    deconv = rule({"override_gradient": "deconv_relu"}, match)
    for first in ("an override by a function", "a surrogate"):
        with pytest.raises(PatchError, match=r"no gradient reaches Relu .* \"taken\": false"):
            gradient([rule(FIRST[first][0], {"op": "Relu"}), deconv])
    at_inputs = {"filter_gradient": {"scale": 2}, "at": "inputs"}
    override = rule(FIRST["an override by a function"][0], {"op": "Relu"})
    with pytest.raises(PatchError, match="put this rule before that one, or leave the op out"):
        gradient([override, rule(at_inputs, match)])
    np.testing.assert_allclose(
        gradient([rule(at_inputs, match), override]), 2 * np.maximum(UP, 0) * POSITIVE
    )
    through = {"name": "first", **rule({"straight_through": True}, {"op": "Relu"})}
    done = graphpatch.apply([through, {"name": "second", **deconv}], graph_def())
    assert any("replaces the gradient that rule 'first'" in note for note in done.report["notes"])
    np.testing.assert_allclose(gradient([through, deconv]), np.maximum(UP, 0))


@pytest.mark.parametrize("match", SECOND.values(), ids=SECOND)
def test_after_a_stop_nothing_flows(match: Any) -> None:
    stop = {"name": "first", **rule({"stop_gradient": True}, {"op": "Relu"})}
    scale = {"name": "second", **rule({"filter_gradient": {"scale": 2}}, match)}
    notes = graphpatch.apply([stop, scale], graph_def()).report["notes"]
    said = "rule 'second' means nothing on any of its ops: rule 'first' stops what flows back"
    assert any(note.startswith(said) for note in notes)
    several = {**scale, "match": {"name": "net/**"}}
    done = graphpatch.apply([stop, several], graph_def())
    assert any("means nothing on some of its ops" in note for note in done.report["notes"])

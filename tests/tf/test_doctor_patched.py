"""What `doctor` says of patched models, against what TensorFlow gives on a tape."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from graphpatch.analysis.doctor.survey import GraphDiagnosis, survey

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1

X = np.float32([-2.0, -0.5, 0.25, 3.0])
FORMULA = {
    "name": "thirds",
    "match": {"op": "Tanh", "body": "*"},
    "patch": {"override_gradient": {"formula": "dy / 3"}},
}
STRAIGHT = {
    "name": "signs",
    "match": {"op": "Sign", "body": "*"},
    "patch": {"straight_through": True},
}
RULES = [FORMULA, STRAIGHT]


def loop(x: Any) -> Any:
    """Twice y = tanh(sign(y))."""
    body = lambda n, y: (n + 1, tf.tanh(tf.sign(y)))  # noqa: E731
    return tf.while_loop(lambda n, y: n < 2, body, (0, x))[1]


@pytest.mark.parametrize("call", [lambda x: tf.tanh(tf.sign(x)), loop], ids=["op", "while"])
def test_a_patched_saved_model_flows_on_a_tape(call: Callable[[Any], Any], tmp_path: Path) -> None:
    module = tf.Module()
    spec = tf.TensorSpec(X.shape, tf.float32, name="x")
    module.call = tf.function(lambda x: {"y": call(x)}, input_signature=[spec])
    tf.saved_model.save(module, str(tmp_path / "m"), signatures=module.call)
    graphpatch.apply(RULES, tmp_path / "m").model.save(tmp_path / "p")
    loaded = tf.saved_model.load(str(tmp_path / "p"))
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = loaded.call(x)["y"]
    times = 9 if call is loop else 3
    np.testing.assert_allclose(tape.gradient(y, x), np.ones_like(X) / times, rtol=1e-5)
    [seen] = survey(graphpatch.load(tmp_path / "p"), ["serving_default_x"], output(tmp_path / "p"))
    [found] = seen.diagnoses
    assert (found.tape, list(found.findings)) == ("flows", [])
    assert not {"unregistered_key", "ignored_override"} & {note.kind for note in seen.notes}


def output(folder: Path) -> list[str]:
    from tests.models import catalogue

    signature = catalogue.read(folder).meta_graphs[0].signature_def["serving_default"]
    return [signature.outputs["y"].name]


# No other test may have registered it in this process: a tape would honour it.
UNREGISTERED = {
    "name": "lone",
    "match": {"op": "Tanh"},
    "patch": {"override_gradient": {"formula": "sign(dy) * 0.8713"}},
}


@pytest.mark.parametrize("rules", [[STRAIGHT], [UNREGISTERED, STRAIGHT]], ids=["keys", "functions"])
def test_a_tape_over_a_patched_graph(rules: list[dict[str, Any]], tmp_path: Path) -> None:
    with tf1.Graph().as_default() as graph:
        tf1.tanh(tf.sign(tf1.placeholder(tf.float32, X.shape, "x")), name="y")
    path = tmp_path / "model.pb"
    path.write_bytes(graph.as_graph_def().SerializeToString())
    graphpatch.apply(rules, path).model.save(tmp_path / "patched.pb")
    graph_def = tf1.GraphDef.FromString((tmp_path / "patched.pb").read_bytes())
    seen: GraphDiagnosis
    [seen] = survey(graphpatch.load(tmp_path / "patched.pb"), ["x"], ["y"])
    [found] = seen.diagnoses
    pruned = tf1.wrap_function(lambda: tf1.import_graph_def(graph_def, name=""), []).prune
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = pruned("x:0", "y:0")(x)
    if rules == [STRAIGHT]:
        dx = tape.gradient(y, x)
        np.testing.assert_allclose(dx, 1 - np.tanh(np.sign(X)) ** 2, rtol=1e-5)
        assert (found.verdict, found.tape) == ("flows", "flows")
        return
    with pytest.raises((LookupError, tf.errors.OpError)):
        tape.gradient(y, x)
    assert (found.verdict, found.tape) == ("flows", "error")
    assert {finding.kind for finding in found.findings} == {"carried"}

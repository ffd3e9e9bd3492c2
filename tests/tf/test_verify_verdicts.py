"""`verify` says "verified" of what it compared alone: verdicts, values, branches, settings."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import graphpatch
from scripts import matrix_consumer
from tests import forked
from tests.tf.consumer import save
from tests.tf.verify_graphs import edited, patched_beside

tf = pytest.importorskip("tensorflow")

GUIDED = {"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}


@pytest.mark.slow
def test_an_output_that_no_patch_reaches_is_not_a_verification(tmp_path: Path) -> None:
    """No program fills its table: what can be run is global_step alone, which no rule touches."""

    def build() -> None:
        tf1 = tf.compat.v1
        table = tf.raw_ops.HashTableV2(key_dtype=tf.int64, value_dtype=tf.float32)
        value = tf.raw_ops.LookupTableFindV2(
            table_handle=table, keys=tf.zeros([4], tf.int64), default_value=0.0
        )
        tf.sigmoid(tf.nn.relu(tf.ensure_shape(value, [4]), "relu"), "y")
        step = tf1.get_variable(
            "global_step", [], tf.int64, tf1.zeros_initializer, use_resource=False
        )
        tf.identity(step, "global_step/read_value")

    path = save(build, tmp_path / "model.pb")
    found = graphpatch.verify(path, patched_beside(path, GUIDED))
    assert (found.verdict, found.ok, found.failures) == ("not compared", False, [])
    assert "forward: no tensor was compared that is computed of 'relu'" in found.not_compared
    assert any("override of" in one and "did not fire" in one for one in found.not_compared)


@pytest.mark.slow
def test_an_override_behind_another_is_not_verified(tmp_path: Path) -> None:
    """tf.nn.swish: the IdentityN's own gradient carries past the Mul.

    `apply` refuses such a graph. So the key of the IdentityN is taken off before, and put on again
    afterwards.
    """

    def build() -> None:
        x = tf.compat.v1.placeholder(tf.float32, [4], "x")
        tf.identity(tf.nn.swish(x), "y")

    keys: list[Any] = []

    def take_off(graph: Any, nodes: Any) -> None:
        keys.append(nodes["IdentityN"].attr.pop("_gradient_op_type"))

    def put_on(graph: Any, nodes: Any) -> None:
        nodes["IdentityN"].attr["_gradient_op_type"].CopyFrom(keys[0])

    gradient = {"override_gradient": {"formula": ["dy * 3", "dy * 3"]}}
    path = edited(save(build, tmp_path / "model.pb"), take_off)
    target = edited(patched_beside(path, {"match": {"op": "Mul"}, "patch": gradient}), put_on)
    found = graphpatch.verify(edited(path, put_on), target)
    assert found.verdict == "differs"
    [graph] = found.document()["graphs"]
    assert [one["op"] for one in graph["overrides"]["not_fired"]] == ["mul_1"]
    assert any(
        "IdentityN 'IdentityN' has a gradient of its own" in one for one in found.not_compared
    )


def test_branches_that_no_value_takes_are_listed(tmp_path: Path) -> None:
    """A Relu and a branch of which positive feeds show one side; `feed` keeps all inputs > 0."""

    def build() -> None:
        x = tf.compat.v1.placeholder(tf.float32, [3], "x")
        tf.nn.relu(tf.abs(x) + 1.0, "relu")
        tf.nn.elu(x, "elu")
        tf.cond(tf.reduce_sum(x) > -1e30, lambda: x, lambda: -x)

    path = save(build, tmp_path / "model.pb")
    [graph] = graphpatch.verify(path, path).document()["graphs"]
    assert {pair["state"] for pair in graph["gradients"]} == {"same"}
    branches = graph["branches"]
    assert (branches["watched"], branches["reached"]) == (4, 3)
    assert branches["not_reached"] == {"relu": "never reads what is below 0, or false"}


def test_a_tensorflow_that_aborts_takes_its_process_alone(tmp_path: Path) -> None:
    """`Abort` ends the process of whoever runs it."""

    def build() -> None:
        x = tf.compat.v1.placeholder(tf.float32, [2], "x")
        with tf.control_dependencies([tf.raw_ops.Abort(error_msg="the end")]):
            tf.identity(tf.nn.relu(x), "y")

    path = save(build, tmp_path / "model.pb")
    found = graphpatch.verify(path, path, allow_unsafe_ops=True)
    assert (found.verdict, found.failures) == ("not compared", [])
    assert "TensorFlow ended the process that ran it, by SIGABRT" in found.not_compared[0]
    assert "the end" in found.not_compared[0]


@pytest.mark.slow
def test_loops_and_branches_of_tf2_are_run(tmp_path: Path) -> None:
    """Each rewrites the same functions as it is differentiated."""

    def build() -> None:
        x = tf.compat.v1.placeholder(tf.float32, [3, 3], "x")
        y = tf.cond(tf.reduce_sum(x) > 0, lambda: tf.nn.relu(x), lambda: tf.tanh(x))
        z = tf.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, tf.nn.relu(a) * 0.5), [0, y])[1]
        tf.identity(tf.matmul(y, z), "one")
        tf.identity(tf.reduce_sum(z), "two")

    path = save(build, tmp_path / "model.pb")
    rules = [GUIDED, {"match": {"op": "MatMul"}, "patch": {"filter_gradient": "reverse"}}]
    found = graphpatch.verify(path, patched_beside(path, *rules))
    assert found.failures == []
    assert [one for one in found.not_compared if "did not fire" not in one] == []


@pytest.mark.slow
def test_what_the_caller_imported_does_not_count(tmp_path: Path) -> None:
    """Settings are those of the processes that run the models, whoever imported TensorFlow."""

    def build() -> None:
        tf.nn.relu(tf.compat.v1.placeholder(tf.float32, [2], "x"), "y")

    path = save(build, tmp_path / "model.pb")
    program = (
        "import os, sys, json; os.environ.pop('TF_ENABLE_ONEDNN_OPTS', None)\n"
        "import graphpatch\n"
        "found = graphpatch.verify(sys.argv[1], sys.argv[1])\n"
        "assert 'tensorflow' not in sys.modules\n"
        "[graph] = found.document()['graphs']\n"
        "print(json.dumps([found.verdict, graph['settings']['onednn']]))\n"
    )
    command = [*forked.python(forked.COMMAND), "-c", program, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == ["verified", False]


@pytest.mark.parametrize(
    "rewrite", [matrix_consumer.grappler_graph, matrix_consumer.without_training_nodes]
)
def test_a_file_that_an_offline_tool_rewrote_is_never_verified(
    rewrite: Any, tmp_path: Path
) -> None:
    """Grappler inlines calls: guided_relu is silently TensorFlow's own gradient again."""

    def build() -> None:
        x = tf.compat.v1.placeholder(tf.float32, [2, 3], "x")
        tf.identity(tf.nn.relu(x, "relu") * 2.0, "y")

    path = save(build, tmp_path / "model.pb")
    whole = patched_beside(path, {**GUIDED, "name": "guided"})
    rewritten = tmp_path / "rewritten.pb"
    rewritten.write_bytes(rewrite(str(whole)).SerializeToString())
    for one in (whole, path):
        told = graphpatch.verify(one, rewritten, run=False)
        assert told.verdict == "differs"
    assert graphpatch.verify(whole, rewritten).verdict == "differs"
    failures = graphpatch.verify(whole, rewritten, run=False).failures
    assert any("patch last, after optimisers" in one for one in failures)
    gone = "the gradients of rule 'guided' are gone at 1 of 1 ops (relu)"
    assert any(gone in one for one in failures)

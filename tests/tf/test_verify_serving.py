"""`verify` of a model as tf.estimator exports it: it reads serialized Examples, and has tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from tests.tf import verify_graphs as nets
from tests.tf.consumer import save

pytest.importorskip("tensorflow")

GUIDED = {"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}


def examples() -> Any:
    """What stands in Examples: a float of two numbers, and words."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    serialized = tf1.placeholder(tf.string, [None], "serialized")
    features = {
        "number": tf1.FixedLenFeature([2], tf.float32),
        "word": tf1.VarLenFeature(tf.string),
    }
    return tf1.parse_example(serialized, features, name="parsed")


def served() -> None:
    """An embedding of words, looked up in a table, beside numbers; and a Relu behind them."""
    import tensorflow as tf

    found = examples()
    words = tf.lookup.StaticVocabularyTable(
        tf.lookup.KeyValueTensorInitializer(["a", ""], np.array([0, 1], np.int64)), 1
    )
    ids = tf.sparse.to_dense(words.lookup(found["word"]))
    weights = tf.constant([[1.0, -2.0], [3.0, 4.0], [-5.0, 6.0]])
    embedded = tf.reduce_sum(tf.gather(weights, ids), 1)
    tf.exp(tf.nn.relu(found["number"] * embedded, name="relu"), name="y")


def test_examples_and_tables_are_filled(tmp_path: Path) -> None:
    model = save(served, tmp_path / "model.pb")
    found = graphpatch.verify(model, nets.patched_beside(model, GUIDED))
    assert (found.verdict, found.not_compared) == ("verified", [])
    [graph] = found.document()["graphs"]
    assert "y:0" in graph["forward"]["compared"]
    changed = [one for one in graph["gradients"] if one["state"] == "changed"]
    assert {(one["from"].split(":")[0].split("/")[0], one["to"]) for one in changed} == {
        ("parsed", "y:0")
    }


def test_examples_that_are_given_are_parsed(tmp_path: Path) -> None:
    import tensorflow as tf

    def build() -> None:
        tf.negative(tf.nn.relu(examples()["number"]), name="y")

    def example(numbers: list[float]) -> bytes:
        floats = tf.train.Feature(float_list=tf.train.FloatList(value=numbers))
        message = tf.train.Example(features=tf.train.Features(feature={"number": floats}))
        return bytes(message.SerializeToString())

    model = save(build, tmp_path / "model.pb")
    patched = nets.patched_beside(model, GUIDED)
    given = np.array([example([1.0, -2.0])], dtype=object)
    found = graphpatch.verify(model, patched, feed={"serialized": given})
    assert found.ok, found.not_compared
    [graph] = found.document()["graphs"]
    assert set(graph["fed"]) == {"serialized:0"}


def test_doctor_begins_at_the_numbers_of_examples(tmp_path: Path) -> None:
    model = save(served, tmp_path / "model.pb")
    [graph] = graphpatch.diagnose(model, run=True).document()["graphs"]
    [pair] = graph["pairs"]
    assert (pair["from"].split("/")[0].split(":")[0], pair["to"]) == ("parsed", "y:0")
    assert (pair["verdict"], pair["run"]["ran"], pair["run"]["zero"]) == ("flows", True, False)


def test_what_weights_alone_reach_is_asked_by_weights(tmp_path: Path) -> None:
    """A filter at each input of a MatMul: nothing comes from x to that of the weights."""

    def build() -> None:
        import tensorflow as tf

        tf1 = tf.compat.v1
        x = tf1.placeholder(tf.float32, [2, 3], "x")
        w = tf1.get_variable("w", [3, 3], use_resource=True)
        tf.exp(tf.matmul(x, w, name="product"), name="y")

    model = save(build, tmp_path / "model.pb")
    clip = {"filter_gradient": {"clip": {"min": -0.1, "max": 0.1}}, "at": "inputs"}
    found = graphpatch.verify(
        model, nets.patched_beside(model, {"match": {"op": "MatMul"}, "patch": clip})
    )
    assert (found.verdict, found.not_compared) == ("verified", [])
    [graph] = found.document()["graphs"]
    changed = {one["from"] for one in graph["gradients"] if one["state"] == "changed"}
    assert changed == {"x:0", "w:0"}


def test_why_a_named_target_has_no_gradient_is_said(tmp_path: Path) -> None:
    def build() -> None:
        import tensorflow as tf

        tf1 = tf.compat.v1
        x = tf1.placeholder(tf.float32, [], "x")
        seen = tf1.get_variable("seen", [], use_resource=False)
        tf1.exp(tf1.assign(seen, tf.nn.relu(x)), name="y")

    model = save(build, tmp_path / "model.pb")
    found = graphpatch.verify(model, nets.patched_beside(model, GUIDED), targets=["y"])
    [graph] = found.document()["graphs"]
    assert graph["gradients_not_taken"] == ["of y:0: it comes after a write to a variable"]


def test_a_table_that_tensorflow_refuses_to_fill_stays_empty(tmp_path: Path) -> None:
    """Its two entries have one key; nothing that is compared reads it."""
    import tensorflow as tf

    tf1 = tf.compat.v1

    def build() -> None:
        keys, values = np.array([1, 1], np.int64), np.array([2, 3], np.int64)
        tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), 0)
        x = tf1.placeholder(tf.float32, [2], name="x")
        tf.negative(tf.nn.relu(x), name="y")

    model = save(build, tmp_path / "model.pb")
    assert graphpatch.verify(model, nets.patched_beside(model, GUIDED)).ok


def test_one_given_output_of_a_parser_leaves_the_others_fed(tmp_path: Path) -> None:
    import tensorflow as tf

    tf1 = tf.compat.v1

    def build() -> None:
        serialized = tf1.placeholder(tf.string, [None], "serialized")
        features = {name: tf1.FixedLenFeature([2], tf.float32) for name in ("one", "two")}
        found = tf1.parse_example(serialized, features, name="parsed")
        tf.negative(tf.nn.relu(found["one"] * found["two"]), name="y")

    model = save(build, tmp_path / "model.pb")
    patched = nets.patched_beside(model, GUIDED)
    [parser] = [op.name for op in graphpatch.load(model).graphs[0].main if "ParseExample" in op.op]
    given = {f"{parser}:0": np.ones((3, 2), np.float32)}
    found = graphpatch.verify(model, patched, feed=given)
    assert found.ok, found.not_compared
    [graph] = found.document()["graphs"]
    assert f"{parser}:1" in graph["fed"]

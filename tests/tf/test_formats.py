"""Every container comes back whole from TensorFlow: values, variables, assets, collections."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format

import graphpatch
from graphpatch.runtime.tf_gradients import control_flow
from tests.tf import consumer

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1

X = [1.0, -2.0, 3.0]
REVERSE = {"reverse": {"strength": 0.5}}


@pytest.fixture(autouse=True)
def _v1_loops() -> Iterator[None]:
    """Graphs are built with v1 loops and branches, whose contexts are in collections."""
    with control_flow(False):
        yield


def files(folder: Path) -> dict[str, bytes]:
    """What lies beside the message of a SavedModel, but for checksums of the message."""
    found = [path for path in folder.rglob("*") if path.is_file() and path.parent != folder]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def patched_to(model: Path, rule: dict[str, Any], target: Path, **options: Any) -> dict[str, Any]:
    """Patch a model to `target` with one rule and return the report."""
    result = graphpatch.apply([{**rule, **options}], model)
    result.model.save(target)
    return result.report


# A SavedModel of TensorFlow 1: variables of both kinds, an asset, two signatures.


@pytest.fixture
def tf1_saved_model(tmp_path: Path) -> Path:
    words = tmp_path / "words.txt"
    words.write_text("zero\none\ntwo\n")
    with tf1.Graph().as_default(), tf1.Session() as session:
        x = tf1.placeholder(tf.float32, [3], name="x")
        old = tf1.get_variable("old", initializer=[2.0, 3.0, 4.0], use_resource=False)
        new = tf1.get_variable("new", initializer=[0.5, 0.5, 0.5], use_resource=True)
        y = tf.identity(tf.nn.relu(x * old, name="relu") + new, name="y")
        whole, line = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
        read = tf.lookup.TextFileInitializer(str(words), tf.string, whole, tf.int64, line)
        numbers = tf.lookup.StaticHashTable(read, -1).lookup(tf.constant(["two", "one"]))
        session.run([tf1.global_variables_initializer(), tf1.tables_initializer()])
        session.run(old.assign([5.0, 6.0, 7.0]))
        builder = tf1.saved_model.Builder(str(tmp_path / "tf1"))
        signatures = {
            "serving_default": tf1.saved_model.predict_signature_def({"x": x}, {"y": y}),
            "words": tf1.saved_model.predict_signature_def({"x": x}, {"numbers": numbers}),
        }
        builder.add_meta_graph_and_variables(
            session,
            ["serve"],
            signatures,
            assets_collection=tf1.get_collection(tf1.GraphKeys.ASSET_FILEPATHS),
            main_op=tf1.tables_initializer(),
        )
        builder.save()
    words.unlink()
    return tmp_path / "tf1"


def answers_tf1(folder: Path) -> list[Any]:
    """What the signatures answer in a Session, the gradient of y by x, and the variables."""
    with tf1.Graph().as_default() as graph, tf1.Session() as session:
        meta = tf1.saved_model.loader.load(session, ["serve"], str(folder))
        signature = meta.signature_def["serving_default"]
        ends = signature.inputs["x"], signature.outputs["y"]
        x, y = (graph.get_tensor_by_name(end.name) for end in ends)
        numbers = meta.signature_def["words"].outputs["numbers"].name
        variables = tf1.global_variables()
        found = session.run([y, numbers, *tf.gradients(y, x), *variables], {x: X})
        return [value.tolist() for value in found]


RELU = {"match": {"name": "relu"}, "patch": {"override_gradient": REVERSE}}
WEIGHTS = [[5.0, 6.0, 7.0], [0.5, 0.5, 0.5]]


def test_a_saved_model_of_tensorflow_1_in_a_session(tf1_saved_model: Path, tmp_path: Path) -> None:
    target = tmp_path / "patched"
    report = patched_to(tf1_saved_model, RELU, target)
    assert report["consumer"]["session"] == []
    before, after = answers_tf1(tf1_saved_model), answers_tf1(target)
    assert before == [[5.5, 0.5, 21.5], [2, 1], [5.0, 0.0, 7.0], *WEIGHTS]
    assert after == [[5.5, 0.5, 21.5], [2, 1], [-2.5, -3.0, -3.5], *WEIGHTS]
    assert files(target) == files(tf1_saved_model)
    below = {"index", "data-00000-of-00001"}
    assert set(files(target)) == {"assets/words.txt", *(f"variables/variables.{n}" for n in below)}


def test_a_saved_model_of_tensorflow_1_in_tensorflow_2(
    tf1_saved_model: Path, tmp_path: Path
) -> None:
    patched_to(tf1_saved_model, RELU, tmp_path / "patched", emit="attr")
    graphpatch.register_gradients(tmp_path / "patched")
    for path, expected in (
        (tf1_saved_model, [5.0, 0.0, 7.0]),
        (tmp_path / "patched", [-2.5, -3.0, -3.5]),
    ):
        signatures = tf.saved_model.load(str(path)).signatures
        y, dx = consumer.taped(lambda x, of=signatures: of["serving_default"](x)["y"], X)
        assert [y.numpy().tolist(), dx.numpy().tolist()] == [[5.5, 0.5, 21.5], expected]
        assert signatures["words"](tf.constant(X))["numbers"].numpy().tolist() == [2, 1]


@pytest.fixture
def meta_graph(tmp_path: Path) -> Path:
    """A MetaGraph with a loop in a branch, collections, and a checkpoint of its variable."""
    with tf1.Graph().as_default(), tf1.Session() as session:
        x = tf1.placeholder(tf.float32, [3], name="x")
        w = tf1.get_variable("w", initializer=[1.0, 1.0, 1.0], use_resource=False)

        def looped() -> Any:
            return tf.while_loop(lambda n, _: n < 3, lambda n, y: (n + 1, y * w), [0, x])[1]

        y = tf.cond(tf.reduce_sum(x) > 0.0, looped, lambda: tf.negative(x, name="minus"))
        tf.identity(y, name="y")
        tf1.add_to_collection("fetches", y)
        tf1.add_to_collection("numbers", 7)
        session.run(tf1.global_variables_initializer())
        session.run(w.assign([2.0, 3.0, 4.0]))
        tf1.train.Saver().save(session, str(tmp_path / "model"))
    return tmp_path / "model.meta"


def gradients_of(meta: Path, x: float) -> list[Any]:
    with tf1.Graph().as_default() as graph, tf1.Session() as session:
        tf1.train.import_meta_graph(str(meta)).restore(session, str(meta.with_name("model")))
        assert tf1.get_collection("numbers") == [7]
        assert [one.name for one in tf1.get_collection("fetches")] == ["cond/Merge:0"]
        y = graph.get_tensor_by_name("y:0")
        found = tf.gradients(y, [graph.get_tensor_by_name("x:0"), *tf1.trainable_variables()])
        return [value.tolist() for value in session.run([y, *found], {"x:0": [x] * 3})]


BEFORE = [[8, 27, 64], [8, 27, 64], [12, 27, 48]]
RULES: dict[str, tuple[dict[str, Any], list[float], list[float]]] = {
    # The patch on the Mul in the loop, and the gradients by x and w.
    "a key": ({"override_gradient": {"registered": "Mul"}}, [8, 27, 64], [12, 27, 48]),
    "an op in the loop": ({"filter_gradient": {"scale": -1.0}}, [-8, -27, -64], [-4, -9, -16]),
    "a call in the loop": ({"filter_gradient": {"scale": 2.0}}, [64, 216, 512], [56, 126, 224]),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("name", RULES)
def test_a_meta_graph(meta_graph: Path, name: str) -> None:
    target = meta_graph.with_name("patched.meta")
    patch, *expected = RULES[name]
    patched_to(meta_graph, {"match": {"op": "Mul"}, "patch": patch}, target)
    assert gradients_of(meta_graph, 1.0) == BEFORE
    assert gradients_of(target, 1.0) == [BEFORE[0], *expected]
    assert gradients_of(meta_graph, -1.0) == gradients_of(target, -1.0)


@pytest.mark.parametrize("suffix", [".pb", ".pbtxt", ".meta"])
def test_what_a_graph_becomes(tmp_path: Path, suffix: str) -> None:
    def build() -> None:
        tf.square(tf1.placeholder(tf.float32, [], name="x"), name="y")

    model, target = consumer.save(build, tmp_path / "model.pb"), tmp_path / f"patched{suffix}"
    patched_to(model, {"match": {"name": "y"}, "patch": {"filter_gradient": REVERSE}}, target)
    with tf1.Graph().as_default() as graph, tf1.Session() as session:
        if suffix == ".meta":
            assert tf1.train.import_meta_graph(str(target)) is None  # no variables, so no Saver
        elif suffix == ".pb":
            tf1.import_graph_def(tf1.GraphDef.FromString(target.read_bytes()), name="")
        else:
            tf1.import_graph_def(text_format.Parse(target.read_text(), tf1.GraphDef()), name="")
        x, y = (graph.get_tensor_by_name(f"{name}:0") for name in "xy")
        assert session.run([y, tf.gradients(y, x)[0]], {x: 3.0}) == [9.0, -3.0]

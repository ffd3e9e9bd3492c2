"""`verify` of models that are no frozen graph: variables, loops, SavedModels of TF1 and TF2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import graphpatch
from graphpatch.errors import UnsafeError
from graphpatch.runtime.verify.formulas import INSIDE
from tests.tf.verify_graphs import patched_beside

pytest.importorskip("tensorflow")

GUIDED = {"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}


def only(found: graphpatch.Verification) -> dict[str, Any]:
    assert (found.verdict, found.failures, found.not_compared) == ("verified", [], [])
    [graph] = found.document()["graphs"]
    assert graph["forward"]["compared"]
    return dict(graph)


def meta(folder: Path) -> Path:
    """relu(x @ w), w a variable, in a loop of two turns."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    tf1.disable_control_flow_v2()
    try:
        with tf1.Graph().as_default():
            x = tf1.placeholder(tf.float32, [None, 3], "x")
            start = tf.random.normal([3, 3], seed=3)
            w = tf1.get_variable("w", initializer=start, use_resource=False)
            turn = lambda i, y: (i + 1, tf.nn.relu(tf.matmul(y, w)))  # noqa: E731
            _, y = tf.while_loop(lambda i, y: i < 2, turn, [0, x])
            tf.identity(y, "y")
            tf1.train.export_meta_graph(str(folder / "model.meta"))
    finally:
        tf1.enable_control_flow_v2()
    return folder / "model.meta"


def test_a_loop_with_a_variable(tmp_path: Path) -> None:
    path = meta(tmp_path)
    graph = only(graphpatch.verify(path, patched_beside(path, GUIDED)))
    assert "y:0" in graph["forward"]["compared"]
    pairs = {(one["from"], one["to"]): one["state"] for one in graph["gradients"]}
    assert pairs["x:0", "y:0"] == "changed"
    assert [one["op"] for one in graph["overrides"]["fired"]] == ["while/Relu"]
    assert [one["not_compared"] for one in graph["formulas"]] == [INSIDE]


def saved(folder: Path, spy: str = "", draw: Any = None) -> Path:
    """A TF2 SavedModel: relu(x @ w) + noise, and what it writes where it is told to."""
    import tensorflow as tf

    draw = draw or tf.random.normal

    class Net(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.w = tf.Variable(tf.random.stateless_normal([3, 3], [0, 1]))
            self.drawn = getattr(draw, "__self__", None)  # a tf.random.Generator

        @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32)])
        def __call__(self, x: Any) -> Any:
            if spy:
                tf.io.write_file(spy, "there")
            drawn = draw([3])
            return {"y": tf.nn.relu(tf.matmul(x, self.w)) * 2.0 + drawn}

    net, path = Net(), folder / "saved"
    tf.saved_model.save(net, str(path), signatures=net.__call__)
    return path


def test_a_saved_model_of_tf2(tmp_path: Path) -> None:
    path = saved(tmp_path)
    found = graphpatch.verify(path, patched_beside(path, GUIDED))
    graph = only(found)
    assert graph["fed"] == {"serving_default:x": "[2, 3]"}
    assert graph["forward"]["compared"] == ["serving_default:y"]
    [pair] = graph["gradients"]
    assert (pair["from"], pair["to"]) == ("serving_default:x", "serving_default:y")
    assert pair["state"] == "changed"
    assert [one["op"] for one in graph["overrides"]["fired"]] == ["Relu"]


def test_overrides_in_branches_and_loops_of_a_saved_model(tmp_path: Path) -> None:
    """The loader gives their bodies longer names."""
    import tensorflow as tf

    def call(x: Any) -> Any:
        y = tf.cond(tf.reduce_sum(x) > 0, lambda: tf.nn.relu(x), lambda: tf.nn.elu(x))
        return {
            "y": tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, tf.nn.relu6(y)), [0, y])[1]
        }

    module = tf.Module()
    module.call = tf.function(call, input_signature=[tf.TensorSpec([3], tf.float32, name="x")])
    path = tmp_path / "saved"
    tf.saved_model.save(module, str(path), signatures=module.call)
    rule = {"match": {"op": ["Relu", "Elu", "Relu6"]}, "patch": {"filter_gradient": {"scale": 2.0}}}
    found = graphpatch.verify(path, patched_beside(path, rule))
    assert (found.verdict, found.not_compared) == ("verified", [])
    ops = sorted(one["op"] for one in only(found)["overrides"]["fired"])
    assert ops == ["cond/Elu", "cond/Relu", "while/Relu6"]


def test_a_function_that_no_signature_calls(tmp_path: Path) -> None:
    import tensorflow as tf

    module, takes = tf.Module(), [tf.TensorSpec([3], tf.float32, name="x")]

    def call(x: Any) -> Any:
        """One Relu, and one of which only the shape is read, as Keras' RNNs have them."""
        return {"y": tf.nn.relu(x) + tf.zeros(tf.shape(tf.nn.relu(x, name="unread")))}

    module.call = tf.function(call, input_signature=takes)
    module.loss = tf.function(lambda x: tf.nn.relu(x, name="lost"), input_signature=takes)
    path = tmp_path / "saved"
    tf.saved_model.save(module, str(path), signatures=module.call)
    found = graphpatch.verify(path, patched_beside(path, GUIDED))
    unread, lost = sorted(only(found)["overrides"]["not_called"], key=lambda one: one["why"])
    assert unread["why"].startswith("no output of function __inference_call_")
    assert lost["why"].startswith("nothing that runs calls function __inference_")
    assert [one["op"] for one in only(found)["overrides"]["fired"]] == ["Relu"]


@pytest.mark.slow
def test_a_saved_model_that_draws_on_from_run_to_run(tmp_path: Path) -> None:
    """Ops with seeds of their own, as tf.random.set_seed gives them, and a generator's."""
    import tensorflow as tf

    generator = tf.random.Generator.from_seed(3)
    for place, draw in enumerate([lambda shape: tf.random.normal(shape, seed=7), generator.normal]):
        (tmp_path / str(place)).mkdir()
        path = saved(tmp_path / str(place), draw=draw)
        assert only(graphpatch.verify(path, patched_beside(path, GUIDED)))["overrides"]["fired"]


def test_a_variable_that_changed_is_found(tmp_path: Path) -> None:
    import shutil

    import tensorflow as tf

    path = saved(tmp_path)
    target = patched_beside(path, GUIDED)
    model = tf.saved_model.load(str(path))
    model.w.assign_add(tf.fill([3, 3], 0.5))
    tf.saved_model.save(model, str(tmp_path / "other"))
    shutil.rmtree(target / "variables")
    shutil.copytree(tmp_path / "other" / "variables", target / "variables")
    [failure] = graphpatch.verify(path, target).failures
    assert failure.startswith("forward: serving_default:y: ")


def test_a_saved_model_that_writes_files_is_not_loaded(tmp_path: Path) -> None:
    written = tmp_path / "written"
    path = saved(tmp_path, str(written))
    with pytest.raises(UnsafeError, match="WriteFile"):
        graphpatch.verify(path, path)
    assert not written.exists()


def test_a_saved_model_of_tf1_has_its_variables_restored(tmp_path: Path) -> None:
    import tensorflow as tf

    tf1, path = tf.compat.v1, tmp_path / "saved"
    with tf1.Graph().as_default(), tf1.Session() as session:
        x = tf1.placeholder(tf.float32, [2, 3], "x")
        w = tf1.get_variable("w", [3, 3], initializer=tf1.zeros_initializer)
        y = tf.nn.relu(tf.matmul(x, w), "y")
        session.run(w.initializer)
        session.run(tf1.assign(w, tf.eye(3)))
        tf1.saved_model.simple_save(session, str(path), {"x": x}, {"y": y})
    graph = only(graphpatch.verify(path, patched_beside(path, GUIDED)))
    [pair] = [one for one in graph["gradients"] if one["to"] == "y:0"]
    assert pair["state"] == "changed"  # with w = 0, as it is initialised, no gradient would flow


def test_a_variable_that_holds_a_text(tmp_path: Path) -> None:
    import tensorflow as tf

    tf1, path = tf.compat.v1, tmp_path / "model.meta"
    with tf1.Graph().as_default():
        x = tf1.placeholder(tf.float32, [2, 3], "x")
        tf1.get_variable("label", initializer="a text", use_resource=False)
        tf.nn.relu(x, "y")
        tf1.train.export_meta_graph(str(path))
    graph = only(graphpatch.verify(path, patched_beside(path, GUIDED)))
    assert "y:0" in graph["forward"]["compared"]


def test_what_tensorflow_cannot_import_is_told(tmp_path: Path) -> None:
    from tests import graphs
    from tests.graphs import node

    path = tmp_path / "model.pb"
    message = graphs.graphdef(node("x", "Placeholder"), node("y", "NobodyKnows", "x"))
    path.write_bytes(message.SerializeToString())
    found = graphpatch.verify(path, path)
    [failure] = found.not_compared
    assert (found.verdict, found.failures) == ("not compared", [])
    assert failure.startswith("nothing could be compared: ")
    assert "NobodyKnows" in failure

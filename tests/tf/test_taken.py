"""A model as TensorFlow has it, live or as a message: taken, patched, and given back to it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError, EncodeError, Message

import graphpatch
from graphpatch.formats import model as model_file
from graphpatch.protos import GraphDef, MetaGraphDef
from graphpatch.runtime.references import references
from graphpatch.runtime.tf_gradients import control_flow
from tests.graphs import graphdef, metagraph, node

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1

X = [1.0, -2.0, 3.0]
GUIDED = {"name": "guided", "match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}
# TensorFlow's default gradient is -2 relu(x) = [-2, 0, -6]; guided_relu lets nothing of it through,
# as all of it is negative.
HALVED = {"match": {"name": "relu"}, "patch": {"filter_gradient": {"scale": 0.5}}}


def built() -> Any:
    """A graph whose loss is -sum(relu(x) ** 2)."""
    with tf1.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [3], name="x")
        tf.reduce_sum(-tf.square(tf.nn.relu(x, name="relu")), name="loss")
    return graph


def gradient(graph: Any, loss: str = "loss:0", x: str = "x:0") -> list[float]:
    """The gradient of the loss in a Session."""
    with graph.as_default(), tf1.Session(graph=graph) as session:
        [dx] = tf1.gradients(graph.get_tensor_by_name(loss), [graph.get_tensor_by_name(x)])
        return list(session.run(dx, {x: X}).tolist())


def message() -> Any:
    return built().as_graph_def()


def meta_message() -> Any:
    with built().as_default():
        return tf1.train.export_meta_graph()


def saved_message() -> Any:
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    return SavedModel(saved_model_schema_version=1, meta_graphs=[meta_message()])


def serialized() -> Any:
    return message().SerializeToString()


def model() -> Any:
    return graphpatch.load(message())


FORMS: dict[str, Callable[[], Any]] = {
    "live": built,
    "GraphDef": message,
    "GraphDef of ours": lambda: GraphDef.FromString(serialized()),
    "MetaGraphDef": meta_message,
    "MetaGraphDef of ours": lambda: MetaGraphDef.FromString(meta_message().SerializeToString()),
    "SavedModel": saved_message,
    "bytes": serialized,
    "bytearray": lambda: bytearray(serialized()),
    "text": lambda: str(message()).encode(),
    "Model": model,
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_form_of_a_model_is_patched_and_given_back(form: Callable[[], Any]) -> None:
    result = graphpatch.apply([HALVED], form())
    graphs = [tf1.Graph() for _ in range(3)]
    with graphs[0].as_default():
        tf1.import_graph_def(result.graph_def(), name="")
    with graphs[1].as_default():
        tf1.train.import_meta_graph(result.meta_graph_def())
    result.import_into(graphs[2])
    assert [gradient(graph) for graph in graphs] == [[-1.0, 0.0, -3.0]] * 3
    assert gradient(built()) == [-2.0, 0.0, -6.0]


def test_a_live_graph_is_left_as_it_was_and_a_scope_goes_before_the_names() -> None:
    graph = built()
    before = graph.as_graph_def()
    result = graphpatch.apply([HALVED], graph)
    assert graph.as_graph_def() == before
    result.import_into(graph, name="patched")
    assert gradient(graph, "patched/loss:0", "patched/x:0") == [-1.0, 0.0, -3.0]
    assert gradient(graph) == [-2.0, 0.0, -6.0]
    graph.finalize()
    graphpatch.apply(GUIDED, graph)


def test_collections_and_contexts_of_a_live_graph_are_kept(tmp_path: Path) -> None:
    with control_flow(False), tf1.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [3], name="x")
        w = tf1.get_variable("w", initializer=[3.0, 3.0, 3.0])
        y = tf.while_loop(
            lambda i, y: i < 2, lambda i, y: (i + 1, tf.nn.relu(y, name="r") * w), [0, x]
        )[1]
        tf.identity(y, name="y")
        tf1.add_to_collection("mine", x)
    rule = {"match": {"name": "while/r"}, "patch": {"filter_gradient": {"scale": 0.5}}}
    result, other = graphpatch.apply([rule], graph), tf1.Graph()
    assert result.model.format == "MetaGraphDef"
    collections = result.meta_graph_def().collection_def.keys()
    assert collections >= {"while_context", "variables", "trainable_variables", "mine"}
    with control_flow(False):
        assert isinstance(result.import_into(other), tf1.train.Saver)
        with other.as_default(), tf1.Session() as session:
            assert [v.name for v in tf1.trainable_variables()] == ["w:0"]
            assert tf1.get_collection("mine") == [other.get_tensor_by_name("x:0")]
            session.run(tf1.global_variables_initializer())
            [dx] = tf1.gradients(*(other.get_tensor_by_name(f"{name}:0") for name in "yx"))
            assert session.run(dx, {"x:0": X}).tolist() == [2.25, 0.0, 2.25]
    result.save(tmp_path / "model.meta")
    with pytest.raises(graphpatch.OutputError, match=r"ends in \.meta"):
        result.save(tmp_path / "model.pb")


def test_a_concrete_function_stands_for_its_graph() -> None:
    function = tf.function(lambda x: tf.reduce_sum(-tf.square(tf.nn.relu(x))), autograph=False)
    concrete = function.get_concrete_function(tf.TensorSpec([3], tf.float32, name="x"))
    for one in (concrete, concrete.graph):
        found = graphpatch.load(one)
        assert [node.name for node in graphpatch.select(found, op="Relu")] == ["Relu"]
        assert graphpatch.diagnose(one, "x", "Sum").ok
    with pytest.raises(TypeError, match=r"model: .*found Function; call its get_concrete_function"):
        graphpatch.load(function)


def test_a_saved_model_from_memory_is_a_folder_or_a_message(tmp_path: Path) -> None:
    result = graphpatch.apply([HALVED], saved_message())
    result.save(tmp_path / "folder")
    result.save(tmp_path / "message.pb")
    assert (tmp_path / "folder" / "saved_model.pb").is_file()
    for path in (tmp_path / "folder", tmp_path / "message.pb"):
        assert graphpatch.check([HALVED], path).ok


LAYER = type("Layer", (), {"__module__": "keras.layers"})()
WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: graphpatch.load(3), "model: .*found int"),
    (lambda: graphpatch.load(tf1.ConfigProto()), "model: .*found a tensorflow.ConfigProto message"),
    (lambda: graphpatch.load(tf1.Session(graph=tf1.Graph())), "found Session; give its `graph`"),
    (lambda: graphpatch.apply(3, built()), "rules: expected the path of a rules file.*found int"),
    (lambda: graphpatch.apply(model(), [HALVED]), "rules: .*found Model; are the rules and the"),
    (lambda: graphpatch.apply([HALVED], [HALVED]), "model: .*found list; are the rules and the"),
    (lambda: graphpatch.verify(built(), 3), "patched: expected .*found int"),
    (lambda: graphpatch.diff(built(), None), "b: expected .*found NoneType"),
    (lambda: graphpatch.select(GUIDED), "model: expected .*found dict"),
    (lambda: graphpatch.load(built()).import_into(3), "graph: expected a tf.Graph; found int"),
    (lambda: graphpatch.patch_graph(built(), "@deconvnet"), "found str; are the rules and the"),
    (lambda: graphpatch.patch_graph(HALVED, "m.pb"), "found str; graphpatch.apply takes files"),
    (lambda: graphpatch.patch_graph(HALVED, LAYER), "save it with its `export"),
]


@pytest.mark.parametrize(("call", "says"), WRONG, ids=[says for _, says in WRONG])
def test_what_is_no_model_is_a_type_error(call: Callable[[], Any], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        call()


def test_rules_are_taken_in_every_form(tmp_path: Path) -> None:
    path = tmp_path / "rules.json"
    path.write_text('{"version": 1, "rules": [' + str(HALVED).replace("'", '"') + "]}")
    read = graphpatch.load_rules(path)
    forms: list[Any] = [path, str(path), read, read[0], HALVED, [HALVED], {"rules": [HALVED]}]
    for rules in [*forms, (HALVED,), [read[0]]]:
        assert graphpatch.apply(rules, message()).report["rules"][0]["matches"][0]["op"] == "relu"
    both = graphpatch.apply([read[0], GUIDED], message()).report["rules"]
    assert [rule["name"] for rule in both] == ["rule 1", "guided"]


def test_the_limit_of_protobuf_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it were less than 2 GB, on the way out."""
    found = graphpatch.load(message())
    monkeypatch.setattr(model_file, "LIMIT", 100)
    says = r"<GraphDef>: as a GraphDef it would have \d+ bytes, and protobuf messages are limited"
    for give in (
        found.graph_def,
        lambda: found.import_into(tf1.Graph()),
        lambda: graphpatch.diagnose(found, "x", "loss", run=True),
        lambda: graphpatch.split(found, "loss", "relu", "x"),
    ):
        with pytest.raises(graphpatch.ModelError, match=says.replace("a GraphDef", r"a \w+")):
            give()


# What a graph of two constants of 1.1 GB raised in TensorFlow 2.21; what other versions say.
TOO_LARGE = [
    DecodeError("Error parsing message with type 'tensorflow.GraphDef': Wire format was corrupt"),
    ValueError("Message tensorflow.GraphDef exceeds maximum protobuf size of 2GB: 2160000166"),
    EncodeError("Failed to serialize proto"),
]


@pytest.mark.parametrize("error", TOO_LARGE, ids=lambda error: type(error).__name__)
def test_the_limit_of_protobuf_is_told_of_what_is_taken(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def too_large(*_: Any, **__: Any) -> Any:
        raise error

    class Large(Message):
        DESCRIPTOR = tf1.GraphDef.DESCRIPTOR
        SerializeToString = too_large

    graph = built()
    monkeypatch.setattr(tf1.train, "export_meta_graph", too_large)
    monkeypatch.setattr(type(graph), "as_graph_def", too_large)
    for take in (graphpatch.load, graphpatch.register_gradients):
        with pytest.raises(graphpatch.ModelError, match=r"<tf.Graph>: .*limited to 2 GB"):
            take(graph)
    if isinstance(error, EncodeError):
        with pytest.raises(graphpatch.ModelError, match=r"<GraphDef>: .*limited to 2 GB"):
            graphpatch.load(Large())


# Models that graphpatch reads and TensorFlow does not import: said by all that run them.


UNSOUND = {
    "a name": (node("a b", "Relu", "x"), node("y", "Relu", "h")),
    "an attr": (node("y", "Relu", "h"), node("z", "Relu", "x", T="string")),
    "a colocation": (node("y", "Relu", "h", _class=[b"loc:@\xff"]),),
}


def graph_of(name: str) -> Any:
    return graphdef(node("x", "Placeholder"), node("h", "Tanh", "x"), *UNSOUND[name], producer=27)


def in_a_graph(model: Path) -> None:
    with tf.Graph().as_default():
        graphpatch.import_model(model)


RUNS: dict[str, Callable[[Path], Any]] = {
    "import_model": in_a_graph,
    "doctor --run": lambda model: graphpatch.diagnose(model, "x", "y", run=True),
    "split": lambda model: graphpatch.split(model, "y", "h", "x"),
    "references": lambda model: references(model, {"x": np.ones(1, np.float32)}),
}


@pytest.mark.parametrize("suffix", [".pb", ".meta"])
@pytest.mark.parametrize("name", UNSOUND)
@pytest.mark.parametrize("run", RUNS)
def test_what_tensorflow_says_is_said(run: str, name: str, suffix: str, tmp_path: Path) -> None:
    graph = graph_of(name)
    message = graph if suffix == ".pb" else metagraph(graph, "serve")
    path = tmp_path / f"model{suffix}"
    path.write_bytes(message.SerializeToString())
    with pytest.raises(
        graphpatch.ModelError, match=r"model\.(pb|meta): TensorFlow does not import it: "
    ) as e:
        RUNS[run](path)
    assert "\n" not in str(e.value)


@pytest.mark.slow  # starts TensorFlow anew
def test_verify_says_nothing_of_tensorflows_log(
    run_cli: Callable[..., Any], tmp_path: Path
) -> None:
    """The command read TensorFlow's error from the process that ran it, and so imported that."""
    path = tmp_path / "model.pb"
    path.write_bytes(graph_of("an attr").SerializeToString())
    done = run_cli("verify", path, path, command=[sys.executable, "-m", "graphpatch"])
    assert (done.code, done.stderr) == (4, "")
    assert "TensorFlow does not import it: " in done.stdout

"""`verify` of models of all kinds: loops, variables, pipelines, tables, SavedModels, training."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from graphpatch.errors import UnsafeError
from graphpatch.runtime.tf_gradients import control_flow
from graphpatch.runtime.verify.formulas import INSIDE
from tests.patches.one_op import formula, on_op
from tests.tf.verify_graphs import GUIDED, patched_beside

tf = pytest.importorskip("tensorflow")
tf1 = tf.compat.v1

HALVED = on_op("Tanh", {"filter_gradient": {"scale": 0.5}})
VARYING = on_op("Relu", formula("dy * sigmoid(x) * y"), emit="construction")
CLIP = {"clip": {"min": -0.1, "max": 0.1}}
CLIPPED = on_op("MatMul", {"filter_gradient": CLIP, "at": "inputs"})


def meta(build: Callable[[], Any], folder: Path, v2: bool = False) -> Path:
    """What is built, with v1 loops and branches unless v2 is asked for, as a MetaGraphDef."""
    with control_flow(v2), tf.Graph().as_default():
        build()
        tf1.train.export_meta_graph(str(folder / "model.meta"))
    return folder / "model.meta"


def verified(path: Path, *rules: Any, **options: Any) -> dict[str, Any]:
    """What `verify` prints of the model, patched by these rules: it is all right."""
    found = graphpatch.verify(path, patched_beside(path, *rules), **options)
    assert (found.verdict, found.failures, found.not_compared) == ("verified", [], [])
    [graph] = found.document()["graphs"]
    assert graph["forward"]["compared"]
    return dict(graph)


def fired(graph: dict[str, Any]) -> list[str]:
    return sorted(override["op"] for override in graph["overrides"]["fired"])


def changed(graph: dict[str, Any]) -> set[tuple[str, str]]:
    pairs = [pair for pair in graph["gradients"] if pair["state"] == "changed"]
    return {(pair["from"], pair["to"]) for pair in pairs}


def loop() -> None:
    """relu(x @ w), w a variable, in a loop of two turns."""
    x = tf1.placeholder(tf.float32, [None, 3], "x")
    w = tf1.get_variable("w", initializer=tf.random.normal([3, 3], seed=3), use_resource=False)
    turn = lambda i, y: (i + 1, tf.nn.relu(tf.matmul(y, w)))  # noqa: E731
    tf.identity(tf.while_loop(lambda i, y: i < 2, turn, [0, x])[1], "y")


def constant_condition() -> None:
    """It is in the loop, though it reads nothing of it: no op outside may read it."""
    mask = tf.constant([[True, False], [False, True]])
    turn = lambda i, y: (i + 1, tf.tanh(tf.matmul(y, tf1.where(mask, tf.zeros_like(y), y))))  # noqa: E731
    x = tf1.placeholder(tf.float32, [2, 2], "x")
    tf.identity(tf1.while_loop(lambda i, _: i < 3, turn, (0, x))[1], "y")


def untaken() -> None:
    """A branch that is not taken has no gradient."""
    x = tf1.placeholder(tf.float32, [3], "x")
    taken = tf1.placeholder_with_default(True, [], name="taken")
    draw = lambda: tf1.random_uniform([3], seed=1)  # noqa: E731
    y = tf1.cond(taken, draw, lambda: tf.ones([3]) * tf.constant(0.5))
    tf.multiply(tf.nn.relu(tf.subtract(x, y)), 2.0, name="y")


def text_variable() -> None:
    tf1.get_variable("label", initializer="a text", use_resource=False)
    tf.nn.relu(tf1.placeholder(tf.float32, [2, 3], "x"), "y")


def weights() -> None:
    """Nothing comes from x to the filter at the weights."""
    w = tf1.get_variable("w", [3, 3], use_resource=True)
    tf.exp(tf.matmul(tf1.placeholder(tf.float32, [2, 3], "x"), w), name="y")


def sequences() -> None:
    lengths = tf1.placeholder(tf.int32, [2], "n")  # seeded by this name, all were 0
    with tf1.control_dependencies([tf1.debugging.assert_positive(lengths)]):
        mask = tf1.sequence_mask(lengths, 3, tf1.float32)
    tf1.multiply(tf1.nn.relu(tf1.placeholder(tf1.float32, [2, 3], "x")), mask, name="y")


def refused_table() -> None:
    """A table whose two entries have one key stays empty; nothing that is compared reads it."""
    keys, values = np.array([1, 1], np.int64), np.array([2, 3], np.int64)
    tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), 0)
    tf.negative(tf.nn.relu(tf1.placeholder(tf.float32, [20], name="x")), name="y")


def words() -> None:
    """A tagger: words and a keep probability are fed, and a v1 loop reads the embedded words."""
    fed = tf1.placeholder(tf.int32, [2, 3], name="words")
    keep = tf1.placeholder(tf.float32, [], name="keep")
    table = tf.constant([[float(row - 2), 1.0] for row in range(5)], name="table")
    time_major = tf.transpose(tf.gather(table, fed), [1, 0, 2])
    states = tf.scan(lambda state, x: tf.tanh(state + x, name="state"), time_major)
    tf.multiply(states, keep, name="logits")


def in_c_plus_plus() -> None:
    """A Session differentiates the body of a PartitionedCall without asking Python."""
    inner = tf.function(lambda x: (tf.nn.relu(x) * 2.0, tf.nn.relu(-x)))
    tf.identity(inner(tf1.placeholder(tf.float32, [4], "x"))[0], "y")


def outputs() -> None:
    """Of 33 outputs gradients are taken of 32; the 32 first are not computed from the Relu."""
    x = tf1.placeholder(tf.float32, [2], "x")
    for index in range(32):
        tf.exp(x, f"a{index}")
    tf.sinh(tf.nn.relu(x, "relu"), "y")


def helped() -> None:
    """Beside each Relu stand ops with keys of their own, by which a second derivative raises."""
    tf.exp(tf.nn.relu(tf.nn.relu(tf1.placeholder(tf.float32, [4], "x")) - 0.1), "y")


def list_of_tensors() -> None:
    """Freezing a Keras RNN with v1 control flow leaves such placeholders, which nothing reads."""
    tf1.placeholder(tf.variant, [], "unread")
    tf.nn.relu(tf1.placeholder(tf.float32, [2], "x"), "y")


def averaged() -> None:
    """A batch norm that updates its average before its output is there, as Chiron's does."""
    x = tf1.placeholder(tf.float32, [2, 3], "x")
    average = tf1.get_variable("average", [3], use_resource=False)
    mean = tf.reduce_mean(x, 0)
    with tf.control_dependencies([tf1.assign(average, 0.9 * average + 0.1 * mean)]):
        tf.nn.relu(x - mean, name="y")


def piped(value: Any) -> None:
    tf.multiply(tf.nn.relu(value - 0.5, "relu"), 2.0 - value, name="y")


def iterator() -> None:
    """A relu of what it gives next; another output needs a program."""
    handle = tf1.placeholder(tf.string, [], "handle")
    given = tf1.data.Iterator.from_string_handle(handle, tf.float32, [None, 4])
    piped(given.get_next(name="next"))
    tf.identity(given.string_handle(), "needs_a_program")


def queue() -> None:
    piped(tf.queue.FIFOQueue(2, tf.float32, [[3, 4]]).dequeue("next"))


# What is built, the rule, pairs whose gradient changes, and what fires.
MODELS: dict[Any, tuple[Any, set[tuple[str, str]], list[str]]] = {
    loop: (GUIDED, {("x:0", "y:0")}, ["while/Relu"]),
    constant_condition: (HALVED, {("x:0", "y:0")}, ["while/Tanh"]),
    untaken: (GUIDED, {("x:0", "y:0")}, ["Relu"]),
    text_variable: (GUIDED, {("x:0", "y:0")}, ["y"]),
    weights: (CLIPPED, {("x:0", "y:0"), ("w:0", "y:0")}, ["MatMul"]),
    sequences: (GUIDED, {("x:0", "y:0")}, ["Relu"]),
    refused_table: (GUIDED, {("x:0", "y:0")}, ["Relu"]),
    list_of_tensors: (GUIDED, {("x:0", "y:0")}, ["y"]),
    words: (HALVED, {("table:0", "logits:0")}, ["scan/while/state"]),
    in_c_plus_plus: (GUIDED, {("x:0", "y:0")}, ["Relu", "Relu_1"]),
    outputs: (GUIDED, {("x:0", "y:0")}, ["relu"]),
    averaged: (GUIDED, {("x:0", "y:0")}, ["y"]),
    helped: (VARYING, {("x:0", "y:0")}, ["Relu", "Relu_1"]),
    iterator: (GUIDED, {("next:0", "y:0")}, ["relu"]),
    queue: (GUIDED, {("next:0", "y:0")}, ["relu"]),
}


@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_it_is_verified(build: Any, tmp_path: Path) -> None:
    rule, pairs, ops = MODELS[build]
    graph = verified(meta(build, tmp_path, v2=build is in_c_plus_plus), rule)
    assert pairs <= changed(graph)
    assert fired(graph) == ops
    assert graph["settings"]["control_flow_v2"] is (build is not words)
    if build is loop:
        assert [check["not_compared"] for check in graph["formulas"]] == [INSIDE]


def examples() -> Any:
    """What stands in Examples: a float of two numbers, and words."""
    pair = tf1.FixedLenFeature([2], tf.float32)
    features = {"number": pair, "other": pair, "word": tf1.VarLenFeature(tf.string)}
    serialized = tf1.placeholder(tf.string, [None], "serialized")
    return tf1.parse_example(serialized, features, name="parsed")


def served() -> None:
    """An embedding of words, looked up in a table, beside numbers; and a Relu behind them."""
    parsed = examples()
    entries = tf.lookup.KeyValueTensorInitializer(["a", ""], np.array([0, 1], np.int64))
    known = tf.lookup.StaticVocabularyTable(entries, 1)
    ids = tf.sparse.to_dense(known.lookup(parsed["word"]))
    table = tf.constant([[1.0, -2.0], [3.0, 4.0], [-5.0, 6.0]])
    embedded = tf.reduce_sum(tf.gather(table, ids), 1)
    tf.exp(tf.nn.relu(parsed["number"] * embedded, name="relu") * parsed["other"], name="y")


def example() -> Any:
    floats = tf.train.Feature(float_list=tf.train.FloatList(value=[1.0, -2.0]))
    features = {"number": floats, "other": floats}
    message = tf.train.Example(features=tf.train.Features(feature=features))
    return np.array([message.SerializeToString()], dtype=object)


def test_examples_are_parsed_or_what_the_parser_gives_is_fed(tmp_path: Path) -> None:
    path = meta(served, tmp_path, v2=True)
    [parser] = [op.name for op in graphpatch.load(path).graphs[0].main if "ParseExample" in op.op]
    seeded = verified(path, GUIDED)
    assert {name.split(":")[0] for name, _ in changed(seeded)} == {parser}
    assert set(verified(path, GUIDED, feed={"serialized": example()})["fed"]) == {"serialized:0"}
    number = next(name for name, _ in changed(seeded))
    partly = verified(path, GUIDED, feed={number: np.ones((3, 2), np.float32)})
    assert partly["fed"].keys() == seeded["fed"].keys()
    assert partly["fed"][number] == "[3, 2]"


def test_doctor_begins_at_the_numbers_of_examples(tmp_path: Path) -> None:
    [graph] = graphpatch.diagnose(meta(served, tmp_path, v2=True), run=True).document()["graphs"]
    for pair in graph["pairs"]:
        assert (pair["from"].startswith("parsed"), pair["to"]) == (True, "y:0")
        assert (pair["verdict"], pair["run"]["ran"], pair["run"]["zero"]) == ("flows", True, False)


def saved(folder: Path, spy: str = "", draw: Any = None, is_trained: bool = False) -> Path:
    """A TF2 SavedModel: relu(x @ w) + noise, and what it writes, or an optimizer, if asked to."""
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
            return {"y": tf.nn.relu(tf.matmul(x, self.w)) * 2.0 + draw([3])}

    net, path = Net(), folder / "saved"
    if is_trained:  # its slots are variables that nothing restores
        net.optimizer = tf1.train.AdamOptimizer()
        net.optimizer.apply_gradients([(tf.ones([3, 3]), net.w)])
    tf.saved_model.save(net, str(path), signatures=net.__call__)
    return path


def called(folder: Path, call: Any, **more: Any) -> Path:
    """A TF2 SavedModel of a function of x, and others that no signature calls."""
    module, takes = tf.Module(), [tf.TensorSpec([3], tf.float32, name="x")]
    module.call = tf.function(call, input_signature=takes)
    for name, function in more.items():
        setattr(module, name, tf.function(function, input_signature=takes))
    tf.saved_model.save(module, str(folder / "saved"), signatures=module.call)
    return folder / "saved"


def test_a_saved_model_of_tf2(tmp_path: Path) -> None:
    graph = verified(saved(tmp_path, is_trained=True), GUIDED, feed={"x": np.ones((2, 3), "f4")})
    assert graph["fed"] == {"serving_default:x": "[2, 3]"}
    assert graph["settings"]["sets_of_values"] == ["seeded"]
    assert graph["forward"]["compared"] == ["serving_default:y"]
    assert changed(graph) == {("serving_default:x", "serving_default:y")}
    assert fired(graph) == ["Relu"]


def test_overrides_in_branches_and_loops_of_a_saved_model(tmp_path: Path) -> None:
    """The loader gives their bodies longer names."""

    def call(x: Any) -> Any:
        y = tf.cond(tf.reduce_sum(x) > 0, lambda: tf.nn.relu(x), lambda: tf.nn.elu(x))
        turn = lambda i, y: (i + 1, tf.nn.relu6(y))  # noqa: E731
        return {"y": tf.while_loop(lambda i, _: i < 2, turn, [0, y])[1]}

    rule = {"match": {"op": ["Relu", "Elu", "Relu6"]}, "patch": {"filter_gradient": {"scale": 2.0}}}
    assert fired(verified(called(tmp_path, call), rule)) == ["cond/Elu", "cond/Relu", "while/Relu6"]


def test_a_function_that_no_signature_calls(tmp_path: Path) -> None:
    def call(x: Any) -> Any:
        """One Relu, and one of which only the shape is read, as Keras' RNNs have them."""
        return {"y": tf.nn.relu(x) + tf.zeros(tf.shape(tf.nn.relu(x, name="unread")))}

    graph = verified(called(tmp_path, call, loss=lambda x: tf.nn.relu(x, name="lost")), GUIDED)
    unread, lost = sorted(graph["overrides"]["not_called"], key=lambda op: op["why"])
    assert unread["why"].startswith("no output of function __inference_call_")
    assert lost["why"].startswith("nothing that runs calls function __inference_")
    assert fired(graph) == ["Relu"]


@pytest.mark.slow
@pytest.mark.parametrize("is_generator", [False, True])
def test_a_saved_model_that_draws_on_from_run_to_run(tmp_path: Path, is_generator: bool) -> None:
    """Ops with seeds of their own, as tf.random.set_seed gives them, or a generator's."""
    draw = lambda shape: tf.random.normal(shape, seed=7)  # noqa: E731
    draw = tf.random.Generator.from_seed(3).normal if is_generator else draw
    assert fired(verified(saved(tmp_path, draw=draw), GUIDED)) == ["Relu"]


def test_a_variable_that_changed_is_found(tmp_path: Path) -> None:
    path = saved(tmp_path)
    target, model = patched_beside(path, GUIDED), tf.saved_model.load(str(path))
    model.w.assign_add(tf.fill([3, 3], 0.5))
    tf.saved_model.save(model, str(tmp_path / "other"))
    shutil.rmtree(target / "variables")
    shutil.copytree(tmp_path / "other" / "variables", target / "variables")
    [failure] = graphpatch.verify(path, target).failures
    assert failure.startswith("forward: serving_default:y: ")


def test_a_saved_model_that_writes_files_is_not_loaded(tmp_path: Path) -> None:
    path = saved(tmp_path, str(tmp_path / "written"))
    with pytest.raises(UnsafeError, match="WriteFile"):
        graphpatch.verify(path, path)
    assert not (tmp_path / "written").exists()


def test_a_saved_model_of_tf1_has_its_variables_restored(tmp_path: Path) -> None:
    path = tmp_path / "saved"
    with tf1.Graph().as_default(), tf1.Session() as session:
        x = tf1.placeholder(tf.float32, [2, 3], "x")
        w = tf1.get_variable("w", [3, 3], initializer=tf1.zeros_initializer)
        y = tf.nn.relu(tf.matmul(x, w), "y")
        session.run(w.initializer)
        session.run(tf1.assign(w, tf.eye(3)))
        tf1.saved_model.simple_save(session, str(path), {"x": x}, {"y": y})
    # With w = 0, as it is initialised, no gradient would flow.
    assert ("x:0", "y:0") in changed(verified(path, GUIDED))


def net() -> tuple[Any, Any, Any]:
    x = tf1.placeholder(tf.float32, [2, 3], name="x")
    w = tf1.get_variable("w", [3, 3], use_resource=False)
    return x, w, tf.identity(tf.nn.relu(tf.matmul(x, w)), name="y")


def norm() -> None:
    """The gradients are clipped together, and their norm is an output."""
    loss = tf.reduce_sum(tf.square(net()[2]), name="loss")
    optimizer = tf1.train.AdamOptimizer()
    [(dw, w)] = optimizer.compute_gradients(loss)
    [dw], size = tf.clip_by_global_norm([dw], 1.0)
    tf.multiply(size, 2.0, name="norm")
    optimizer.apply_gradients([(dw, w)], name="train")


def penalty() -> None:
    """The loss has a gradient penalty."""
    x, _, y = net()
    [dx] = tf1.gradients(y, [x])
    loss = tf.add(tf.reduce_sum(tf.square(dx)), tf.reduce_sum(y), name="loss")
    tf1.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")


def mapped() -> None:
    """No optimizer: the gradient is what the graph is for."""
    x, _, y = net()
    tf.abs(tf1.gradients(y, [x])[0], name="map")


@pytest.mark.parametrize(("build", "target"), [(norm, "loss"), (penalty, "loss"), (mapped, "map")])
def test_what_an_optimizer_computes_is_left_out(tmp_path: Path, build: Any, target: str) -> None:
    graph = verified(meta(build, tmp_path), GUIDED)
    targets = {pair["to"] for pair in graph["gradients"]}
    assert f"{target}:0" in targets
    assert "norm:0" not in targets
    says = " that training computes from its gradients; --to names those that matter"
    assert (says in "".join(graph["gradients_not_taken"])) is (build is not mapped)


def test_verify_says_how_far_it_is(tmp_path: Path) -> None:
    stages: list[str] = []
    verified(meta(text_variable, tmp_path), GUIDED, progress=lambda what, *_: stages.append(what))
    stages_in_order = ["starting TensorFlow", "importing the models", "forward pass", "gradients"]
    assert list(dict.fromkeys(stages)) == stages_in_order


def test_a_saved_model_that_is_fed_words_has_gradients_by_its_variables(tmp_path: Path) -> None:
    module = tf.Module()
    module.rows = tf.Variable(np.linspace(-1, 1, 12, dtype=np.float32).reshape(6, 2))
    module.step = tf.Variable(1)
    embed = lambda words: tf.nn.relu(tf.gather(module.rows, words))  # noqa: E731
    call = lambda words: {"y": embed(words) * tf.cast(module.step, tf.float32)}  # noqa: E731
    module.call = tf.function(call, input_signature=[tf.TensorSpec([None], tf.int32)])
    tf.saved_model.save(module, str(tmp_path / "words"), signatures=module.call)
    graph = verified(tmp_path / "words", GUIDED)
    assert fired(graph) == ["Relu"]
    assert {pair["from"] for pair in graph["gradients"]} == {"serving_default:Variable_1:0"}

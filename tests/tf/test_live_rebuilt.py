"""A patched graph beside a live one: what the old graph holds is in it, and training goes on."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch

tf = pytest.importorskip("tensorflow")

from graphpatch.runtime.tf_gradients import control_flow  # noqa: E402
from tests.tf import live, live_nets  # noqa: E402
from tests.tf.consumer import same_bits  # noqa: E402
from tests.tf.live import filtered, overridden  # noqa: E402

tf1 = tf.compat.v1
Keys = tf1.GraphKeys

RULES = [
    overridden({"op": "Relu"}, "guided_relu"),
    filtered("x", {"reverse": {"strength": 0.3}}),  # behind a placeholder: no key can do that
]


@pytest.fixture
def old() -> Any:
    with tf.Graph().as_default() as graph:
        live_nets.furnished()
    return graph


@pytest.fixture
def patched(old: Any) -> Any:
    found = graphpatch.patch_graph(RULES, old)
    assert not found.in_place
    assert found.graph is not old
    return found


def test_the_collections_are_those_of_the_old_graph(old: Any, patched: Any) -> None:
    """Variables are one object each in all of them; what TensorFlow cannot write is named."""
    new = patched.graph
    assert set(new.get_all_collection_keys()) == set(old.get_all_collection_keys())
    for key in old.get_all_collection_keys():
        items = old.get_collection(key), new.get_collection(key)
        kinds = [[(type(one), getattr(one, "name", None)) for one in side] for side in items]
        assert kinds[0] == kinds[1], key
        assert all(one.graph is new for one in items[1] if hasattr(one, "graph")), key
    every = {id(variable) for variable in new.get_collection(Keys.GLOBAL_VARIABLES)}
    assert {id(variable) for variable in new.get_collection(Keys.TRAINABLE_VARIABLES)} < every
    assert new.get_collection("numbers") == [3, "text"]
    reference, x, nested = new.get_collection("mine")
    assert (id(reference) in every, reference.name) == (True, "reference:0")
    assert nested["pair"][0] is x
    assert nested["pair"][1] is new.get_collection(Keys.LOCAL_VARIABLES)[0]
    assert nested["number"] is x.op
    assert new.get_collection("sparse")[0].values.graph is new
    [marker] = new.get_collection("markers")
    assert marker.held["x"][0] is x
    assert any("'markers'" in note and "Marker" in note for note in patched.report["notes"])
    assert any("placeholder" in note.lower() and "'x'" in note for note in patched.report["notes"])


def test_devices_colocations_shapes_and_the_seed_are_kept(old: Any, patched: Any) -> None:
    new = patched.graph
    assert new.seed == old.seed == 7
    for op in old.get_operations():
        other = new.get_operation_by_name(op.name)
        assert other.device == op.device
        assert other.colocation_groups() == op.colocation_groups()
        for tensor in op.outputs:
            assert str(new.get_tensor_by_name(tensor.name).shape) == str(tensor.shape), tensor.name
    assert old.get_operation_by_name("placed").device
    assert old.get_operation_by_name("beside").colocation_groups() == [b"loc:@reference"]


def test_the_map_from_the_old_graph_to_the_new(old: Any, patched: Any) -> None:
    new, x = patched.graph, old.get_tensor_by_name("x:0")
    assert patched.tensor(x) is new.get_tensor_by_name("x:0")
    assert patched.tensor("loss") is patched.tensor("loss:0") is new.get_tensor_by_name("loss:0")
    assert patched.operation(x.op) is patched.operation("x") is new.get_operation_by_name("x")
    variable = old.get_collection(Keys.TRAINABLE_VARIABLES)[0]
    assert patched.variable(variable) is new.get_collection(Keys.TRAINABLE_VARIABLES)[0]
    assert patched.of({"a": [x, x.op, None], "b": (variable, "x:0", "x")}) == {
        "a": [patched.tensor(x), patched.operation("x"), None],
        "b": (patched.variable(variable), patched.tensor("x"), patched.operation("x")),
    }
    [sparse] = old.get_collection("sparse")
    assert patched.of(sparse).indices.graph is new
    [saver], [runner] = (old.get_collection(k) for k in (Keys.SAVERS, Keys.QUEUE_RUNNERS))
    assert patched.of(saver) is new.get_collection(Keys.SAVERS)[0]
    assert patched.of(runner).name == "queue"
    assert patched.tensor(patched.tensor(x)) is patched.tensor(x)


def test_what_the_map_does_not_take(patched: Any) -> None:
    with tf.Graph().as_default():
        foreign = tf.constant(1.0)
    x = patched.tensor("x")
    for call, value, error, says in (
        (patched.tensor, foreign, ValueError, "of another graph"),
        (patched.tensor, 3, TypeError, "expected a tensor or its name, found 3"),
        (patched.operation, x, TypeError, "expected an operation"),
        (patched.variable, x, TypeError, "expected a variable"),
        (patched.of, object(), TypeError, "nothing in a graph stands for"),
        (patched.tensor, "missing", KeyError, "missing"),
    ):
        with pytest.raises(error, match=says):
            call(value)


def test_it_runs_with_its_queue_table_python_and_saver(
    old: Any, patched: Any, tmp_path: Path
) -> None:
    del old
    with patched.graph.as_default(), tf1.Session() as session:
        session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
        session.run(tf1.tables_initializer())
        coordinator = tf1.train.Coordinator()
        threads = tf1.train.start_queue_runners(session, coordinator)
        assert session.run("dequeued:0") == 2.5
        coordinator.request_stop()
        session.run(patched.graph.get_collection(Keys.QUEUE_RUNNERS)[0].cancel_op)
        coordinator.join(threads, stop_grace_period_secs=20)
        session.run("MakeIterator")
        assert [session.run("next:0") for _ in range(3)] == [0, 1, 2]
        assert session.run("looked_up:0").tolist() == [2.0, -1.0]
        assert session.run("from_python:0") == 4.0
        assert session.run(tf1.summary.merge_all(), FEEDS)
        [saver] = patched.graph.get_collection(Keys.SAVERS)
        [one] = (v for v in tf1.global_variables() if v.name == "reference:0")
        value = session.run(one)
        saver.save(session, str(tmp_path / "values"))
        one.load(value + 1.0, session)
        saver.restore(session, str(tmp_path / "values"))
        assert session.run(one) == value


def test_functions_in_python_outlive_the_old_graph() -> None:
    with tf.Graph().as_default() as graph:
        tf.identity(tf.numpy_function(lambda: np.float32(4.0), [], tf.float32), name="x")
        tf.identity(tf1.placeholder(tf.float32, [], name="in"), name="y")
    new = graphpatch.patch_graph([filtered("y", {"scale": 2.0})], graph, in_place=False).graph
    del graph
    gc.collect()
    assert live.run(new, ["x:0"]) == [4.0]


FEEDS = {"x:0": np.ones([2, 4]), "target:0": np.ones([2, 1])}


@pytest.mark.parametrize("in_place", [None, True])
def test_values_go_along(old: Any, in_place: bool | None) -> None:
    rules = RULES if in_place is None else RULES[:1]
    patched = graphpatch.patch_graph(rules, old, in_place=in_place)
    with old.as_default():
        variables = tf1.global_variables() + tf1.local_variables()
        # Not initialized: the one local variable has no value, and is left without.
        init = tf1.variables_initializer(tf1.global_variables())
    before = len(patched.graph.get_operations())
    with tf1.Session(graph=old) as first, tf1.Session(graph=patched.graph) as second:
        first.run(init)
        copied = patched.restore(first, second)
        assert sorted(copied) == sorted(v.name for v in variables if v.name != "local:0")
        for variable in variables:
            if variable.name != "local:0":
                new = patched.variable(variable)
                assert same_bits(first.run(variable), second.run(new))
        with pytest.raises(tf.errors.FailedPreconditionError):
            second.run("local/Read/ReadVariableOp:0")
        with tf1.Session(graph=tf.Graph()) as foreign, pytest.raises(ValueError, match="Session"):
            patched.restore(foreign, second)
    assert len(patched.graph.get_operations()) == before


def test_variables_of_one_initial_value_keep_their_values_and_constraints() -> None:
    with tf.Graph().as_default() as graph:
        start = tf.constant(1.0)
        a, b = (
            tf1.get_variable(name, initializer=start, use_resource=True, constraint=tf.abs)
            for name in "ab"
        )
        tf.add(a, b, name="y")
    patched = graphpatch.patch_graph([filtered("y", {"scale": 2.0})], graph, in_place=False)
    assert patched.variable(a).constraint is tf.abs
    with tf1.Session(graph=graph) as first, tf1.Session(graph=patched.graph) as second:
        a.load(2.0, first)
        b.load(3.0, first)
        assert patched.restore(first, second) == ["a:0", "b:0"]
        assert second.run([patched.variable(a), patched.variable(b)]) == [2.0, 3.0]


@pytest.mark.parametrize("in_place", [False, True])
def test_updates_of_batch_norm_go_along_and_are_not_run(in_place: bool) -> None:
    """What `assign` of a resource variable returns passes for a variable, and assigns when read."""
    with tf.Graph().as_default() as graph:
        moving = tf1.get_variable("moving", initializer=1.0, trainable=False, use_resource=True)
        tf1.add_to_collection(Keys.UPDATE_OPS, tf1.assign(moving, moving * 0.5, name="update"))
        tf.identity(moving, name="y")
    patched = graphpatch.patch_graph([filtered("y", {"scale": 2.0})], graph, in_place=in_place)
    [update] = patched.graph.get_collection(Keys.UPDATE_OPS)
    assert update.graph is patched.graph
    assert update.name == "update"
    with tf1.Session(graph=graph) as first, tf1.Session(graph=patched.graph) as second:
        first.run(moving.initializer)
        assert patched.restore(first, second) == ["moving:0"]
        assert first.run(moving) == second.run(patched.variable(moving)) == 1.0
        with patched.graph.as_default():
            updates = tf.group(patched.graph.get_collection(Keys.UPDATE_OPS))
        second.run(updates)
        assert second.run(patched.variable(moving)) == second.run(update) * 2.0 == 0.5


def test_get_variable_finds_the_variables_and_scopes_go_on(old: Any, patched: Any) -> None:
    with patched.graph.as_default():
        with tf1.variable_scope("net/layer0", reuse=True):
            found = tf1.get_variable("w", use_resource=True)
        assert any(found is one for one in tf1.trainable_variables())
        with tf1.variable_scope("parts", reuse=True, partitioner=tf1.fixed_size_partitioner(2)):
            parts = list(tf1.get_variable("split", [4], use_resource=False))
        assert all(any(one is other for other in tf1.trainable_variables()) for one in parts)
        with tf1.variable_scope(None, "net") as scope:
            assert scope.name == "net_1"
    with old.as_default(), tf1.variable_scope(None, "net") as scope:
        assert scope.name == "net_1"


def gradient(graph: Any, of: str, wrt: str, feeds: Any) -> Any:
    return live.gradients(graph, of, [wrt], feeds)[0]


@pytest.mark.parametrize("v2", [False, True])
def test_loops_and_branches(v2: bool) -> None:
    with control_flow(v2):
        with tf.Graph().as_default() as graph:
            x = tf1.placeholder(tf.float32, [], name="x")
            body = lambda i, x: (i + 1, tf.identity(x * 2.0, name="halve"))  # noqa: E731
            looped = tf.while_loop(lambda i, _: i < 3, body, [0, x])[1]
            branched = tf.cond(x < 100.0, lambda: 3.0 * -x, lambda: x)
            tf.add(looped, branched, name="loss")
        assert gradient(graph, "loss:0", "x:0", {"x:0": 2.0}) == 8.0 - 3.0
        rules = [
            filtered({"name": "**halve*"}, {"scale": 0.5}),
            overridden({"op": "Neg"}, "identity"),
        ]
        patched = graphpatch.patch_graph(rules, graph, in_place=False)
        assert gradient(patched.graph, "loss:0", "x:0", {"x:0": 2.0}) == 1.0 + 3.0
        assert gradient(graph, "loss:0", "x:0", {"x:0": 2.0}) == 8.0 - 3.0
        again = graphpatch.patch_graph(rules, graph)
        assert again.in_place is not v2  # bodies are functions: what TensorFlow has is a copy
        assert gradient(again.graph, "loss:0", "x:0", {"x:0": 2.0}) == 1.0 + 3.0


def test_calls_of_tf_functions() -> None:
    """PartitionedCall: patched inside, and left alone, where Python has the gradient.

    A v1 loop in a function has no gradient in SymbolicGradient, and has one in Python.
    """
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [], name="x")
        looped = tf.function(
            lambda x: tf.while_loop(lambda i, _: i < 2, lambda i, x: (i + 1, 3.0 * x), [0, x])[1]
        )(x)
        called = tf.function(lambda x: -x)(x)
        tf.add(looped, called, name="loss")
    outside = graphpatch.patch_graph([filtered("loss", {"scale": 3.0})], graph, in_place=False)
    inside = graphpatch.patch_graph([overridden({"op": "Neg"}, "identity")], graph)
    assert not inside.in_place
    slopes = [
        gradient(one, "loss:0", "x:0", {"x:0": 1.0}) for one in (graph, outside.graph, inside.graph)
    ]
    assert slopes == [9.0 - 1.0, 3.0 * (9.0 - 1.0), 9.0 + 1.0]


def test_a_custom_gradient_that_uses_tensors_of_the_old_graph_is_named() -> None:
    @tf.custom_gradient
    def double(x: Any) -> Any:
        return 2.0 * x, lambda dy: dy * x

    with tf.Graph().as_default() as graph:
        tf.identity(double(tf1.placeholder(tf.float32, [], name="x")), name="loss")
    rule = filtered("loss", {"scale": 3.0})
    patched = graphpatch.patch_graph([rule], graph, in_place=False)
    assert any("tf.custom_gradient" in note for note in patched.report["notes"])
    with pytest.raises(ValueError, match="graph"):
        gradient(patched.graph, "loss:0", "x:0", {"x:0": 5.0})
    assert graphpatch.patch_graph([rule], graph).in_place
    assert gradient(graph, "loss:0", "x:0", {"x:0": 5.0}) == 15.0


TRAINED = [
    overridden({"op": "Relu", "name": "net/relu0"}, "guided_relu"),
    filtered({"op": "Relu", "name": "net/relu1"}, {"clip": {"min": -0.02, "max": 0.02}}),
    filtered("net/relu0", {"scale": 0.5}),
]


def graph_of(resource: bool) -> Any:
    with tf.Graph().as_default() as graph:
        live_nets.net(resource)
    return graph


def by_file(resource: bool, folder: Path) -> Any:
    with graph_of(resource).as_default():
        tf1.train.export_meta_graph(str(folder / "net.meta"))
    graphpatch.apply(TRAINED, folder / "net.meta").model.save(folder / "patched.meta")
    with tf.Graph().as_default() as graph:
        graphpatch.import_model(folder / "patched.meta")
        graph.seed = 7
    return graph


@pytest.mark.every(2)
@pytest.mark.parametrize("resource", [False, True])
def test_twenty_steps_are_the_same_bit_for_bit(resource: bool, tmp_path: Path) -> None:
    file = live_nets.train(by_file(resource, tmp_path), 20)
    new = graphpatch.patch_graph(TRAINED, graph_of(resource), in_place=False)
    same = graphpatch.patch_graph(TRAINED, graph_of(resource))
    with tf.Graph().as_default() as made, graphpatch.building(TRAINED):
        live_nets.net(resource)
    assert (new.in_place, same.in_place) == (False, True)
    for graph in (new.graph, same.graph, made):
        found = live_nets.train(graph, 20)
        assert len(found) == len(file) == 6
        assert all(map(same_bits, found, file))
    unpatched = live_nets.train(graph_of(resource), 20)
    assert not any(map(same_bits, unpatched[2:], file[2:]))

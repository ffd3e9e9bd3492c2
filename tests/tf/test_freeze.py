"""`freeze` and @freeze: what an optimizer of tf.train leaves as it is, slots and all.

Where a variable is left out of `var_list`, TensorFlow trains the others: that is the reference.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from graphpatch.errors import PatchError
from tests.draws import quick

tf = pytest.importorskip("tensorflow")

tf1 = tf.compat.v1

# fmt: off
OPTIMIZERS: dict[str, Any] = {
    "gradient descent": lambda t: t.GradientDescentOptimizer(0.1),
    "momentum": lambda t: t.MomentumOptimizer(0.1, 0.9),
    "nesterov": lambda t: t.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "adam": lambda t: t.AdamOptimizer(0.1),
    "adagrad": lambda t: t.AdagradOptimizer(0.1),
    "adagrad da": lambda t: t.AdagradDAOptimizer(
        0.1, t.get_or_create_global_step(), initial_gradient_squared_accumulator_value=0.1),
    "adadelta": lambda t: t.AdadeltaOptimizer(1.0),
    "ftrl": lambda t: t.FtrlOptimizer(0.1),
    "rmsprop": lambda t: t.RMSPropOptimizer(0.1, momentum=0.9),
    "centered rmsprop": lambda t: t.RMSPropOptimizer(0.1, centered=True),
    "proximal gradient descent": lambda t: t.ProximalGradientDescentOptimizer(0.1),
    "proximal adagrad": lambda t: t.ProximalAdagradOptimizer(0.1),
}
# fmt: on
FED = {"ids:0": [0, 2, 2], "label:0": [[1.0], [2.0], [-1.0]]}


def training(optimizer: Any, is_resource: bool, trained: str = "") -> Any:
    """A net of an embedding and two layers, trained as a whole or as far as names begin so."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(3)
        ids = tf1.placeholder(tf.int32, [None], name="ids")
        label = tf1.placeholder(tf.float32, [None, 1], name="label")
        draw = np.random.default_rng(3)
        with tf1.variable_scope("", use_resource=is_resource):
            table, hidden, out = (
                tf1.get_variable(name, initializer=draw.normal(size=size).astype(np.float32))
                for name, size in (("FC1/table", (4, 3)), ("FC1/w", (3, 3)), ("FC2/w", (3, 1)))
            )
        x = tf.tanh(tf.matmul(tf.gather(table, ids), hidden))
        loss = tf.reduce_mean(tf.square(tf.matmul(x, out) - label), name="loss")
        chosen = [v for v in (table, hidden, out) if v.name.startswith(trained)]
        step = tf1.train.get_or_create_global_step()
        optimizer(tf1.train).minimize(loss, var_list=chosen, global_step=step, name="train")
        tf1.global_variables_initializer()
        tf1.train.Saver()
    return graph


def trained(graph: Any, steps: int = 4, begin: dict[str, Any] | None = None) -> dict[str, Any]:
    """The values of all variables after so many steps, from these values on."""
    with graph.as_default(), tf1.Session() as session:
        session.run(graph.get_operation_by_name("init"))
        known = {variable.name: variable for variable in tf1.global_variables()}
        for name, value in (begin or {}).items():
            known[name].load(value, session)
        for _ in range(steps):
            session.run("train", FED)
        return dict(session.run(known))


@pytest.mark.parametrize("is_resource", [False, True], ids=["ref", "resource"])
@pytest.mark.parametrize("name", quick(OPTIMIZERS, lambda name: name == "adam"))
def test_23684_what_is_frozen_stays_and_the_rest_trains_as_without_it(
    name: str, is_resource: bool, tmp_path: Path
) -> None:
    # 23684, handson-ml 283, caffe2 1744, tensorpack 1204: the model is there as a .meta alone.
    graph, frozen = training(OPTIMIZERS[name], is_resource), tf.Graph()
    with graph.as_default():
        tf1.train.export_meta_graph(str(tmp_path / "model.meta"))
    result = graphpatch.apply("@freeze(scope=FC1)", tmp_path / "model.meta")
    with frozen.as_default():
        tf1.train.import_meta_graph(result.meta_graph_def())
    begin = trained(graph)  # slots are not zero any more
    found = trained(frozen, begin=begin)
    alone = training(OPTIMIZERS[name], is_resource, trained="FC2")
    shared = {variable.name for variable in alone.get_collection("variables")}
    expected = trained(alone, begin={key: begin[key] for key in shared})
    for key, value in found.items():
        wanted = expected if key in shared else begin
        np.testing.assert_array_equal(value, wanted[key], err_msg=key)
    moved = {key for key in found if not np.array_equal(found[key], begin[key])}
    assert "FC2/w:0" in moved
    assert not any(key.startswith("FC1/") for key in moved)
    assert result.report["rules"][0]["emit"] == "update"
    [note] = [note for note in result.report["notes"] if note.startswith("frozen: ")]
    assert note.startswith("frozen: 2 variables (FC1/table, FC1/w): no longer changed by train/up")
    graphpatch.revert(result).model.save(tmp_path / "again.meta")
    assert (tmp_path / "again.meta").read_bytes() == (tmp_path / "model.meta").read_bytes()


def test_a_live_graph_with_its_optimizer_is_patched_as_a_copy() -> None:
    graph = training(OPTIMIZERS["adam"], True)
    patched = graphpatch.patch_graph("@freeze(scope=FC1)", graph, in_place=False)
    with pytest.raises(PatchError, match="an optimizer changes"):
        graphpatch.patch_graph("@freeze(scope=FC1)", graph, in_place=True)
    begin = trained(graph)
    found = trained(patched.graph, begin=begin)
    same = {key for key in found if np.array_equal(found[key], begin[key])}
    assert {key for key in begin if key.startswith("FC1/")} <= same
    assert not {"FC2/w:0", "FC2/w/Adam:0"} & same


def test_without_an_optimizer_the_gradient_stops_and_the_report_says_so() -> None:
    with tf.Graph().as_default() as graph:
        w = tf1.get_variable("FC1/w", initializer=[2.0, 3.0], use_resource=False)
        tf1.get_variable("FC1/on", initializer=True, use_resource=False)  # no gradient comes to it
        tf.square(w, name="y")
    result = graphpatch.apply("@freeze(scope=FC1)", graph)
    note, _ = result.report["notes"]
    assert note == "no optimizer changes 1 variable (FC1/w): the gradient stops at FC1/w/read"
    assert graphpatch.patch_graph("@freeze(scope=FC1)", graph, in_place=True).ok
    with graph.as_default():
        assert tf1.gradients(graph.get_tensor_by_name("y:0"), [w]) == [None]


@pytest.mark.parametrize("read", [tf.gather, tf.gather_nd])
def test_rows_of_a_resource_variable_that_a_saver_restores(read: Any) -> None:
    with tf.Graph().as_default() as graph:
        w = tf1.get_variable("FC1/w", initializer=[[2.0], [3.0]], use_resource=True)
        tf.square(read(w, [0]), name="y")
        tf1.train.Saver()
    notes = graphpatch.apply("@freeze(scope=FC1)", graph).report["notes"]
    assert not [note for note in notes if note.startswith("not frozen")]
    assert graphpatch.patch_graph("@freeze(scope=FC1)", graph, in_place=True).ok
    with graph.as_default():
        assert tf1.gradients(graph.get_tensor_by_name("y:0"), [w.handle]) == [None]


def test_what_the_program_itself_assigns_is_said_not_to_be_frozen() -> None:
    """The averages of a batch norm, which the forward pass updates."""
    with tf.Graph().as_default() as graph:
        mean = tf1.get_variable("FC1/mean", initializer=[2.0], use_resource=False)
        tf1.assign(mean, 0.9 * mean, name="average")
        tf1.train.Saver()
    notes = graphpatch.apply("@freeze(scope=FC1)", graph).report["notes"]
    [note] = [note for note in notes if note.startswith("not frozen")]
    assert note.startswith("not frozen: VariableV2 'FC1/mean', which average still changes")


def test_what_reads_no_variable_is_refused_and_slots_alone_are_told() -> None:
    graph = training(OPTIMIZERS["adam"], False)
    rule = {"match": {"op": "Tanh"}, "patch": {"freeze": True}}
    with pytest.raises(PatchError, match="reads no variable"):
        graphpatch.apply([rule], graph)
    slots = graphpatch.apply("@freeze(scope=FC1/w/Adam)", graph).report["notes"]
    assert any("changes nothing: an optimizer's memory is frozen with" in note for note in slots)
    once = graphpatch.apply("@freeze(scope=FC1)", graph)
    assert graphpatch.verify(graph, once).ok

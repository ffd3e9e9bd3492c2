"""`verify` of ops that count as another tensor, where a function carries that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from graphpatch.analysis.soundness.static import static_check
from graphpatch.graph.graph import Graph
from graphpatch.runtime.graph_run import run_op_by_op
from graphpatch.runtime.verify.formulas import check_formulas
from graphpatch.runtime.verify.forward import compare_on_values
from graphpatch.runtime.verify.side_graph import GraphSide
from tests.tf.consumer import save
from tests.tf.test_verify_joined import CLEAN, SURROGATE, WHOLE, net
from tests.tf.verify_graphs import edited

tf = pytest.importorskip("tensorflow")

STRAIGHT = {
    "match": {"pattern": "a:_ -> h:Mul:0 -> t:Tanh"},
    "patch": {"straight_through": {"input": 0}, "on": "match"},
}
RULES = [{**rule, "emit": "function"} for rule in (SURROGATE, WHOLE, CLEAN)]


def called() -> None:
    """The same ops in a function that a Session differentiates as a whole."""

    def inner(x: Any, w: Any) -> Any:
        y = tf.multiply(tf.floor(x, "floor"), w, "prod")
        y = tf.add(y, tf.sign(x, "sign"), "sum")
        y = tf.add(y, tf.exp(w), "noisy")
        return tf.tanh(tf.multiply(y, 0.5, "half"), "t")

    x = tf.compat.v1.placeholder(tf.float32, [2, 3], "x")
    w = tf.compat.v1.placeholder(tf.float32, [2, 3], "w")
    tf.exp(tf.function(inner)(x, w), "y")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("joined")
    for name, build, rules in (("main", net, RULES), ("called", called, [SURROGATE, CLEAN])):
        save(build, found / f"{name}.pb")
        result = graphpatch.apply(rules, found / f"{name}.pb")
        assert {rule["emit"] for rule in result.report["rules"]} == {"function"}
        result.model.save(found / f"{name}.patched.pb")
    return found


def test_they_are_compared(folder: Path) -> None:
    found = graphpatch.verify(folder / "main.pb", folder / "main.patched.pb")
    assert (found.verdict, found.failures, found.not_compared) == ("verified", [], [])
    [graph] = found.document()["graphs"]
    by = {(one["formula"], one["compared_with"]) for one in graph["formulas"]}
    assert ("surrogate_gradient tanh(4 * x)", "TensorFlow") in by
    assert ("surrogate_gradient tanh(4 * x), what its function passes on", "numpy") in by
    assert all(one["max_error"] <= one["tolerance"] for one in graph["formulas"])


def test_they_are_compared_in_functions(folder: Path) -> None:
    found = check_formulas(graphpatch.load(folder / "called.patched.pb").graphs[0], None)
    assert {(one.why, one.is_wrong) for one in found} == {("", False)}
    kinds = {one.label.partition(",")[2] for one in found if one.label.startswith("surr")}
    assert kinds == {"", " what its function passes on"}
    assert [one for one in found if one.label.endswith("where no gradient comes to the op")]


def test_functions_run_op_by_op(folder: Path) -> None:
    """A PartitionedCall has Grappler add in another order, whatever the Session says."""
    models = [graphpatch.load(folder / f"called{suffix}.pb") for suffix in ("", ".patched")]
    sides = [GraphSide(model, model.graphs[0], model) for model in models]
    for values in np.random.default_rng(0).standard_normal((30, 2, 2, 3)).astype(np.float32):
        for side in sides:
            side.feed({"x:0": values[0], "w:0": values[1]})
        found = compare_on_values("random", *sides, ["y:0"])
        assert (found.compared, found.differing) == (["y:0"], {})


def test_the_other_settings_of_a_call_stay(folder: Path) -> None:
    graph_def = tf.compat.v1.GraphDef.FromString((folder / "called.pb").read_bytes())
    [call] = [node for node in graph_def.node if node.op == "PartitionedCall"]
    graph_def.library.function[0].node_def.add(name="nested", op="StatefulPartitionedCall")
    call.attr["config"].s = b"of TensorFlow 1.13"
    before = tf.compat.v1.ConfigProto.FromString(call.attr["config_proto"].s)
    assert before.device_count
    assert run_op_by_op(graph_def)
    nested = graph_def.library.function[0].node_def[-1]
    for node, devices in ((call, before.device_count), (nested, {})):
        config = tf.compat.v1.ConfigProto.FromString(node.attr["config_proto"].s)
        assert config.graph_options.rewrite_options.disable_meta_optimizer
        assert (config.device_count, node.attr["config"].s) == (devices, b"")


def test_nothing_is_put_behind_constants_of_functions(folder: Path) -> None:
    """No gradient comes there, so that `verify` would tell of an override that never fires."""
    graph = graphpatch.load(folder / "called.patched.pb").graphs[0]
    body = next(one for one in graph.bodies if "half" in one.by_name)
    read = [body.producer(node.inputs[0]) for node in body if "graphpatch_zero" in node.op]
    assert read
    assert "Const" not in {one.op for one in read if one is not None}


def test_a_match_as_the_identity_of_its_input_is_compared(folder: Path) -> None:
    """Also where its ops have several inputs: as a construction."""
    result = graphpatch.apply([STRAIGHT], folder / "main.pb")
    result.model.save(folder / "straight.pb")
    found = graphpatch.verify(folder / "main.pb", folder / "straight.pb")
    assert (found.verdict, found.failures, found.not_compared) == ("verified", [], [])


def other_constant(graph: Any, nodes: Any) -> None:
    [const] = [n for n in nodes.values() if n.op == "Const" and n.name.startswith("sign/surrogate")]
    const.attr["value"].tensor.float_val[:] = [3.0]
    const.attr["value"].tensor.tensor_content = b""


def other_tensor(graph: Any, nodes: Any) -> None:
    """The function passes the gradient to the op's input, not to the formula of it."""
    nodes["sign/guard"].input[0] = nodes["sign/forward"].input[0]


def other_function(graph: Any, nodes: Any) -> None:
    """The gradient function gives twice what comes."""
    name = next(
        one.gradient_func for one in graph.library.gradient if one.function_name == nodes["sign"].op
    )
    [function] = [one for one in graph.library.function if one.signature.name == name]
    twice = function.node_def.add(name="twice", op="AddV2", input=[function.ret["dx0"]] * 2)
    twice.attr["T"].type = 1
    function.ret["dx0"] = "twice:z:0"


def other_clone(graph: Any, nodes: Any) -> None:
    nodes["t/clean"].op = "Sigmoid"


def noisy(graph: Any, nodes: Any) -> None:
    nodes["half/clean"].input[0] = "noisy"


def passed_by(graph: Any, nodes: Any) -> None:
    """The gradient goes to a tensor of that shape, and to no clone."""
    nodes["t/guard"].input[0] = "max"


def live(graph: Any, nodes: Any) -> None:
    nodes["t/stop"].op = "Identity"


WRONG = {
    "another constant of a surrogate": (other_constant, "'sign'"),
    "the op's input instead of the surrogate": (other_tensor, "'sign'"),
    "another gradient function": (other_function, "'sign'"),
    "another op as clone": (other_clone, "Sigmoid 't/clean', which is not like Tanh"),
    "a clone reads noise": (noisy, "leaves out no noisy op"),
    "no clone gets the gradient": (passed_by, "instead of a clone of"),
    "no StopGradient before a clean tensor": (live, "is not known"),
}


@pytest.mark.parametrize("change", WRONG)
def test_wrong_ones_are_found(change: str, folder: Path) -> None:
    edit, says = WRONG[change]
    path = folder / "changed.pb"
    path.write_bytes((folder / "main.patched.pb").read_bytes())
    graph: Graph = graphpatch.load(edited(path, edit)).graphs[0]
    faults = [
        fault.says
        for fault in static_check(graphpatch.load(folder / "main.pb").graphs[0], graph).faults
    ]
    wrong = [one.example for one in check_formulas(graph, None) if one.is_wrong]
    assert any(says in one for one in (*faults, *wrong)), (faults, wrong)

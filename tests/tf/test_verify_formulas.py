"""`verify` compares what a file stores with what its rules say: keys, constructions, functions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzzing import altered

import graphpatch
from graphpatch.runtime.values import same_bits
from graphpatch.runtime.verify.formulas import INSIDE, FormulaCheck
from graphpatch.runtime.verify.session import SessionModel
from tests.tf.consumer import save
from tests.tf.verify_graphs import edited

tf = pytest.importorskip("tensorflow")

Edit = Callable[[Any, Any], None]

OP = {"match": {"op": "Relu"}, "patch": {"override_gradient": {"formula": "dy * sigmoid(x) * y"}}}
FILTER = {"match": {"op": "Tanh"}, "patch": {"filter_gradient": {"scale": 0.5}}}
TWICE = {"match": {"op": "Square"}, "patch": {"override_gradient": {"formula": "dy * x"}}}
SAME = {"match": {"name": "same"}, "patch": {"override_gradient": {"formula": ["dy * x1", "dy"]}}}
PRODUCT = ["sum_like(dy * x1, x0)", "-sum_like(dy * x0, x1)"]
AS_ONE = {
    "match": {"pattern": "x:_ -> s:Sigmoid -> m:Mul; w:_ -> m"},
    "patch": {"override_gradient": {"formula": PRODUCT}, "on": "match"},
}
MATMUL = {
    "match": {"op": "MatMul"},
    "patch": {"override_gradient": "matmul"},
    "emit": "construction",
}
SURROGATE = {"match": {"op": "Sign"}, "patch": {"surrogate_gradient": "tanh(4 * x)"}}
WHOLE = {
    "match": {"pattern": "x:_ -> floor:Floor -> m:Mul; w:_ -> m"},
    "patch": {"surrogate_gradient": "x0 * exp(x1)", "on": "match"},
}
SMALLER = {"match": {"op": "Maximum"}, "patch": {"straight_through": {"input": 1}}}
CLEAN = {"match": {"name": "noisy"}, "patch": {"backward_as": {"input": 0, "until": "t"}}}
GUIDED = {
    "match": {"pattern": "Neg -> y:Exp"},
    "patch": {"override_gradient": {"formula": "where(dy > 0, -dy * y, 0)"}, "on": "match"},
}
JOINED = [SURROGATE, WHOLE, SMALLER, CLEAN]


def products() -> None:
    x = tf.compat.v1.placeholder(tf.float32, [2, 4], "x")
    w = tf.constant([[0.5, -1.0, 2.0, 1.0]] * 2, name="w")
    y = tf.multiply(tf.sigmoid(tf.nn.relu(x, "relu")), w, "product")
    y = tf.nn.relu(tf.matmul(tf.square(tf.tanh(y)), tf.ones([4, 4]) / 3), "relu_1")
    tf.identity(tf.multiply(y, y, "same"), "y")


def noisy() -> None:
    """x -> floor * w + sign -> z, and maximum, of a row -> noise -> two ops -> y."""
    tf1 = tf.compat.v1
    x, row = tf1.placeholder(tf.float32, [2, 3], "x"), tf1.placeholder(tf.float32, [3], "row")
    y = tf.multiply(tf.floor(x * 3.0, "floor"), tf.constant([0.5, -1.0, 2.0], name="w"), "prod")
    y = tf.add(y, tf.sign(x, "sign"), "sum")
    tf.negative(y, "z")
    y = tf.maximum(y, row, "max")
    y = tf.add(y, tf.random.normal([2, 3], name="noise"), "noisy")
    tf.exp(-tf.tanh(tf.multiply(y, 0.5, "half"), "t"), "y")


def called() -> None:
    """Ops in a function that a Session differentiates as a whole."""

    def inner(x: Any, w: Any) -> Any:
        y = tf.multiply(tf.floor(x, "floor"), w, "prod")
        y = tf.add(y, tf.sign(x, "sign"), "sum")
        y = tf.add(y, tf.exp(w), "noisy")
        return tf.tanh(tf.multiply(y, 0.5, "half"), "t")

    x = tf.compat.v1.placeholder(tf.float32, [2, 3], "x")
    w = tf.compat.v1.placeholder(tf.float32, [2, 3], "w")
    tf.exp(tf.function(inner)(x, w), "y")


NETS = {"products": products, "noisy": noisy, "called": called}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("formulas")
    for name, net in NETS.items():
        save(net, found / f"{name}.pb")
    return found


def patched(folder: Path, name: str, *rules: Any, emit: str) -> Path:
    result = graphpatch.apply(list(rules), folder / f"{name}.pb")
    assert {rule["emit"] for rule in result.report["rules"]} == {emit}
    result.model.save(folder / "patched.pb")
    return folder / "patched.pb"


def checked(path: Path) -> dict[str, FormulaCheck]:
    """What is compared in the process of a model, by the example."""
    model = graphpatch.load(path)
    side = SessionModel(model, model.graphs[0])
    side.choose(side.results, {})
    return {check.example: check for check in side.formulas()}


def functions(*rules: Any) -> list[Any]:
    return [{**rule, "emit": "function"} for rule in rules]


STORED: dict[str, tuple[str, list[Any], str, int]] = {
    "constructions": ("products", [OP, FILTER, TWICE, SAME, AS_ONE, MATMUL], "construction", 7),
    "joins": ("noisy", JOINED, "construction", 4),
    "functions": ("noisy", functions(SURROGATE, WHOLE, CLEAN, GUIDED), "function", 4),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("kind", STORED)
def test_what_is_stored_is_compared(folder: Path, kind: str) -> None:
    name, rules, emit, count = STORED[kind]
    path = patched(folder, name, *rules, emit=emit)
    found = graphpatch.verify(folder / f"{name}.pb", path)
    assert (found.verdict, found.failures, found.not_compared) == ("verified", [], [])
    [graph] = found.document()["graphs"]
    assert sum(one["ops"] for one in graph["formulas"]) == count
    assert all(one["max_error"] <= one["tolerance"] == 2e-5 for one in graph["formulas"])
    by = {one["formula"].partition(" ")[0]: one["compared_with"] for one in graph["formulas"]}
    assert by.get("surrogate_gradient", "TensorFlow") == "TensorFlow"
    assert by.get("straight_through", "numpy") == by.get("backward_as", "numpy") == "numpy"


def test_formulas_in_functions_are_what_the_rules_write(folder: Path) -> None:
    """No value can be seen there, so only applying the rules again says that they are right."""
    path = patched(folder, "called", SURROGATE, CLEAN, emit="function")
    found = graphpatch.verify(folder / "called.pb", path)
    assert (found.verdict, found.not_compared) == ("verified", [])
    assert {check.not_compared for check in checked(path).values()} == {INSIDE}
    edited(path, other_function)
    assert graphpatch.verify(folder / "called.pb", path, run=False).verdict == "differs"


@pytest.mark.parametrize("emit", ["function", "attr"])
@pytest.mark.parametrize("op", ["Selu", "Elu"])
def test_a_gradient_that_reads_x_and_y_gets_y_of_x(tmp_path: Path, op: str, emit: str) -> None:
    """TensorFlow's own gradient of these reads y alone, numpy's form of it x."""

    def build() -> None:
        x = tf.compat.v1.placeholder(tf.float32, [3, 4], "x")
        tf.exp(getattr(tf.raw_ops, op)(features=x, name="a"), "y")

    path = save(build, tmp_path / "model.pb")
    rule = {"match": {"op": op}, "patch": {"override_gradient": {"formula": "own(dy)"}}}
    graphpatch.apply([{**rule, "emit": emit}], path).model.save(tmp_path / "patched.pb")
    [one] = checked(tmp_path / "patched.pb").values()
    assert (one.not_compared, one.failure) == ("", "")


WINDOWS = {
    "Conv2D": {"override_gradient": "lrp_zplus"},
    "AvgPool": {"override_gradient": "lrp_zplus_pool"},
    "Relu": {"filter_gradient": {"gradient_noise": {"stddev": 0.5, "seed": 3}}},
}


def test_what_numpy_does_not_compute_is_asked_of_tensorflow(tmp_path: Path) -> None:
    def build() -> None:
        x = tf.compat.v1.placeholder(tf.float32, [2, 4, 4, 1], "x")
        y = tf.nn.relu(tf.nn.conv2d(x, tf.ones([2, 2, 1, 3]) / 3, 1, "SAME"), "relu")
        tf.nn.avg_pool2d(y, 2, 2, "VALID", name="y")

    path = save(build, tmp_path / "model.pb")
    rules = [{"match": {"op": op}, "patch": patch} for op, patch in WINDOWS.items()]
    graphpatch.apply(rules, path).model.save(tmp_path / "patched.pb")
    verified = graphpatch.verify(path, tmp_path / "patched.pb")
    assert (verified.verdict, verified.failures) == ("verified", [])
    compared = checked(tmp_path / "patched.pb").values()
    assert {(one.compared_with, one.not_compared) for one in compared} == {("TensorFlow", "")}
    assert len(compared) == len(WINDOWS)
    wrong = checked(edited(tmp_path / "patched.pb", other_function)).values()
    assert any(one.failure for one in wrong)


def test_an_input_may_be_named_as_the_pattern_does(folder: Path) -> None:
    straight = {
        "match": {"pattern": "a:_ -> h:Mul:0 -> t:Tanh"},
        "patch": {"straight_through": {"input": "a"}, "on": "match"},
    }
    path = patched(folder, "noisy", straight, emit="construction")
    [one] = checked(path).values()
    assert one.formula == "straight_through input a on match"
    assert (one.not_compared, one.failure) == ("", "")


def sign(graph: Any, nodes: Any) -> None:
    """Another sign, at the second of two ops that are patched alike."""
    product = nodes[nodes["relu_1"].input[2]]
    negated(graph, product, product, 0)


def negated(graph: Any, like: Any, node: Any, slot: int) -> None:
    """Put a Neg before an input, among the ops of a rule."""
    flip = graph.node.add(name=f"{node.name}/flip", op="Neg", input=[node.input[slot]])
    flip.attr["T"].type = 1
    flip.attr["_graphpatch"].CopyFrom(like.attr["_graphpatch"])
    node.input[slot] = flip.name


def constant(prefix: str) -> Edit:
    """A constant, changed."""

    def edit(graph: Any, nodes: Any) -> None:
        [const] = [n for n in nodes.values() if n.op == "Const" and n.name.startswith(prefix)]
        const.attr["value"].tensor.float_val[:] = [0.25]
        const.attr["value"].tensor.tensor_content = b""

    return edit


def swapped(graph: Any, nodes: Any) -> None:
    """The two inputs of a match that counts as one op, exchanged."""
    for node in graph.node:
        if node.name.startswith("product/backward/"):
            other = {"relu": "w", "w": "relu"}
            node.input[:] = [other.get(text, text) for text in node.input]


def other_input(graph: Any, nodes: Any) -> None:
    """The gradient goes to the op's other input, which has its shape."""
    nodes["max"].input[2] = nodes["max/forward"].input[0]


def other_function(graph: Any, nodes: Any) -> None:
    """The gradient functions give twice what comes."""
    names = {one.gradient_func for one in graph.library.gradient}
    for function in graph.library.function:
        if function.signature.name in names and function.ret.get("dx0"):
            twice = function.node_def.add(name="twice", op="AddV2", input=[function.ret["dx0"]] * 2)
            twice.attr["T"].type = 1
            function.ret["dx0"] = "twice:z:0"


WRONG: dict[str, tuple[str, Edit, str]] = {
    "sign": ("constructions", sign, "relu_1"),
    "inputs of a match": ("constructions", swapped, "product"),
    "straight through to another input": ("joins", other_input, "max"),
    "constant, function": ("functions", constant("sign/surrogate"), "sign"),
    "another gradient function": ("functions", other_function, "sign"),
}


@pytest.mark.every(2)
@pytest.mark.parametrize("change", WRONG)
def test_what_differs_from_the_rule_is_found(folder: Path, change: str) -> None:
    kind, edit, op = WRONG[change]
    name, rules, emit, _ = STORED[kind]
    path = patched(folder, name, *rules, emit=emit)
    before = checked(path)
    found = checked(edited(path, edit))
    assert not any(one.failure or one.not_compared for one in before.values())
    wrong = [example for example, one in found.items() if one.failure or one.not_compared]
    assert any(example.endswith(f" '{op}'") for example in wrong)


@pytest.mark.parametrize("count", [12, pytest.param(1000, marks=pytest.mark.slow)])
def test_an_altered_file_that_computes_otherwise_is_noticed(folder: Path, count: int) -> None:
    """Files with one node or byte altered."""
    rules = [OP, FILTER, *functions(TWICE), SAME, AS_ONE]
    counts = altered.trials((folder / "products.pb").read_bytes(), rules, seed=count, count=count)
    assert counts["changed"] > count / 4
    assert counts["missed"] == 0


def test_functions_run_op_by_op(folder: Path) -> None:
    """A PartitionedCall has Grappler add in another order, whatever the Session says."""
    patched(folder, "called", SURROGATE, CLEAN, emit="function")
    models = [graphpatch.load(folder / f"{name}.pb") for name in ("called", "patched")]
    sides = [SessionModel(model, model.graphs[0]) for model in models]
    for values in np.random.default_rng(0).standard_normal((30, 2, 2, 3)).astype(np.float32):
        for side in sides:
            side.feeds = {"x:0": values[0], "w:0": values[1]}
        before, after = (side.run(["y:0"], optimise=False)[0]["y:0"] for side in sides)
        assert same_bits(before, after)

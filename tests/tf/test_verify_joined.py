"""`verify` of ops that count as another tensor: surrogate, straight_through, backward_as."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import graphpatch
from graphpatch.analysis.soundness.static import static_check
from graphpatch.graph.graph import Graph
from graphpatch.runtime.verify.formulas import check_formulas
from tests.tf.consumer import save
from tests.tf.verify_graphs import edited

tf = pytest.importorskip("tensorflow")

SURROGATE = {"match": {"op": "Sign"}, "patch": {"surrogate_gradient": "tanh(4 * x)"}}
WHOLE = {
    "match": {"pattern": "x:_ -> floor:Floor -> m:Mul; w:_ -> m"},
    "patch": {"surrogate_gradient": "x0 * exp(x1)", "on": "match"},
}
SMALLER = {"match": {"op": "Maximum"}, "patch": {"straight_through": {"input": 1}}}
CLEAN = {"match": {"name": "noisy"}, "patch": {"backward_as": {"input": 0, "until": "t"}}}
RULES = [SURROGATE, WHOLE, SMALLER, CLEAN]


def net() -> None:
    """x -> floor * w + sign -> z, and maximum, of a row -> noise -> two ops -> y."""
    tf1 = tf.compat.v1
    x, row = tf1.placeholder(tf.float32, [2, 3], "x"), tf1.placeholder(tf.float32, [3], "row")
    y = tf.multiply(tf.floor(x * 3.0, "floor"), tf.constant([0.5, -1.0, 2.0], name="w"), "prod")
    y = tf.add(y, tf.sign(x, "sign"), "sum")
    tf.negative(y, "z")
    y = tf.maximum(y, row, "max")
    y = tf.add(y, tf.random.normal([2, 3], name="noise"), "noisy")
    tf.exp(-tf.tanh(tf.multiply(y, 0.5, "half"), "t"), "y")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("joined")
    save(net, found / "model.pb")
    result = graphpatch.apply(RULES, found / "model.pb")
    assert {rule["emit"] for rule in result.report["rules"]} == {"construction"}
    result.model.save(found / "patched.pb")
    return found


def changed(folder: Path, edit: Callable[[Any, Any], None]) -> Graph:
    """The patched graph as somebody changed it."""
    path = folder / "changed.pb"
    path.write_bytes((folder / "patched.pb").read_bytes())
    return graphpatch.load(edited(path, edit)).graphs[0]


def test_they_are_compared(folder: Path) -> None:
    found = graphpatch.verify(folder / "model.pb", folder / "patched.pb")
    assert (found.verdict, found.failures, found.not_compared) == ("verified", [], [])
    [graph] = found.document()["graphs"]
    formulas = {one["example"]: one for one in graph["formulas"]}
    by = {name: one["compared_with"] for name, one in formulas.items()}
    assert by == {
        "Select 'sign'": "TensorFlow",
        "Select 'prod'": "TensorFlow",
        "Select 'max'": "numpy",
        "Select 't'": "numpy",
    }
    assert all(one["max_error"] <= one["tolerance"] == 2e-5 for one in formulas.values())


def typed(graph: Any, like: Any, name: str, op: str, *inputs: str) -> Any:
    """An op of floats that somebody puts among those of a rule."""
    node = graph.node.add(name=name, op=op, input=inputs)
    node.attr["T"].type = 1
    node.attr["_graphpatch"].CopyFrom(like.attr["_graphpatch"])
    return node


def negated(name: str) -> Callable[[Any, Any], None]:
    def edit(graph: Any, nodes: Any) -> None:
        select = nodes[name]
        select.input[2] = typed(graph, nodes["t/clean"], "flip", "Neg", select.input[2]).name

    return edit


def scaled(graph: Any, nodes: Any) -> None:
    """A constant of the formula, changed."""
    [const] = [n for n in nodes.values() if n.op == "Const" and n.name.startswith("sign/surrogate")]
    const.attr["value"].tensor.float_val[:] = [3.0]
    const.attr["value"].tensor.tensor_content = b""


def other_input(graph: Any, nodes: Any) -> None:
    """The gradient goes to the op's other input, which has its shape."""
    nodes["max"].input[2] = nodes["max/forward"].input[0]


def live(name: str) -> Callable[[Any, Any], None]:
    def edit(graph: Any, nodes: Any) -> None:
        nodes[f"{name}/stop"].op = "Identity"

    return edit


def other_clone(graph: Any, nodes: Any) -> None:
    nodes["t/clean"].op = "Sigmoid"


def noisy_clone(graph: Any, nodes: Any) -> None:
    nodes["half/clean"].input[0] = "noisy"


def left_out(graph: Any, nodes: Any) -> None:
    """An op between is left out as if it were noise."""
    nodes["t/clean"].input[0] = nodes["half/clean"].input[0]


def shared(graph: Any, nodes: Any) -> None:
    nodes["t/clean"].input[0] = "half"


WRONG = {
    "a surrogate of another sign": (negated("sign"), "Select 'sign'"),
    "a match of another sign": (negated("prod"), "Select 'prod'"),
    "another constant": (scaled, "Select 'sign'"),
    "straight through, negated": (negated("max"), "Select 'max'"),
    "straight through to another input": (other_input, "Select 'max'"),
    "no StopGradient": (live("sign"), "a StopGradient reads"),
    "no StopGradient before a clean tensor": (live("t"), "a StopGradient reads"),
    "backward_as, negated": (negated("t"), "computed by Neg 'flip', which is not like Tanh"),
    "another op as clone": (other_clone, "Sigmoid 't/clean', which is not like Tanh"),
    "a clone reads noise": (noisy_clone, "leaves out no noisy op"),
    "no clone of an op": (left_out, "instead of a clone of Mul 'half'"),
    "an op with a clone is read": (shared, "reads half, which is noisy"),
}


@pytest.mark.parametrize("change", WRONG)
def test_wrong_ones_are_found(change: str, folder: Path) -> None:
    edit, says = WRONG[change]
    model, graph = graphpatch.load(folder / "model.pb").graphs[0], changed(folder, edit)
    faults = [fault.says for fault in static_check(model, graph).faults]
    checked = check_formulas(graph, None)
    wrong = [one.example for one in checked if one.is_wrong]
    [found] = [*faults, *wrong, *(one.why for one in checked if one.why)]
    assert says in found


def test_verify_tells_of_wrong_ones(folder: Path) -> None:
    def edit(graph: Any, nodes: Any) -> None:
        scaled(graph, nodes)
        other_input(graph, nodes)
        other_clone(graph, nodes)
        live("prod")(graph, nodes)

    changed(folder, edit)
    found = graphpatch.verify(folder / "model.pb", folder / "changed.pb")
    assert found.verdict == "differs"
    [clone, *apart] = sorted(found.failures)
    assert clone.startswith("Select 't': the tensor that it counts as on the way back is computed")
    assert [one.partition(" differ by")[0] for one in apart] == [
        "formula straight_through input 1, at Select 'max': TensorFlow and numpy",
        "formula surrogate_gradient tanh(4 * x), at Select 'sign': the file and the rule's "
        "formula, as TensorFlow computes it,",
    ]
    assert [one for one in found.not_compared if "Select 'prod': its Select does not" in one]
